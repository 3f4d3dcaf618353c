//! Access control lists. `setfacl` sets the lists, `getfacl` prints the lists, and the kernel
//! enforces the lists for a user other than root.

use crate::{Test, ok, refused};
use rustix::fs::{XattrFlags, getxattr, listxattr, lsetxattr, removexattr, setxattr};
use rustix::io::Errno;
use skep_testkit::files::{self, OrFail};
use skep_testkit::program::run_in;
use skep_testkit::spread;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

pub(crate) const CASES: &[Test] = skep_testkit::cases![acls:
    acl_grants_and_denies_access,
    chmod_changes_the_mask_of_an_acl,
    default_acl_is_inherited,
    directories_on_all_metadata_groups_inherit_the_acl,
    default_acl_replaces_the_umask,
    umask_applies_without_a_default_acl,
    acl_that_equals_the_mode_is_not_stored,
    removed_acl_grants_no_access,
    malformed_acls_are_refused,
    setting_an_acl_clears_the_set_group_id_bit,
    acl_of_a_directory_controls_search,
    acl_stays_after_rename,
    acl_may_have_400_entries,
];

const USER: &str = "23456";
const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
const ANY: XattrFlags = XattrFlags::empty();

/// Whether a shell command succeeds as a user other than root. The user belongs to no group except
/// its own group.
fn may(directory: &Path, command: &str) -> bool {
    let mut call = Command::new("setpriv");
    call.args(["--reuid", USER, "--regid", USER, "--clear-groups", "sh", "-c", command]);
    let call = call.current_dir(directory).stdout(Stdio::null()).stderr(Stdio::null());
    ok(call.status()).success()
}

fn mode(path: &Path) -> u32 {
    files::symlink_metadata(path).mode() & 0o7777
}

fn chmod(path: &Path, mode: u32) {
    files::set_permissions(path, fs::Permissions::from_mode(mode));
}

/// Returns the access control list of `name` as text on one line.
fn list(directory: &Path, name: &str) -> String {
    let text = run_in(directory, "getfacl", ["--omit-header", "--numeric", "--no-effective", name]);
    text.lines().filter(|line| !line.is_empty()).collect::<Vec<_>>().join(",")
}

fn set(directory: &Path, arguments: &[&str]) {
    run_in(directory, "setfacl", arguments);
}

/// Returns an access control list in the kernel's layout.
fn raw(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// docs/semantics.md 1.17.
fn acl_grants_and_denies_access(root: &Path) {
    chmod(root, 0o755);
    let path = root.join("file");
    files::write(&path, "text");
    chmod(&path, 0o600);
    assert!(!may(root, "cat file"));
    set(root, &["-m", "u:23456:r", "file"]);
    assert_eq!(list(root, "file"), "user::rw-,user:23456:r--,group::---,mask::r--,other::---");
    assert_eq!(mode(&path), 0o640);
    assert!(may(root, "cat file"));
    assert!(!may(root, "echo more >> file"));
    set(root, &["-m", "u:23456:-,g:23456:rw", "file"]);
    assert!(!may(root, "cat file"), "the user's own entry comes first");
    set(root, &["-x", "u:23456", "file"]);
    assert!(may(root, "cat file && echo more >> file"));
    let mut names = [0; 100];
    let len = listxattr(&path, &mut names[..]).or_fail("listxattr", &path);
    assert!(String::from_utf8_lossy(&names[..len]).contains(ACCESS));
}

/// docs/semantics.md 1.17.
fn chmod_changes_the_mask_of_an_acl(root: &Path) {
    chmod(root, 0o755);
    let path = root.join("file");
    files::write(&path, "text");
    chmod(&path, 0o600);
    set(root, &["-m", "u:23456:rw,g::r", "file"]);
    assert_eq!(mode(&path), 0o660);
    chmod(&path, 0o700);
    assert_eq!(list(root, "file"), "user::rwx,user:23456:rw-,group::r--,mask::---,other::---");
    assert!(!may(root, "cat file"));
    chmod(&path, 0o1640);
    assert_eq!(list(root, "file"), "user::rw-,user:23456:rw-,group::r--,mask::r--,other::---");
    assert_eq!(mode(&path), 0o1640);
    assert!(may(root, "cat file") && !may(root, "echo more >> file"));
}

/// docs/semantics.md 1.17. Metadata spreads new directories in the root directory of the file
/// system over its groups. So this test sets a default list of the root directory for a moment.
fn directories_on_all_metadata_groups_inherit_the_acl(root: &Path) {
    let top = root.parent().expect("the directory of a test has a parent");
    let name = |index: usize| format!("with-acl-{index}");
    let paths: Vec<_> = (0..16).map(|index| top.join(name(index))).collect();
    set(top, &["-d", "-m", "u:23456:rwx,g::r-x,o::-", "."]);
    let made: Vec<_> = paths.iter().map(fs::create_dir).collect();
    set(top, &["-k", "."]);
    made.into_iter().for_each(ok);
    spread::assert_spread(&paths);
    for (index, path) in paths.iter().enumerate() {
        let access = "user::rwx,user:23456:rwx,group::r-x,mask::rwx,other::---";
        let handed_down = "default:user::rwx,default:user:23456:rwx,default:group::r-x,\
                           default:mask::rwx,default:other::---";
        assert_eq!(list(top, &name(index)), format!("{access},{handed_down}"));
        files::create_dir(path.join("inner"));
        assert!(list(path, "inner").ends_with(handed_down));
        files::remove_dir_all(path);
    }
}

/// docs/semantics.md 1.17.
fn default_acl_is_inherited(root: &Path) {
    set(root, &["-d", "-m", "u:23456:rwx,g::r-x,o::-", "."]);
    let handed_down = "default:user::rwx,default:user:23456:rwx,default:group::r-x,\
                       default:mask::rwx,default:other::---";
    for index in 0..2 {
        let (name, inner) = (format!("directory-{index}"), format!("directory-{index}/inner"));
        files::create_dir_all(root.join(&inner));
        for name in [&name, &inner] {
            let access = "user::rwx,user:23456:rwx,group::r-x,mask::rwx,other::---";
            assert_eq!(list(root, name), format!("{access},{handed_down}"));
        }
        let file = format!("{inner}/file");
        files::write(root.join(&file), "x");
        let access = "user::rw-,user:23456:rwx,group::r-x,mask::rw-,other::---";
        assert_eq!(list(root, &file), access);
        assert_eq!(mode(&root.join(&file)), 0o660);
        let pipe = format!("{inner}/pipe");
        run_in(root, "mkfifo", [&pipe]);
        assert_eq!(list(root, &pipe), access);
        files::symlink("file", root.join(format!("{inner}/link")));
        assert_eq!(mode(&root.join(format!("{inner}/link"))), 0o777);
    }
    // The call requests fewer permissions than the default list permits.
    run_in(root, "mkdir", ["-m", "0700", "narrow"]);
    assert_eq!(mode(&root.join("narrow")), 0o700);
    assert!(list(root, "narrow").starts_with("user::rwx,user:23456:rwx,group::r-x,mask::---,"));
    // The file inherits three entries that are equivalent to a mode. So Skep stores no list, but
    // the file gets this mode.
    files::create_dir(root.join("plain"));
    set(root, &["-b", "plain"]);
    set(root, &["-d", "-m", "u::rwx,g::r,o::r", "plain"]);
    files::write(root.join("plain/file"), "x");
    assert_eq!(list(root, "plain/file"), "user::rw-,group::r--,other::r--");
    refused(getxattr(root.join("plain/file"), ACCESS, &mut [0; 100]), Errno::NODATA);
}

fn default_acl_replaces_the_umask(root: &Path) {
    set(root, &["-d", "-m", "u::rwx,g::rwx,o::rwx", "."]);
    run_in(root, "sh", ["-c", "umask 077; touch file; mkdir directory; mkfifo pipe"]);
    assert_eq!(mode(&root.join("file")), 0o666);
    assert_eq!(mode(&root.join("directory")), 0o777);
    assert_eq!(mode(&root.join("pipe")), 0o666);
}

fn umask_applies_without_a_default_acl(root: &Path) {
    run_in(root, "sh", ["-c", "umask 027; touch file; mkdir directory; mkfifo pipe"]);
    assert_eq!(mode(&root.join("file")), 0o640);
    assert_eq!(mode(&root.join("directory")), 0o750);
    assert_eq!(mode(&root.join("pipe")), 0o640);
    run_in(root, "sh", ["-c", "umask 0; touch open; mkdir -m 3777 special"]);
    assert_eq!(mode(&root.join("open")), 0o666);
    assert_eq!(mode(&root.join("special")), 0o3777);
}

/// A list that has only the three basic entries changes the mode, and Skep does not store this
/// list.
fn acl_that_equals_the_mode_is_not_stored(root: &Path) {
    let path = root.join("file");
    files::write(&path, "x");
    let undefined = u32::MAX;
    let small = raw(&[(1, 6, undefined), (4, 0, undefined), (32, 4, undefined)]);
    setxattr(&path, ACCESS, &small, ANY).or_fail("setxattr", &path);
    assert_eq!(mode(&path), 0o604);
    refused(getxattr(&path, ACCESS, &mut [0; 100]), Errno::NODATA);
    set(root, &["-m", "u:5:r", "file"]);
    getxattr(&path, ACCESS, &mut [0; 100]).or_fail("getxattr", &path);
    setxattr(&path, ACCESS, &small, ANY).or_fail("setxattr", &path);
    refused(getxattr(&path, ACCESS, &mut [0; 100]), Errno::NODATA);
    // In contrast, Skep stores a default list that has only these three entries.
    setxattr(root, DEFAULT, &small, ANY).or_fail("setxattr", root);
    assert_eq!(getxattr(root, DEFAULT, &mut [0; 100]).or_fail("getxattr", root), small.len());
}

fn removed_acl_grants_no_access(root: &Path) {
    chmod(root, 0o755);
    let path = root.join("file");
    files::write(&path, "x");
    chmod(&path, 0o600);
    set(root, &["-m", "u:23456:rw", "file"]);
    assert!(may(root, "cat file"));
    set(root, &["-b", "file"]);
    assert!(!may(root, "cat file"));
    refused(getxattr(&path, ACCESS, &mut [0; 100]), Errno::NODATA);
    removexattr(&path, ACCESS).or_fail("removexattr", &path);
    set(root, &["-d", "-m", "u:5:r", "."]);
    set(root, &["-k", "."]);
    refused(getxattr(root, DEFAULT, &mut [0; 100]), Errno::NODATA);
    files::create_dir(root.join("directory"));
    assert!(!list(root, "directory").contains("default"));
}

fn malformed_acls_are_refused(root: &Path) {
    let path = root.join("file");
    files::write(&path, "x");
    let none = u32::MAX;
    let (owner, group, mask, other) = ((1, 6, none), (4, 4, none), (16, 4, none), (32, 0, none));
    let good = raw(&[owner, (2, 4, 5), group, mask, other]);
    setxattr(&path, ACCESS, &good, ANY).or_fail("setxattr", &path);
    let bad = [
        raw(&[owner, group]),
        raw(&[owner, (2, 4, 5), group, other]),
        raw(&[group, owner, other]),
        raw(&[owner, owner, group, other]),
        raw(&[owner, (2, 4, none), group, mask, other]),
        raw(&[owner, group, (32, 9, none)]),
        raw(&[owner, group, (64, 0, none)]),
        good[..good.len() - 1].to_vec(),
        [&good[..], &[0; 4]].concat(),
        vec![2, 0, 0],
    ];
    for (index, bytes) in bad.iter().enumerate() {
        let set = setxattr(&path, ACCESS, bytes, ANY);
        assert_eq!(set, Err(Errno::INVAL), "list {index}");
        assert_eq!(setxattr(root, DEFAULT, bytes, ANY), Err(Errno::INVAL), "list {index}");
    }
    let mut version = good.clone();
    version[0] = 1;
    refused(setxattr(&path, ACCESS, &version, ANY), Errno::OPNOTSUPP);
    refused(setxattr(&path, DEFAULT, &good, ANY), Errno::ACCESS);
    files::symlink("file", root.join("link"));
    refused(lsetxattr(root.join("link"), ACCESS, &good, ANY), Errno::OPNOTSUPP);
    let mut found = [0; 100];
    let len = getxattr(&path, ACCESS, &mut found).or_fail("getxattr", &path);
    assert_eq!(found[..len], good);
}

/// If a user outside the file's group sets a list, Skep clears the set-group-id bit.
fn setting_an_acl_clears_the_set_group_id_bit(root: &Path) {
    chmod(root, 0o777);
    for (name, group, expected) in [("theirs", 0, 0o755), ("own", 23456, 0o2755)] {
        let path = root.join(name);
        files::write(&path, "x");
        files::chown(&path, Some(23456), Some(group));
        chmod(&path, 0o2755);
        assert!(may(root, &format!("setfacl -m u:5:r {name}")));
        assert_eq!(mode(&path), expected, "{name}");
    }
}

fn acl_of_a_directory_controls_search(root: &Path) {
    chmod(root, 0o755);
    let directory = root.join("directory");
    files::create_dir(&directory);
    files::write(directory.join("file"), "x");
    chmod(&directory, 0o700);
    assert!(!may(root, "cat directory/file"));
    set(root, &["-m", "u:23456:x", "directory"]);
    assert!(may(root, "cat directory/file"));
    assert!(!may(root, "ls directory") && !may(root, "touch directory/new"));
    set(root, &["-m", "u:23456:rwx", "directory"]);
    assert!(may(root, "ls directory && touch directory/new && rm directory/file"));
}

fn acl_stays_after_rename(root: &Path) {
    files::write(root.join("file"), "x");
    set(root, &["-m", "u:23456:rw,g:7:-", "file"]);
    let before = list(root, "file");
    files::create_dir(root.join("directory"));
    files::rename(root.join("file"), root.join("directory/file"));
    assert_eq!(list(root, "directory/file"), before);
}

fn acl_may_have_400_entries(root: &Path) {
    files::write(root.join("file"), "x");
    let entries: Vec<_> = (1000..1400).map(|id| format!("u:{id}:r")).collect();
    set(root, &["-m", &entries.join(","), "file"]);
    assert_eq!(list(root, "file").matches("user:1").count(), 400);
    set(root, &["-b", "file"]);
    set(root, &["-m", "u:4294967294:rw,g:4294967294:r", "file"]);
    let shown = list(root, "file");
    assert!(shown.contains("user:4294967294:rw-,"), "{shown}");
    assert!(shown.contains("group:4294967294:r--,"), "{shown}");
}
