//! Creating directories.

use crate::{Test, names, ok, refused};
use rustix::io::Errno;
use skep_testkit::{files, spread};
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

pub(crate) const CASES: &[Test] = skep_testkit::cases![mkdir:
    new_directory_is_empty,
    new_directory_raises_the_link_count_of_its_parent,
    mkdir_over_an_existing_name_is_refused,
    sixty_nested_directories_can_be_made,
    new_directory_inherits_the_setgid_group,
    new_directories_accept_files,
];

fn new_directory_is_empty(root: &Path) {
    let path = root.join("directory");
    ok(DirBuilder::new().mode(0o751).create(&path));
    let found = files::metadata(&path);
    assert!(found.is_dir());
    assert_eq!(found.mode() & 0o7777, 0o751);
    assert_eq!(names(&path), Vec::<String>::new());
}

/// docs/semantics.md 1.12.
fn new_directory_raises_the_link_count_of_its_parent(root: &Path) {
    let before = files::metadata(root).nlink();
    files::create_dir(root.join("a"));
    files::create_dir(root.join("b"));
    assert_eq!(files::metadata(root).nlink(), before + 2);
    assert_eq!(files::metadata(root.join("a")).nlink(), 2);
    files::remove_dir(root.join("a"));
    assert_eq!(files::metadata(root).nlink(), before + 1);
}

fn mkdir_over_an_existing_name_is_refused(root: &Path) {
    files::write(root.join("file"), "x");
    files::create_dir(root.join("directory"));
    refused(fs::create_dir(root.join("file")), Errno::EXIST);
    refused(fs::create_dir(root.join("directory")), Errno::EXIST);
    refused(fs::create_dir(root.join("missing/directory")), Errno::NOENT);
    refused(fs::create_dir(root.join("file/directory")), Errno::NOTDIR);
}

fn sixty_nested_directories_can_be_made(root: &Path) {
    let mut path = root.to_owned();
    for level in 0..60 {
        path.push(format!("level-{level}"));
        files::create_dir(&path);
    }
    files::write(path.join("file"), "deep");
    assert_eq!(files::read(path.join("file")), b"deep");
    let up = path.join("..").join("..");
    assert_eq!(names(&up), ["level-58"]);
    files::remove_dir_all(root.join("level-0"));
    assert_eq!(names(root), Vec::<String>::new());
}

/// docs/semantics.md 1.10.
fn new_directory_inherits_the_setgid_group(root: &Path) {
    let parent = root.join("shared");
    files::create_dir(&parent);
    files::chown(&parent, None, Some(1234));
    files::set_permissions(&parent, fs::Permissions::from_mode(0o2775));
    files::create_dir(parent.join("child"));
    files::write(parent.join("file"), "x");
    let child = files::metadata(parent.join("child"));
    assert_eq!((child.gid(), child.mode() & 0o2000), (1234, 0o2000));
    assert_eq!(files::metadata(parent.join("file")).gid(), 1234);
}

/// The test creates directories in the root directory of the file system, because metadata spreads
/// such directories over its groups.
fn new_directories_accept_files(root: &Path) {
    let top = root.parent().expect("the directory of a test has a parent");
    let path = |index: usize| top.join(format!("new-directory-{index}"));
    let paths: Vec<_> = (0..32).map(path).collect();
    let (links, count) = (files::metadata(top).nlink(), names(top).len());
    for (index, path) in paths.iter().enumerate() {
        files::create_dir(path);
        files::write(path.join("file"), format!("{index}"));
    }
    spread::assert_spread(&paths);
    assert_eq!(files::metadata(top).nlink(), links + 32);
    assert_eq!(names(top).len(), count + 32);
    for (index, path) in paths.iter().enumerate() {
        assert_eq!(files::read_to_string(path.join("file")), format!("{index}"));
        refused(fs::remove_dir(path), Errno::NOTEMPTY);
        files::remove_file(path.join("file"));
        files::remove_dir(path);
    }
    assert_eq!((files::metadata(top).nlink(), names(top).len()), (links, count));
}
