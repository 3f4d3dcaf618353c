//! Symbolic links.

use crate::{Test, ok, refused};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

pub(crate) const CASES: &[Test] = skep_testkit::cases![symlink:
    keeps_its_target_as_it_is, is_followed, may_point_nowhere, in_a_loop, refuses_what_exists,
];

fn keeps_its_target_as_it_is(root: &Path) {
    let longest = format!("/{}", "x/".repeat(2047));
    for (index, target) in ["a", "../b//c/", "/", " ", &longest].iter().enumerate() {
        let link = root.join(format!("link-{index}"));
        ok(symlink(target, &link));
        assert_eq!(ok(fs::read_link(&link)).as_os_str(), *target);
        let found = ok(fs::symlink_metadata(&link));
        assert!(found.is_symlink());
        assert_eq!(found.len(), target.len() as u64);
    }
    refused(symlink("x".repeat(4096), root.join("too-long")), Errno::NAMETOOLONG);
    refused(symlink("", root.join("empty")), Errno::NOENT);
}

fn is_followed(root: &Path) {
    ok(fs::create_dir(root.join("directory")));
    ok(fs::write(root.join("directory/file"), "text"));
    ok(symlink("directory", root.join("link")));
    assert_eq!(ok(fs::read(root.join("link/file"))), b"text");
    ok(fs::write(root.join("link/other"), "more"));
    assert_eq!(ok(fs::read(root.join("directory/other"))), b"more");
    ok(fs::remove_file(root.join("link")));
    assert!(root.join("directory/file").exists());
    refused(fs::read_link(root.join("directory")), Errno::INVAL);
}

fn may_point_nowhere(root: &Path) {
    let link = root.join("link");
    ok(symlink("nowhere", &link));
    refused(fs::metadata(&link), Errno::NOENT);
    ok(fs::write(&link, "made through the link"));
    assert_eq!(ok(fs::read(root.join("nowhere"))), b"made through the link");
    assert_eq!(ok(fs::read_link(&link)), PathBuf::from("nowhere"));
}

fn in_a_loop(root: &Path) {
    ok(symlink("b", root.join("a")));
    ok(symlink("a", root.join("b")));
    refused(fs::metadata(root.join("a")), Errno::LOOP);
}

fn refuses_what_exists(root: &Path) {
    ok(fs::write(root.join("file"), "x"));
    refused(symlink("target", root.join("file")), Errno::EXIST);
    refused(symlink("target", root.join("missing/link")), Errno::NOENT);
}
