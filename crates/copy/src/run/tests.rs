//! Tests of whole copies, in a temporary directory. `pieces` has the tests of large files.
//! `hazards` has the tests in which other programs interfere.

use super::*;
use crate::context::TEST_OPTIONS as OPTIONS;
use crate::plan::{is_reserved, partial_names, temporary_name};
use rustix::fs::{FallocateFlags, XattrFlags, fallocate, lgetxattr, lsetxattr};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::time::Duration;
use tempfile::TempDir;

mod hazards;
mod pieces;
mod several_processes;

/// A directory that contains a source and its copy.
struct Site {
    directory: TempDir,
}

impl Site {
    fn new() -> Self {
        let site = Self { directory: TempDir::new().unwrap() };
        fs::create_dir(site.source("")).unwrap();
        site
    }

    fn source(&self, path: &str) -> PathBuf {
        self.directory.path().join("source").join(path)
    }

    fn copy(&self, path: &str) -> PathBuf {
        self.directory.path().join("copy").join(path)
    }

    fn run(&self, options: &Options) -> Outcome {
        let pair = Pair { source: self.source(""), destination: self.copy("") };
        copy(&[pair], options, &|_| ()).unwrap()
    }

    /// Returns the names of the entries in the top directory of the copy.
    fn copied_names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.copy("")).unwrap();
        let mut names: Vec<_> =
            entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Copies, and expects that no entry has a problem.
    fn succeed(&self, options: &Options) -> Outcome {
        let outcome = self.run(options);
        assert_eq!(outcome.problems, []);
        outcome
    }
}

/// Creates entries of all kinds in `top`.
fn fill(top: &Path) {
    for directory in ["a", "a/b", "a/b/c", "empty", "closed"] {
        fs::create_dir(top.join(directory)).unwrap();
    }
    for number in 0..40 {
        fs::write(top.join(format!("a/b/file-{number}")), vec![number; 1000 * number as usize])
            .unwrap();
    }
    fs::write(top.join("closed/file"), "x").unwrap();
    fs::set_permissions(top.join("closed"), fs::Permissions::from_mode(0o555)).unwrap();
    fs::set_permissions(top.join("a/b/file-3"), fs::Permissions::from_mode(0o4751)).unwrap();
    let name = OsStr::from_bytes(b"a/\xff\n name");
    fs::write(top.join(name), "a name that is not text").unwrap();
    fs::hard_link(top.join("a/b/file-7"), top.join("a/second-name")).unwrap();
    fs::hard_link(top.join("a/b/file-7"), top.join("empty/third-name")).unwrap();
    symlink("b/file-7", top.join("a/link")).unwrap();
    symlink("/nowhere/at/all", top.join("a/broken")).unwrap();
    let file = top.join("a/b/file-9");
    lsetxattr(&file, "user.note", b"a value", XattrFlags::empty()).unwrap();
    let fifo = top.join("a/fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o622),
        0,
    )
    .unwrap();
    fs::set_permissions(&fifo, fs::Permissions::from_mode(0o622)).unwrap();
    let old = std::time::UNIX_EPOCH + Duration::new(1_000_000_007, 123_456_789);
    for path in ["a/b/file-5", "empty", "a"] {
        let file = File::open(top.join(path)).unwrap();
        file.set_times(fs::FileTimes::new().set_modified(old)).unwrap();
    }
}

/// Returns a description of each entry of a tree, by the path of the entry.
fn describe(top: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut directories = vec![top.to_owned()];
    let mut inodes: BTreeMap<u64, PathBuf> = BTreeMap::new();
    while let Some(directory) = directories.pop() {
        let mut paths: Vec<_> =
            fs::read_dir(&directory).unwrap().map(|it| it.unwrap().path()).collect();
        paths.sort();
        for path in paths.into_iter().chain([directory.clone()]) {
            let below = path.strip_prefix(top).unwrap().to_owned();
            let metadata = path.symlink_metadata().unwrap();
            let contents = match tree::file_type(&metadata) {
                FileType::RegularFile => checksum(&fs::read(&path).unwrap()),
                FileType::Symlink => format!("{:?}", fs::read_link(&path).unwrap()),
                _ => String::new(),
            };
            let mut note = [0; 100];
            let note = lgetxattr(&path, "user.note", &mut note[..])
                .map_or_else(|_| String::new(), |len| format!("{:?}", &note[..len]));
            let mut first = below.clone();
            if metadata.is_dir() {
                if path != directory {
                    directories.push(path);
                    continue;
                }
            } else {
                first = inodes.entry(metadata.ino()).or_insert_with(|| below.clone()).clone();
            }
            let text = format!(
                "{:o} {} {} {} {}.{} {first:?} {note} {contents}",
                metadata.mode(),
                metadata.uid(),
                metadata.gid(),
                if metadata.is_dir() { 0 } else { metadata.len() },
                metadata.mtime(),
                metadata.mtime_nsec()
            );
            found.insert(below, text);
        }
    }
    found
}

fn checksum(bytes: &[u8]) -> String {
    use std::hash::Hasher;
    let mut hasher = std::hash::DefaultHasher::new();
    // Compares blocks, because large files of the tests have long holes, and a comparison of bytes
    // would take minutes.
    for (number, block) in bytes.chunks(4096).enumerate() {
        if block != &[0; 4096][..block.len()] {
            hasher.write_usize(number);
            hasher.write(block);
        }
    }
    hasher.write_usize(bytes.len());
    format!("{:016x}", hasher.finish())
}

/// Compares the source with the copy, and names the entries that differ.
fn expect_same(site: &Site) {
    let [source, copy] = [site.source(""), site.copy("")].map(|top| describe(&top));
    let differences: Vec<_> = source
        .keys()
        .chain(copy.keys())
        .filter(|path| source.get(*path) != copy.get(*path))
        .map(|path| (path, source.get(path), copy.get(path)))
        .collect();
    assert!(differences.is_empty(), "{differences:#?}");
}

#[test]
fn copy_has_all_entries_and_attributes_of_its_source() {
    let site = Site::new();
    fill(&site.source(""));
    let outcome = site.succeed(&OPTIONS);
    expect_same(&site);
    // The tree has 40 numbered files and two others. One of the files has three names.
    assert_eq!((outcome.files, outcome.directories, outcome.others), (42, 6, 5));
    assert_eq!(outcome.bytes, outcome.verified_bytes);
    // A second copy replaces all entries, even if their kinds differ.
    fs::remove_file(site.copy("a/link")).unwrap();
    fs::write(site.copy("a/link"), "a file").unwrap();
    fs::write(site.copy("a/b/file-30"), "other contents").unwrap();
    site.succeed(&OPTIONS);
    expect_same(&site);
}

#[test]
fn resumed_copy_copies_only_changed_entries() {
    let site = Site::new();
    fill(&site.source(""));
    site.succeed(&OPTIONS);
    let resume = Options { resume: true, ..OPTIONS };
    let again = site.succeed(&resume);
    assert_eq!((again.files, again.others, again.bytes), (0, 0, 0));
    assert!(again.verified_bytes > 0);
    fs::remove_file(site.copy("a/b/file-8")).unwrap();
    fs::remove_file(site.copy("a/link")).unwrap();
    // Makes the copy look as if an interrupted run has not set the time of its last file.
    let file = File::options().write(true).open(site.copy("a/b/file-9")).unwrap();
    file.set_len(10).unwrap();
    let dry = site.succeed(&Options { is_dry_run: true, ..resume.clone() });
    assert_eq!((dry.files, dry.others), (2, 1));
    let outcome = site.succeed(&resume);
    assert_eq!((outcome.files, outcome.others), (2, 1));
    expect_same(&site);
    fs::remove_file(site.copy("a/second-name")).unwrap();
    site.succeed(&resume);
    expect_same(&site);
}

#[test]
fn dry_run_creates_nothing() {
    let site = Site::new();
    fill(&site.source(""));
    let outcome = site.succeed(&Options { is_dry_run: true, ..OPTIONS });
    assert_eq!((outcome.files, outcome.directories), (42, 6));
    assert!(!site.copy("").exists());
}

#[test]
fn file_with_reserved_space_keeps_its_length_and_holes() {
    let site = Site::new();
    for (name, flags) in [("kept", FallocateFlags::KEEP_SIZE), ("whole", FallocateFlags::empty())] {
        let file = File::create(site.source(name)).unwrap();
        file.write_all_at(b"begin", 0).unwrap();
        file.set_len(1 << 20).unwrap();
        fallocate(&file, flags, 0, 4 << 20).unwrap();
        // The file has blocks that are reserved beyond its data, so its number of blocks does not
        // show the hole at its end.
        assert!(file.metadata().unwrap().blocks() * 512 >= 1 << 20);
    }
    let hole = File::create(site.source("hole")).unwrap();
    hole.write_all_at(b"begin", 0).unwrap();
    hole.set_len(3 << 20).unwrap();
    site.succeed(&OPTIONS);
    expect_same(&site);
    assert_eq!(fs::metadata(site.copy("kept")).unwrap().len(), 1 << 20);
}

/// An extended attribute that only the copy has may give rights that the source no longer gives.
#[test]
fn resumed_copy_removes_attributes_that_the_source_has_lost() {
    let site = Site::new();
    for name in ["lost", "changed", "same"] {
        fs::write(site.source(name), "x").unwrap();
        lsetxattr(site.source(name), "user.note", b"1", XattrFlags::empty()).unwrap();
    }
    site.succeed(&OPTIONS);
    rustix::fs::lremovexattr(site.source("lost"), "user.note").unwrap();
    lsetxattr(site.source("changed"), "user.note", b"2", XattrFlags::empty()).unwrap();
    let outcome = site.succeed(&Options { resume: true, verify: false, ..OPTIONS });
    assert_eq!((outcome.bytes, outcome.skipped), (0, 3), "no file is copied again");
    let value = |name: &str| {
        let mut value = [0_u8; 1];
        lgetxattr(site.copy(name), "user.note", &mut value[..]).map(|_| value[0])
    };
    assert_eq!(value("lost"), Err(Errno::NODATA));
    assert_eq!((value("changed"), value("same")), (Ok(b'2'), Ok(b'1')));
}

#[test]
fn slash_after_a_link_selects_the_linked_directory() {
    let site = Site::new();
    fs::write(site.source("file"), "x").unwrap();
    let link = site.directory.path().join("link");
    symlink(site.source(""), &link).unwrap();
    let with_slash = PathBuf::from(format!("{}/", link.display()));
    let is_link = |source: PathBuf, copy_name: &str| {
        let destination = site.directory.path().join(copy_name);
        let pair = Pair { source, destination: destination.clone() };
        assert_eq!(copy(&[pair], &OPTIONS, &|_| ()).unwrap().problems, []);
        fs::symlink_metadata(destination).unwrap().is_symlink()
    };
    assert!(is_link(link, "first"));
    assert!(!is_link(with_slash, "second"));
    assert_eq!(fs::read(site.directory.path().join("second/file")).unwrap(), b"x");
}

#[test]
fn resumed_copy_repairs_links_and_modes_and_removes_leftovers() {
    let site = Site::new();
    symlink("aaa", site.source("link")).unwrap();
    fs::write(site.source("file"), "x").unwrap();
    fs::create_dir(site.source("sub")).unwrap();
    site.succeed(&OPTIONS);
    // The link in the copy has the length and time of its source, but another target.
    fs::remove_file(site.copy("link")).unwrap();
    symlink("bbb", site.copy("link")).unwrap();
    let source = fs::symlink_metadata(site.source("link")).unwrap();
    let seconds =
        |seconds, nanoseconds| rustix::fs::Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let times = rustix::fs::Timestamps {
        last_access: seconds(source.atime(), source.atime_nsec()),
        last_modification: seconds(source.mtime(), source.mtime_nsec()),
    };
    let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::utimensat(rustix::fs::CWD, site.copy("link"), &times, flags).unwrap();
    fs::set_permissions(site.source("file"), fs::Permissions::from_mode(0o4711)).unwrap();
    // Creates the files that killed runs leave: temporary files, and pieces of a file that no
    // longer exists.
    let (partial, list) = partial_names(OsStr::new("gone"));
    for name in [&temporary_name(OsStr::new("file"), 7, 8), &partial, &list] {
        fs::write(site.copy("").join(name), "part").unwrap();
        fs::write(site.copy("sub").join(name), "part").unwrap();
    }
    let outcome = site.succeed(&Options { resume: true, verify: false, ..OPTIONS });
    assert_eq!((outcome.bytes, outcome.others), (0, 1));
    expect_same(&site);
}

#[test]
fn temporary_names_of_killed_copies_of_a_file_are_removed() {
    let site = Site::new();
    fs::write(site.source("file"), "x").unwrap();
    fs::create_dir(site.copy("")).unwrap();
    let [ours, other] = ["file", "other"].map(|name| temporary_name(OsStr::new(name), 7, 8));
    fs::write(site.copy("").join(&ours), "part").unwrap();
    fs::write(site.copy("").join(&other), "part").unwrap();
    let pair = Pair { source: site.source("file"), destination: site.copy("file") };
    let outcome = copy(&[pair], &OPTIONS, &|_| ()).unwrap();
    assert_eq!(outcome.problems, []);
    let other = other.into_string().unwrap();
    assert_eq!(site.copied_names(), [other.as_str(), "file"]);
}

#[test]
fn directory_of_any_size_and_depth_is_copied() {
    let site = Site::new();
    for number in 0..3000 {
        File::create(site.source(&format!("file-{number}"))).unwrap();
    }
    // Paths in the deepest directory are longer than the kernel accepts in one call.
    let name = "x".repeat(200);
    let mut directory = File::open(site.source("")).unwrap();
    for _ in 0..30 {
        rustix::fs::mkdirat(&directory, &name, rustix::fs::Mode::RWXU).unwrap();
        directory = tree::open_directory(&directory, OsStr::new(&name)).unwrap();
    }
    let empty = rustix::fs::AtFlags::empty();
    let top = File::open(site.source("")).unwrap();
    rustix::fs::linkat(&top, "file-7", &directory, "second-name", empty).unwrap();
    let outcome = site.succeed(&Options { sync: true, ..OPTIONS });
    assert_eq!((outcome.files, outcome.directories, outcome.others), (3000, 31, 1));
    assert_eq!(fs::metadata(site.copy("file-7")).unwrap().nlink(), 2);
    assert_eq!(site.copied_names().len(), 3001);
    assert!(!site.copied_names().iter().any(|name| is_reserved(OsStr::new(name))));
}
