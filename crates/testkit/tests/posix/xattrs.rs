//! Extended attributes in the namespace `user`.

use crate::{Test, ok, refused};
use rustix::fs::{XattrFlags, getxattr, lgetxattr, listxattr, removexattr, setxattr};
use rustix::io::Errno;
use skep_testkit::files::{self, OrFail};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

pub(crate) const CASES: &[Test] = skep_testkit::cases![xattrs:
    xattr_values_are_stored_unchanged,
    all_xattr_names_are_listed,
    create_and_replace_flags_of_xattrs_are_enforced,
    removed_xattr_is_absent,
    xattr_read_with_an_empty_buffer_returns_the_size,
    directories_can_have_xattrs,
    user_xattrs_of_symbolic_links_are_refused,
    xattr_names_and_values_have_a_maximum_length,
    xattrs_stay_after_a_rename,
    only_root_sets_trusted_and_security_xattrs,
    xattr_names_outside_known_namespaces_are_refused,
    xattr_lengths_over_the_kernel_limits_are_refused,
    change_of_contents_or_owner_removes_capabilities,
];

fn file(root: &Path) -> std::path::PathBuf {
    let path = root.join("file");
    files::write(&path, "x");
    path
}

fn get(path: &Path, name: &str) -> Vec<u8> {
    let mut bytes = vec![0; 65_536];
    let len = getxattr(path, name, &mut bytes[..]).or_fail("getxattr", path);
    bytes.truncate(len);
    bytes
}

fn xattr_values_are_stored_unchanged(root: &Path) {
    let path = file(root);
    // Use short values, because the local file system stores all attributes of a file in one block.
    for value in [&b""[..], b"x", &[0, 255, 10], &[7; 2000]] {
        setxattr(&path, "user.key", value, XattrFlags::empty()).or_fail("setxattr", &path);
        assert_eq!(get(&path, "user.key"), value);
    }
    refused(getxattr(&path, "user.other", &mut [0; 10]), Errno::NODATA);
}

fn all_xattr_names_are_listed(root: &Path) {
    let path = file(root);
    let expected: BTreeSet<_> = (0..20).map(|index| format!("user.key-{index}")).collect();
    for name in &expected {
        setxattr(&path, name.as_str(), b"v", XattrFlags::empty()).or_fail("setxattr", &path);
    }
    let mut bytes = vec![0; 10_000];
    let len = listxattr(&path, &mut bytes[..]).or_fail("listxattr", &path);
    let text = String::from_utf8_lossy(&bytes[..len]).into_owned();
    let found = text.split('\0').filter(|name| name.starts_with("user."));
    assert_eq!(found.map(str::to_owned).collect::<BTreeSet<_>>(), expected);
}

fn create_and_replace_flags_of_xattrs_are_enforced(root: &Path) {
    let path = file(root);
    let both = XattrFlags::CREATE | XattrFlags::REPLACE;
    refused(setxattr(&path, "user.key", b"1", both), Errno::NODATA);
    refused(setxattr(&path, "user.key", b"1", XattrFlags::REPLACE), Errno::NODATA);
    setxattr(&path, "user.key", b"2", XattrFlags::CREATE).or_fail("setxattr", &path);
    refused(setxattr(&path, "user.key", b"3", XattrFlags::CREATE), Errno::EXIST);
    refused(setxattr(&path, "user.key", b"3", both), Errno::EXIST);
    setxattr(&path, "user.key", b"4", XattrFlags::REPLACE).or_fail("setxattr", &path);
    assert_eq!(get(&path, "user.key"), b"4");
}

fn removed_xattr_is_absent(root: &Path) {
    let path = file(root);
    setxattr(&path, "user.key", b"1", XattrFlags::empty()).or_fail("setxattr", &path);
    removexattr(&path, "user.key").or_fail("removexattr", &path);
    refused(getxattr(&path, "user.key", &mut [0; 10]), Errno::NODATA);
    refused(removexattr(&path, "user.key"), Errno::NODATA);
}

fn xattr_read_with_an_empty_buffer_returns_the_size(root: &Path) {
    let path = file(root);
    setxattr(&path, "user.key", b"12345", XattrFlags::empty()).or_fail("setxattr", &path);
    assert_eq!(getxattr(&path, "user.key", &mut [0; 5]).or_fail("getxattr", &path), 5);
    refused(getxattr(&path, "user.key", &mut [0; 4]), Errno::RANGE);
    // `getfattr` first makes each call with an empty buffer, to get the size.
    let text = skep_testkit::program::run_in(root, "getfattr", ["-d", "file"]);
    assert!(text.contains("user.key=\"12345\""), "{text}");
    refused(listxattr(&path, &mut [0_u8; 3]), Errno::RANGE);
}

fn directories_can_have_xattrs(root: &Path) {
    let path = root.join("directory");
    files::create_dir(&path);
    setxattr(&path, "user.key", b"value", XattrFlags::empty()).or_fail("setxattr", &path);
    assert_eq!(get(&path, "user.key"), b"value");
}

fn user_xattrs_of_symbolic_links_are_refused(root: &Path) {
    let link = root.join("link");
    files::symlink("nowhere", &link);
    let set = rustix::fs::lsetxattr(&link, "user.key", b"x", XattrFlags::empty());
    refused(set, Errno::PERM);
    assert!(lgetxattr(&link, "user.key", &mut [0; 10]).is_err());
}

fn xattr_names_and_values_have_a_maximum_length(root: &Path) {
    let path = file(root);
    let long = format!("user.{}", "n".repeat(250));
    setxattr(&path, long.as_str(), b"x", XattrFlags::empty()).or_fail("setxattr", &path);
    let too_long = format!("user.{}", "n".repeat(251));
    refused(setxattr(&path, too_long.as_str(), b"x", XattrFlags::empty()), Errno::RANGE);
    assert!(setxattr(&path, "user.big", &[0; 65_537], XattrFlags::empty()).is_err());
}

fn xattrs_stay_after_a_rename(root: &Path) {
    let path = file(root);
    setxattr(&path, "user.key", b"value", XattrFlags::empty()).or_fail("setxattr", &path);
    files::create_dir(root.join("directory"));
    let moved = root.join("directory/file");
    files::rename(&path, &moved);
    assert_eq!(get(&moved, "user.key"), b"value");
    files::write(&path, "a new one");
    refused(getxattr(&path, "user.key", &mut [0; 10]), Errno::NODATA);
}

/// Whether a shell command succeeds when a user other than root runs the command.
fn user_may(command: &str) -> bool {
    let mut call = std::process::Command::new("setpriv");
    call.args(["--reuid", "23456", "--regid", "23456", "--clear-groups", "sh", "-c", command]);
    let (null, nothing) = (std::process::Stdio::null(), std::process::Stdio::null());
    ok(call.stdout(null).stderr(nothing).status()).success()
}

/// docs/semantics.md 1.16.
fn only_root_sets_trusted_and_security_xattrs(root: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let path = file(root);
    for directory in [root, &path] {
        files::set_permissions(directory, fs::Permissions::from_mode(0o777));
    }
    for name in ["user.key", "trusted.key", "security.key"] {
        setxattr(&path, name, name.as_bytes(), XattrFlags::empty()).or_fail("setxattr", &path);
        assert_eq!(get(&path, name), name.as_bytes());
    }
    let shown = path.display();
    assert!(user_may(&format!("getfattr -n user.key {shown}")));
    assert!(user_may(&format!("getfattr -n security.key {shown}")));
    assert!(!user_may(&format!("getfattr -n trusted.key {shown}")));
    assert!(!user_may(&format!("setfattr -n trusted.key -v x {shown}")));
    assert!(!user_may(&format!("setfattr -n security.key -v x {shown}")));
    let list = |user: &str| {
        let arguments = ["--reuid", user, "getfattr", "-m", ".", "file"];
        skep_testkit::program::run_in(root, "setpriv", arguments)
    };
    for (user, sees) in [("0", true), ("23456", false)] {
        let text = list(user);
        assert!(text.contains("user.key") && text.contains("security.key"), "{text}");
        assert_eq!(text.contains("trusted.key"), sees, "{text}");
    }
    removexattr(&path, "trusted.key").or_fail("removexattr", &path);
    refused(getxattr(&path, "trusted.key", &mut [0; 10]), Errno::NODATA);
}

/// docs/semantics.md 1.16.
fn xattr_names_outside_known_namespaces_are_refused(root: &Path) {
    let path = file(root);
    for name in ["system.key", "nonsense.key", "key", "User.key"] {
        refused(setxattr(&path, name, b"x", XattrFlags::empty()), Errno::OPNOTSUPP);
        refused(getxattr(&path, name, &mut [0; 10]), Errno::OPNOTSUPP);
        refused(removexattr(&path, name), Errno::OPNOTSUPP);
    }
    for name in ["user.", "trusted.", "security."] {
        refused(setxattr(&path, name, b"x", XattrFlags::empty()), Errno::INVAL);
    }
    refused(setxattr(&path, "", b"x", XattrFlags::empty()), Errno::RANGE);
}

fn xattr_lengths_over_the_kernel_limits_are_refused(root: &Path) {
    let path = file(root);
    let big = vec![1; 65_537];
    refused(setxattr(&path, "user.big", &big, XattrFlags::empty()), Errno::TOOBIG);
    let name = format!("user.{}", "n".repeat(251));
    refused(getxattr(&path, name.as_str(), &mut [0; 10]), Errno::RANGE);
    refused(removexattr(&path, name.as_str()), Errno::RANGE);
}

/// A change of a file, with a description for failure messages.
type Change = (&'static str, fn(&Path));

/// A change of a program's contents or owner removes the program's capabilities.
/// docs/semantics.md 1.16.
fn change_of_contents_or_owner_removes_capabilities(root: &Path) {
    let path = file(root);
    let changes: [Change; 4] = [
        ("a write", |path| {
            let file = files::open_with(fs::OpenOptions::new().append(true), path);
            files::write_all(&file, b"more");
        }),
        ("another owner", |path| files::chown(path, Some(5), None)),
        ("a truncation", |path| {
            files::set_len(&files::open_with(fs::OpenOptions::new().write(true), path), 3)
        }),
        ("being opened with O_TRUNC", |path| drop(files::create(path))),
    ];
    for (what, change) in changes {
        skep_testkit::program::run_in(root, "setcap", ["cap_net_raw+ep", "file"]);
        let mut bytes = [0; 100];
        getxattr(&path, "security.capability", &mut bytes).or_fail("getxattr", &path);
        files::metadata(&path);
        change(&path);
        let left = getxattr(&path, "security.capability", &mut bytes);
        assert_eq!(left.err(), Some(Errno::NODATA), "after {what}");
    }
    // A change of permissions does not remove the capabilities.
    skep_testkit::program::run_in(root, "setcap", ["cap_net_raw+ep", "file"]);
    files::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o700));
    getxattr(&path, "security.capability", &mut [0; 100]).or_fail("getxattr", &path);
}
