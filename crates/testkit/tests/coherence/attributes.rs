//! Attributes that only some inodes have: extended ones, access control lists, projects.

use crate::{Mounts, within_a_second};
use rustix::fs::{XattrFlags, getxattr, listxattr, setxattr};
use rustix::io::Errno;
use skep_testkit::program::run_in;
use skep_testkit::suite::Case;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

pub(crate) const CASES: &[Case<Mounts>] = skep_testkit::cases![attributes:
    attributes_that_are_set_are_seen, lists_of_who_may_are_seen,
    lists_are_seen_under_a_new_name, lists_have_at_most_511_entries, projects_are_handed_down,
    capabilities_of_the_other_go_with_writes,
];

/// Semantics 1.11 and 1.16.
fn attributes_that_are_set_are_seen(mounts: &Mounts) {
    let (here, there) = (mounts.one.join("file"), mounts.other.join("file"));
    fs::write(&here, "x").expect("written");
    let (any, longest) = (XattrFlags::empty(), vec![7_u8; 65_536]);
    for name in ["user.a", "trusted.a", "security.a"] {
        setxattr(&here, name, &longest, any).expect("64 KiB fit");
        let mut bytes = vec![0; 65_536];
        assert_eq!(getxattr(&there, name, &mut bytes[..]), Ok(65_536));
        assert!(bytes == longest);
    }
    // Names may take 64 KiB together.
    let name = |index: u32| format!("user.{index:0>250}");
    let room = (0..300).find(|index| match setxattr(&here, name(*index), b"", any) {
        Ok(()) => false,
        Err(error) => {
            assert_eq!(error, Errno::NOSPC);
            true
        }
    });
    assert_eq!(room, Some(255));
    let mut names = vec![0; 65_536];
    let len = listxattr(&there, &mut names[..]).expect("listed");
    assert_eq!(names[..len].iter().filter(|byte| **byte == 0).count(), 258);
}

/// Semantics 1.17.
fn lists_of_who_may_are_seen(mounts: &Mounts) {
    let (here, there) = (&mounts.one, &mounts.other);
    fs::set_permissions(here, fs::Permissions::from_mode(0o755)).expect("changed");
    fs::write(here.join("file"), "x").expect("written");
    fs::set_permissions(here.join("file"), fs::Permissions::from_mode(0o600)).expect("changed");
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
        within_a_second("a list", may);
        run_in(here, "setfacl", ["-b", "file"]);
        within_a_second("that it is gone", || !may());
    }
    // What a directory hands down metadata knows, whatever the mount has seen.
    fs::metadata(there).expect("there");
    run_in(here, "setfacl", ["-d", "-m", "u:23456:rwx", "."]);
    fs::write(there.join("new"), "x").expect("written");
    let text = run_in(here, "getfacl", ["new"]);
    assert!(text.contains("user:23456:rwx"), "{text}");
}

/// The kernel remembers lists with the inode, and comes to it by any of its names.
/// Semantics 1.17.
fn lists_are_seen_under_a_new_name(mounts: &Mounts) {
    let (here, there) = (&mounts.one, &mounts.other);
    let list = |name: &str| run_in(there, "getfacl", ["--omit-header", "--numeric", name]);
    fs::create_dir(here.join("old")).expect("made");
    run_in(here, "setfacl", ["-m", "u:23456:r", "old"]);
    assert!(list("old").contains("user:23456:r"));
    fs::rename(here.join("old"), here.join("new")).expect("renamed");
    run_in(here, "setfacl", ["-m", "u:23456:rwx", "new"]);
    // Nothing is remembered of the new name.
    assert!(list("new").contains("user:23456:rwx"), "under a name that was looked up");
    fs::rename(here.join("new"), here.join("newer")).expect("renamed");
    run_in(here, "setfacl", ["-b", "newer"]);
    fs::read_dir(there).expect("there").for_each(|entry| drop(entry.expect("listed").metadata()));
    assert!(!list("newer").contains("user:23456"), "under a name that was listed");
}

/// A list for `count` users besides owner, group, mask and the others, in the kernel's layout.
fn list_for(count: u32) -> Vec<u8> {
    let none = u32::MAX;
    let mut entries = vec![(1_u16, 6_u16, none)];
    entries.extend((0..count).map(|user| (2, 4, 100_000 + user)));
    entries.extend([(4, 4, none), (16, 6, none), (32, 0, none)]);
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// Semantics 1.17.
fn lists_have_at_most_511_entries(mounts: &Mounts) {
    let (longest, too_long) = (list_for(507), list_for(508));
    let any = XattrFlags::empty();
    let mut found = vec![0; 65_536];
    for (name, kind) in [("file", "access"), ("directory", "access"), ("directory", "default")] {
        let (here, there) = (mounts.one.join(name), mounts.other.join(name));
        match name {
            "file" => fs::write(&here, "x").expect("written"),
            _ => fs::create_dir_all(&here).expect("made"),
        }
        let kind = format!("system.posix_acl_{kind}");
        setxattr(&here, &kind, &longest, any).expect("it is not too long");
        assert_eq!(setxattr(&here, &kind, &too_long, any), Err(Errno::TOOBIG), "{name} {kind}");
        for path in [&here, &there] {
            let len = getxattr(path, &kind, &mut found[..]).expect("there");
            assert!(found[..len] == longest, "{name} {kind}: {len} bytes");
        }
    }
    // Handed down as a whole.
    fs::create_dir(mounts.other.join("directory/inner")).expect("made");
    for kind in ["access", "default"] {
        let path = mounts.one.join("directory/inner");
        let len = getxattr(&path, format!("system.posix_acl_{kind}"), &mut found[..]);
        assert_eq!(len, Ok(longest.len()), "{kind}");
    }
}

/// Semantics 1.20. In the root directories are made on either metadata target.
fn projects_are_handed_down(mounts: &Mounts) {
    let (here, there) = (&mounts.one, &mounts.other);
    let project = |place: &Path, name: &str| {
        let text = run_in(place, "lsattr", ["-p", "-d", name]);
        let words: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
        (words[0].clone(), words[1].contains('P'))
    };
    fs::create_dir(here.join("before")).expect("made");
    run_in(here, "chattr", ["-p", "731", "."]);
    fs::create_dir(here.join("without")).expect("made");
    assert_eq!(project(here, "without"), ("0".to_owned(), false));
    run_in(here, "chattr", ["+P", "."]);
    assert_eq!(project(there, "."), ("731".to_owned(), true));
    for index in 0..8 {
        let name = format!("directory-{index}");
        fs::create_dir_all(there.join(&name).join("inner")).expect("made");
        fs::write(there.join(&name).join("inner/file"), "x").expect("written");
        assert_eq!(project(here, &format!("{name}/inner")), ("731".to_owned(), true));
        assert_eq!(project(here, &format!("{name}/inner/file")), ("731".to_owned(), false));
    }
    assert_eq!(project(here, "before"), ("0".to_owned(), false));
    run_in(here, "chattr", ["-p", "4294967294", "before"]);
    assert_eq!(project(there, "before"), ("4294967294".to_owned(), false));
    run_in(here, "chattr", ["-P", "."]);
    fs::write(here.join("after"), "x").expect("written");
    assert_eq!(project(there, "after"), ("0".to_owned(), false));
    // Other flags there aren't.
    let mut call = std::process::Command::new("chattr");
    let refused = call.args(["+i", "after"]).current_dir(here).output().expect("chattr runs");
    assert!(!refused.status.success());
}

/// Semantics 1.16.
fn capabilities_of_the_other_go_with_writes(mounts: &Mounts) {
    let (here, there) = (mounts.one.join("file"), mounts.other.join("file"));
    fs::write(&here, "x").expect("written");
    // Known to have none.
    OpenOptions::new().append(true).open(&there).expect("opened").write_all(b"y").expect("written");
    skep_testkit::program::run_in(&mounts.one, "setcap", ["cap_net_raw+ep", "file"]);
    let name = "security.capability";
    let mut bytes = [0; 100];
    within_a_second("a capability", || getxattr(&there, name, &mut [0; 100]).is_ok());
    OpenOptions::new().append(true).open(&there).expect("opened").write_all(b"z").expect("written");
    assert_eq!(getxattr(&there, name, &mut bytes), Err(Errno::NODATA));
    within_a_second("its end", || getxattr(&here, name, &mut [0; 100]) == Err(Errno::NODATA));
}
