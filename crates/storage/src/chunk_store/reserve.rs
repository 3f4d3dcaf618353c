//! Reserves space for later writes.
//!
//! Reserved space is allocated on the file system but not written. The target also reserves space
//! for the region pages, which contain the checksums. Reserved space reads as a hole, and no
//! checksum changes. A full target ([`FreeSpace::None`]) still accepts writes to reserved space.

use super::ChunkStore;
use super::chunk_file::{ChunkFile, whole_granules};
use super::space::FreeSpace;
use crate::limits::MAX_RESERVED_BYTES;
use skep_format::chunk::{
    MAX_CHUNK_FILE_BYTES, PAGE_BYTES, page_offset, physical_offset, region_of,
};
use skep_types::{ChunkFileKey, Error, ErrorCode, Result};
use std::io;
use std::ops::Range;

impl ChunkStore {
    /// Reserves space for a range of a chunk file, which is created if necessary. First checks that
    /// there is space for the whole range. Returns the offset up to which space was reserved, and
    /// the caller continues at this offset. Not cancel-safe, see [`super`].
    ///
    /// # Errors
    /// - `EndMoved` if the chunk file was truncated in a newer generation than
    ///   `truncate_generation`.
    /// - `Corrupt` if `must_exist` is set and the chunk file does not exist.
    /// - `NoSpace` if there is not enough space for the whole range.
    /// - `FileTooLarge` if the range ends beyond the longest chunk file.
    /// - `Unsupported` if the file system cannot reserve space.
    /// - `DeviceFailed` if a write has failed.
    ///
    /// After an error, a part of the range may be reserved.
    pub async fn reserve(
        &self,
        key: &ChunkFileKey,
        range: Range<u64>,
        truncate_generation: u64,
        must_exist: bool,
    ) -> Result<u64> {
        self.check_writable()?;
        if range.end > MAX_CHUNK_FILE_BYTES {
            return Err(Error::new(
                ErrorCode::FileTooLarge,
                format!(
                    "cannot reserve space up to byte {} of chunk file {key}: this offset is beyond \
                     the maximum size of a chunk file",
                    range.end
                ),
            ));
        }
        if range.is_empty() {
            return Ok(range.end);
        }
        loop {
            self.check_generation(key, truncate_generation)?;
            let old = self.existing(key)?;
            let unallocated_bytes = match &old {
                Some(file) => self.unallocated_bytes(file, &physical_span(&range))?,
                None => range.end - range.start,
            };
            let free_space = if unallocated_bytes > 0 {
                self.space.admit(unallocated_bytes)
            } else {
                FreeSpace::Plenty
            };
            if free_space == FreeSpace::None {
                return Err(self.no_space());
            }
            let file = self.file_to_write(key, free_space, must_exist)?;
            let step = range.start..range.end.min(range.start.saturating_add(MAX_RESERVED_BYTES));
            let _guard = file.lock.exclusive(whole_granules(&step)).await;
            if file.is_removed.get() {
                continue;
            }
            // Check the generation under the lock, because a truncation may have been executed
            // while this request waited for the lock.
            let current = self.check_generation(key, truncate_generation);
            let reserved = match current {
                Ok(()) => self.reserve_locked(&file, &step).await,
                refused => refused,
            };
            if let Err(error) = reserved {
                self.drop_if_new(&file);
                return Err(error);
            }
            file.is_new.set(false);
            return Ok(step.end);
        }
    }

    async fn reserve_locked(&self, file: &ChunkFile, range: &Range<u64>) -> Result<()> {
        let page = page_offset(region_of(range.start));
        for part in [page..page + PAGE_BYTES, physical_span(range)] {
            match file.file.reserve_through_ring(part).await {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                    let text = format!(
                        "target {}: cannot reserve space: the file system of {} does not support \
                         reservations",
                        self.target,
                        self.directory.display()
                    );
                    return Err(Error::new(ErrorCode::Unsupported, text));
                }
                Err(error) => return Err(self.note_failure(file.io_error(error))),
            }
        }
        file.note_change();
        Ok(())
    }

    /// Returns how many bytes of a physical range are not allocated.
    pub(super) fn unallocated_bytes(&self, file: &ChunkFile, range: &Range<u64>) -> Result<u64> {
        let allocated = file.file.allocated_bytes(range.clone());
        let allocated = allocated.map_err(|error| file.io_error(error))?;
        // File systems round allocations up to blocks, so the allocated bytes may exceed the length
        // of the range.
        Ok((range.end - range.start).saturating_sub(allocated))
    }
}

/// Returns the physical range from the first to the last granule of a logical range, including the
/// pages between them.
fn physical_span(range: &Range<u64>) -> Range<u64> {
    let whole = whole_granules(range);
    physical_offset(whole.start)..physical_offset(whole.end - 1) + 1
}
