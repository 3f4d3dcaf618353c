//! File system operations of programs on files, names and attributes.

use crate::memory::{CHMOD, SHARED};
use crate::{Test, mounted};
use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{
    DirBuilderExt, FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink,
};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

pub(crate) const TESTS: &[Test] = &[
    ("reads_return_the_written_bytes", reads_return_the_written_bytes),
    (
        "changes_through_synchronous_handles_are_synced",
        changes_through_synchronous_handles_are_synced,
    ),
    ("holes_of_a_file_take_no_space", holes_of_a_file_take_no_space),
    (
        "direct_io_reads_and_appends_the_written_bytes",
        direct_io_reads_and_appends_the_written_bytes,
    ),
    ("writes_to_mapped_memory_reach_the_file", writes_to_mapped_memory_reach_the_file),
    ("unlinked_files_stay_usable_while_open", unlinked_files_stay_usable_while_open),
    (
        "open_of_a_name_succeeds_while_its_file_is_replaced",
        open_of_a_name_succeeds_while_its_file_is_replaced,
    ),
    (
        "creating_open_succeeds_while_the_name_comes_and_goes",
        creating_open_succeeds_while_the_name_comes_and_goes,
    ),
    ("late_reply_to_a_lookup_is_not_cached", late_reply_to_a_lookup_is_not_cached),
    ("names_can_be_created_renamed_and_removed", names_can_be_created_renamed_and_removed),
    (
        "kernel_drops_pages_of_shared_files_before_each_read",
        kernel_drops_pages_of_shared_files_before_each_read,
    ),
    (
        "created_special_files_have_their_type_and_device",
        created_special_files_have_their_type_and_device,
    ),
    ("large_directory_is_listed_completely", large_directory_is_listed_completely),
    ("stat_returns_changed_attributes", stat_returns_changed_attributes),
    ("write_by_a_user_clears_set_user_id", write_by_a_user_clears_set_user_id),
    (
        "clearing_of_setuid_keeps_a_chmod_of_another_host",
        clearing_of_setuid_keeps_a_chmod_of_another_host,
    ),
    (
        "chown_clears_setuid_set_by_another_host_meanwhile",
        chown_clears_setuid_set_by_another_host_meanwhile,
    ),
    (
        "extended_attributes_can_be_set_read_listed_and_removed",
        extended_attributes_can_be_set_read_listed_and_removed,
    ),
    ("extended_attribute_shows_the_transport", extended_attribute_shows_the_transport),
    ("many_threads_use_the_mount_concurrently", many_threads_use_the_mount_concurrently),
];

fn errno(result: std::io::Result<impl Sized>) -> i32 {
    result.map(|_| ()).unwrap_err().raw_os_error().unwrap()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 4096) as u8).collect()
}

fn reads_return_the_written_bytes(transport: &str) {
    let it = mounted(transport);
    let path = it.join("file");
    for len in [0, 1, 4095, 4096, 4097, 1 << 20, (1 << 20) + 1, 5_000_000] {
        let bytes = pattern(len);
        fs::write(&path, &bytes).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), len as u64);
        assert!(fs::read(&path).unwrap() == bytes, "{len} bytes");
    }
    let mut file = OpenOptions::new().append(true).read(true).open(&path).unwrap();
    file.write_all(b"more").unwrap();
    file.sync_all().unwrap();
    file.seek(SeekFrom::Start(4_999_998)).unwrap();
    let mut end = Vec::new();
    file.read_to_end(&mut end).unwrap();
    assert_eq!(end.len(), 6);
    assert_eq!(end[2..], *b"more");
    file.set_len(10).unwrap();
    assert_eq!(fs::read(&path).unwrap(), pattern(10));
    file.set_len(20).unwrap();
    assert_eq!(fs::read(&path).unwrap()[10..], [0; 10]);
    let sparse = OpenOptions::new().write(true).open(&path).unwrap();
    sparse.write_all_at(b"far", 1 << 20).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), (1 << 20) + 3);
    let synced = OpenOptions::new().write(true).custom_flags(libc::O_SYNC).open(&path).unwrap();
    synced.write_all_at(b"near", 0).unwrap();
    assert_eq!(fs::read(&path).unwrap()[..4], *b"near");
}

/// The kernel sends the flags of a handle with writes only, so the daemon must store them for other
/// changes.
fn changes_through_synchronous_handles_are_synced(transport: &str) {
    let it = mounted(transport);
    let path = it.join("file");
    let source = it.join("source");
    fs::write(&source, pattern(5000)).unwrap();
    let source = File::open(&source).unwrap();
    let syncs = |path: &Path| -> u32 {
        let mut buffer = [0; 20];
        let len = xattr(path, "user.syncs", &mut buffer).unwrap();
        std::str::from_utf8(&buffer[..len]).unwrap().parse().unwrap()
    };
    let mut before = 0;
    let mut check = |is_synced: bool| {
        let now = syncs(&path);
        assert_eq!(now > before, is_synced, "{before} syncs, then {now}");
        before = now;
    };
    // The first round creates the file, and the other rounds open it.
    for (flags, is_synced) in [(libc::O_SYNC, true), (libc::O_DSYNC, true), (0, false)] {
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).custom_flags(flags).open(&path).unwrap();
        let fd = file.as_raw_fd();
        file.write_all_at(b"near", 0).unwrap();
        check(is_synced);
        let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        for mode in [0, libc::FALLOC_FL_KEEP_SIZE, libc::FALLOC_FL_ZERO_RANGE, hole] {
            // SAFETY: the call takes no pointers, and the descriptor is open.
            assert_eq!(unsafe { libc::fallocate(fd, mode, 0, 100_000) }, 0);
            check(is_synced);
        }
        let (mut from, mut to) = (0, 0);
        // SAFETY: both files are open, and the offsets outlive the call.
        let copied = unsafe {
            libc::copy_file_range(source.as_raw_fd(), &raw mut from, fd, &raw mut to, 5000, 0)
        };
        assert_eq!(copied, 5000);
        check(is_synced);
    }
    let path = it.join("");
    let mut options = OpenOptions::new();
    let unnamed = options.write(true).custom_flags(libc::O_TMPFILE | libc::O_SYNC).open(&path);
    let unnamed = unnamed.unwrap();
    // SAFETY: the call takes no pointers, and the descriptor is open.
    assert_eq!(unsafe { libc::fallocate(unnamed.as_raw_fd(), 0, 0, 100_000) }, 0);
    let named = format!("/proc/self/fd/{}", unnamed.as_raw_fd());
    assert!(syncs(Path::new(&named)) > 0);
}

/// Each write may change the allocation of a file with holes. So the kernel must not use the number
/// of blocks from an earlier lookup or change of size.
fn holes_of_a_file_take_no_space(transport: &str) {
    let it = mounted(transport);
    let path = it.join("file");
    fs::write(&path, pattern(5000)).unwrap();
    assert_eq!(
        fs::metadata(&path).unwrap().blocks(),
        10,
        "without holes the size gives the blocks"
    );
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(1 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().blocks(), 16);
    for (number, page) in [100, 50, 200].into_iter().enumerate() {
        file.write_all_at(&[1; 4096], page * 4096).unwrap();
        assert_eq!(file.metadata().unwrap().blocks(), 24 + 8 * number as u64);
        assert_eq!(fs::metadata(&path).unwrap().blocks(), 24 + 8 * number as u64);
    }
}

fn direct_io_reads_and_appends_the_written_bytes(transport: &str) {
    let it = mounted(transport);
    let open = |path: &Path| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).custom_flags(libc::O_DIRECT);
        options.open(path).unwrap()
    };
    let file = open(&it.join("direct"));
    let bytes = pattern(3 << 20);
    file.write_all_at(&bytes, 0).unwrap();
    let mut got = vec![0; bytes.len()];
    file.read_exact_at(&mut got, 0).unwrap();
    assert!(got == bytes);
    assert_eq!(file.read_at(&mut got, (3 << 20) - 100).unwrap(), 100);
    assert_eq!(file.read_at(&mut got, 3 << 20).unwrap(), 0);
    // The kernel sends the parts of a large direct write in parallel, even if the write appends.
    let mut options = OpenOptions::new();
    let mut file =
        options.append(true).custom_flags(libc::O_DIRECT).open(it.join("direct")).unwrap();
    file.write_all(&bytes).unwrap();
    assert!(fs::read(it.join("direct")).unwrap() == [&bytes[..], &bytes[..]].concat());
}

fn writes_to_mapped_memory_reach_the_file(transport: &str) {
    let it = mounted(transport);
    let path = it.join("mapped");
    fs::write(&path, pattern(100_000)).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    // SAFETY: this is a shared mapping of a file of at least this length, and it is unmapped before
    // the file is closed.
    unsafe {
        let flags = libc::PROT_READ | libc::PROT_WRITE;
        let start =
            libc::mmap(std::ptr::null_mut(), 100_000, flags, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert_ne!(start, libc::MAP_FAILED);
        let bytes = std::slice::from_raw_parts_mut(start.cast::<u8>(), 100_000);
        assert!(bytes == pattern(100_000));
        bytes[50_000..50_004].copy_from_slice(b"skep");
        assert_eq!(libc::msync(start, 100_000, libc::MS_SYNC), 0);
        assert_eq!(libc::munmap(start, 100_000), 0);
    }
    drop(file);
    assert_eq!(
        fs::read(&path).unwrap()[49_999..50_005],
        [&pattern(50_000)[49_999..], b"skep", &pattern(50_005)[50_004..]].concat()
    );
}

/// The CPU on which a program runs decides which worker serves its requests. So this test reads on
/// each CPU in turn.
fn kernel_drops_pages_of_shared_files_before_each_read(transport: &str) {
    let it = mounted(transport);
    let path = it.join("file");
    fs::write(&path, [0; 4096]).unwrap();
    set_xattr(&path, SHARED, b"", 0).unwrap();
    let file = std::sync::Arc::new(File::open(&path).unwrap());
    let mut counts = HashSet::new();
    let cpus = skep_env::available_cpus();
    for cpu in cpus.iter().cycle().take(20 * cpus.len()) {
        let file = std::sync::Arc::clone(&file);
        let read = skep_env::spawn_thread("reader".into(), Some(*cpu), move || {
            let mut count = [0; 4];
            file.read_exact_at(&mut count, 0).unwrap();
            u32::from_le_bytes(count)
        });
        let count = read.unwrap().join().unwrap();
        assert!(counts.insert(count), "read {count} of the server was returned twice");
    }
}

fn unlinked_files_stay_usable_while_open(transport: &str) {
    let it = mounted(transport);
    let path = it.join("gone");
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all(b"still here").unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(errno(fs::metadata(&path)), libc::ENOENT);
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "still here");
}

/// docs/semantics.md 1.4: a name that always refers to a file can always be opened.
fn open_of_a_name_succeeds_while_its_file_is_replaced(transport: &str) {
    let it = mounted(transport);
    let path = it.join("replaced");
    fs::write(&path, "file 0").unwrap();
    let mut last = 0;
    for _ in 0..10 {
        // The kernel's first request finds a file that has lost its name. Its second request finds
        // the next file, which has just lost the name as well.
        let text = fs::read_to_string(&path).unwrap();
        let number: u32 = text.strip_prefix("file ").unwrap().parse().unwrap();
        // While the last open is being closed, the kernel may open its file by the cached name.
        assert!(number >= last.max(1), "file {number} was opened after file {last}");
        last = number;
    }
    // Each of these opens makes the kernel drop its attributes of a file that has lost its name,
    // and no `stat` requests them again. So the next open must not use a cached name of the file.
    for _ in 0..10 {
        drop(File::open(&path).unwrap());
    }
    let directory = fs::read_dir(it.join("")).unwrap();
    assert_eq!(directory.count(), 1);
}

/// docs/semantics.md 1.4: another host creates the name before the mount does. The host removes the
/// name before the kernel repeats the open, and would create it again before the next creation.
fn creating_open_succeeds_while_the_name_comes_and_goes(transport: &str) {
    let it = mounted(transport);
    fs::create_dir(it.join("flaps")).unwrap();
    for _ in 0..10 {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).open(it.join("flaps/file")).unwrap();
        file.write_all_at(b"text", 0).unwrap();
        let mut text = [0; 4];
        file.read_exact_at(&mut text, 0).unwrap();
        assert_eq!((&text, file.metadata().unwrap().nlink()), (b"text", 0));
    }
    assert_eq!(fs::read_dir(it.join("flaps")).unwrap().count(), 0);
}

/// docs/semantics.md 1.2: the kernel may use a name for a second from the lookup on. If the time
/// began with the reply, a name from a late reply would be in use longer.
fn late_reply_to_a_lookup_is_not_cached(transport: &str) {
    let it = mounted(transport);
    let inode = || fs::metadata(it.join("late")).unwrap().ino();
    assert_ne!(inode(), inode(), "the name got another file before the first reply");
}

fn names_can_be_created_renamed_and_removed(transport: &str) {
    let it = mounted(transport);
    let (a, b) = (it.join("a"), it.join("b"));
    assert_eq!(errno(File::open(&a)), libc::ENOENT);
    fs::write(&a, "a").unwrap();
    assert_eq!(fs::read(&a).unwrap(), b"a");
    fs::hard_link(&a, &b).unwrap();
    assert_eq!(fs::metadata(&b).unwrap().nlink(), 2);
    assert_eq!(fs::metadata(&a).unwrap().ino(), fs::metadata(&b).unwrap().ino());
    fs::remove_file(&a).unwrap();
    fs::write(&a, "new a").unwrap();
    fs::rename(&a, &b).unwrap();
    assert_eq!(fs::read(&b).unwrap(), b"new a");
    assert_eq!(errno(fs::metadata(&a)), libc::ENOENT);
    fs::create_dir(it.join("d")).unwrap();
    assert_eq!(errno(fs::create_dir(it.join("d"))), libc::EEXIST);
    fs::rename(&b, it.join("d/b")).unwrap();
    assert_eq!(errno(fs::remove_dir(it.join("d"))), libc::ENOTEMPTY);
    assert_eq!(errno(fs::remove_file(it.join("d"))), libc::EISDIR);
    fs::remove_file(it.join("d/b")).unwrap();
    fs::remove_dir(it.join("d")).unwrap();
    symlink("nowhere/special", it.join("s")).unwrap();
    assert_eq!(fs::read_link(it.join("s")).unwrap(), Path::new("nowhere/special"));
    assert_eq!(errno(fs::metadata(it.join("x".repeat(256).as_str()))), libc::ENAMETOOLONG);
    // The flags RENAME_NOREPLACE and RENAME_EXCHANGE must reach the file system.
    for name in ["p", "q"] {
        fs::write(it.join(name), name).unwrap();
    }
    let rename = |flags: u32| {
        let path = |name| std::ffi::CString::new(it.join(name).to_str().unwrap()).unwrap();
        let (from, to) = (path("p"), path("q"));
        // SAFETY: both strings end with a zero byte and outlive the call.
        unsafe {
            match libc::renameat2(0, from.as_ptr(), 0, to.as_ptr(), flags) {
                0 => 0,
                _ => std::io::Error::last_os_error().raw_os_error().unwrap(),
            }
        }
    };
    assert_eq!(rename(libc::RENAME_NOREPLACE), libc::EEXIST);
    let both = libc::RENAME_WHITEOUT | libc::RENAME_EXCHANGE;
    assert_eq!(rename(both), libc::EINVAL);
    assert_eq!(rename(libc::RENAME_EXCHANGE), 0);
    assert_eq!(fs::read(it.join("p")).unwrap(), b"q");
    assert_eq!(rename(libc::RENAME_EXCHANGE), 0);
    assert_eq!(rename(0), 0);
    assert_eq!(fs::read(it.join("q")).unwrap(), b"p");
}

fn created_special_files_have_their_type_and_device(transport: &str) {
    let it = mounted(transport);
    let make = |name: &str, mode: u32, device: u64| {
        let path = std::ffi::CString::new(it.join(name).to_str().unwrap()).unwrap();
        // SAFETY: the string ends with a zero byte and outlives the call.
        assert_eq!(unsafe { libc::mknod(path.as_ptr(), mode, device) }, 0);
        fs::symlink_metadata(it.join(name)).unwrap()
    };
    assert!(make("fifo", libc::S_IFIFO | 0o600, 0).file_type().is_fifo());
    let device = make("device", libc::S_IFCHR | 0o600, libc::makedev(1, 70_003));
    assert!(device.file_type().is_char_device());
    assert_eq!(device.rdev(), libc::makedev(1, 70_003));
    let listener = std::os::unix::net::UnixListener::bind(it.join("socket")).unwrap();
    assert!(fs::symlink_metadata(it.join("socket")).unwrap().file_type().is_socket());
    drop(listener);
}

fn large_directory_is_listed_completely(transport: &str) {
    const COUNT: usize = 10_000;
    let it = mounted(transport);
    let directory = it.join("many");
    fs::create_dir(&directory).unwrap();
    for i in 0..COUNT {
        File::create(directory.join(format!("file-{i}"))).unwrap();
    }
    let names = || {
        let entries = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap());
        entries.map(|entry| entry.file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    let got = names();
    assert_eq!(got.len(), COUNT);
    assert_eq!(got.iter().collect::<HashSet<_>>().len(), COUNT, "no name twice");
    // Read the attributes too. The listing contains the attributes of some entries, and the kernel
    // requests the attributes of the other entries one by one.
    for entry in fs::read_dir(&directory).unwrap() {
        let entry = entry.unwrap();
        assert!(entry.metadata().unwrap().is_file());
    }
    // Removing entries during a listing must not disturb the rest of the listing.
    let mut removed = 0;
    for entry in fs::read_dir(&directory).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
        removed += 1;
    }
    assert_eq!(removed, COUNT);
    assert_eq!(names().len(), 0);
    fs::remove_dir(&directory).unwrap();
}

fn stat_returns_changed_attributes(transport: &str) {
    let it = mounted(transport);
    let path = it.join("file");
    let mut options = OpenOptions::new();
    options.write(true).create(true).mode(0o640).open(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode(), 0o100_640);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4711)).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode(), 0o104_711);
    std::os::unix::fs::chown(&path, Some(7), Some(8)).unwrap();
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!((metadata.uid(), metadata.gid()), (7, 8));
    assert_eq!(metadata.mode(), 0o100_711, "a new owner does not inherit set-user-id");
    assert_eq!(metadata.blksize(), 1 << 20);
    let file = File::open(&path).unwrap();
    let before_1970 = std::time::UNIX_EPOCH - std::time::Duration::from_millis(1500);
    file.set_times(fs::FileTimes::new().set_modified(before_1970)).unwrap();
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (-2, 500_000_000));
    let age = metadata.created().unwrap().elapsed().unwrap();
    assert!(age.as_secs() < 3600, "statx gives the time of creation");
    let mut builder = fs::DirBuilder::new();
    builder.mode(0o1770).create(it.join("directory")).unwrap();
    assert_eq!(fs::metadata(it.join("directory")).unwrap().mode(), 0o041_750, "umask 022");
    let path = std::ffi::CString::new(it.path.to_str().unwrap()).unwrap();
    // SAFETY: the string ends with a zero byte, and all-zero is a valid `statvfs` to overwrite.
    let buffer = unsafe {
        let mut buffer = std::mem::zeroed::<libc::statvfs>();
        assert_eq!(libc::statvfs(path.as_ptr(), &raw mut buffer), 0);
        buffer
    };
    assert_eq!(buffer.f_blocks * buffer.f_frsize, 1 << 40);
    assert_eq!(buffer.f_namemax, 255);
}

fn write_by_a_user_clears_set_user_id(transport: &str) {
    let it = mounted(transport);
    fs::set_permissions(&it.path, fs::Permissions::from_mode(0o777)).unwrap();
    let path = it.join("program");
    fs::write(&path, "x").unwrap();
    let as_nobody = |script: &str| {
        let mut command = Command::new("sh");
        command.arg("-c").arg(script).arg("sh").arg(&path).uid(65_534).gid(65_534);
        assert!(command.status().unwrap().success(), "{script}");
    };
    for script in ["echo y >> \"$1\"", "echo y > \"$1\"", "truncate -s 0 \"$1\""] {
        // Run two rounds, because a worker's cache from the first round must be invalid after the
        // test sets the bits again.
        for _ in 0..2 {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
            as_nobody(script);
            assert_eq!(fs::metadata(&path).unwrap().mode(), 0o100_777, "{script}");
        }
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
    fs::write(&path, "root keeps the bits").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode(), 0o106_777);
}

/// A change of the owner clears set-user-id. Another host changes the permissions after the mount
/// has read them for this change.
fn clearing_of_setuid_keeps_a_chmod_of_another_host(transport: &str) {
    let it = mounted(transport);
    let path = it.join("program");
    fs::write(&path, "x").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
    set_xattr(&path, CHMOD, b"", 0).unwrap();
    std::os::unix::fs::chown(&path, Some(7), None).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode(), 0o100_600);
}

/// docs/semantics.md 1.10. Another host sets the set-user-id bit after the mount has read the
/// permissions, which do not have this bit. A program with this bit must not get another owner.
fn chown_clears_setuid_set_by_another_host_meanwhile(transport: &str) {
    let it = mounted(transport);
    let path = it.join("program");
    fs::write(&path, "x").unwrap();
    set_xattr(&path, CHMOD, b"", 0).unwrap();
    std::os::unix::fs::chown(&path, Some(7), None).unwrap();
    let found = fs::metadata(&path).unwrap();
    assert_eq!((found.mode(), found.uid()), (0o100_600, 7));
}

fn xattr(path: &Path, name: &str, buffer: &mut [u8]) -> Result<usize, i32> {
    let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    let name = std::ffi::CString::new(name).unwrap();
    // SAFETY: both strings end with a zero byte, and the buffer is valid for its length.
    let len = unsafe {
        libc::getxattr(path.as_ptr(), name.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len())
    };
    usize::try_from(len).map_err(|_| std::io::Error::last_os_error().raw_os_error().unwrap())
}

fn set_xattr(path: &Path, name: &str, value: &[u8], flags: i32) -> Result<(), i32> {
    let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    let name = std::ffi::CString::new(name).unwrap();
    // SAFETY: both strings end with a zero byte, and the value is valid for its length.
    let result = unsafe {
        libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), flags)
    };
    match result {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap()),
    }
}

fn extended_attributes_can_be_set_read_listed_and_removed(transport: &str) {
    let it = mounted(transport);
    let path = it.join("file");
    fs::write(&path, "x").unwrap();
    let mut buffer = [0; 64];
    assert_eq!(xattr(&path, "user.colour", &mut buffer), Err(libc::ENODATA));
    assert_eq!(set_xattr(&path, "user.colour", b"red", libc::XATTR_REPLACE), Err(libc::ENODATA));
    set_xattr(&path, "user.colour", b"red", libc::XATTR_CREATE).unwrap();
    assert_eq!(set_xattr(&path, "user.colour", b"x", libc::XATTR_CREATE), Err(libc::EEXIST));
    set_xattr(&path, "user.empty", b"", 0).unwrap();
    assert_eq!(xattr(&path, "user.colour", &mut []), Ok(3));
    assert_eq!(xattr(&path, "user.colour", &mut buffer[..2]), Err(libc::ERANGE));
    assert_eq!(xattr(&path, "user.colour", &mut buffer), Ok(3));
    assert_eq!(buffer[..3], *b"red");
    let large = pattern(65_536);
    set_xattr(&path, "user.large", &large, 0).unwrap();
    let mut got = vec![0; 65_536];
    assert_eq!(xattr(&path, "user.large", &mut got), Ok(65_536));
    assert!(got == large);
    let text = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the string ends with a zero byte, and the buffer is valid for its length.
    let len = unsafe { libc::listxattr(text.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len()) };
    assert_eq!(buffer[..len as usize], *b"user.colour\0user.empty\0user.large\0");
    // SAFETY: both strings end with a zero byte.
    assert_eq!(unsafe { libc::removexattr(text.as_ptr(), c"user.colour".as_ptr()) }, 0);
    assert_eq!(xattr(&path, "user.colour", &mut buffer), Err(libc::ENODATA));
    assert_eq!(xattr(&path, "security.capability", &mut buffer), Err(libc::ENODATA));
    assert_eq!(set_xattr(&path, "trusted.x", b"1", 0), Ok(()));
    assert_eq!(set_xattr(&path, "system.x", b"1", 0), Err(libc::EOPNOTSUPP));
}

fn extended_attribute_shows_the_transport(transport: &str) {
    let it = mounted(transport);
    let mut buffer = [0; 64];
    let len = xattr(&it.path, skep_fuse::TRANSPORT_XATTR, &mut buffer).unwrap();
    assert_eq!(buffer[..len], *transport.as_bytes());
}

fn many_threads_use_the_mount_concurrently(transport: &str) {
    const THREADS: usize = 8;
    let it = mounted(transport);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let it = &it;
            scope.spawn(move || {
                let directory = it.join(&format!("t{thread}"));
                fs::create_dir(&directory).unwrap();
                for i in 0..300 {
                    let bytes = pattern(i * 37 + thread);
                    let path = directory.join(format!("{i}"));
                    fs::write(&path, &bytes).unwrap();
                    assert!(fs::read(&path).unwrap() == bytes);
                    fs::rename(&path, directory.join(format!("r{i}"))).unwrap();
                }
                assert_eq!(fs::read_dir(&directory).unwrap().count(), 300);
                fs::remove_dir_all(&directory).unwrap();
            });
        }
    });
    assert_eq!(fs::read_dir(&it.path).unwrap().count(), 0);
}
