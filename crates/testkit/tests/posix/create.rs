//! Creating files.

use crate::{Test, names, ok, refused};
use rustix::io::Errno;
use skep_testkit::files;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

pub(crate) const CASES: &[Test] = skep_testkit::cases![create:
    creation_makes_an_empty_file_of_the_caller,
    exclusive_creation_refuses_an_existing_name,
    creation_with_o_trunc_empties_an_existing_file,
    creation_in_a_missing_directory_is_refused,
    file_names_may_have_any_bytes,
    too_long_file_name_is_refused,
    directory_holds_1000_new_files,
    only_one_of_two_threads_creates_a_name,
];

fn creation_makes_an_empty_file_of_the_caller(root: &Path) {
    let path = root.join("file");
    let file = files::open_with(OpenOptions::new().write(true).create_new(true).mode(0o641), &path);
    let found = files::metadata_of(&file);
    assert!(found.is_file());
    assert_eq!((found.len(), found.nlink(), found.blocks()), (0, 1, 0));
    assert_eq!(found.mode() & 0o7777, 0o641);
    assert_eq!(found.uid(), rustix::process::getuid().as_raw());
    assert_eq!(found.gid(), rustix::process::getgid().as_raw());
    let by_name = files::metadata(&path);
    assert_eq!(by_name.ino(), found.ino());
    assert_eq!(names(root), ["file"]);
}

fn exclusive_creation_refuses_an_existing_name(root: &Path) {
    let path = root.join("file");
    files::create_new(&path);
    refused(File::create_new(&path), Errno::EXIST);
    files::create_dir(root.join("directory"));
    refused(File::create_new(root.join("directory")), Errno::EXIST);
    files::symlink("nowhere", root.join("link"));
    refused(File::create_new(root.join("link")), Errno::EXIST);
}

fn creation_with_o_trunc_empties_an_existing_file(root: &Path) {
    let path = root.join("file");
    files::write(&path, vec![7; 700_000]);
    let before = files::metadata(&path);
    let file = files::create(&path);
    assert_eq!(files::metadata_of(&file).len(), 0);
    assert_eq!(files::metadata(&path).ino(), before.ino());
    assert!(files::read(&path).is_empty());
}

fn creation_in_a_missing_directory_is_refused(root: &Path) {
    refused(File::create(root.join("missing/file")), Errno::NOENT);
    files::write(root.join("file"), "x");
    refused(File::create(root.join("file/below")), Errno::NOTDIR);
    refused(File::create(root), Errno::ISDIR);
}

fn file_names_may_have_any_bytes(root: &Path) {
    let odd: &[&[u8]] =
        &[b" ", b"a b", b"\n", b"\xff\xfe\x80", b"-", b"...", b"*?", "\u{fc}".as_bytes()];
    for name in odd {
        files::write(root.join(OsStr::from_bytes(name)), name);
    }
    let mut found: Vec<_> =
        files::read_dir(root).map(|entry| ok(entry).file_name().as_bytes().to_vec()).collect();
    found.sort();
    let mut expected: Vec<_> = odd.iter().map(|name| name.to_vec()).collect();
    expected.sort();
    assert_eq!(found, expected);
    for name in odd {
        assert_eq!(files::read(root.join(OsStr::from_bytes(name))), *name);
    }
    refused(fs::metadata(root.join("A B")), Errno::NOENT);
}

/// docs/semantics.md 1.11.
fn too_long_file_name_is_refused(root: &Path) {
    let longest = "n".repeat(255);
    files::create(root.join(&longest));
    assert_eq!(names(root), [longest]);
    refused(File::create(root.join("n".repeat(256))), Errno::NAMETOOLONG);
    refused(fs::metadata(root.join("n".repeat(256))), Errno::NAMETOOLONG);
}

fn directory_holds_1000_new_files(root: &Path) {
    for index in 0..1000 {
        files::write(root.join(format!("file-{index:04}")), format!("{index}"));
    }
    let expected: Vec<_> = (0..1000).map(|index| format!("file-{index:04}")).collect();
    assert_eq!(names(root), expected);
    for index in (0..1000).step_by(37) {
        let text = files::read_to_string(root.join(format!("file-{index:04}")));
        assert_eq!(text, format!("{index}"));
    }
}

fn only_one_of_two_threads_creates_a_name(root: &Path) {
    for round in 0..50 {
        let path = root.join(format!("file-{round}"));
        let made: usize = std::thread::scope(|scope| {
            let attempt = || usize::from(File::create_new(&path).is_ok());
            let threads = [scope.spawn(attempt), scope.spawn(attempt)];
            threads.into_iter().map(|it| it.join().expect("no panic")).sum()
        });
        assert_eq!(made, 1, "round {round}");
    }
    let file = files::open_with(OpenOptions::new().append(true), root.join("file-0"));
    files::write_all(&file, b"x");
}
