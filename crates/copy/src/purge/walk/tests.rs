//! Tests of single steps of the walk, between which a hostile user or another program changes the
//! tree.

use super::*;
use crate::purge::pass::Begin;
use crate::purge::tests::all;
use crate::purge::{IsWritten, Options, Records};
use skep_types::Timestamp;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use tempfile::TempDir;

/// The directory that is purged, and a directory that must not change.
struct Site {
    directory: TempDir,
}

impl Site {
    fn new() -> Self {
        let site = Self { directory: TempDir::new().unwrap() };
        for path in ["tree/victim", "outside"] {
            fs::create_dir_all(site.path(path)).unwrap();
            fs::write(site.path(path).join("file"), "x").unwrap();
        }
        site
    }

    fn path(&self, path: &str) -> PathBuf {
        self.directory.path().canonicalize().unwrap().join(path)
    }

    /// Returns a pass that removes all files, and its first units of work.
    fn begin(&self, options: &Options) -> (Arc<Pass>, Vec<Work>) {
        let top = File::open(self.path("tree")).unwrap();
        let device = EntryAttributes::of_file(&top).ok().flatten().unwrap().device;
        let now = Timestamp { seconds: i64::MAX / 2, nanoseconds: 0 };
        let begin = Begin { top: self.path("tree"), device, now, cutoff: now };
        let records = Arc::new(Records::default());
        let pass = Arc::new(Pass::new(&begin, options, Action::Remove, None, &records));
        let work = Work::begin(&pass, top).map_err(|failure| failure.error).unwrap();
        (pass, work)
    }

    /// Replaces `tree/victim` by a symbolic link to the directory that must not change.
    fn swap(&self) {
        swap(&self.path("tree/victim"), &self.path("outside"));
    }
}

fn swap(victim: &Path, outside: &Path) {
    fs::rename(victim, victim.with_file_name("moved")).unwrap();
    symlink(outside, victim).unwrap();
}

/// Does all units of work and the units that follow from them.
fn work_off(mut work: Vec<Work>) {
    while let Some(unit) = work.pop() {
        work.extend(unit.perform());
    }
}

#[test]
fn directory_swapped_for_a_link_after_the_listing_is_not_opened() {
    let site = Site::new();
    let (pass, work) = site.begin(&all());
    // After this step, the walk takes `victim` for a directory.
    let listed: Vec<_> = work.into_iter().flat_map(Work::perform).collect();
    assert!(matches!(&listed[..], [Work::Directory { name, .. }] if name == "victim"));
    site.swap();
    work_off(listed);
    assert!(site.path("outside/file").exists());
    assert!(site.path("tree/moved/file").exists());
    let totals = pass.finish().unwrap();
    assert_eq!((totals.files(), totals.skipped.changed), (0, 1));
}

#[test]
fn purge_stays_in_a_directory_that_is_swapped_for_a_link() {
    let site = Site::new();
    // The walk calls this function directly before it removes the file.
    let is_written: IsWritten = |file| {
        let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        let victim = path.parent().unwrap();
        swap(victim, &victim.with_file_name("../outside"));
        Ok(false)
    };
    let (pass, work) = site.begin(&Options { is_written: Some(is_written), ..all() });
    work_off(work);
    // The purge has removed the file from the directory that it has checked.
    assert!(!site.path("tree/moved/file").exists());
    assert!(site.path("outside/file").exists());
    assert!(site.path("tree/victim/file").exists(), "the link leads to the other directory");
    assert_eq!(pass.finish().unwrap().files(), 1);
}

#[test]
fn purge_keeps_a_file_that_replaced_the_checked_file() {
    let site = Site::new();
    let (pass, work) = site.begin(&all());
    let [Work::List { directory, .. }] = &work[..] else { panic!("the top is listed first") };
    let victim = directory.open(OsStr::new("victim")).ok().flatten().unwrap();
    let Work::List { directory: victim, .. } = victim else { panic!("the directory is listed") };
    let name = OsStr::new("file");
    let attributes = || {
        let file = File::open(site.path("tree/victim/file")).unwrap();
        victim.attributes(&file).ok().flatten().unwrap()
    };
    let seen = attributes();
    fs::write(site.path("new"), "new").unwrap();
    fs::rename(site.path("new"), site.path("tree/victim/file")).unwrap();
    assert!(matches!(victim.remove(name, &seen), Ok(Removal::Changed)));
    assert_eq!(fs::read(site.path("tree/victim/file")).unwrap(), b"new");
    // The removal succeeds with the attributes of the new file.
    let seen = attributes();
    assert!(matches!(victim.remove(name, &seen), Ok(Removal::Done)));
    assert!(!site.path("tree/victim/file").exists());
    drop(pass);
}

#[test]
fn purge_keeps_a_directory_that_replaced_an_empty_directory() {
    let site = Site::new();
    let (_pass, work) = site.begin(&Options { empty_directories: true, ..all() });
    let [Work::List { directory, .. }] = &work[..] else { panic!("the top is listed first") };
    let victim = directory.open(OsStr::new("victim")).ok().flatten().unwrap();
    // Another directory gets the name while the purge has the first directory open.
    fs::rename(site.path("tree/victim"), site.path("tree/moved")).unwrap();
    fs::create_dir(site.path("tree/victim")).unwrap();
    work_off(vec![victim]);
    assert!(site.path("tree/victim").exists());
    assert!(!site.path("tree/moved/file").exists());
}
