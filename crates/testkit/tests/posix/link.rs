//! Hard links.

use crate::{Test, names as names_in, refused};
use rustix::io::Errno;
use skep_testkit::{files, spread};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

pub(crate) const CASES: &[Test] = skep_testkit::cases![link:
    hard_links_are_the_same_file,
    hard_links_to_directories_are_refused,
    hard_links_may_lie_in_other_directories,
    hard_link_over_an_existing_name_is_refused,
    hard_link_to_a_symbolic_link_is_a_symbolic_link,
    file_may_have_300_hard_links,
];

fn hard_links_are_the_same_file(root: &Path) {
    let (first, second) = (root.join("first"), root.join("second"));
    files::write(&first, "one");
    files::hard_link(&first, &second);
    assert_eq!(files::metadata(&first).ino(), files::metadata(&second).ino());
    assert_eq!(files::metadata(&first).nlink(), 2);
    files::write(&second, "two");
    assert_eq!(files::read(&first), b"two");
    files::remove_file(&first);
    assert_eq!(files::metadata(&second).nlink(), 1);
    assert_eq!(files::read(&second), b"two");
}

fn hard_links_to_directories_are_refused(root: &Path) {
    files::create_dir(root.join("directory"));
    refused(fs::hard_link(root.join("directory"), root.join("second")), Errno::PERM);
}

/// Every second directory is on another metadata group than the file. docs/semantics.md 1.12.
fn hard_links_may_lie_in_other_directories(root: &Path) {
    files::write(root.join("file"), "x");
    let names = (0..8).map(|index| format!("directory-{index}"));
    let directories = spread::create_dirs(root, names);
    for directory in &directories {
        files::hard_link(root.join("file"), directory.join("file"));
    }
    assert_eq!(files::metadata(root.join("file")).nlink(), 9);
    files::remove_file(root.join("file"));
    for (index, directory) in directories.iter().enumerate() {
        let path = directory.join("file");
        assert_eq!(files::read(&path), b"x");
        assert_eq!(files::metadata(&path).nlink(), 8 - index as u64);
        files::remove_file(&path);
        assert_eq!(names_in(directory), Vec::<String>::new());
    }
}

fn hard_link_over_an_existing_name_is_refused(root: &Path) {
    files::write(root.join("a"), "a");
    files::write(root.join("b"), "b");
    refused(fs::hard_link(root.join("a"), root.join("b")), Errno::EXIST);
    refused(fs::hard_link(root.join("missing"), root.join("c")), Errno::NOENT);
    assert_eq!(files::metadata(root.join("a")).nlink(), 1);
    assert_eq!(files::read(root.join("b")), b"b");
}

fn hard_link_to_a_symbolic_link_is_a_symbolic_link(root: &Path) {
    files::symlink("nowhere", root.join("link"));
    files::hard_link(root.join("link"), root.join("second"));
    let found = files::symlink_metadata(root.join("second"));
    assert!(found.is_symlink());
    assert_eq!(found.nlink(), 2);
}

fn file_may_have_300_hard_links(root: &Path) {
    files::write(root.join("file"), "x");
    for index in 0..300 {
        files::hard_link(root.join("file"), root.join(format!("link-{index}")));
    }
    assert_eq!(files::metadata(root.join("link-299")).nlink(), 301);
}
