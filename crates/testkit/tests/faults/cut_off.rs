//! A program on the third mount of the test. A fault disconnects this mount for longer than the
//! mount's lease. Only calls of this program may fail.

use skep_testkit::{PATIENCE, files, wait_for};
use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Name of the program's directory below a mount point.
const DIRECTORY: &str = "cut-off";
/// Maximum number of files that the program keeps.
const FILES: usize = 500;
/// Number of further files that the program must sync in each check of its progress.
const ROUNDS: u64 = 10;

/// Creates and syncs files, each with its number as [`content`]. Removes its oldest files.
pub(crate) struct CutOffProgram {
    /// The numbers of the files that are synced, and that the program has not begun to remove.
    synced: Mutex<VecDeque<u64>>,
    /// Number of files that the program has synced.
    count: AtomicU64,
    /// Number of files whose creation or removal returned an error.
    errors: AtomicU64,
}

fn name(number: u64) -> String {
    format!("{DIRECTORY}/file-{number}")
}

/// Returns the bytes of a file. The bytes of files with even numbers fit into the inline bytes. The
/// bytes of the other files are on storage.
fn content(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(if number.is_multiple_of(2) { 1 } else { 2500 })
}

fn create(path: &Path, number: u64) -> std::io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(&content(number))?;
    file.sync_all()
}

impl CutOffProgram {
    /// Creates the directory of the program through the mount point `mount`.
    pub(crate) fn new(mount: &Path) -> Self {
        files::create_dir(mount.join(DIRECTORY));
        Self { synced: Mutex::default(), count: AtomicU64::new(0), errors: AtomicU64::new(0) }
    }

    /// Creates files through the mount point `mount` until `stop` is set.
    pub(crate) fn run(&self, mount: &Path, stop: &AtomicBool) {
        for number in 0.. {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let created = create(&mount.join(name(number)), number);
            let mut synced = self.synced.lock().expect("no panic");
            if created.is_ok() {
                synced.push_back(number);
                self.count.fetch_add(1, Ordering::SeqCst);
            }
            let oldest = if synced.len() > FILES { synced.pop_front() } else { None };
            drop(synced);
            // After an error, the file may still exist, or may be removed.
            let removed = oldest.map_or(Ok(()), |it| std::fs::remove_file(mount.join(name(it))));
            if created.is_err() || removed.is_err() {
                self.errors.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    /// Waits until the program has synced further files.
    pub(crate) fn wait_until_it_goes_on(&self) {
        let before = self.count.load(Ordering::SeqCst);
        wait_for("the program on the third mount continues", PATIENCE, || {
            (self.count.load(Ordering::SeqCst) > before + ROUNDS).then_some(())
        });
    }

    /// Checks through the mount point `mount` that no synced file is lost. Returns the number of
    /// errors that calls of the program returned.
    pub(crate) fn check(&self, mount: &Path) -> u64 {
        for number in self.synced.lock().expect("no panic").iter() {
            let found = files::read(mount.join(name(*number)));
            assert!(found == content(*number), "the synced file {number} has its bytes");
        }
        self.errors.load(Ordering::SeqCst)
    }
}
