//! Symbolic links.

use crate::{Test, refused};
use rustix::io::Errno;
use skep_testkit::files;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

pub(crate) const CASES: &[Test] = skep_testkit::cases![symlink:
    symbolic_link_stores_its_target_unchanged,
    symbolic_link_in_a_path_is_followed,
    symbolic_link_may_have_a_missing_target,
    path_through_a_loop_of_symlinks_is_refused,
    symlink_over_an_existing_name_is_refused,
];

fn symbolic_link_stores_its_target_unchanged(root: &Path) {
    let longest = format!("/{}", "x/".repeat(2047));
    for (index, target) in ["a", "../b//c/", "/", " ", &longest].iter().enumerate() {
        let link = root.join(format!("link-{index}"));
        files::symlink(target, &link);
        assert_eq!(files::read_link(&link).as_os_str(), *target);
        let found = files::symlink_metadata(&link);
        assert!(found.is_symlink());
        assert_eq!(found.len(), target.len() as u64);
    }
    refused(symlink("x".repeat(4096), root.join("too-long")), Errno::NAMETOOLONG);
    refused(symlink("", root.join("empty")), Errno::NOENT);
}

fn symbolic_link_in_a_path_is_followed(root: &Path) {
    files::create_dir(root.join("directory"));
    files::write(root.join("directory/file"), "text");
    files::symlink("directory", root.join("link"));
    assert_eq!(files::read(root.join("link/file")), b"text");
    files::write(root.join("link/other"), "more");
    assert_eq!(files::read(root.join("directory/other")), b"more");
    files::remove_file(root.join("link"));
    assert!(root.join("directory/file").exists());
    refused(fs::read_link(root.join("directory")), Errno::INVAL);
}

fn symbolic_link_may_have_a_missing_target(root: &Path) {
    let link = root.join("link");
    files::symlink("nowhere", &link);
    refused(fs::metadata(&link), Errno::NOENT);
    files::write(&link, "made through the link");
    assert_eq!(files::read(root.join("nowhere")), b"made through the link");
    assert_eq!(files::read_link(&link), PathBuf::from("nowhere"));
}

fn path_through_a_loop_of_symlinks_is_refused(root: &Path) {
    files::symlink("b", root.join("a"));
    files::symlink("a", root.join("b"));
    refused(fs::metadata(root.join("a")), Errno::LOOP);
}

fn symlink_over_an_existing_name_is_refused(root: &Path) {
    files::write(root.join("file"), "x");
    refused(symlink("target", root.join("file")), Errno::EXIST);
    refused(symlink("target", root.join("missing/link")), Errno::NOENT);
}
