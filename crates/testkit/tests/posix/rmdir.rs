//! Removing directories.

use crate::{Test, names, ok, refused};
use rustix::fs::{AtFlags, OFlags, StatxFlags};
use rustix::io::Errno;
use skep_testkit::{files, spread};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

pub(crate) const CASES: &[Test] = skep_testkit::cases![rmdir:
    rmdir_removes_only_empty_directories,
    rmdir_of_a_file_is_refused,
    creation_in_a_removed_directory_is_refused,
    removed_open_directory_stays_usable_and_empty,
    directory_removed_right_after_a_change_has_no_links,
    directory_can_be_made_and_removed_repeatedly,
    rmdir_never_removes_a_directory_with_a_new_file,
];

/// docs/semantics.md 1.14.
fn directory_removed_right_after_a_change_has_no_links(root: &Path) {
    let path = root.join("directory");
    files::create_dir(&path);
    let directory = files::open(&path);
    files::write(path.join("file"), "x");
    files::remove_file(path.join("file"));
    files::remove_dir(&path);
    assert_eq!(rustix::fs::fstat(&directory).map(|found| found.st_nlink), Ok(0));
    // A rename that replaces a directory also removes this directory.
    files::create_dir(&path);
    let replaced = files::open(&path);
    files::write(path.join("file"), "x");
    files::remove_file(path.join("file"));
    files::create_dir(root.join("other"));
    files::rename(root.join("other"), &path);
    assert_eq!(rustix::fs::fstat(&replaced).map(|found| found.st_nlink), Ok(0));
}

/// The first directory is on another metadata group than its parent.
fn rmdir_removes_only_empty_directories(root: &Path) {
    for path in spread::create_dirs(root, ["first", "second"]) {
        files::write(path.join("file"), "x");
        refused(fs::remove_dir(&path), Errno::NOTEMPTY);
        files::remove_file(path.join("file"));
        let links = files::metadata(root).nlink();
        files::remove_dir(&path);
        assert_eq!(files::metadata(root).nlink(), links - 1);
        refused(fs::metadata(&path), Errno::NOENT);
        refused(fs::remove_dir(&path), Errno::NOENT);
    }
    assert_eq!(names(root), Vec::<String>::new());
}

fn rmdir_of_a_file_is_refused(root: &Path) {
    files::write(root.join("file"), "x");
    refused(fs::remove_dir(root.join("file")), Errno::NOTDIR);
    files::create_dir(root.join("directory"));
    refused(fs::remove_dir(root.join("directory/.")), Errno::INVAL);
    refused(fs::remove_dir(root.join("directory/..")), Errno::NOTEMPTY);
}

fn creation_in_a_removed_directory_is_refused(root: &Path) {
    let path = root.join("directory");
    files::create_dir(&path);
    let open = files::open(&path);
    files::remove_dir(&path);
    let made = rustix::fs::openat(
        &open,
        "file",
        rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY,
        0o600.into(),
    );
    refused(made, Errno::NOENT);
}

/// docs/semantics.md 1.14. A program can still use a removed directory that the program has open or
/// that is its working directory. Such a directory has no entries.
fn removed_open_directory_stays_usable_and_empty(root: &Path) {
    let path = root.join("directory");
    files::create_dir(&path);
    files::set_permissions(&path, fs::Permissions::from_mode(0o710));
    let open = files::open(&path);
    let before = files::metadata_of(&open);
    files::remove_dir(&path);
    // The result must be the same with and without the kernel's cache.
    for flags in [AtFlags::EMPTY_PATH, AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC] {
        let found = ok(rustix::fs::statx(&open, "", flags, StatxFlags::BASIC_STATS));
        assert_eq!((found.stx_nlink, found.stx_ino), (0, before.ino()));
        assert_eq!(u32::from(found.stx_mode), before.mode());
    }
    refused(rustix::fs::openat(&open, "file", OFlags::RDONLY, 0.into()), Errno::NOENT);
    let mut entries = ok(rustix::fs::Dir::read_from(&open));
    assert!(entries.next().is_none_or(|entry| entry.is_err()), "nothing is listed");
    refused(fs::metadata(&path), Errno::NOENT);
}

fn directory_can_be_made_and_removed_repeatedly(root: &Path) {
    let path = root.join("directory");
    for _ in 0..100 {
        files::create_dir(&path);
        files::write(path.join("file"), "x");
        files::remove_file(path.join("file"));
        files::remove_dir(&path);
    }
}

/// There are two valid results. Either the file is created first and the directory is not removed,
/// or the directory is removed and no file is created. Every second directory is on another
/// metadata group than its parent.
fn rmdir_never_removes_a_directory_with_a_new_file(root: &Path) {
    let names = (0..30).map(|round| format!("directory-{round}"));
    for path in spread::create_dirs(root, names) {
        let (created, removed) = std::thread::scope(|scope| {
            let creating = scope.spawn(|| fs::write(path.join("file"), "x").is_ok());
            let removing = scope.spawn(|| fs::remove_dir(&path).is_ok());
            (creating.join().expect("no panic"), removing.join().expect("no panic"))
        });
        assert!(created != removed, "created {created}, removed {removed}");
        assert_eq!(path.exists(), created);
    }
}
