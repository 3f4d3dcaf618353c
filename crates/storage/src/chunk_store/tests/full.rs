//! Tests of full disks. Each test uses a separate small file system, so the tests need root,
//! `mkfs.ext4` and `mkfs.xfs`. Tests that do not run as root print a line and pass.

use super::*;
use skep_testkit::thin::may_mount;
use std::process::Command;
use std::time::Duration;

/// A small file system, which is unmounted when this value is dropped.
struct Mounted(tempfile::TempDir);

/// The kinds of file systems that the tests use. These file systems differ in the allocation of
/// space and in the size of holes.
const KINDS: [&str; 3] = ["tmpfs", "ext4", "xfs"];

fn succeeds(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
}

impl Mounted {
    /// Creates a small file system. Returns `None` if the test does not run as root.
    fn new(kind: &str, mib: u64) -> Option<Self> {
        if !may_mount() {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let (image, disk) = (dir.path().join("image"), dir.path().join("disk"));
        std::fs::create_dir(&disk).unwrap();
        let (image, disk) = (image.to_str().unwrap(), disk.to_str().unwrap());
        let is_mounted = if kind == "tmpfs" {
            let size = format!("size={mib}m");
            succeeds("mount", &["-t", kind, "-o", &size, "skep-test", disk])
        } else {
            std::fs::File::create(image).unwrap().set_len(mib * MIB).unwrap();
            succeeds(&format!("mkfs.{kind}"), &["-q", image])
                && succeeds("mount", &["-o", "loop", image, disk])
        };
        assert!(is_mounted, "cannot create and mount a file system of the kind {kind}");
        Some(Self(dir))
    }

    fn target(&self) -> PathBuf {
        let target = self.0.path().join("disk/target");
        std::fs::create_dir(&target).unwrap();
        target
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let disk = self.0.path().join("disk");
        succeeds("umount", &["-l", disk.to_str().unwrap()]);
    }
}

/// Fills the file system completely with a file at `path`.
fn fill(path: &Path) {
    use std::io::Write;
    let mut file = std::fs::File::create(path).unwrap();
    for block in [256 << 10, 4096] {
        while file.write_all(&vec![1; block]).is_ok() {}
    }
    // The sync makes the file system release the space that it had preallocated for this file. The
    // test fills this space in a second pass.
    let _full = file.sync_all();
    while file.write_all(&[1; 4096]).is_ok() {}
}

fn free_bytes(path: &Path) -> u64 {
    skep_env::space(path).unwrap().free_bytes
}

/// Waits until a disk has `bytes` of free space. Kernel threads free the space of removed files.
/// XFS always uses such threads, and other file systems use such threads if an io_uring worker
/// closes the file last. The threads usually need a short time, but much longer on a busy machine.
async fn space_is_back(path: &Path, bytes: u64) {
    let deadline = skep_env::now() + Duration::from_secs(30);
    while free_bytes(path) < bytes {
        assert!(skep_env::now() < deadline, "{} bytes free of {bytes}", free_bytes(path));
        skep_env::sleep(Duration::from_millis(1)).await;
    }
}

/// Runs a test on each kind of file system, with `mib` MiB of free space. XFS needs at least 300
/// MiB, so another file fills the remaining space.
fn on_small_disks<F: Future<Output = ()> + 'static>(mib: u64, test: impl Fn(PathBuf) -> F) {
    on_small_disks_of(&KINDS, mib, test);
}

fn on_small_disks_of<F: Future<Output = ()> + 'static>(
    kinds: &[&str],
    mib: u64,
    test: impl Fn(PathBuf) -> F,
) {
    for &kind in kinds {
        let size = if kind == "xfs" { 300 } else { mib };
        let Some(disk) = Mounted::new(kind, size) else { continue };
        eprintln!("{kind}");
        let target = disk.target();
        let free = free_bytes(&target);
        let taken = std::fs::File::create(target.join("taken")).unwrap();
        let surplus = free.saturating_sub(mib * MIB);
        if surplus > 0 {
            skep_env::File::from(taken).reserve(0..surplus).unwrap();
        }
        skep_env::block_on(test(target)).unwrap();
    }
}

/// Checks docs/semantics.md 4.8.
#[test]
fn target_starts_on_a_full_disk_and_removes_files() {
    on_small_disks(16, |dir| async move {
        let store = open(&dir);
        for number in 1..=3 {
            write(&store, key(number), 0, &pattern(number, MIB as usize)).await.unwrap();
        }
        store.sync(&key(1)).await.unwrap();
        let incarnation = store.incarnation();
        drop(store);
        fill(&dir.join("other"));
        let store = open(&dir);
        assert_eq!(store.incarnation(), incarnation);
        assert!(read(&store, key(1), 0, 1 << 20).await.unwrap() == pattern(1, MIB as usize));
        let refused = write(&store, key(9), 0, &pattern(9, 4 << 20)).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::NoSpace);
        store.remove(&[key(2), key(3)]).await.unwrap();
        drop(store);
        drop(open(&dir));
        assert_eq!(open(&dir).failure(), None);
    });
}

/// Checks docs/semantics.md 3.5.
#[test]
fn loss_on_a_full_disk_survives_a_kill_of_the_process() {
    on_small_disks(16, |dir| async move {
        let store = open(&dir);
        write(&store, key(1), 0, b"bytes").await.unwrap();
        store.sync(&key(1)).await.unwrap();
        let before = store.incarnation();
        // Another program also uses the reserved space.
        std::fs::remove_file(dir.join("reserved")).unwrap();
        fill(&dir.join("other"));
        store.report_loss("a test").unwrap();
        let after = store.incarnation();
        assert_ne!(before, after);
        // The test kills the process, and frees space on the disk.
        drop(store);
        std::fs::remove_file(dir.join("other")).unwrap();
        space_is_back(&dir, MIB).await;
        let store = open(&dir);
        assert_eq!(store.incarnation(), after);
    });
}

#[test]
fn refused_write_on_a_full_disk_leaves_no_bytes_and_no_file() {
    on_small_disks(16, |dir| async move {
        let store = open(&dir);
        let free_space = free_bytes(&dir);
        let mut written = 0;
        let data = pattern(3, 100_000);
        let error = loop {
            match write(&store, key(1), written, &data).await {
                Ok(()) => written += data.len() as u64,
                Err(error) => break error,
            }
        };
        assert_eq!(error.code(), ErrorCode::NoSpace, "{error}");
        assert!(written > MIB, "{written}");
        assert!(store.failure().is_none(), "a full disk is no failure of the device");
        assert_eq!(store.stat(&key(1)).unwrap().size, written, "the refused write left no bytes");
        for at in (0..written).step_by(data.len()) {
            assert!(read(&store, key(1), at, data.len() as u32).await.unwrap() == data);
        }
        // A refused write creates no file, existing data can be overwritten, and a removal frees
        // space.
        assert!(write(&store, key(2), 0, &data).await.is_err());
        assert!(!store.stat(&key(2)).unwrap().exists);
        write(&store, key(1), 1000, &data).await.unwrap();
        store.sync(&key(1)).await.unwrap();
        store.remove(&[key(1)]).await.unwrap();
        space_is_back(&dir, free_space / 2).await;
        write(&store, key(2), 0, &data).await.unwrap();
        store.close().await.unwrap();
    });
}

#[test]
fn write_that_runs_out_of_space_is_undone() {
    on_small_disks(16, |dir| async move {
        let store = open(&dir);
        let old = pattern(1, 600_000);
        write(&store, key(1), 100_000, &old).await.unwrap();
        let free_space = free_bytes(&dir);
        // Another program fills the remaining space. The store's estimate of the free space does
        // not include the bytes of this program.
        fill(&dir.join("stranger"));
        let file = store.existing(&key(1)).unwrap().unwrap();
        for (offset, len) in [(650_000, MIB), (2 * MIB, MIB), (650_000, 2 * MIB), (0, 2 * MIB)] {
            let data = Buf::copy_of(&pattern(9, len as usize));
            let checksums = piece_checksums(offset, &data.bytes());
            let first = key(1);
            let place = to(&first, offset);
            let incoming = write::Incoming { offset, data: &data, checksums: &checksums };
            let written =
                store.write_if_there(&file, &place, &incoming, space::FreeSpace::Plenty).await;
            let error = written.unwrap_err();
            assert_eq!(error.code(), ErrorCode::NoSpace, "{error}");
            assert_eq!(store.stat(&key(1)).unwrap().size, 700_000);
        }
        let got = read(&store, key(1), 0, 1 << 20).await.unwrap();
        assert_eq!(got.len(), 700_000, "all bytes can be read");
        let unharmed = |store: Rc<ChunkStore>| async move {
            read(&store, key(1), 650_000, 1 << 20).await.unwrap().len()
        };
        std::fs::remove_file(dir.join("stranger")).unwrap();
        space_is_back(&dir, free_space / 2).await;
        write(&store, key(1), 650_000, &pattern(9, MIB as usize)).await.unwrap();
        assert_eq!(unharmed(Rc::clone(&store)).await, MIB as usize);
        store.close().await.unwrap();
        assert_eq!(unharmed(open(&dir)).await, MIB as usize);
    });
}

/// Returns the maximum file length of a directory's file system.
fn longest_file(directory: &Path) -> u64 {
    let path = directory.join("probe");
    let file = std::fs::File::create(&path).unwrap();
    let (mut fits, mut too_long) = (0, i64::MAX as u64);
    while too_long - fits > 1 {
        let len = fits + (too_long - fits) / 2;
        match file.set_len(len) {
            Ok(()) => fits = len,
            Err(_) => too_long = len,
        }
    }
    std::fs::remove_file(path).unwrap();
    fits
}

#[test]
fn write_beyond_the_maximum_size_changes_no_byte() {
    on_small_disks(16, |dir| async move {
        let longest = longest_file(&dir);
        if longest > 1 << 60 {
            // The file system permits longer files than the chunk file format, so a write reaches
            // the limit of the format before the limit of the file system. The test cannot reach
            // the limit of such a file system.
            return;
        }
        let store = open(&dir);
        let data = pattern(3, 100_000);
        write(&store, key(1), 0, &data).await.unwrap();
        let end = skep_format::chunk::logical_size(longest);
        // The three writes are beyond the limit, across the limit, and across a region boundary
        // with only the second region beyond the limit.
        let border = (end / REGION_BYTES + 1) * REGION_BYTES;
        for offset in [1 << 60, end + 4096, end - 50_000, border - 50_000] {
            let error = write(&store, key(1), offset, &data).await.unwrap_err();
            assert_eq!(error.code(), ErrorCode::FileTooLarge, "{error}");
            assert_eq!(store.stat(&key(1)).unwrap().size, data.len() as u64);
        }
        store.truncate(&key(1), end + MIB, next_generation()).await.unwrap();
        assert_eq!(
            store.stat(&key(1)).unwrap().size,
            data.len() as u64,
            "a truncation never extends a chunk file"
        );
        let error =
            store.reserve(&key(1), end + MIB..end + 2 * MIB, u64::MAX, false).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::FileTooLarge, "{error}");
        assert_eq!(store.clear(&key(1), end..u64::MAX, u64::MAX).await.unwrap(), u64::MAX);
        assert!(store.failure().is_none(), "no failure of the device");
        assert!(read(&store, key(1), 0, 100_000).await.unwrap() == data);
        write(&store, key(2), 0, &data).await.unwrap();
        store.sync(&key(1)).await.unwrap();
        store.close().await.unwrap();
    });
}

#[test]
fn store_on_a_full_disk_accepts_writes_into_reserved_space() {
    // The test does not use tmpfs, since tmpfs does not report reserved space.
    on_small_disks_of(&["ext4", "xfs"], 16, |dir| async move {
        let store = open(&dir);
        let free_space = store.free_bytes();
        assert_eq!(store.reserve(&key(1), 0..3 * MIB, u64::MAX, false).await.unwrap(), 3 * MIB);
        let data = pattern(3, 100_000);
        let mut written = 0;
        while write(&store, key(2), written, &data).await.is_ok() {
            written += data.len() as u64;
        }
        assert!(
            written + 2 * MIB < free_space,
            "{written} of {free_space}: reserved space is not for other files"
        );
        let error = store.reserve(&key(3), 0..MIB, u64::MAX, false).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::NoSpace);
        assert_eq!(
            store.reserve(&key(1), 0..3 * MIB, u64::MAX, false).await.unwrap(),
            3 * MIB,
            "the chunk file has the reserved space"
        );
        let all = pattern(5, 3 * MIB as usize);
        write(&store, key(1), 0, &all).await.unwrap();
        assert!(
            write(&store, key(1), 3 * MIB, &data).await.is_err(),
            "the disk has no space for more"
        );
        assert!(read(&store, key(1), 0, 4 << 20).await.unwrap() == all);
        store.clear(&key(1), 0..3 * MIB, u64::MAX).await.unwrap();
        store.close().await.unwrap();
        let store = open(&dir);
        write(&store, key(2), written, &data).await.unwrap();
        store.close().await.unwrap();
    });
}
