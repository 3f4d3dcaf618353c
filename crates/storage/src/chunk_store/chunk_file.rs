//! One open chunk file: its size, the region pages in memory, and the order of operations on it.
//!
//! Holds state only. [`super::region`] decides which pages are trusted; [`super::read`],
//! [`super::write`] and the other operations do the reads and writes.

use super::range_lock::RangeLock;
use skep_env::File;
use skep_env::local::Semaphore;
use skep_format::chunk::{GRANULES, PAGE_BYTES, REGION_STRIDE, RegionHeader, logical_size};
use skep_types::{ChunkFileKey, Error, ErrorCode, GRANULE_BYTES, Result};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;

/// A region's page in memory. It always equals the page in the file, as a read from the page cache
/// returns it.
#[derive(Debug)]
pub(crate) struct Region {
    /// `None` means that the page and the data are a hole.
    pub(crate) header: Cell<Option<RegionHeader>>,
    /// One checksum per granule as stored: XORed with the checksum of a granule of zeros.
    pub(crate) checksums: RefCell<Box<[u32; GRANULES]>>,
}

impl Region {
    /// A region that was never written.
    pub(crate) fn blank() -> Self {
        Self { header: Cell::new(None), checksums: RefCell::new(Box::new([0; GRANULES])) }
    }

    /// The page's bytes; `None` for a hole.
    pub(crate) fn page(&self) -> Option<[u8; PAGE_BYTES as usize]> {
        self.header.get().map(|header| header.to_page(&self.checksums.borrow()))
    }
}

/// One open chunk file.
#[derive(Debug)]
pub(crate) struct ChunkFile {
    pub(crate) key: ChunkFileKey,
    pub(crate) path: PathBuf,
    pub(crate) file: File,
    /// Logical size. Only a holder of `lock` for writing changes it.
    pub(crate) size: Cell<u64>,
    pub(crate) regions: RefCell<HashMap<u64, Rc<Region>>>,
    pub(crate) lock: RangeLock,
    /// Held while a region is loaded, so that no region is loaded twice.
    pub(crate) loading: Rc<Semaphore>,
    /// Counts changes of the file.
    pub(crate) changes: Cell<u64>,
    /// The value of `changes` up to which the changes are on the device.
    pub(crate) synced_changes: Cell<u64>,
    /// Whether the name is on the device for certain.
    pub(crate) is_name_synced: Cell<bool>,
    /// Whether it was removed: an operation that waited for the lock must open the name again.
    pub(crate) is_removed: Cell<bool>,
    /// Whether the write that created it has not succeeded yet.
    pub(crate) is_new: Cell<bool>,
    /// Used since the cache last looked.
    pub(crate) is_recent: Cell<bool>,
}

impl ChunkFile {
    /// Wraps an open file, whose changes may not be on the device.
    ///
    /// # Errors
    /// Errors of `fstat`.
    pub(crate) fn new(key: ChunkFileKey, path: PathBuf, file: std::fs::File) -> Result<Rc<Self>> {
        let failed = |error: std::io::Error| Error::from(error).within(path.display());
        let mut length = file.metadata().map_err(failed)?.len();
        // A power loss may leave a part of a page at the end. No data belongs to it, and it would
        // look like a damaged page if the file grew again.
        if (1..PAGE_BYTES).contains(&(length % REGION_STRIDE)) {
            length -= length % REGION_STRIDE;
            file.set_len(length).map_err(failed)?;
        }
        Ok(Rc::new(Self {
            key,
            path,
            file: file.into(),
            size: Cell::new(logical_size(length)),
            regions: RefCell::default(),
            lock: RangeLock::default(),
            loading: Semaphore::new(1),
            changes: Cell::new(1),
            synced_changes: Cell::new(0),
            is_name_synced: Cell::new(false),
            is_removed: Cell::new(false),
            is_new: Cell::new(false),
            is_recent: Cell::new(true),
        }))
    }

    /// Notes that the file was changed, or is about to be.
    pub(crate) fn note_change(&self) {
        self.changes.set(self.changes.get() + 1);
    }

    /// The error for damage of this file.
    pub(crate) fn corrupt(&self, problem: impl std::fmt::Display) -> Error {
        Error::new(ErrorCode::Corrupt, format!("chunk file {}: {problem}", self.path.display()))
    }

    /// The error for a damaged granule; `offset` is logical.
    pub(crate) fn corrupt_granule(&self, offset: u64) -> Error {
        self.corrupt(format_args!(
            "granule {} (bytes {offset} to {}) does not match its checksum",
            offset / GRANULE_BYTES,
            offset + GRANULE_BYTES
        ))
    }

    /// Adds the path of this file to an error of the file system.
    pub(crate) fn io_error(&self, error: std::io::Error) -> Error {
        Error::from(error).within(format_args!("chunk file {}", self.path.display()))
    }
}

/// A logical range, widened to whole granules.
pub(crate) fn whole_granules(range: &Range<u64>) -> Range<u64> {
    let start = range.start / GRANULE_BYTES * GRANULE_BYTES;
    // `u64::MAX` means "to the end", and stays so.
    start..range.end.div_ceil(GRANULE_BYTES).saturating_mul(GRANULE_BYTES)
}

/// Index of a granule within its region.
pub(crate) fn granule_in_region(offset: u64) -> usize {
    ((offset / GRANULE_BYTES) % GRANULES as u64) as usize
}
