//! Full disks, on small file systems of their own. They need the right to mount: without it the
//! tests say so and end.

use super::*;
use std::process::Command;

/// A small file system, unmounted when dropped.
struct Mounted(tempfile::TempDir);

impl Mounted {
    fn tmpfs(size: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "skep-test"])
            .arg(dir.path())
            .status();
        if mounted.is_ok_and(|status| status.success()) {
            return Some(Self(dir));
        }
        eprintln!("skipped: mounting a tmpfs needs root");
        None
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _unmounted = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

fn on_small_disk<F: Future<Output = ()> + 'static>(size: &str, test: impl FnOnce(PathBuf) -> F) {
    let Some(disk) = Mounted::tmpfs(size) else { return };
    skep_env::block_on(test(disk.0.path().to_owned())).unwrap();
}

#[test]
fn a_full_disk_refuses_writes_whole_and_serves_the_rest() {
    on_small_disk("2m", |dir| async move {
        let store = open(&dir);
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
        assert_eq!(store.stat(&key(1)).unwrap().size, written, "nothing half-written");
        for at in (0..written).step_by(data.len()) {
            assert!(read(&store, key(1), at, data.len() as u32).await.unwrap() == data);
        }
        // New files leave nothing, what is there may be overwritten, removal makes room.
        assert!(write(&store, key(2), 0, &data).await.is_err());
        assert!(!store.stat(&key(2)).unwrap().exists);
        write(&store, key(1), 1000, &data).await.unwrap();
        store.sync(&key(1)).await.unwrap();
        store.remove(&[key(1)]).await.unwrap();
        write(&store, key(2), 0, &data).await.unwrap();
        store.close().await.unwrap();
    });
}

#[test]
fn a_write_that_runs_out_in_the_middle_is_undone() {
    on_small_disk("4m", |dir| async move {
        let store = open(&dir);
        let old = pattern(1, 600_000);
        write(&store, key(1), 100_000, &old).await.unwrap();
        // A stranger takes the rest behind the back of the gauge.
        std::fs::write(dir.join("stranger"), vec![1; 3 * MIB as usize]).unwrap();
        let file = store.existing(&key(1)).unwrap().unwrap();
        for (offset, len) in [(650_000, MIB), (2 * MIB, MIB), (650_000, 2 * MIB), (0, 2 * MIB)] {
            let data = Buf::copy_of(&pattern(9, len as usize));
            let checksums = piece_checksums(offset, data.bytes());
            let incoming = write::Incoming { offset, data: &data, checksums: &checksums };
            let written = store.write_if_there(&file, STRIPE, &incoming, space::Room::Plenty).await;
            let error = written.unwrap_err();
            assert_eq!(error.code(), ErrorCode::NoSpace, "{error}");
            assert_eq!(store.stat(&key(1)).unwrap().size, 700_000);
        }
        let got = read(&store, key(1), 0, 1 << 20).await.unwrap();
        assert_eq!(got.len(), 700_000, "and all checksums match");
        let unharmed = |store: Rc<ChunkStore>| async move {
            read(&store, key(1), 650_000, 1 << 20).await.unwrap().len()
        };
        std::fs::remove_file(dir.join("stranger")).unwrap();
        write(&store, key(1), 650_000, &pattern(9, MIB as usize)).await.unwrap();
        assert_eq!(unharmed(Rc::clone(&store)).await, MIB as usize);
        store.close().await.unwrap();
        assert_eq!(unharmed(open(&dir)).await, MIB as usize);
    });
}
