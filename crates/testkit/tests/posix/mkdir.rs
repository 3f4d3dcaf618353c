//! Making directories.

use crate::{Test, names, ok, refused};
use rustix::io::Errno;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

pub(crate) const CASES: &[Test] = skep_testkit::cases![mkdir:
    gives_an_empty_directory, counts_links, refuses_what_exists, goes_deep, inherits_the_group,
    fills_many_directories,
];

fn gives_an_empty_directory(root: &Path) {
    let path = root.join("directory");
    ok(DirBuilder::new().mode(0o751).create(&path));
    let found = ok(fs::metadata(&path));
    assert!(found.is_dir());
    assert_eq!(found.mode() & 0o7777, 0o751);
    assert_eq!(names(&path), Vec::<String>::new());
}

/// Semantics 1.12.
fn counts_links(root: &Path) {
    let before = ok(fs::metadata(root)).nlink();
    ok(fs::create_dir(root.join("a")));
    ok(fs::create_dir(root.join("b")));
    assert_eq!(ok(fs::metadata(root)).nlink(), before + 2);
    assert_eq!(ok(fs::metadata(root.join("a"))).nlink(), 2);
    ok(fs::remove_dir(root.join("a")));
    assert_eq!(ok(fs::metadata(root)).nlink(), before + 1);
}

fn refuses_what_exists(root: &Path) {
    ok(fs::write(root.join("file"), "x"));
    ok(fs::create_dir(root.join("directory")));
    refused(fs::create_dir(root.join("file")), Errno::EXIST);
    refused(fs::create_dir(root.join("directory")), Errno::EXIST);
    refused(fs::create_dir(root.join("missing/directory")), Errno::NOENT);
    refused(fs::create_dir(root.join("file/directory")), Errno::NOTDIR);
}

fn goes_deep(root: &Path) {
    let mut path = root.to_owned();
    for level in 0..60 {
        path.push(format!("level-{level}"));
        ok(fs::create_dir(&path));
    }
    ok(fs::write(path.join("file"), "deep"));
    assert_eq!(ok(fs::read(path.join("file"))), b"deep");
    let up = path.join("..").join("..");
    assert_eq!(names(&up), ["level-58"]);
    ok(fs::remove_dir_all(root.join("level-0")));
    assert_eq!(names(root), Vec::<String>::new());
}

/// Semantics 1.10.
fn inherits_the_group(root: &Path) {
    let parent = root.join("shared");
    ok(fs::create_dir(&parent));
    ok(std::os::unix::fs::chown(&parent, None, Some(1234)));
    ok(fs::set_permissions(&parent, fs::Permissions::from_mode(0o2775)));
    ok(fs::create_dir(parent.join("child")));
    ok(fs::write(parent.join("file"), "x"));
    let child = ok(fs::metadata(parent.join("child")));
    assert_eq!((child.gid(), child.mode() & 0o2000), (1234, 0o2000));
    assert_eq!(ok(fs::metadata(parent.join("file"))).gid(), 1234);
}

/// With two metadata targets, some of these have their home on the other one.
fn fills_many_directories(root: &Path) {
    for index in 0..64 {
        let path = root.join(format!("directory-{index}"));
        ok(fs::create_dir(&path));
        ok(fs::write(path.join("file"), format!("{index}")));
    }
    assert_eq!(names(root).len(), 64);
    for index in 0..64 {
        let path = root.join(format!("directory-{index}"));
        assert_eq!(ok(fs::read_to_string(path.join("file"))), format!("{index}"));
        ok(fs::remove_file(path.join("file")));
        ok(fs::remove_dir(path));
    }
    assert_eq!(names(root), Vec::<String>::new());
}
