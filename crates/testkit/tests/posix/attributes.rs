//! Attributes: permissions, owners, times.

use crate::{Test, ok, refused};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, XattrFlags, setxattr, utimensat};
use rustix::io::Errno;
use skep_testkit::files::{self, OrFail};
use skep_testkit::program::run_in;
use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

pub(crate) const CASES: &[Test] = skep_testkit::cases![attributes:
    chmod_changes_permissions,
    chown_changes_owner_and_group,
    times_are_stored_with_nanoseconds,
    utime_omit_leaves_a_time_unchanged,
    attributes_of_a_symbolic_link_change_without_its_target,
    writes_change_times,
    write_replaces_a_modification_time_in_the_future,
    changed_entries_change_the_times_of_a_directory,
    directory_shows_every_completed_change_of_its_entries,
    attribute_changes_update_the_change_time,
    block_count_covers_the_written_bytes,
    fstat_shows_attributes_of_an_open_file,
    chown_clears_setuid,
    writes_of_users_clear_setuid,
];

fn chmod_changes_permissions(root: &Path) {
    let path = root.join("file");
    files::write(&path, "x");
    for mode in [0o000, 0o777, 0o600, 0o4755, 0o1777] {
        files::set_permissions(&path, fs::Permissions::from_mode(mode));
        assert_eq!(files::metadata(&path).mode(), 0o100_000 | mode);
    }
    refused(
        fs::set_permissions(root.join("missing"), fs::Permissions::from_mode(0o600)),
        Errno::NOENT,
    );
}

fn chown_changes_owner_and_group(root: &Path) {
    let path = root.join("file");
    files::write(&path, "x");
    files::chown(&path, Some(12), Some(34));
    let owners = |path: &Path| {
        let found = files::metadata(path);
        (found.uid(), found.gid())
    };
    assert_eq!(owners(&path), (12, 34));
    files::chown(&path, None, Some(4_000_000_000));
    assert_eq!(owners(&path), (12, 4_000_000_000));
    files::chown(&path, Some(4_000_000_000), None);
    assert_eq!(owners(&path), (4_000_000_000, 4_000_000_000));
}

fn times(seconds: i64, nanoseconds: i64) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: seconds, tv_nsec: nanoseconds },
        last_modification: Timespec { tv_sec: seconds + 1, tv_nsec: nanoseconds + 1 },
    }
}

/// docs/semantics.md 1.9.
fn times_are_stored_with_nanoseconds(root: &Path) {
    let path = root.join("file");
    files::write(&path, "x");
    for (seconds, nanoseconds) in [(0, 0), (1_234_567_890, 123_456_789), (4_400_000_000, 1)] {
        utimensat(CWD, &path, &times(seconds, nanoseconds), AtFlags::empty())
            .or_fail("utimensat", &path);
        let found = files::metadata(&path);
        assert_eq!((found.atime(), found.atime_nsec()), (seconds, nanoseconds));
        assert_eq!((found.mtime(), found.mtime_nsec()), (seconds + 1, nanoseconds + 1));
    }
    let directory = root.join("directory");
    files::create_dir(&directory);
    utimensat(CWD, &directory, &times(5, 6), AtFlags::empty()).or_fail("utimensat", &directory);
    assert_eq!(files::metadata(&directory).mtime_nsec(), 7);
}

fn utime_omit_leaves_a_time_unchanged(root: &Path) {
    let path = root.join("file");
    files::write(&path, "x");
    utimensat(CWD, &path, &times(100, 5), AtFlags::empty()).or_fail("utimensat", &path);
    let keep = Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        last_modification: Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
    };
    utimensat(CWD, &path, &keep, AtFlags::empty()).or_fail("utimensat", &path);
    let found = files::metadata(&path);
    assert_eq!((found.atime(), found.atime_nsec()), (100, 5));
    let age = ok(SystemTime::now().duration_since(ok(found.modified())));
    assert!(age < Duration::from_secs(60), "{age:?}");
}

fn attributes_of_a_symbolic_link_change_without_its_target(root: &Path) {
    files::write(root.join("file"), "x");
    files::symlink("file", root.join("link"));
    ok(lchown(root.join("link"), Some(7), Some(8)));
    ok(utimensat(CWD, root.join("link"), &times(50, 60), AtFlags::SYMLINK_NOFOLLOW));
    let link = files::symlink_metadata(root.join("link"));
    assert_eq!((link.uid(), link.gid(), link.mtime()), (7, 8, 51));
    assert_ne!(files::metadata(root.join("file")).uid(), 7);
}

/// Sets the access and modification times to a moment long ago. Returns the resulting change time.
fn age(path: &Path) -> (i64, i64) {
    utimensat(CWD, path, &times(1000, 0), AtFlags::empty()).or_fail("utimensat", path);
    let found = files::metadata(path);
    (found.ctime(), found.ctime_nsec())
}

fn writes_change_times(root: &Path) {
    let path = root.join("file");
    files::write(&path, "x");
    let before = age(&path);
    let file = files::open_with(OpenOptions::new().append(true), &path);
    files::write_all(&file, b"y");
    drop(file);
    let found = files::metadata(&path);
    assert!(found.mtime() > 1_000_000, "{}", found.mtime());
    assert!((found.ctime(), found.ctime_nsec()) >= before);
    let before = age(&path);
    files::set_len(&files::open_with(OpenOptions::new().write(true), &path), 0);
    let found = files::metadata(&path);
    assert!(found.mtime() > 1_000_000, "{}", found.mtime());
    assert!((found.ctime(), found.ctime_nsec()) >= before);
}

/// docs/semantics.md 1.9. The kernel compares the times of a file to decide whether its cached data
/// of the file is valid.
fn write_replaces_a_modification_time_in_the_future(root: &Path) {
    let path = root.join("file");
    files::write(&path, "x");
    let later = SystemTime::now() + Duration::from_secs(1_000_000);
    let set = |path: &Path| ok(files::open(path).set_modified(later));
    let is_changed = |path: &Path| ok(files::metadata(path).modified()) < later;
    set(&path);
    assert!(!is_changed(&path));
    files::write(&path, "y");
    assert!(is_changed(&path));
    set(&path);
    files::write_all(&files::open_with(OpenOptions::new().append(true), &path), b"z");
    assert!(is_changed(&path));
    set(root);
    files::write(root.join("other"), "x");
    assert!(is_changed(root));
}

fn changed_entries_change_the_times_of_a_directory(root: &Path) {
    let directory = root.join("directory");
    files::create_dir(&directory);
    let steps: &[fn(&Path)] = &[
        |directory| files::write(directory.join("a"), "x"),
        |directory| files::rename(directory.join("a"), directory.join("b")),
        |directory| files::hard_link(directory.join("b"), directory.join("c")),
        |directory| files::remove_file(directory.join("b")),
        |directory| files::create_dir(directory.join("d")),
        |directory| files::remove_dir(directory.join("d")),
        |directory| files::symlink("x", directory.join("e")),
    ];
    for (number, step) in steps.iter().enumerate() {
        age(&directory);
        step(&directory);
        let found = files::metadata(&directory);
        assert!(found.mtime() > 1_000_000, "step {number}: {}", found.mtime());
    }
}

/// docs/semantics.md 1.1. The replies to concurrent changes may arrive in any order.
fn directory_shows_every_completed_change_of_its_entries(root: &Path) {
    let directory = root.join("directory");
    files::create_dir(&directory);
    // Call `stat(2)`, because the kernel can reply to this call from its cache. The standard
    // library calls `statx(2)`, which requests the creation time.
    let stat = |path: &Path| rustix::fs::stat(path).or_fail("stat", path);
    let found = || stat(&directory);
    let mode = || found().st_mode & 0o7777;
    let made = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (directory, found, made) = (&directory, &found, &made);
            scope.spawn(move || {
                for number in 0..50 {
                    files::create_dir(directory.join(format!("child-{thread}-{number}")));
                    let least = made.fetch_add(1, Ordering::SeqCst) + 3;
                    let links = found().st_nlink;
                    assert!(links >= least, "{links} links: expected at least {least}");
                    let file = directory.join(format!("file-{thread}-{number}"));
                    files::create_new(&file);
                    let (new, shown) = (stat(&file), found());
                    let created = (new.st_ctime, new.st_ctime_nsec);
                    assert!((shown.st_mtime, shown.st_mtime_nsec) >= created);
                }
            });
        }
    });
    assert_eq!(found().st_nlink, 202);
    files::set_permissions(&directory, fs::Permissions::from_mode(0o701));
    assert_eq!(mode(), 0o701);
    files::rename(directory.join("child-0-0"), root.join("child"));
    assert_eq!(found().st_nlink, 201, "the old directory of a rename");
    files::remove_dir(directory.join("child-0-1"));
    assert_eq!((found().st_nlink, mode()), (200, 0o701));
    files::set_permissions(&directory, fs::Permissions::from_mode(0o755));
    files::remove_file(directory.join("file-0-0"));
    // The list has entries for the owner, a user, the group, the mask and others (acl(5)).
    let none = u32::MAX;
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (kind, permissions, id) in
        [(1, 7, none), (2, 4, 5), (4, 5, none), (16, 0, none), (32, 5, none)]
    {
        list.extend([kind, 0, permissions, 0]);
        list.extend(u32::to_le_bytes(id));
    }
    setxattr(&directory, "system.posix_acl_access", &list, XattrFlags::empty())
        .or_fail("setxattr", &directory);
    assert_eq!(mode(), 0o705, "the mask of the list is the mode of the group");
}

fn attribute_changes_update_the_change_time(root: &Path) {
    let path = root.join("file");
    files::write(&path, "x");
    let changed = || {
        let found = files::metadata(&path);
        (found.ctime(), found.ctime_nsec())
    };
    let steps: &[&dyn Fn()] = &[
        &|| files::set_permissions(&path, fs::Permissions::from_mode(0o600)),
        &|| files::chown(&path, Some(1), None),
        &|| files::hard_link(&path, root.join("second")),
        &|| files::rename(root.join("second"), root.join("third")),
        &|| files::remove_file(root.join("third")),
        &|| {
            rustix::fs::setxattr(&path, "user.x", b"y", rustix::fs::XattrFlags::empty())
                .or_fail("setxattr", &path)
        },
    ];
    for (number, step) in steps.iter().enumerate() {
        let before = changed();
        // The clock of the local file system advances only with the timer ticks of the kernel.
        skep_testkit::wait_for("the clock advances", Duration::from_secs(5), || {
            step();
            if changed() > before {
                return Some(());
            }
            // A step that creates, renames or removes a name cannot run a second time, so stop
            // after its first run.
            (2..5).contains(&number).then(|| assert!(changed() >= before, "step {number}"))
        });
    }
}

fn block_count_covers_the_written_bytes(root: &Path) {
    let path = root.join("file");
    let file = files::create(&path);
    files::write_all(&file, &vec![1; 1 << 20]);
    files::sync_all(&file);
    drop(file);
    let found = files::metadata(&path);
    assert!(found.blocks() >= (1 << 20) / 512, "{} blocks", found.blocks());
    assert!(found.blksize() >= 4096);
}

fn fstat_shows_attributes_of_an_open_file(root: &Path) {
    let path = root.join("file");
    let file = files::open_with(OpenOptions::new().read(true).write(true).create_new(true), &path);
    files::write_all(&file, b"12345");
    assert_eq!(files::metadata_of(&file).len(), 5);
    assert_eq!(files::metadata(&path).len(), 5);
    ok(file.set_permissions(fs::Permissions::from_mode(0o604)));
    assert_eq!(files::metadata(&path).mode() & 0o777, 0o604);
    ok(file.set_modified(SystemTime::UNIX_EPOCH + Duration::new(77, 88)));
    drop(file);
    let found = files::metadata(&path);
    assert_eq!((found.mtime(), found.mtime_nsec()), (77, 88));
    let mut text = String::new();
    ok(files::open(&path).read_to_string(&mut text));
    assert_eq!(text, "12345");
}

/// Even a `chown` that changes neither user nor group clears the set-user-id and set-group-id bits.
/// docs/semantics.md 1.10.
fn chown_clears_setuid(root: &Path) {
    let (file, directory) = (root.join("file"), root.join("directory"));
    files::write(&file, "x");
    files::create_dir(&directory);
    for (user, group) in [(Some(1), Some(1)), (None, Some(1)), (Some(1), None), (None, None)] {
        for (path, before, after) in
            [(&file, 0o6755, 0o755), (&file, 0o4644, 0o644), (&directory, 0o6755, 0o6755)]
        {
            files::set_permissions(path, fs::Permissions::from_mode(before));
            assert_eq!(files::metadata(path).mode() & 0o7777, before);
            files::chown(path, user, group);
            assert_eq!(files::metadata(path).mode() & 0o7777, after, "{user:?} {group:?}");
        }
    }
}

/// Each kind of write by a user other than root clears the set-user-id bit. A stat immediately
/// after the write returns the new mode. docs/semantics.md 1.1 and 1.10.
fn writes_of_users_clear_setuid(root: &Path) {
    let path = root.join("file");
    for write in [
        "dd if=/dev/zero of=file bs=4096 count=1 conv=notrunc",
        "dd if=/dev/zero of=file bs=4096 count=1 conv=notrunc oflag=direct",
        "dd if=/dev/zero of=file bs=4096 count=1",
        "truncate -s 10 file",
    ] {
        let member = ["--reuid=65534", "--regid=65534", "--clear-groups"];
        let also_member = ["--reuid=65534", "--regid=1", "--groups=2,65534"];
        let other = ["--reuid=65534", "--regid=1", "--clear-groups"];
        for (user, before, after) in [
            (member, 0o6755, "755\n"),
            (other, 0o2755, "755\n"),
            (member, 0o6644, "2644\n"),
            (also_member, 0o2644, "2644\n"),
            (other, 0o2644, "644\n"),
        ] {
            files::write(&path, [1; 8192]);
            files::chown(&path, Some(65_534), Some(65_534));
            files::set_permissions(&path, fs::Permissions::from_mode(before));
            assert_eq!(files::metadata(&path).mode() & 0o7777, before);
            run_in(root, "setpriv", user.into_iter().chain(write.split(' ')));
            // With these arguments, the program `stat` requests only the mode. A request of times
            // would make the mount refresh all cached attributes.
            let found = run_in(root, "stat", ["-c", "%a", "file"]);
            assert_eq!(found, after, "{write}, {before:o}, {user:?}");
        }
    }
}
