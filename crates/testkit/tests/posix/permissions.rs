//! Permissions of other users. The tests run as root, and use `setpriv` to start a child process as
//! another user.

use crate::{Test, ok};
use skep_testkit::files;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

pub(crate) const CASES: &[Test] = skep_testkit::cases![permissions:
    mode_of_a_file_controls_access,
    mode_of_a_directory_controls_search_and_changes,
    group_members_have_group_permissions,
    only_owners_remove_entries_of_sticky_directories,
    new_entries_belong_to_their_creator,
];

const USER: &str = "23456";

/// Whether a shell command succeeds in a directory when another user runs the command.
fn may(directory: &Path, groups: &str, command: &str) -> bool {
    let mut call = Command::new("setpriv");
    call.args(["--reuid", USER, "--regid", USER, "--groups", groups, "sh", "-c", command]);
    ok(call.current_dir(directory).stderr(std::process::Stdio::null()).status()).success()
}

fn mode(path: &Path, mode: u32) {
    files::set_permissions(path, fs::Permissions::from_mode(mode));
}

/// docs/semantics.md 1.10.
fn mode_of_a_file_controls_access(root: &Path) {
    mode(root, 0o755);
    let path = root.join("file");
    files::write(&path, "x");
    mode(&path, 0o600);
    assert!(!may(root, USER, "cat file"));
    mode(&path, 0o604);
    assert!(may(root, USER, "cat file"));
    assert!(!may(root, USER, "echo > file"));
    assert!(!may(root, USER, "chmod 666 file"));
    assert!(!may(root, USER, "chown 23456 file"));
    assert!(!may(root, USER, "rm -f file"));
    mode(&path, 0o602);
    assert!(may(root, USER, "echo > file"));
}

fn mode_of_a_directory_controls_search_and_changes(root: &Path) {
    mode(root, 0o755);
    let path = root.join("directory");
    files::create_dir(&path);
    files::write(path.join("file"), "x");
    mode(&path.join("file"), 0o644);
    mode(&path, 0o700);
    assert!(!may(root, USER, "ls directory"));
    assert!(!may(root, USER, "cat directory/file"));
    mode(&path, 0o701);
    assert!(!may(root, USER, "ls directory"));
    assert!(may(root, USER, "cat directory/file"));
    assert!(!may(root, USER, "touch directory/new"));
    mode(&path, 0o707);
    assert!(may(root, USER, "touch directory/new"));
    assert!(may(root, USER, "rm -f directory/file"));
}

fn group_members_have_group_permissions(root: &Path) {
    mode(root, 0o755);
    let path = root.join("file");
    files::write(&path, "x");
    files::chown(&path, Some(0), Some(777));
    mode(&path, 0o640);
    assert!(!may(root, USER, "cat file"));
    assert!(may(root, "777", "cat file"));
    assert!(may(root, "1,2,3,777", "cat file"));
}

fn only_owners_remove_entries_of_sticky_directories(root: &Path) {
    mode(root, 0o1777);
    files::write(root.join("file"), "x");
    assert!(!may(root, USER, "rm -f file"));
    assert!(!may(root, USER, "mv file other"));
    assert!(may(root, USER, "touch own && rm own"));
}

fn new_entries_belong_to_their_creator(root: &Path) {
    mode(root, 0o777);
    let user: u32 = USER.parse().expect("a number");
    assert!(may(root, USER, "umask 022; touch file; mkdir directory; ln -s x link"));
    for (name, bits) in [("file", 0o644), ("directory", 0o755)] {
        let found = files::metadata(root.join(name));
        assert_eq!(std::os::unix::fs::MetadataExt::uid(&found), user, "{name}");
        assert_eq!(found.permissions().mode() & 0o7777, bits, "{name}");
    }
    let link = files::symlink_metadata(root.join("link"));
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&link), user);
    assert!(may(root, USER, "chmod 600 file && chmod 700 directory"));
}
