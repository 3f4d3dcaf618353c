//! Unlinking files, including open files.

use crate::{Test, names, ok, refused};
use rustix::io::Errno;
use skep_testkit::{files, spread};
use std::fs::{self, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

pub(crate) const CASES: &[Test] = skep_testkit::cases![unlink:
    unlink_removes_the_name, unlink_of_a_directory_is_refused, unlinked_open_file_stays_usable,
    unlinked_open_file_can_be_extended, new_file_of_the_same_name_is_a_different_file,
];

/// The second file is on another metadata group than its name, because a rename has moved it.
fn unlink_removes_the_name(root: &Path) {
    let path = root.join("file");
    let elsewhere = spread::create_dirs(root, ["elsewhere"]).remove(0);
    for made in [&path, &elsewhere.join("file")] {
        files::write(made, "x");
        files::rename(made, &path);
        files::remove_file(&path);
        refused(fs::metadata(&path), Errno::NOENT);
        refused(fs::remove_file(&path), Errno::NOENT);
        assert_eq!(names(root), ["elsewhere"]);
    }
}

fn unlink_of_a_directory_is_refused(root: &Path) {
    files::create_dir(root.join("directory"));
    refused(fs::remove_file(root.join("directory")), Errno::ISDIR);
    assert!(root.join("directory").is_dir());
}

fn unlinked_open_file_stays_usable(root: &Path) {
    let path = root.join("file");
    files::write(&path, vec![5; 1_500_000]);
    let mut file = files::open(&path);
    files::remove_file(&path);
    assert_eq!(files::metadata_of(&file).nlink(), 0);
    let mut bytes = Vec::new();
    ok(file.read_to_end(&mut bytes));
    assert_eq!(bytes.len(), 1_500_000);
    assert!(bytes.iter().all(|byte| *byte == 5));
}

fn unlinked_open_file_can_be_extended(root: &Path) {
    let path = root.join("file");
    let mut file =
        files::open_with(OpenOptions::new().read(true).write(true).create_new(true), &path);
    files::remove_file(&path);
    files::write_all(&file, &vec![6; 3_000_000]);
    files::set_len(&file, 2_000_000);
    files::sync_all(&file);
    assert_eq!(files::metadata_of(&file).len(), 2_000_000);
    ok(file.seek(SeekFrom::Start(1_999_999)));
    let mut last = [0];
    files::read_exact(&file, &mut last);
    assert_eq!(last, [6]);
}

fn new_file_of_the_same_name_is_a_different_file(root: &Path) {
    let path = root.join("file");
    files::write(&path, "old");
    let old = files::open(&path);
    files::remove_file(&path);
    files::write(&path, "new one");
    assert_ne!(files::metadata_of(&old).ino(), files::metadata(&path).ino());
    let mut bytes = [0; 3];
    files::read_exact_at(&old, &mut bytes, 0);
    assert_eq!(&bytes, b"old");
    assert_eq!(files::read(&path), b"new one");
}
