//! Removing directories.

use crate::{Test, names, ok, refused};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

pub(crate) const CASES: &[Test] = skep_testkit::cases![rmdir:
    only_of_empty_ones, of_what_is_no_directory, leaves_nothing_to_create_in, again_and_again,
    while_somebody_creates_in_it,
];

fn only_of_empty_ones(root: &Path) {
    let path = root.join("directory");
    ok(fs::create_dir(&path));
    ok(fs::write(path.join("file"), "x"));
    refused(fs::remove_dir(&path), Errno::NOTEMPTY);
    ok(fs::remove_file(path.join("file")));
    ok(fs::remove_dir(&path));
    refused(fs::metadata(&path), Errno::NOENT);
    refused(fs::remove_dir(&path), Errno::NOENT);
    assert_eq!(names(root), Vec::<String>::new());
}

fn of_what_is_no_directory(root: &Path) {
    ok(fs::write(root.join("file"), "x"));
    refused(fs::remove_dir(root.join("file")), Errno::NOTDIR);
    ok(fs::create_dir(root.join("directory")));
    refused(fs::remove_dir(root.join("directory/.")), Errno::INVAL);
    refused(fs::remove_dir(root.join("directory/..")), Errno::NOTEMPTY);
}

fn leaves_nothing_to_create_in(root: &Path) {
    let path = root.join("directory");
    ok(fs::create_dir(&path));
    let open = ok(fs::File::open(&path));
    ok(fs::remove_dir(&path));
    // Skep keeps no directory for who has it open (as NFS doesn't).
    match open.metadata() {
        Ok(found) => assert_eq!(found.nlink(), 0),
        Err(error) => refused(Err::<(), _>(error), Errno::STALE),
    }
    let made = rustix::fs::openat(
        &open,
        "file",
        rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY,
        0o600.into(),
    );
    refused(made, Errno::NOENT);
}

fn again_and_again(root: &Path) {
    let path = root.join("directory");
    for _ in 0..100 {
        ok(fs::create_dir(&path));
        ok(fs::write(path.join("file"), "x"));
        ok(fs::remove_file(path.join("file")));
        ok(fs::remove_dir(&path));
    }
}

/// Either the file comes first and the directory stays, or it goes and there is no file.
fn while_somebody_creates_in_it(root: &Path) {
    for round in 0..50 {
        let path = root.join(format!("directory-{round}"));
        ok(fs::create_dir(&path));
        let (created, removed) = std::thread::scope(|scope| {
            let creating = scope.spawn(|| fs::write(path.join("file"), "x").is_ok());
            let removing = scope.spawn(|| fs::remove_dir(&path).is_ok());
            (creating.join().expect("no panic"), removing.join().expect("no panic"))
        });
        assert!(created != removed, "created {created}, removed {removed}");
        assert_eq!(path.exists(), created);
    }
}
