//! Attributes that only some inodes have: extended attributes, access control lists, projects.

use crate::statements::Stepwise;
use crate::{Mounts, within_a_second};
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, XattrFlags, getxattr, linkat, listxattr, openat,
    renameat, renameat_with, setxattr,
};
use rustix::io::Errno;
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;
use skep_testkit::files::{self, OrFail};
use skep_testkit::program::run_in;
use skep_testkit::suite::Case;
use skep_testkit::{PATIENCE, spread, wait_for};
use std::fs::{self, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(crate) const CASES: &[Case<Mounts>] = skep_testkit::cases![attributes:
    xattr_changes_are_visible_immediately_on_other_mounts,
    acls_are_visible_and_enforced_on_other_mounts,
    acl_changes_are_visible_after_a_rename_by_another_mount,
    acl_changes_are_visible_under_a_reused_name,
    acl_changes_are_visible_under_recreated_names,
    former_owner_cannot_change_a_file_with_an_acl,
    acls_have_at_most_511_entries,
    new_entries_inherit_the_project_of_their_directory,
    directories_on_all_groups_inherit_the_project,
    renames_and_links_into_another_project_are_refused,
    project_of_a_file_limits_its_renames_and_links,
    writes_remove_capabilities_set_by_the_other_mount,
    new_capabilities_are_visible_immediately_without_caching,
    chown_clears_set_id_bits_that_another_mount_has_set,
];

/// docs/semantics.md 1.10. A mount caches the attributes of a file. Another mount then sets the
/// set-user-id or set-group-id bit. After that, a program calls `fchown` on the first mount.
fn chown_clears_set_id_bits_that_another_mount_has_set(mounts: &Mounts) {
    for (before, after) in [(0o4755, 0o755), (0o2755, 0o755), (0o2640, 0o2640)] {
        let name = format!("{before:o}");
        let (here, there) = (mounts.one.join(&name), mounts.other.join(&name));
        let file = files::create_new(&here);
        files::set_permissions(&there, fs::Permissions::from_mode(before));
        std::os::unix::fs::fchown(&file, Some(1), None).or_fail("fchown", &here);
        assert_eq!(files::metadata_of(&file).mode() & 0o7777, after, "{before:o}");
    }
}

/// docs/semantics.md 1.11 and 1.16.
fn xattr_changes_are_visible_immediately_on_other_mounts(mounts: &Mounts) {
    let (here, there) = (mounts.one.join("file"), mounts.other.join("file"));
    files::write(&here, "x");
    let (any, longest) = (XattrFlags::empty(), vec![7_u8; 65_536]);
    for name in ["user.a", "trusted.a", "security.a"] {
        setxattr(&here, name, &longest, any).or_fail("setxattr", &here);
        let mut bytes = vec![0; 65_536];
        assert_eq!(getxattr(&there, name, &mut bytes[..]), Ok(65_536));
        assert!(bytes == longest);
    }
    // The names of all extended attributes of a file may have up to 64 KiB in total.
    let name = |index: u32| format!("user.{index:0>250}");
    let limit = (0..300).find(|index| match setxattr(&here, name(*index), b"", any) {
        Ok(()) => false,
        Err(error) => {
            assert_eq!(error, Errno::NOSPC);
            true
        }
    });
    assert_eq!(limit, Some(255));
    let mut names = vec![0; 65_536];
    let len = listxattr(&there, &mut names[..]).or_fail("listxattr", &there);
    assert_eq!(names[..len].iter().filter(|byte| **byte == 0).count(), 258);
}

/// docs/semantics.md 1.17.
fn acls_are_visible_and_enforced_on_other_mounts(mounts: &Mounts) {
    let (here, there) = (&mounts.one, &mounts.other);
    files::set_permissions(here, fs::Permissions::from_mode(0o755));
    files::write(here.join("file"), "x");
    files::set_permissions(here.join("file"), fs::Permissions::from_mode(0o600));
    let may = || {
        let mut call = std::process::Command::new("setpriv");
        call.args(["--reuid=23456", "--regid=23456", "--clear-groups", "cat"]);
        let null = std::process::Stdio::null;
        let call = call.arg(there.join("file")).stdout(null()).stderr(null());
        call.status().expect("setpriv runs").success()
    };
    for _ in 0..3 {
        assert!(!may());
        run_in(here, "setfacl", ["-m", "u:23456:r", "file"]);
        within_a_second("the list", may);
        run_in(here, "setfacl", ["-b", "file"]);
        within_a_second("the removal of the list", || !may());
    }
    // The metadata target applies the directory's default access control list to new files, even if
    // the mount has never read this list.
    files::metadata(there);
    run_in(here, "setfacl", ["-d", "-m", "u:23456:rwx", "."]);
    files::write(there.join("new"), "x");
    let text = run_in(here, "getfacl", ["new"]);
    assert!(text.contains("user:23456:rwx"), "{text}");
}

/// The kernel caches access control lists with the inode. So a change of the list must also be
/// visible under other names of the inode. docs/semantics.md 1.17.
fn acl_changes_are_visible_after_a_rename_by_another_mount(mounts: &Mounts) {
    let (here, there) = (&mounts.one, &mounts.other);
    let list = |name: &str| run_in(there, "getfacl", ["--omit-header", "--numeric", name]);
    files::create_dir(here.join("old"));
    run_in(here, "setfacl", ["-m", "u:23456:r", "old"]);
    assert!(list("old").contains("user:23456:r"));
    files::rename(here.join("old"), here.join("new"));
    run_in(here, "setfacl", ["-m", "u:23456:rwx", "new"]);
    // The kernel has no cached list for the new name.
    assert!(list("new").contains("user:23456:rwx"), "the list after a lookup of the new name");
    files::rename(here.join("new"), here.join("newer"));
    run_in(here, "setfacl", ["-b", "newer"]);
    files::read_dir(there).for_each(|entry| drop(entry.expect("listed").metadata()));
    assert!(!list("newer").contains("user:23456"), "the list after a listing with the new name");
}

/// The kernel looks up the reused name twice. The kernel drops the first reply, because its cache
/// has another inode under this name. docs/semantics.md 1.17.
fn acl_changes_are_visible_under_a_reused_name(mounts: &Mounts) {
    let (here, there) = (&mounts.one, &mounts.other);
    let list = |name: &str| run_in(there, "getfacl", ["--omit-header", "--numeric", name]);
    files::create_dir(here.join("old"));
    files::write(here.join("name"), "x");
    run_in(here, "setfacl", ["-m", "u:23456:r", "old"]);
    assert!(list("old").contains("user:23456:r"));
    files::metadata(there.join("name"));
    files::remove_file(here.join("name"));
    files::rename(here.join("old"), here.join("name"));
    run_in(here, "setfacl", ["-m", "u:23456:rwx", "name"]);
    wait_for("the name belongs to the directory", PATIENCE, || {
        fs::metadata(there.join("name")).is_ok_and(|found| found.is_dir()).then_some(())
    });
    assert!(list("name").contains("user:23456:rwx"), "the list after a stat of the name");
}

/// The inode has two names. One of these names is a hard link that one mount has removed and the
/// other mount has recreated. docs/semantics.md 1.17.
fn acl_changes_are_visible_under_recreated_names(mounts: &Mounts) {
    let (here, there) = (&mounts.one, &mounts.at_once);
    let list = |place: &Path| {
        let mut found = vec![0; 1000];
        files::metadata(place.join("two"));
        let len = getxattr(place.join("two"), "system.posix_acl_access", &mut found[..]);
        found.truncate(len.expect("there"));
        found
    };
    files::write(here.join("one"), "x");
    run_in(here, "setfacl", ["-m", "u:34567:r", "one"]);
    files::hard_link(here.join("one"), here.join("two"));
    run_in(there, "getfacl", ["two"]);
    files::remove_file(there.join("two"));
    run_in(there, "getfacl", ["one"]);
    files::hard_link(here.join("one"), here.join("two"));
    run_in(here, "setfacl", ["-m", "u:34567:rwx", "two"]);
    assert_eq!(list(there), list(here));
}

/// The kernel itself checks the owner before a chmod, and must use the owner that its last lookup
/// of the name returned. This also holds if the kernel drops the cached access control list at the
/// same time, or if the file has a new name. The kernel must not detach another file system that is
/// mounted on the file. docs/semantics.md 1.2 and 1.17.
fn former_owner_cannot_change_a_file_with_an_acl(mounts: &Mounts) {
    let (here, there) = (&mounts.one, &mounts.at_once);
    for place in [here, there] {
        files::set_permissions(place, fs::Permissions::from_mode(0o755));
    }
    // Call chmod(2) without a stat, because chmod(1) would look up the file before the change.
    let may = |name: &str| {
        let change = || {
            set_thread_res_uid(None, Uid::from_raw(23456), None).expect("root may");
            fs::set_permissions(there.join(name), fs::Permissions::from_mode(0o700)).is_ok()
        };
        std::thread::scope(|scope| scope.spawn(change).join().expect("no panic"))
    };
    let make = |name: &str, is_directory: bool| {
        let path = here.join(name);
        match is_directory {
            true => files::create_dir(&path),
            false => files::write(&path, "x"),
        }
        run_in(here, "setfacl", ["-m", "u:34567:rx", name]);
        files::chown(&path, Some(23456), None);
        // After this call, the kernel has the inode and its access control list in its cache.
        run_in(there, "getfacl", [name]);
        assert!(may(name));
        run_in(here, "setfacl", ["-m", "u:34567:rwx", name]);
        run_in(there, "getfacl", [name]);
    };
    for is_directory in [true, false] {
        make("same", is_directory);
        files::chown(here.join("same"), Some(34567), None);
        assert!(!may("same"), "directory: {is_directory}");
        make("old", is_directory);
        let script = "mount --bind same same && echo there; read go; stat same >&2; \
                      mountpoint -q same && echo kept";
        let mut inside = Command::new("unshare");
        inside.args(["--mount", "--propagation", "private", "sh", "-ec", script]);
        let mut inside = Stepwise::start(there, inside.stderr(Stdio::null()));
        assert_eq!(inside.line(), "there");
        files::rename(here.join("old"), here.join("new"));
        files::chown(here.join("new"), Some(34567), None);
        assert!(!may("new"), "directory: {is_directory}");
        files::chown(here.join("same"), Some(45678), None);
        inside.go_on();
        assert_eq!(inside.line(), "kept");
        inside.end();
        files::rename(there.join("new"), there.join("newer"));
        files::chown(here.join("newer"), Some(23456), None);
        assert!(may("newer"), "directory: {is_directory}");
        files::chown(here.join("newer"), Some(34567), None);
        assert!(!may("newer"), "directory: {is_directory}");
        for name in ["same", "newer"] {
            let removed = match is_directory {
                true => fs::remove_dir(here.join(name)),
                false => fs::remove_file(here.join(name)),
            };
            removed.expect("removed");
        }
    }
}

/// Returns an access control list in the kernel's layout. The list has `count` entries for named
/// users, and entries for the owner, the group, the mask and others.
fn list_for(count: u32) -> Vec<u8> {
    let undefined = u32::MAX;
    let mut entries = vec![(1_u16, 6_u16, undefined)];
    entries.extend((0..count).map(|user| (2, 4, 100_000 + user)));
    entries.extend([(4, 4, undefined), (16, 6, undefined), (32, 0, undefined)]);
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// docs/semantics.md 1.17.
fn acls_have_at_most_511_entries(mounts: &Mounts) {
    let (longest, too_long) = (list_for(507), list_for(508));
    let any = XattrFlags::empty();
    let mut found = vec![0; 65_536];
    for (name, kind) in [("file", "access"), ("directory", "access"), ("directory", "default")] {
        let (here, there) = (mounts.one.join(name), mounts.other.join(name));
        match name {
            "file" => files::write(&here, "x"),
            _ => files::create_dir_all(&here),
        }
        let kind = format!("system.posix_acl_{kind}");
        setxattr(&here, &kind, &longest, any).or_fail("setxattr", &here);
        assert_eq!(setxattr(&here, &kind, &too_long, any), Err(Errno::TOOBIG), "{name} {kind}");
        for path in [&here, &there] {
            let len = getxattr(path, &kind, &mut found[..]).or_fail("getxattr", path);
            assert!(found[..len] == longest, "{name} {kind}: {len} bytes");
        }
    }
    // A new directory inherits the whole default access control list.
    files::create_dir(mounts.other.join("directory/inner"));
    for kind in ["access", "default"] {
        let path = mounts.one.join("directory/inner");
        let len = getxattr(&path, format!("system.posix_acl_{kind}"), &mut found[..]);
        assert_eq!(len, Ok(longest.len()), "{kind}");
    }
}

/// Returns the project of `name` in the directory `place`, and whether new entries inherit this
/// project.
fn project(place: &Path, name: &str) -> (String, bool) {
    let text = run_in(place, "lsattr", ["-p", "-d", name]);
    let words: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
    (words[0].clone(), words[1].contains('P'))
}

/// docs/semantics.md 1.20. Metadata spreads new directories in the root directory over its groups.
/// So this test sets a project of the root directory for a moment.
fn directories_on_all_groups_inherit_the_project(mounts: &Mounts) {
    let root = mounts.one.parent().expect("the mount");
    let name = |number: u32| format!("with-project-{number}");
    let paths: Vec<_> = (0..16).map(|number| root.join(name(number))).collect();
    run_in(root, "chattr", ["-p", "731", "."]);
    run_in(root, "chattr", ["+P", "."]);
    let made: Vec<_> = paths.iter().map(fs::create_dir).collect();
    run_in(root, "chattr", ["-P", "."]);
    run_in(root, "chattr", ["-p", "0", "."]);
    for (result, path) in made.into_iter().zip(&paths) {
        result.or_fail("create_dir", path);
    }
    spread::assert_spread(&paths);
    for (number, path) in (0..).zip(&paths) {
        assert_eq!(project(root, &name(number)), ("731".to_owned(), true));
        files::create_dir(path.join("inner"));
        assert_eq!(project(path, "inner"), ("731".to_owned(), true));
        files::remove_dir_all(path);
    }
}

/// docs/semantics.md 1.20.
fn new_entries_inherit_the_project_of_their_directory(mounts: &Mounts) {
    let (here, there) = (&mounts.one, &mounts.other);
    files::create_dir(here.join("before"));
    run_in(here, "chattr", ["-p", "731", "."]);
    files::create_dir(here.join("without"));
    assert_eq!(project(here, "without"), ("0".to_owned(), false));
    run_in(here, "chattr", ["+P", "."]);
    assert_eq!(project(there, "."), ("731".to_owned(), true));
    for index in 0..2 {
        let name = format!("directory-{index}");
        files::create_dir_all(there.join(&name).join("inner"));
        files::write(there.join(&name).join("inner/file"), "x");
        assert_eq!(project(here, &format!("{name}/inner")), ("731".to_owned(), true));
        assert_eq!(project(here, &format!("{name}/inner/file")), ("731".to_owned(), false));
    }
    assert_eq!(project(here, "before"), ("0".to_owned(), false));
    run_in(here, "chattr", ["-p", "4294967294", "before"]);
    assert_eq!(project(there, "before"), ("4294967294".to_owned(), false));
    run_in(here, "chattr", ["-P", "."]);
    files::write(here.join("after"), "x");
    assert_eq!(project(there, "after"), ("0".to_owned(), false));
    // Skep supports no other file flags than the flag for projects.
    let mut call = std::process::Command::new("chattr");
    let refused = call.args(["+i", "after"]).current_dir(here).output().expect("chattr runs");
    assert!(!refused.status.success());
}

/// A directory with a project id. If new entries inherit the project, the directory accepts only
/// entries with the same project.
struct ProjectDirectory {
    path: PathBuf,
    /// Project that new entries inherit. `None` means that new entries do not inherit the
    /// directory's project.
    project: Option<u32>,
}

impl ProjectDirectory {
    /// Creates a directory. If `number` is even, new entries inherit the project of the directory.
    fn make(root: &Path, number: u32) -> Self {
        let path = root.join(format!("of-a-project-{number}"));
        let project = 40 + number / 4;
        files::create_dir(&path);
        run_in(&path, "chattr", ["-p", &project.to_string(), "."]);
        let hands_down = number.is_multiple_of(2);
        if hands_down {
            run_in(&path, "chattr", ["+P", "."]);
        }
        Self { path, project: hands_down.then_some(project) }
    }

    /// Returns the project of new files in the directory.
    fn inherited(&self) -> u32 {
        self.project.unwrap_or(0)
    }

    /// Whether an entry with the project `project` may be moved or linked into the directory.
    fn accepts(&self, project: u32) -> bool {
        self.project.is_none_or(|own| own == project)
    }
}

/// In some directories, new entries inherit the directory's project. A rename or link of a file
/// with a different project into such a directory fails with EXDEV, as on ext4 and XFS. The
/// directories in the root are on both metadata targets. docs/semantics.md 1.20.
fn renames_and_links_into_another_project_are_refused(mounts: &Mounts) {
    let root = mounts.one.parent().expect("the mount");
    let directories: Vec<_> = (0..8).map(|number| ProjectDirectory::make(root, number)).collect();
    spread::assert_spread(&directories.iter().map(|it| it.path.clone()).collect::<Vec<_>>());
    let mut refusals = 0;
    let mut check = |what: &str, may: bool, result: rustix::io::Result<()>| {
        refusals += u32::from(!may);
        assert_eq!(result, if may { Ok(()) } else { Err(Errno::XDEV) }, "{what}");
    };
    for (from, to) in
        directories.iter().flat_map(|from| directories.iter().map(move |to| (from, to)))
    {
        if from.path == to.path {
            continue;
        }
        let what = format!("{:?} to {:?}", from.path, to.path);
        let (there, may) = (to.path.join("there"), to.accepts(from.inherited()));
        let (file, directory) = (from.path.join("file"), from.path.join("directory"));
        let other = to.path.join("other");
        files::write(&file, "x");
        files::write(&other, "y");
        files::create_dir(&directory);
        check(&what, may, linkat(CWD, &file, CWD, &there, AtFlags::empty()));
        if may {
            files::remove_file(&there);
        }
        for moved in [&file, &directory] {
            check(&what, may, renameat(CWD, moved, CWD, &there));
            if may {
                renameat(CWD, &there, CWD, moved).expect("a rename back is allowed");
            }
        }
        let may = may && from.accepts(to.inherited());
        for moved in [&file, &directory] {
            let exchange = || renameat_with(CWD, moved, CWD, &other, RenameFlags::EXCHANGE);
            check(&what, may, exchange());
            if may {
                exchange().expect("exchanged again");
            }
        }
        files::remove_dir(&directory);
        files::remove_file(&file);
        files::remove_file(&other);
    }
    assert!(refusals > 100, "{refusals}");
}

/// docs/semantics.md 1.20.
fn project_of_a_file_limits_its_renames_and_links(mounts: &Mounts) {
    let root = mounts.one.parent().expect("the mount");
    let (from, to) = (ProjectDirectory::make(root, 100), ProjectDirectory::make(root, 104));
    let (here, there) = (from.path.join("file"), to.path.join("file"));
    files::write(&here, "x");
    // Metadata also checks the project if a rename does not move the file to another directory.
    run_in(&from.path, "chattr", ["-p", "7", "file"]);
    assert_eq!(renameat(CWD, &here, CWD, from.path.join("new")), Err(Errno::XDEV));
    run_in(&from.path, "chattr", ["-p", &to.inherited().to_string(), "file"]);
    renameat(CWD, &here, CWD, &there).expect("the file has the new project");
    // An unnamed file inherits the project of the directory in which it was created.
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let file = openat(CWD, &from.path, flags, Mode::RUSR).expect("made");
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let name = |at: &Path| linkat(CWD, &path, CWD, at, AtFlags::SYMLINK_FOLLOW);
    assert_eq!(name(&to.path.join("named")), Err(Errno::XDEV));
    name(&from.path.join("named")).expect("named");
    // After EXDEV, mv(1) copies the files, as mv(1) does between file systems.
    files::create_dir(from.path.join("tree"));
    files::write(from.path.join("tree/file"), "whole");
    run_in(&from.path, "mv", [Path::new("tree"), &to.path]);
    assert_eq!(files::read(to.path.join("tree/file")), b"whole");
    assert!(!from.path.join("tree").exists());
    let text = run_in(&to.path, "lsattr", ["-p", "tree"]);
    assert!(text.trim_start().starts_with(&to.inherited().to_string()), "{text}");
}

/// docs/semantics.md 1.16.
fn writes_remove_capabilities_set_by_the_other_mount(mounts: &Mounts) {
    let (here, there) = (mounts.one.join("file"), mounts.other.join("file"));
    files::write(&here, "x");
    // Write to the file, so that the mount caches the information that the file has no
    // capabilities.
    files::write_all(&files::open_with(OpenOptions::new().append(true), &there), b"y");
    skep_testkit::program::run_in(&mounts.one, "setcap", ["cap_net_raw+ep", "file"]);
    let name = "security.capability";
    let mut bytes = [0; 100];
    within_a_second("the capability", || getxattr(&there, name, &mut [0; 100]).is_ok());
    files::write_all(&files::open_with(OpenOptions::new().append(true), &there), b"z");
    assert_eq!(getxattr(&there, name, &mut bytes), Err(Errno::NODATA));
    within_a_second("the removal of the capability", || {
        getxattr(&here, name, &mut [0; 100]) == Err(Errno::NODATA)
    });
}

/// docs/semantics.md 1.16, with `attribute_timeout=0`. Regression test: a mount with this option
/// still cached for a second that a file has no capability.
fn new_capabilities_are_visible_immediately_without_caching(mounts: &Mounts) {
    let (here, there) = (mounts.one.join("file"), mounts.at_once.join("file"));
    let name = "security.capability";
    files::write(&here, "x");
    for round in 0..10 {
        // Before the write, the kernel asks the mount for the attribute `security.capability`. The
        // write then removes the attribute.
        files::write_all(&files::open_with(OpenOptions::new().append(true), &there), b"y");
        assert_eq!(getxattr(&there, name, &mut [0; 100]), Err(Errno::NODATA));
        run_in(&mounts.one, "setcap", ["cap_net_raw+ep", "file"]);
        assert!(getxattr(&there, name, &mut [0; 100]).is_ok(), "round {round}");
    }
}
