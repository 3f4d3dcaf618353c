//! The attributes of files must be the same on every mount and after restarts. The tests compare
//! kinds, inode numbers, owners, times, link targets and extended attributes.

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, StatxFlags, Timespec, Timestamps, XattrFlags, getxattr,
    listxattr, makedev, mknodat, setxattr, statx, utimensat,
};
use skep_testkit::files::{self, OrFail};
use skep_testkit::program::run_in;
use skep_testkit::{Cluster, Shape, Transport};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Times in seconds: before 1970, after 2106 (the limit of 32 unsigned bits) and after 2446 (the
/// limit of the 34 bits of ext4).
const SECONDS: [i64; 4] = [-2_000_000_000, -1, 4_294_967_296, 100_000_000_000];

/// Creates an entry of each kind in `root`, and sets the attributes of the entries.
fn make(root: &Path) {
    let node = |name: &str, kind, device| {
        mknodat(CWD, root.join(name), kind, Mode::RUSR | Mode::WUSR, device).expect("made");
    };
    node("pipe", FileType::Fifo, 0);
    node("socket", FileType::Socket, 0);
    node("null", FileType::CharacterDevice, makedev(1, 3));
    node("zero", FileType::CharacterDevice, makedev(1, 5));
    node("block", FileType::BlockDevice, makedev(4095, 1_048_575));
    files::create_dir(root.join("directory"));
    files::write(root.join("file"), "text");
    files::symlink(OsStr::from_bytes(b"t\xff\xfe"), root.join("link"));
    files::chown(root.join("file"), Some(u32::MAX - 1), Some(u32::MAX - 1));
    let name = &b"user.\xff\x80"[..];
    setxattr(root.join("file"), name, b"\0\xff", XattrFlags::empty())
        .or_fail("setxattr", root.join("file"));
    run_in(root, "setfacl", ["-m", "u:4294967294:rw,g:77:r", "file"]);
    run_in(root, "setfacl", ["-d", "-m", "u:4294967294:rw", "directory"]);
    for (name, seconds) in ["file", "directory", "null", "pipe"].into_iter().zip(SECONDS) {
        let times = Timestamps {
            last_access: Timespec { tv_sec: seconds, tv_nsec: 999_999_999 },
            last_modification: Timespec { tv_sec: seconds, tv_nsec: 1 },
        };
        utimensat(CWD, root.join(name), &times, AtFlags::empty())
            .or_fail("utimensat", root.join(name));
    }
}

/// Returns a line with all visible attributes for each entry in `root`.
fn state(root: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let listed = files::read_dir(root).map(|it| it.expect("an entry").path());
    let mut paths: Vec<_> = listed.collect();
    paths.sort();
    for path in paths {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_FORCE_SYNC;
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let found = statx(CWD, &path, flags, wanted).or_fail("statx", &path);
        assert!(found.stx_mask & StatxFlags::BTIME.bits() != 0, "the time of creation is known");
        let time = |it: rustix::fs::StatxTimestamp| format!("{}.{:09}", it.tv_sec, it.tv_nsec);
        let is_link = path.is_symlink();
        let target = is_link.then(|| files::read_link(&path));
        let mut names = vec![0; 1000];
        let len =
            if is_link { 0 } else { listxattr(&path, &mut names).or_fail("listxattr", &path) };
        let attributes = names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
        let attributes: Vec<_> = attributes
            .map(|name| {
                let mut value = vec![0; 1000];
                let len = getxattr(&path, name, &mut value).or_fail("getxattr", &path);
                (name.to_vec(), value[..len].to_vec())
            })
            .collect();
        lines.push(format!(
            "{} number {} mode {:o} links {} owner {} {} device {} {} size {} times {} {} {} {} \
             {target:?} {attributes:?}",
            path.file_name().expect("a name").display(),
            found.stx_ino,
            found.stx_mode,
            found.stx_nlink,
            found.stx_uid,
            found.stx_gid,
            found.stx_rdev_major,
            found.stx_rdev_minor,
            found.stx_size,
            time(found.stx_atime),
            time(found.stx_mtime),
            time(found.stx_ctime),
            time(found.stx_btime),
        ));
    }
    lines
}

/// docs/semantics.md 1.9, 1.11, 1.16 and 1.17.
#[test]
fn attributes_are_equal_on_all_mounts_and_after_restart() {
    let mut cluster = Cluster::start(Shape::default());
    let second = cluster.mount(Transport::Device);
    let (here, there) = (cluster.path().join("all"), second.path().join("all"));
    files::create_dir(&here);
    make(&here);
    let before = state(&here);
    assert_eq!(before.len(), 8);
    for (name, seconds) in ["file", "directory", "null", "pipe"].into_iter().zip(SECONDS) {
        let line = before
            .iter()
            .find(|line| line.starts_with(name))
            .expect("the state has a line for each name");
        let times = format!("{seconds}.999999999 {seconds}.000000001 ");
        assert!(line.contains(&times), "{line}");
    }
    assert_eq!(state(&there), before);
    // Programs can use devices, unless the mount options forbid this.
    files::write(here.join("null"), "nothing");
    let mut bytes = [1; 16];
    files::read_exact(&files::open(there.join("zero")), &mut bytes);
    assert_eq!(bytes, [0; 16]);
    let third = cluster.mount_with(Transport::Uring, "nodev");
    let refused = fs::write(third.path().join("all/null"), "nothing")
        .expect_err("the mount option nodev forbids devices");
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    assert_eq!(state(&third.path().join("all")), before);
    third.unmount();
    second.unmount();
    // Restart the cluster twice: after a clean stop, and after a kill of all processes.
    for in_order in [true, false] {
        match in_order {
            true => cluster.stop(),
            false => cluster.kill_all(),
        }
        cluster.up().expect_success();
        assert_eq!(state(&here), before);
    }
    cluster.stop();
}

/// docs/semantics.md 1.8, for files and directories, after restarts of all services.
#[test]
fn inode_numbers_are_not_reused_after_restarts() {
    let cluster = Cluster::start(Shape::default());
    let mut seen = HashSet::new();
    for round in 0..4 {
        for index in 0..100 {
            let path = cluster.path().join(format!("{round}-{index}"));
            match index % 2 {
                0 => files::write(&path, "x"),
                _ => files::create_dir(&path),
            }
            let number = files::metadata(&path).ino();
            assert!(seen.insert(number), "inode number {number} was used before round {round}");
            match index % 2 {
                0 => files::remove_file(&path),
                _ => files::remove_dir(&path),
            }
        }
        match round % 2 {
            0 => cluster.kill_all(),
            _ => cluster.stop(),
        }
        cluster.up().expect_success();
    }
    cluster.stop();
}
