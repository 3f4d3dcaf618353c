//! Names, paths, numbers and times at and beyond their limits. Skep must return the same results as
//! the local file system.

use crate::allocation::FUSE;
use crate::{Test, names, ok, refused};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, StatxFlags, Timespec, Timestamps,
    XattrFlags, getxattr, listxattr, makedev, mkdirat, mknodat, openat, renameat_with, setxattr,
    statfs, statx, utimensat,
};
use rustix::io::Errno;
use skep_testkit::files::{self, OrFail};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

pub(crate) const CASES: &[Test] = skep_testkit::cases![bounds:
    names_have_at_most_255_bytes,
    paths_have_at_most_4095_bytes,
    names_may_have_any_bytes,
    directory_tree_may_be_deeper_than_the_longest_path,
    link_targets_and_xattrs_may_have_any_bytes,
    directory_holds_2000_subdirectories,
    symlink_loops_and_paths_through_41_symlinks_are_refused,
    times_before_1970_and_after_2106_are_stored,
    largest_user_and_group_ids_are_stored,
    large_device_numbers_are_stored,
    file_may_have_many_hard_links,
    creation_time_never_changes,
    new_entries_inherit_the_group_of_a_setgid_directory,
];

fn names_have_at_most_255_bytes(root: &Path) {
    let (longest, too_long) = (root.join("n".repeat(255)), root.join("n".repeat(256)));
    files::write(&longest, "x");
    assert_eq!(names(root), ["n".repeat(255)]);
    refused(fs::write(&too_long, "x"), Errno::NAMETOOLONG);
    refused(fs::metadata(&too_long), Errno::NAMETOOLONG);
    refused(fs::create_dir(&too_long), Errno::NAMETOOLONG);
    refused(fs::hard_link(&longest, &too_long), Errno::NAMETOOLONG);
    refused(fs::rename(&longest, &too_long), Errno::NAMETOOLONG);
    refused(symlink("x", &too_long), Errno::NAMETOOLONG);
    refused(fs::remove_file(&too_long), Errno::NAMETOOLONG);
    refused(fs::remove_dir(&too_long), Errno::NAMETOOLONG);
    let made = mknodat(CWD, &too_long, FileType::Fifo, Mode::RUSR, 0);
    refused(made, Errno::NAMETOOLONG);
    for (from, to) in [(&longest, &too_long), (&too_long, &longest)] {
        refused(renameat_with(CWD, from, CWD, to, RenameFlags::EXCHANGE), Errno::NAMETOOLONG);
    }
    refused(fs::read_dir(&too_long), Errno::NAMETOOLONG);
    let target = "t".repeat(4095);
    files::symlink(&target, root.join("link"));
    assert_eq!(files::read_link(root.join("link")).as_os_str(), OsStr::new(&target));
    refused(symlink("t".repeat(4096), root.join("second")), Errno::NAMETOOLONG);
    refused(symlink("", root.join("second")), Errno::NOENT);
}

fn paths_have_at_most_4095_bytes(root: &Path) {
    files::write(root.join("file"), "x");
    let path = |len: usize| {
        let (start, end) = (root.as_os_str().as_bytes(), b"/file");
        let mut bytes = start.to_vec();
        while bytes.len() + end.len() < len {
            bytes.push(b'/');
        }
        bytes.extend(end);
        PathBuf::from(OsStr::from_bytes(&bytes))
    };
    assert_eq!(files::read(path(4095)), b"x");
    refused(fs::read(path(4096)), Errno::NAMETOOLONG);
}

fn names_may_have_any_bytes(root: &Path) {
    let mut all: Vec<Vec<u8>> = (1..=255_u8)
        .filter(|byte| *byte != b'/')
        .map(|byte| vec![b'a', byte, 0xff, byte])
        .collect();
    all.sort();
    for name in &all {
        files::write(root.join(OsStr::from_bytes(name)), name);
    }
    let listed = files::read_dir(root);
    let mut found: Vec<_> = listed.map(|it| ok(it).file_name().as_bytes().to_vec()).collect();
    found.sort();
    assert_eq!(found, all);
    for name in &all {
        assert_eq!(files::read(root.join(OsStr::from_bytes(name))), *name);
    }
}

/// A path has at most 4,095 bytes. A program that changes its working directory step by step can
/// still create a deeper tree.
fn directory_tree_may_be_deeper_than_the_longest_path(root: &Path) {
    let name = "d".repeat(250);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut place = ok(openat(CWD, root, flags, Mode::empty()));
    let mut path = root.to_path_buf();
    for _ in 0..20 {
        ok(mkdirat(&place, &name, Mode::RWXU));
        place = ok(openat(&place, &name, flags, Mode::empty()));
        path.push(&name);
    }
    let flags = OFlags::CREATE | OFlags::RDWR;
    let file = fs::File::from(ok(openat(&place, "file", flags, Mode::RUSR)));
    files::write_all_at(&file, b"deep", 0);
    refused(fs::metadata(&path), Errno::NAMETOOLONG);
    drop(file);
    let again = fs::File::from(ok(openat(&place, "file", OFlags::RDONLY, Mode::empty())));
    let mut bytes = [0; 4];
    files::read_exact_at(&again, &mut bytes, 0);
    assert_eq!(&bytes, b"deep");
    // The standard library also descends step by step, so the library can remove such a tree.
    files::remove_dir_all(root.join(&name));
    assert_eq!(names(root), Vec::<String>::new());
}

/// docs/semantics.md 1.11.
fn link_targets_and_xattrs_may_have_any_bytes(root: &Path) {
    let target = OsStr::from_bytes(b"\xff/\xfe \n\x80");
    files::symlink(target, root.join("link"));
    assert_eq!(files::read_link(root.join("link")).as_os_str(), target);
    let (path, name) = (root.join("file"), &b"user.\xff\xfe\x80"[..]);
    files::write(&path, "x");
    setxattr(&path, name, b"\0\xff", XattrFlags::CREATE).or_fail("setxattr", &path);
    let mut bytes = [0; 64];
    let len = getxattr(&path, name, &mut bytes).or_fail("getxattr", &path);
    assert_eq!(&bytes[..len], b"\0\xff");
    let len = listxattr(&path, &mut bytes).or_fail("listxattr", &path);
    assert_eq!(&bytes[..len], [name, &b"\0"[..]].concat());
}

/// Each subdirectory counts as one link of its parent. The test creates 2,000 subdirectories. ext4
/// stops counting at 65,000, but creating this number of directories takes a minute. The tests of
/// the metadata crate check larger numbers.
fn directory_holds_2000_subdirectories(root: &Path) {
    for number in 0..2000 {
        files::create_dir(root.join(number.to_string()));
    }
    assert_eq!(files::metadata(root).nlink(), 2002);
    assert_eq!(names(root).len(), 2000);
    for number in 0..1000 {
        files::remove_dir(root.join(number.to_string()));
    }
    assert_eq!(files::metadata(root).nlink(), 1002);
}

fn symlink_loops_and_paths_through_41_symlinks_are_refused(root: &Path) {
    files::symlink("self", root.join("self"));
    refused(fs::metadata(root.join("self")), Errno::LOOP);
    files::symlink("b", root.join("a"));
    files::symlink("a", root.join("b"));
    refused(fs::read(root.join("a")), Errno::LOOP);
    refused(fs::write(root.join("b"), "x"), Errno::LOOP);
    files::write(root.join("0"), "end");
    for index in 1..=41 {
        files::symlink(format!("{}", index - 1), root.join(format!("{index}")));
    }
    assert_eq!(files::read(root.join("40")), b"end");
    refused(fs::read(root.join("41")), Errno::LOOP);
}

/// docs/semantics.md 1.9.
fn times_before_1970_and_after_2106_are_stored(root: &Path) {
    let path = root.join("file");
    files::write(&path, "x");
    files::create_dir(root.join("directory"));
    for seconds in [-2_000_000_000, -1, 0, 4_294_967_295, 4_294_967_296, 15_000_000_000] {
        let times = Timestamps {
            last_access: Timespec { tv_sec: seconds, tv_nsec: 999_999_999 },
            last_modification: Timespec { tv_sec: seconds, tv_nsec: 1 },
        };
        for path in [&path, &root.join("directory")] {
            utimensat(CWD, path, &times, AtFlags::empty()).or_fail("utimensat", path);
            let found = files::metadata(path);
            assert_eq!((found.atime(), found.atime_nsec()), (seconds, 999_999_999));
            assert_eq!((found.mtime(), found.mtime_nsec()), (seconds, 1));
        }
    }
}

fn largest_user_and_group_ids_are_stored(root: &Path) {
    let path = root.join("file");
    files::write(&path, "x");
    let largest = u32::MAX - 1;
    files::chown(&path, Some(largest), Some(largest));
    let owners = |path: &Path| (files::metadata(path).uid(), files::metadata(path).gid());
    assert_eq!(owners(&path), (largest, largest));
    // An id of 2^32 - 1 means that the owner does not change.
    files::chown(&path, Some(u32::MAX), Some(7));
    assert_eq!(owners(&path), (largest, 7));
}

fn large_device_numbers_are_stored(root: &Path) {
    for (index, (major, minor)) in [(0, 0), (1, 3), (4095, 1_048_575)].into_iter().enumerate() {
        let device = makedev(major, minor);
        let path = root.join(format!("block-{index}"));
        mknodat(CWD, &path, FileType::BlockDevice, Mode::RUSR, device).or_fail("mknodat", &path);
        assert_eq!(files::metadata(&path).rdev(), device);
    }
}

/// ext4 allows 65,000 hard links to a file. XFS and Skep allow two thousand million hard links. On
/// the local file system, the test accepts the limit of ext4.
fn file_may_have_many_hard_links(root: &Path) {
    let file = root.join("file");
    files::write(&file, "x");
    let is_skep = statfs(root).or_fail("statfs", root).f_type == FUSE;
    let mut links = 1;
    while links < 65_010 {
        match fs::hard_link(&file, root.join(format!("{links}"))) {
            Ok(()) => links += 1,
            Err(error) => {
                assert!(!is_skep, "{links} links: {error}");
                assert_eq!(error.raw_os_error(), Some(Errno::MLINK.raw_os_error()));
                assert_eq!(links, 65_000, "ext4 has this limit");
                break;
            }
        }
    }
    assert_eq!(files::metadata(&file).nlink(), links);
    files::remove_file(&file);
    assert_eq!(files::metadata(root.join("1")).nlink(), links - 1);
}

fn creation_time_never_changes(root: &Path) {
    let path = root.join("file");
    let before = SystemTime::now() - Duration::from_secs(5);
    files::write(&path, "x");
    let born = || {
        let found = statx(CWD, &path, AtFlags::empty(), StatxFlags::BTIME).or_fail("statx", &path);
        assert!(found.stx_mask & StatxFlags::BTIME.bits() != 0, "the time of creation is known");
        SystemTime::UNIX_EPOCH
            + Duration::new(found.stx_btime.tv_sec as u64, found.stx_btime.tv_nsec)
    };
    let first = born();
    assert!(first >= before && first <= SystemTime::now() + Duration::from_secs(5));
    files::write(&path, "changed");
    files::set_permissions(&path, fs::Permissions::from_mode(0o600));
    let old = Timespec { tv_sec: 5, tv_nsec: 5 };
    let times = Timestamps { last_access: old, last_modification: old };
    utimensat(CWD, &path, &times, AtFlags::empty()).or_fail("utimensat", &path);
    files::rename(&path, root.join("moved"));
    files::rename(root.join("moved"), &path);
    assert_eq!(born(), first);
}

/// In a directory with the set-group-id bit, new files get the directory's group, and new
/// directories also get the bit. A new file does not get the set-group-id bit if its creator is not
/// in the file's group.
fn new_entries_inherit_the_group_of_a_setgid_directory(root: &Path) {
    files::chown(root, None, Some(77));
    files::set_permissions(root, fs::Permissions::from_mode(0o2777));
    files::write(root.join("file"), "x");
    files::create_dir_all(root.join("directory/inner"));
    files::symlink("x", root.join("link"));
    for name in ["file", "directory", "directory/inner", "link"] {
        assert_eq!(files::symlink_metadata(root.join(name)).gid(), 77, "{name}");
    }
    let mode = |name: &str| files::metadata(root.join(name)).mode() & 0o7777;
    assert_eq!(mode("directory/inner") & 0o2000, 0o2000);
    assert_eq!(mode("file") & 0o2000, 0);
    let create = "import os; os.umask(0); os.setgroups([]); os.setgid(23456); os.setuid(23456); \
                  os.close(os.open('theirs', os.O_CREAT | os.O_WRONLY, 0o2775))";
    skep_testkit::program::run_in(root, "python3", ["-c", create]);
    assert_eq!(files::metadata(root.join("theirs")).gid(), 77);
    assert_eq!(mode("theirs") & 0o2000, 0, "the creator is not in the group of the file");
}
