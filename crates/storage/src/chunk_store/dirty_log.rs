//! The dirty log of a target. Before an operation changes a region that is on the device, the
//! operation records the region in this log and syncs the log.
//!
//! The module owns the file `dirty-log`. Appends use group commit: the next sync writes all entries
//! that operations add during the current sync. Only [`DirtyLog::rewrite`] removes entries from the
//! file.
//!
//! # Hazard: syncs after an error
//! After a failed sync, the kernel may treat pages as clean although they are not on the device.
//! The next sync then succeeds. Therefore the target never repeats a failed sync of the file, but
//! replaces the file.
//!
//! # Invariants
//! Each pending entry is also in the set of unsynced entries ([`DirtyLog::check_invariants`]).

use super::record_space::replace_record;
use skep_env::File;
use skep_env::local::{Notify, Semaphore};
use skep_format::chunk::{DIRTY_ENTRY_BYTES, DirtyLogHeader, DirtyRegion, read_dirty_log};
use skep_types::{Error, ErrorCode, Result};
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Name of the dirty log's file in a target's directory.
pub(crate) const DIRTY_LOG: &str = "dirty-log";

/// The open dirty log of a target.
#[derive(Debug)]
pub(crate) struct DirtyLog {
    path: PathBuf,
    header: DirtyLogHeader,
    file: RefCell<File>,
    length: Cell<u64>,
    /// The recorded regions. Their entries are in the file or will be appended.
    recorded: RefCell<HashSet<DirtyRegion>>,
    /// Regions whose entries are not in the file yet.
    pending: RefCell<Vec<DirtyRegion>>,
    /// Regions whose entries are not on the device yet.
    unsynced: RefCell<HashSet<DirtyRegion>>,
    /// Whether entries or the name of the file may be missing on the device although a sync has
    /// returned. The next flush then replaces the file.
    is_doubtful: Cell<bool>,
    /// A task holds this permit while it writes or replaces the file.
    writing: Rc<Semaphore>,
    synced: Notify,
}

/// A dirty log that was read and rewritten at the start of its target.
#[derive(Debug)]
pub(crate) struct RecoveredLog {
    path: PathBuf,
    header: DirtyLogHeader,
    file: std::fs::File,
    length: u64,
    entries: Vec<DirtyRegion>,
}

impl RecoveredLog {
    /// Opens the log, or creates an empty log. Blocks until the rewritten file is on the device.
    ///
    /// # Errors
    /// - `Corrupt` if the header is damaged or belongs to another target.
    /// - Errors of the file system.
    pub(crate) fn read(target: &Path, header: DirtyLogHeader) -> Result<Self> {
        let path = target.join(DIRTY_LOG);
        let failed = |error: std::io::Error| Error::from(error).within(path.display());
        let entries = match std::fs::read(&path) {
            Ok(bytes) => read_dirty_log(&bytes, &header).map_err(|error| {
                error
                    .within(format_args!("cannot read the log of dirty regions {}", path.display()))
            })?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(failed(error)),
        };
        // Rewrite the whole file, so that later entries do not follow a torn entry.
        let bytes = header.to_file(entries.iter());
        let file = match replace_record(target, &path, &bytes) {
            // If the file system is read-only, the target serves only reads, and appends nothing to
            // the log.
            Err(error) if error.code() == ErrorCode::ReadOnly => std::fs::File::open(target),
            other => other.map(|()| std::fs::OpenOptions::new().write(true).open(&path))?,
        };
        let file = file.map_err(failed)?;
        Ok(Self { path, header, file, length: bytes.len() as u64, entries })
    }
}

impl DirtyLog {
    /// Continues a log that was read at the start. [`Self::recorded`] then returns the entries that
    /// the file contained.
    pub(crate) fn open(log: RecoveredLog) -> Self {
        Self {
            header: log.header,
            file: RefCell::new(log.file.into()),
            length: Cell::new(log.length),
            recorded: RefCell::new(log.entries.into_iter().collect()),
            pending: RefCell::default(),
            unsynced: RefCell::default(),
            is_doubtful: Cell::new(false),
            writing: Semaphore::new(1),
            synced: Notify::default(),
            path: log.path,
        }
    }

    /// Returns the recorded regions.
    pub(crate) fn recorded(&self) -> Vec<DirtyRegion> {
        self.recorded.borrow().iter().copied().collect()
    }

    /// Whether a region is recorded.
    pub(crate) fn has_recorded(&self, region: &DirtyRegion) -> bool {
        self.recorded.borrow().contains(region)
    }

    /// Records regions unless they are recorded already. Returns when all entries are on the
    /// device. Not cancel-safe, because a dropped sync may have received the only report of an
    /// error of the device.
    ///
    /// # Errors
    /// Errors of the file system. The target must then stop writing.
    pub(crate) async fn record(&self, regions: &[DirtyRegion]) -> Result<()> {
        for region in regions {
            if self.recorded.borrow_mut().insert(*region) {
                self.pending.borrow_mut().push(*region);
                self.unsynced.borrow_mut().insert(*region);
            }
        }
        loop {
            let is_durable = regions.iter().all(|region| !self.unsynced.borrow().contains(region));
            if is_durable {
                return Ok(());
            }
            let _permit = self.writing.acquire().await;
            self.flush().await?;
            self.synced.notify();
        }
    }

    /// Appends the pending entries and syncs them. The caller must hold `writing`.
    async fn flush(&self) -> Result<()> {
        if self.is_doubtful.get() {
            return self.replace().await;
        }
        let batch: Vec<_> = self.unsynced.borrow().iter().copied().collect();
        if batch.is_empty() {
            return Ok(());
        }
        let failed = |error: std::io::Error| Error::from(error).within(self.path.display());
        let file = self.file.borrow().clone();
        // Between the write and `clear` there must be no await, since each entry must be either in
        // the file or still pending.
        let bytes: Vec<u8> = self.pending.borrow().iter().flat_map(DirtyRegion::to_entry).collect();
        file.write_now(&bytes, self.length.get()).map_err(failed)?;
        self.length.set(self.length.get() + bytes.len() as u64);
        self.pending.borrow_mut().clear();
        let synced = file.sync_data().await;
        self.is_doubtful.set(synced.is_err());
        synced.map_err(failed)?;
        let mut unsynced = self.unsynced.borrow_mut();
        batch.iter().for_each(|region| {
            unsynced.remove(region);
        });
        Ok(())
    }

    /// Forgets regions whose data and checksums are on the device. The log no longer counts these
    /// regions as recorded, and removes their entries from the file in the next [`Self::rewrite`].
    pub(crate) fn forget(&self, regions: &[DirtyRegion]) {
        let mut recorded = self.recorded.borrow_mut();
        regions.iter().for_each(|region| {
            recorded.remove(region);
        });
    }

    /// Whether the file contains entries of forgotten regions.
    pub(crate) fn has_forgotten(&self) -> bool {
        let entries = self.recorded.borrow().len() as u64 * DIRTY_ENTRY_BYTES as u64;
        self.length.get() > self.header.to_file([].iter()).len() as u64 + entries
    }

    /// Replaces the file by a new file that contains only the recorded regions.
    ///
    /// # Errors
    /// Errors of the file system. The file on disk is valid in any case.
    pub(crate) async fn rewrite(&self) -> Result<()> {
        let _permit = self.writing.acquire().await;
        self.replace().await
    }

    /// Replaces the file like [`Self::rewrite`]. The caller must hold `writing`.
    async fn replace(&self) -> Result<()> {
        let failed = |error: std::io::Error| Error::from(error).within(self.path.display());
        // Open the directory before the file is replaced. If the process had no free descriptor
        // after the replacement, appends would go to the old file, which no longer has a name.
        let directory = self.path.parent().expect("the log is in its target's directory");
        let directory = File::from(std::fs::File::open(directory).map_err(failed)?);
        let kept = self.recorded();
        let bytes = self.header.to_file(kept.iter());
        let temporary = self.path.with_extension("new");
        let file = File::from(std::fs::File::create(&temporary).map_err(failed)?);
        file.write_now(&bytes, 0).map_err(failed)?;
        file.sync_data().await.map_err(failed)?;
        std::fs::rename(&temporary, &self.path).map_err(failed)?;
        // After this line, appends go to the new file, whose name is not durable until the
        // directory is synced. This task holds `writing` until the directory is synced, so no
        // append can begin before the sync. After a failed sync, the next flush repeats the
        // replacement of the file.
        *self.file.borrow_mut() = file;
        self.length.set(bytes.len() as u64);
        self.is_doubtful.set(true);
        directory.sync_all().await.map_err(failed)?;
        self.is_doubtful.set(false);
        let mut unsynced = self.unsynced.borrow_mut();
        let mut pending = self.pending.borrow_mut();
        for region in kept {
            unsynced.remove(&region);
            pending.retain(|waiting| *waiting != region);
        }
        Ok(())
    }
}

#[cfg(test)]
impl DirtyLog {
    /// Closes the file, so that a test can make the file system read-only.
    pub(crate) fn close_file(&self) {
        let directory = self.path.parent().expect("the log is in its target's directory");
        *self.file.borrow_mut() = std::fs::File::open(directory).expect("a directory").into();
    }
}

impl DirtyLog {
    /// Checks that each pending entry is also in the set of unsynced entries.
    ///
    /// # Panics
    /// Panics if a pending entry is missing in the set.
    pub(crate) fn check_invariants(&self) {
        let unsynced = self.unsynced.borrow();
        for region in &*self.pending.borrow() {
            assert!(unsynced.contains(region), "pending {region:?} is unsynced");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{ChunkFileKey, ClusterId, InodeId, TargetId};

    const HEADER: DirtyLogHeader =
        DirtyLogHeader { cluster: ClusterId::new([7; 16]), target: TargetId::new(3) };

    fn region(region: u64) -> DirtyRegion {
        let inode = InodeId::new(2);
        let key = ChunkFileKey { inode, generation: 0, component: 0, index: 0 };
        DirtyRegion { key, region }
    }

    fn on_disk(target: &Path) -> Vec<DirtyRegion> {
        let bytes = std::fs::read(target.join(DIRTY_LOG)).unwrap();
        let mut regions = read_dirty_log(&bytes, &HEADER).unwrap();
        regions.sort();
        regions
    }

    #[test]
    fn dirty_log_keeps_cleaned_regions_until_its_rewrite() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_owned();
        skep_env::block_on(async move {
            let log = Rc::new(DirtyLog::open(RecoveredLog::read(&path, HEADER).unwrap()));
            let tasks: Vec<_> = (0..50)
                .map(|index| {
                    let log = Rc::clone(&log);
                    skep_env::spawn(async move {
                        log.record(&[region(index), region(index / 2)]).await.unwrap();
                    })
                })
                .collect();
            for task in tasks {
                task.await;
            }
            log.check_invariants();
            assert_eq!(on_disk(&path), (0..50).map(region).collect::<Vec<_>>());
            assert!(!log.has_forgotten());

            let gone: Vec<_> = (0..49).map(region).collect();
            log.forget(&gone);
            log.record(&[region(7)]).await.unwrap();
            assert!(log.has_forgotten());
            log.rewrite().await.unwrap();
            assert!(!log.has_forgotten());
            log.record(&[region(1000)]).await.unwrap();
            let left = [region(7), region(49), region(1000)];
            assert_eq!(on_disk(&path), left);
            drop(log);
            let mut again = DirtyLog::open(RecoveredLog::read(&path, HEADER).unwrap()).recorded();
            again.sort();
            assert_eq!(again, left);
        })
        .unwrap();
    }

    #[test]
    fn dirty_log_is_replaced_after_a_failed_sync() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_owned();
        skep_env::block_on(async move {
            let log = DirtyLog::open(RecoveredLog::read(&path, HEADER).unwrap());
            log.record(&[region(1)]).await.unwrap();
            // Writes to this device succeed, and syncs fail.
            let device = std::fs::OpenOptions::new().write(true).open("/dev/null").unwrap();
            *log.file.borrow_mut() = device.into();
            log.record(&[region(2)]).await.unwrap_err();
            assert_eq!(on_disk(&path), [region(1)]);
            log.record(&[region(3)]).await.unwrap();
            assert_eq!(on_disk(&path), [1, 2, 3].map(region));
            log.record(&[region(4)]).await.unwrap();
            assert_eq!(on_disk(&path), [1, 2, 3, 4].map(region));
            log.check_invariants();
        })
        .unwrap();
    }

    #[test]
    fn torn_dirty_log_entry_is_removed_before_the_next_append() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_owned();
        let mut bytes = HEADER.to_file([region(1), region(2)].iter());
        bytes.truncate(bytes.len() - 3);
        std::fs::write(path.join(DIRTY_LOG), bytes).unwrap();
        skep_env::block_on(async move {
            let log = DirtyLog::open(RecoveredLog::read(&path, HEADER).unwrap());
            log.record(&[region(3)]).await.unwrap();
            assert_eq!(on_disk(&path), [region(1), region(3)]);
        })
        .unwrap();
    }
}
