//! The log of a metadata target on disk: segment files of checksummed records.
//!
//! Owns the segment files, their order and their syncs. `skep_format::log` owns the byte layout. A
//! segment is the file `<LSN of its first record>.log`. The log syncs a segment completely before
//! it starts the next segment, so only the last segment can end with a torn record.
//!
//! # A full disk
//! The log allocates space ahead of its end, so that operations that free space can still be logged
//! when other files have filled the disk. A new segment starts only if there is space for it;
//! otherwise the current segment grows. If an append still finds no space, it leaves the log
//! unchanged.
//!
//! # Zeros after the end
//! If an append makes the file longer or is the first write to its block, the next sync must also
//! commit the journal of the file system. Such a sync takes longer than the write of the record,
//! and also writes the changes of other files. So the log writes zeros after its end, many records
//! ahead, and most appends overwrite zeros in a file whose length does not change. A reader ignores
//! the zeros: no record begins with them.
//!
//! # Segments for absent members
//! The module `old_segments` removes the segments whose changes the store has. While a member of
//! the group is absent, the log keeps the newest of these segments, up to a number of bytes
//! ([`Log::keep`]). The primary reads their records back ([`read_back`]).
//!
//! # A failed sync
//! After a failed sync, the page cache still has records that the device lacks, and the kernel
//! considers them written. A second sync succeeds and writes nothing. Each record contains the LSN
//! of the last record that was synced when it was written. A starting target uses the highest of
//! these LSNs. The target writes and syncs all records after that LSN again before it uses them.
//!
//! # Invariants
//! The LSNs of the segments' first records ascend. The end of the log never passes the offset at
//! which the log allocates more space. [`Log::check_invariants`] checks both. Only the last segment
//! ends with zeros.

mod old_segments;
pub mod read_back;
mod segments;
mod truncate;

use crate::atomic::sync_directory;
use crate::failed_sync;
use segments::path_of as segment_path;
use skep_env::File;
use skep_format::log::{LogOwner, Record, encode_record};
use skep_types::{Epoch, Error, ErrorCode, Lsn, Result};
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

pub use segments::Segments;

/// Length of a segment at which the log starts the next segment.
const SEGMENT_BYTES: u64 = 32 << 20;
/// Number of bytes that the log allocates ahead of its end. The log allocates more when half of
/// these bytes are used.
const AHEAD_BYTES: u64 = 32 << 20;
/// Number of zeros that the log writes after its end when it has overwritten the previous zeros.
/// The next sync also writes these zeros, so their number is small enough that the sync takes
/// little longer.
const ZEROS_BYTES: u64 = 256 << 10;
/// After a failed allocation, the log appends this number of bytes before it tries to allocate
/// space again. At each attempt, a full file system searches for space that it could free, which is
/// slow.
const RETRY_ALLOCATION_BYTES: u64 = 1 << 20;
/// Name of a segment file that the log prepares and does not use yet.
const NEXT_SEGMENT: &str = "next";

/// An open log of a metadata target.
#[derive(Debug)]
pub struct Log {
    directory: PathBuf,
    owner: LogOwner,
    /// LSNs of the segments' first records, in ascending order. Appends go to the last segment.
    segments: Vec<Lsn>,
    file: File,
    offset: u64,
    /// Offset in the last segment up to which space is allocated.
    allocated: u64,
    /// When the end of the log reaches this offset in the last segment, the log allocates more
    /// space.
    allocate_at: u64,
    /// Offset in the last segment up to which the file contains records or zeros.
    zeros_end: u64,
    /// Length of the last segment at which the log starts the next segment.
    segment_ends_at: u64,
    /// The caller does not need the records up to this record, because the caller's store has their
    /// changes.
    not_needed: Lsn,
    /// Maximum number of bytes that the log keeps in segments without a needed record.
    kept_bytes: u64,
    /// Whether the last removal of old segments may have left segments that the log need not keep.
    has_excess: bool,
}

/// The result of [`Log::open`]: the log and the records that it contains.
#[derive(Debug)]
pub struct Recovered {
    /// The log, ready for appends.
    pub log: Log,
    /// The records from `next` on, after some earlier records: the earlier records in the segment
    /// of `next`, and the records in up to two segments before it. The LSNs of the records ascend.
    pub records: Vec<Record>,
    /// Group epoch of the last record, or zero if there is no record.
    pub epoch: Epoch,
    /// Number of bytes after the last complete record, without the zeros that the log had written
    /// ahead. The log has truncated these bytes.
    pub truncated_bytes: u64,
}

fn at(path: &Path) -> impl Fn(std::io::Error) -> Error + '_ {
    move |error| Error::from(error).within(path.display())
}

fn open_segment(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    File::open(path, &options).map_err(at(path))
}

/// Creates a file and allocates space for a segment.
fn make_segment(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true);
    let file = File::open(path, &options)?;
    match file.reserve(0..AHEAD_BYTES) {
        // Some file systems do not support preallocation, which is not an error.
        Err(error) if error.kind() != ErrorKind::Unsupported => Err(error),
        _ => Ok(file),
    }
}

fn is_out_of_space(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

impl Log {
    /// Opens the log in a directory, which is created if necessary, and reads the records from
    /// `next` on. Truncates a damaged tail that was never synced. If there are no segments, `next`
    /// is the LSN of the first record. Blocks.
    ///
    /// # Errors
    /// - `Corrupt`, which names file and offset, if a synced record is damaged or a segment is
    ///   missing.
    /// - `Unsupported` if the log has records of another version.
    /// - Errors of the file system.
    pub fn open(directory: &Path, owner: LogOwner, next: Lsn) -> Result<Recovered> {
        std::fs::create_dir_all(directory).map_err(at(directory))?;
        let Segments { first: mut segments, records, epoch, end, length, tail } =
            Segments::read(directory, owner, preceding(next))?;
        if segments.is_empty() {
            segments.push(next);
        }
        let path = segment_path(directory, segments[segments.len() - 1]);
        let file = open_segment(&path)?;
        let offset = end;
        {
            file.borrow_std().set_len(offset).map_err(at(&path))?;
            // The caller applies the records in `tail` to its store, so they must survive a power
            // loss.
            let start = offset - tail.len() as u64;
            failed_sync::write_again(&file, start, &tail).map_err(|error| {
                let what = format!(
                    "cannot repeat the write of the unsynced end of log {} (from byte {start}): \
                     {error}",
                    path.display()
                );
                let is_full = is_out_of_space(&error);
                Error::new(if is_full { ErrorCode::NoSpace } else { ErrorCode::DeviceFailed }, what)
            })?;
        }
        sync_directory(directory)?;
        let mut log = Self {
            directory: directory.to_owned(),
            owner,
            segments,
            file,
            offset,
            allocated: offset,
            allocate_at: offset,
            zeros_end: offset,
            segment_ends_at: SEGMENT_BYTES,
            not_needed: Lsn::default(),
            kept_bytes: 0,
            has_excess: false,
        };
        log.allocate_ahead(0);
        Ok(Recovered { log, records, epoch, truncated_bytes: length - offset })
    }

    /// Appends a record. From now on, the record survives the end of the process. After the next
    /// sync, it also survives a power loss.
    ///
    /// # Errors
    /// - `TooLarge` if the record is longer than a reader accepts. The log is unchanged.
    /// - `NoSpace` if the disk is full. The log is unchanged.
    /// - `DeviceFailed` or another error of the file system, which names the path. The caller must
    ///   not append any more.
    pub fn append(&mut self, epoch: Epoch, lsn: Lsn, synced: Lsn, payload: &[u8]) -> Result<()> {
        let bytes = encode_record(self.owner, epoch, lsn, synced, payload)?;
        if self.offset >= self.segment_ends_at {
            self.begin_segment(lsn)?;
        }
        self.allocate_ahead(bytes.len() as u64);
        if let Err(error) = self.file.write_now(&bytes, self.offset) {
            return Err(self.undo_append(error));
        }
        self.offset += bytes.len() as u64;
        self.write_zeros();
        if cfg!(debug_assertions) {
            self.check_invariants();
        }
        Ok(())
    }

    /// Allocates space beyond the end of the log if little preallocated space is left. Ignores a
    /// failure, because the append may still find space.
    fn allocate_ahead(&mut self, bytes: u64) {
        let end = self.offset + bytes;
        if end < self.allocate_at {
            return;
        }
        let end_of_allocation = end + AHEAD_BYTES;
        if self.file.reserve(self.allocated.max(self.offset)..end_of_allocation).is_ok() {
            self.allocated = end_of_allocation;
            self.allocate_at = end_of_allocation - AHEAD_BYTES / 2;
        } else {
            self.allocate_at = end + RETRY_ALLOCATION_BYTES;
        }
    }

    /// Writes zeros after the end of the log if no zeros are left after its end. Does not write
    /// beyond the allocated space. Ignores a failure, because zeros only make syncs faster.
    fn write_zeros(&mut self) {
        if self.offset < self.zeros_end {
            return;
        }
        let end = (self.offset + ZEROS_BYTES).min(self.allocated);
        self.zeros_end = self.offset + ZEROS_BYTES;
        if let Some(count) = end.checked_sub(self.offset) {
            let _ignored = self.file.write_now(&vec![0; count as usize], self.offset);
        }
    }

    /// Truncates the bytes that a failed append may have left behind, and the zeros. Returns the
    /// error that `append` must return.
    fn undo_append(&mut self, error: std::io::Error) -> Error {
        let failed = self.failed(error);
        self.zeros_end = self.offset;
        match self.file.borrow_std().set_len(self.offset) {
            Ok(()) => failed,
            Err(_) => Error::new(ErrorCode::DeviceFailed, failed.context()),
        }
    }

    fn failed(&self, error: std::io::Error) -> Error {
        let last = self.segments[self.segments.len() - 1];
        let path = segment_path(&self.directory, last);
        let context = format!("cannot write log {}: {error}", path.display());
        let code = match is_out_of_space(&error) {
            true => ErrorCode::NoSpace,
            false => ErrorCode::DeviceFailed,
        };
        Error::new(code, context)
    }

    fn unsynced(&self, error: std::io::Error) -> Error {
        // After a failed sync, the device may lack any part of the log.
        Error::new(ErrorCode::DeviceFailed, self.failed(error).context())
    }

    /// Starts the next segment. If the disk has no space for the next segment, the current segment
    /// continues.
    fn begin_segment(&mut self, first: Lsn) -> Result<()> {
        let new_path = self.directory.join(NEXT_SEGMENT);
        let file = match make_segment(&new_path) {
            Err(error) if is_out_of_space(&error) => {
                self.segment_ends_at = self.offset + RETRY_ALLOCATION_BYTES;
                return match std::fs::remove_file(&new_path) {
                    Err(error) if error.kind() != ErrorKind::NotFound => Err(at(&new_path)(error)),
                    _ => Ok(()),
                };
            }
            created => created.map_err(at(&new_path))?,
        };
        // Remove the zeros at the end of the previous segment, and free the space that was
        // allocated beyond its end.
        self.file.borrow_std().set_len(self.offset).map_err(|error| self.unsynced(error))?;
        self.sync()?;
        let path = segment_path(&self.directory, first);
        std::fs::rename(&new_path, &path).map_err(at(&path))?;
        self.file = file;
        self.segments.push(first);
        self.offset = 0;
        self.allocated = AHEAD_BYTES;
        self.allocate_at = AHEAD_BYTES / 2;
        self.zeros_end = 0;
        self.segment_ends_at = SEGMENT_BYTES;
        sync_directory(&self.directory)
    }

    /// Returns the file of the last segment. A sync of this file makes all appended records
    /// durable.
    pub fn file(&self) -> File {
        self.file.clone()
    }

    /// Makes all appended records durable. Blocks.
    ///
    /// # Errors
    /// `DeviceFailed`, which names the file.
    pub fn sync(&self) -> Result<()> {
        self.file.borrow_std().sync_data().map_err(|error| self.unsynced(error))
    }
}

fn preceding(lsn: Lsn) -> Lsn {
    Lsn::new(lsn.raw().saturating_sub(1))
}

impl Log {
    /// Checks that the log has segments, and that the LSNs of their first records ascend. Checks
    /// that the end of the log has not passed the offset at which the log allocates more space.
    ///
    /// # Panics
    /// Panics if one of these conditions does not hold.
    pub fn check_invariants(&self) {
        assert!(!self.segments.is_empty(), "a log has a segment");
        assert!(self.segments.is_sorted_by(|first, next| first < next), "segments rise");
        assert!(self.allocate_at >= self.offset, "space is allocated before it is used up");
    }
}

#[cfg(test)]
mod tests;
