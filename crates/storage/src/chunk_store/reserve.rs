//! Reserving room, so that writes which come later find it.
//!
//! What is reserved is allocated on the file system without being written, pages too: it reads as a
//! hole, and no checksum changes. A full target ([`Room::None`]) takes writes there all the same.

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
    /// Reserves room for a range of a chunk file, which is created if need be; gives how far it
    /// came. Whether there is room for all of it is found out first. Not cancel-safe, see
    /// [`super`].
    ///
    /// # Errors
    /// `NoSpace`; `Unsupported` where the file system can't reserve; `FileTooLarge`;
    /// `DeviceFailed`. A part may be reserved nevertheless.
    pub async fn reserve(&self, key: &ChunkFileKey, range: Range<u64>) -> Result<u64> {
        self.check_writable()?;
        if range.end > MAX_CHUNK_FILE_BYTES {
            return Err(Error::new(
                ErrorCode::FileTooLarge,
                format!("chunk file {key}: byte {} is beyond the longest chunk file", range.end),
            ));
        }
        if range.is_empty() {
            return Ok(range.end);
        }
        loop {
            let old = self.existing(key)?;
            let lacking = match &old {
                Some(file) => self.lacking(file, &placed(&range))?,
                None => range.end - range.start,
            };
            let free_space =
                if lacking > 0 { self.space.admit(lacking) } else { FreeSpace::Plenty };
            if free_space == FreeSpace::None {
                return Err(self.no_space());
            }
            let file = self.file_to_write(key, free_space)?;
            let step = range.start..range.end.min(range.start.saturating_add(MAX_RESERVED_BYTES));
            let _guard = file.lock.write(whole_granules(&step)).await;
            if file.is_removed.get() {
                continue;
            }
            if let Err(error) = self.reserve_locked(&file, &step).await {
                self.drop_if_new(&file);
                return Err(error);
            }
            file.is_new.set(false);
            return Ok(step.end);
        }
    }

    async fn reserve_locked(&self, file: &ChunkFile, range: &Range<u64>) -> Result<()> {
        let page = page_offset(region_of(range.start));
        for part in [page..page + PAGE_BYTES, placed(range)] {
            match file.file.reserve_through_ring(part).await {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                    let text = format!(
                        "target {}: the file system under {} can't reserve room",
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

    /// How many bytes of a physical range have no space yet.
    pub(super) fn lacking(&self, file: &ChunkFile, range: &Range<u64>) -> Result<u64> {
        let allocated = file.file.allocated_bytes(range.clone());
        let allocated = allocated.map_err(|error| file.io_error(error))?;
        Ok((range.end - range.start).saturating_sub(allocated))
    }
}

/// Where the granules of a logical range lie in the file, with the pages between them.
fn placed(range: &Range<u64>) -> Range<u64> {
    let whole = whole_granules(range);
    physical_offset(whole.start)..physical_offset(whole.end - 1) + 1
}
