//! An open chunk file, with its size, its region pages in memory, and the lock that orders the
//! operations on the file.
//!
//! The module contains only the state of an open chunk file, and does no I/O of data.
//! [`super::region`] decides which pages to trust. [`super::read`], [`super::write`] and the
//! modules of the other operations do the I/O.

use super::range_lock::RangeLock;
use skep_env::File;
use skep_env::local::{Notify, Semaphore};
use skep_format::chunk::{GRANULES, PAGE_BYTES, REGION_STRIDE, RegionHeader, logical_size};
use skep_types::{ChunkFileKey, Error, ErrorCode, GRANULE_BYTES, Result};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;

/// A region's page in memory. The page in memory is always equal to the page that a read of the
/// file would return.
#[derive(Debug)]
pub(crate) struct Region {
    /// The header of the page. `None` means that the page and the data are a hole.
    pub(crate) header: Cell<Option<RegionHeader>>,
    /// One checksum per granule. The stored form is the checksum XORed with the checksum of a
    /// granule of zeros.
    pub(crate) checksums: RefCell<Box<[u32; GRANULES]>>,
}

impl Region {
    /// Creates a region that was never written.
    pub(crate) fn blank() -> Self {
        Self { header: Cell::new(None), checksums: RefCell::new(Box::new([0; GRANULES])) }
    }

    /// Returns the page's bytes, or `None` if the page is a hole.
    pub(crate) fn page(&self) -> Option<[u8; PAGE_BYTES as usize]> {
        self.header.get().map(|header| header.to_page(&self.checksums.borrow()))
    }
}

/// An open chunk file.
#[derive(Debug)]
pub(crate) struct ChunkFile {
    pub(crate) key: ChunkFileKey,
    pub(crate) path: PathBuf,
    pub(crate) file: File,
    /// Logical size in bytes. Only an operation that holds the lock for a write may change the
    /// size, and only an operation with exclusive access may reduce it.
    pub(crate) size: Cell<u64>,
    pub(crate) writes: WritesInProgress,
    pub(crate) regions: RefCell<HashMap<u64, Rc<Region>>>,
    pub(crate) lock: RangeLock,
    /// A task holds this permit while it loads a region, so that no two tasks load the same region.
    pub(crate) loading: Rc<Semaphore>,
    /// Number of changes of the file since it was opened.
    pub(crate) changes: Cell<u64>,
    /// Value of `changes` up to which all changes are on the device.
    pub(crate) synced_changes: Cell<u64>,
    /// A task holds this permit while it syncs the file's data. The kernel reports a failed
    /// write-back to only one sync of a descriptor, so only one sync may run at a time.
    pub(crate) syncing: Rc<Semaphore>,
    /// Whether the file's name in its directory is certainly on the device.
    pub(crate) is_name_synced: Cell<bool>,
    /// Whether the file was removed. If the file was removed, an operation that has waited for the
    /// lock must open the file again by its name.
    pub(crate) is_removed: Cell<bool>,
    /// Whether the write that created the file has not succeeded yet.
    pub(crate) is_new: Cell<bool>,
    /// Whether an operation has used the file since the hand of the clock algorithm last passed the
    /// file ([`super::open_files`]).
    pub(crate) is_recent: Cell<bool>,
}

/// The state of the writes that hold the lock of a chunk file, and of the early write-backs of the
/// file.
#[derive(Debug, Default)]
pub(crate) struct WritesInProgress {
    /// Error of an early write-back. The kernel may have dropped the pages, and may not report the
    /// error to any sync. So the target makes the next sync of this file fail with this error.
    pub(crate) failed_write_back: RefCell<Option<std::io::Error>>,
    pub(crate) write_backs: WriteBacksInProgress,
    /// For each write, the end of its range. An end may lie beyond the size of the file.
    ends: RefCell<Vec<u64>>,
    /// Whether the target undid a failed write while other writes of the file were in progress. The
    /// file may then be longer than its logical size. The last write in progress sets the length of
    /// the file.
    pub(crate) must_shrink: Cell<bool>,
}

/// The early write-backs of a chunk file that have not ended. The first write-back has the number
/// one.
#[derive(Debug, Default)]
pub(crate) struct WriteBacksInProgress {
    numbers: RefCell<Vec<u64>>,
    /// Number of the write-back that has begun last.
    last: Cell<u64>,
    ended: Notify,
}

impl WriteBacksInProgress {
    /// Begins a write-back, and returns its number.
    pub(crate) fn begin(&self) -> u64 {
        let number = self.last.get() + 1;
        self.last.set(number);
        self.numbers.borrow_mut().push(number);
        number
    }

    /// Ends a write-back. The caller has stored its error.
    pub(crate) fn end(&self, number: u64) {
        self.numbers.borrow_mut().retain(|other| *other != number);
        self.ended.notify();
    }

    /// Waits until all write-backs have ended that have begun before this call.
    pub(crate) async fn wait(&self) {
        let last = self.last.get();
        loop {
            let ended = self.ended.wait();
            if self.numbers.borrow().iter().all(|number| *number > last) {
                return;
            }
            ended.await;
        }
    }
}

impl WritesInProgress {
    /// Whether no early write-back of the file is in progress, and no error of a write-back waits
    /// for a sync.
    pub(crate) fn are_write_backs_settled(&self) -> bool {
        self.failed_write_back.borrow().is_none() && self.write_backs.numbers.borrow().is_empty()
    }
}

impl ChunkFile {
    /// Wraps an open file. The contents and the name of the file may not be on the device yet.
    ///
    /// # Errors
    /// Errors of `fstat` and `ftruncate`.
    pub(crate) fn new(key: ChunkFileKey, path: PathBuf, file: std::fs::File) -> Result<Rc<Self>> {
        let failed = |error: std::io::Error| Error::from(error).within(path.display());
        let mut length = file.metadata().map_err(failed)?.len();
        // A power loss can leave a part of a page at the end of the file. Such a page has no data.
        // Remove the part, because the target would treat it as a damaged page after the file has
        // grown.
        if (1..PAGE_BYTES).contains(&(length % REGION_STRIDE)) {
            length -= length % REGION_STRIDE;
            match file.set_len(length) {
                // The file is open only for reading, so its length cannot change. Reads ignore the
                // part of a page at its end.
                Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => {}
                other => other.map_err(failed)?,
            }
        }
        Ok(Rc::new(Self {
            key,
            path,
            file: file.into(),
            size: Cell::new(logical_size(length)),
            writes: WritesInProgress::default(),
            regions: RefCell::default(),
            lock: RangeLock::default(),
            loading: Semaphore::new(1),
            changes: Cell::new(1),
            synced_changes: Cell::new(0),
            syncing: Semaphore::new(1),
            is_name_synced: Cell::new(false),
            is_removed: Cell::new(false),
            is_new: Cell::new(false),
            is_recent: Cell::new(true),
        }))
    }

    /// Registers a write whose range ends at `end` as in progress. The caller must hold the lock.
    pub(crate) fn begin_write(&self, end: u64) -> WriteInProgress<'_> {
        self.writes.ends.borrow_mut().push(end);
        WriteInProgress { file: self, end }
    }

    /// Whether a write is in progress in addition to the caller's own write.
    pub(crate) fn has_other_writes(&self) -> bool {
        self.writes.ends.borrow().len() > 1
    }

    /// Returns the size that the file will have after all writes in progress, except for one write
    /// that ends at `own`.
    pub(crate) fn size_without(&self, own: u64) -> u64 {
        let writing = self.writes.ends.borrow();
        let own = writing.iter().position(|end| *end == own);
        let others = writing.iter().enumerate().filter(|(index, _)| Some(*index) != own);
        others.map(|(_, end)| *end).max().unwrap_or(0).max(self.size.get())
    }

    /// Counts a change of the file. The caller has made the change or is about to make it.
    pub(crate) fn note_change(&self) {
        self.changes.set(self.changes.get() + 1);
    }

    /// Whether the file was changed after it was opened, and a change may not be on the device.
    pub(crate) fn has_unsynced_changes(&self) -> bool {
        self.changes.get() > 1 && self.synced_changes.get() < self.changes.get()
    }

    /// Returns the error for damage of this file.
    pub(crate) fn corrupt(&self, problem: impl std::fmt::Display) -> Error {
        Error::new(
            ErrorCode::Corrupt,
            format!("chunk file {} is damaged: {problem}", self.path.display()),
        )
    }

    /// Returns the error for a damaged granule at the logical offset `offset`.
    pub(crate) fn corrupt_granule(&self, offset: u64) -> Error {
        self.corrupt(format_args!(
            "granule {} (bytes {offset} to {}) does not match its checksum",
            offset / GRANULE_BYTES,
            offset + GRANULE_BYTES
        ))
    }

    /// Adds the path of this file to an error of the file system.
    pub(crate) fn io_error(&self, error: std::io::Error) -> Error {
        Error::from(error).within(format_args!("cannot access chunk file {}", self.path.display()))
    }
}

/// A write in progress ([`ChunkFile::begin_write`]), which ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct WriteInProgress<'a> {
    file: &'a ChunkFile,
    end: u64,
}

impl Drop for WriteInProgress<'_> {
    fn drop(&mut self) {
        let mut writing = self.file.writes.ends.borrow_mut();
        if let Some(index) = writing.iter().position(|end| *end == self.end) {
            writing.swap_remove(index);
        }
    }
}

/// Returns a logical range, extended to whole granules.
pub(crate) fn whole_granules(range: &Range<u64>) -> Range<u64> {
    let start = range.start / GRANULE_BYTES * GRANULE_BYTES;
    // The end `u64::MAX` means the end of the file. The multiplication saturates, so that this
    // value does not change.
    start..range.end.div_ceil(GRANULE_BYTES).saturating_mul(GRANULE_BYTES)
}

/// Returns the index of a granule within its region. `offset` is the logical offset of any byte in
/// the granule.
pub(crate) fn granule_in_region(offset: u64) -> usize {
    ((offset / GRANULE_BYTES) % GRANULES as u64) as usize
}
