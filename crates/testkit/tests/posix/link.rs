//! Hard links.

use crate::{Test, ok, refused};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

pub(crate) const CASES: &[Test] = skep_testkit::cases![link:
    are_the_same_file, of_directories_are_refused, to_other_directories, refuse_what_exists,
    of_a_symbolic_link, many,
];

fn are_the_same_file(root: &Path) {
    let (first, second) = (root.join("first"), root.join("second"));
    ok(fs::write(&first, "one"));
    ok(fs::hard_link(&first, &second));
    assert_eq!(ok(fs::metadata(&first)).ino(), ok(fs::metadata(&second)).ino());
    assert_eq!(ok(fs::metadata(&first)).nlink(), 2);
    ok(fs::write(&second, "two"));
    assert_eq!(ok(fs::read(&first)), b"two");
    ok(fs::remove_file(&first));
    assert_eq!(ok(fs::metadata(&second)).nlink(), 1);
    assert_eq!(ok(fs::read(&second)), b"two");
}

fn of_directories_are_refused(root: &Path) {
    ok(fs::create_dir(root.join("directory")));
    refused(fs::hard_link(root.join("directory"), root.join("second")), Errno::PERM);
}

fn to_other_directories(root: &Path) {
    ok(fs::write(root.join("file"), "x"));
    for index in 0..16 {
        let directory = root.join(format!("directory-{index}"));
        ok(fs::create_dir(&directory));
        ok(fs::hard_link(root.join("file"), directory.join("file")));
    }
    assert_eq!(ok(fs::metadata(root.join("file"))).nlink(), 17);
    ok(fs::remove_file(root.join("file")));
    for index in 0..16 {
        let path = root.join(format!("directory-{index}/file"));
        assert_eq!(ok(fs::read(&path)), b"x");
        assert_eq!(ok(fs::metadata(&path)).nlink(), 16 - index);
        ok(fs::remove_file(&path));
    }
}

fn refuse_what_exists(root: &Path) {
    ok(fs::write(root.join("a"), "a"));
    ok(fs::write(root.join("b"), "b"));
    refused(fs::hard_link(root.join("a"), root.join("b")), Errno::EXIST);
    refused(fs::hard_link(root.join("missing"), root.join("c")), Errno::NOENT);
    assert_eq!(ok(fs::metadata(root.join("a"))).nlink(), 1);
    assert_eq!(ok(fs::read(root.join("b"))), b"b");
}

fn of_a_symbolic_link(root: &Path) {
    ok(std::os::unix::fs::symlink("nowhere", root.join("link")));
    ok(fs::hard_link(root.join("link"), root.join("second")));
    let found = ok(fs::symlink_metadata(root.join("second")));
    assert!(found.is_symlink());
    assert_eq!(found.nlink(), 2);
}

fn many(root: &Path) {
    ok(fs::write(root.join("file"), "x"));
    for index in 0..300 {
        ok(fs::hard_link(root.join("file"), root.join(format!("link-{index}"))));
    }
    assert_eq!(ok(fs::metadata(root.join("link-299"))).nlink(), 301);
}
