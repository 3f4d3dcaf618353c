//! Unlinking files, also open ones.

use crate::{Test, names, ok, refused};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

pub(crate) const CASES: &[Test] = skep_testkit::cases![unlink:
    takes_the_name_away, of_directories_is_refused, leaves_open_files_alive,
    open_files_can_be_extended, a_new_file_of_the_same_name_is_another,
];

fn takes_the_name_away(root: &Path) {
    ok(fs::write(root.join("file"), "x"));
    ok(fs::remove_file(root.join("file")));
    refused(fs::metadata(root.join("file")), Errno::NOENT);
    refused(fs::remove_file(root.join("file")), Errno::NOENT);
    assert_eq!(names(root), Vec::<String>::new());
}

fn of_directories_is_refused(root: &Path) {
    ok(fs::create_dir(root.join("directory")));
    refused(fs::remove_file(root.join("directory")), Errno::ISDIR);
    assert!(root.join("directory").is_dir());
}

fn leaves_open_files_alive(root: &Path) {
    let path = root.join("file");
    ok(fs::write(&path, vec![5; 1_500_000]));
    let mut file = ok(File::open(&path));
    ok(fs::remove_file(&path));
    assert_eq!(ok(file.metadata()).nlink(), 0);
    let mut bytes = Vec::new();
    ok(file.read_to_end(&mut bytes));
    assert_eq!(bytes.len(), 1_500_000);
    assert!(bytes.iter().all(|byte| *byte == 5));
}

fn open_files_can_be_extended(root: &Path) {
    let path = root.join("file");
    let mut file = ok(OpenOptions::new().read(true).write(true).create_new(true).open(&path));
    ok(fs::remove_file(&path));
    ok(file.write_all(&vec![6; 3_000_000]));
    ok(file.set_len(2_000_000));
    ok(file.sync_all());
    assert_eq!(ok(file.metadata()).len(), 2_000_000);
    ok(file.seek(SeekFrom::Start(1_999_999)));
    let mut last = [0];
    ok(file.read_exact(&mut last));
    assert_eq!(last, [6]);
}

fn a_new_file_of_the_same_name_is_another(root: &Path) {
    let path = root.join("file");
    ok(fs::write(&path, "old"));
    let old = ok(File::open(&path));
    ok(fs::remove_file(&path));
    ok(fs::write(&path, "new one"));
    assert_ne!(ok(old.metadata()).ino(), ok(fs::metadata(&path)).ino());
    let mut bytes = [0; 3];
    ok(old.read_exact_at(&mut bytes, 0));
    assert_eq!(&bytes, b"old");
    assert_eq!(ok(fs::read(&path)), b"new one");
}
