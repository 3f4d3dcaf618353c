//! Finds the next data or the next hole in a chunk file, as reported by the target's file system.

use super::ChunkStore;
use super::chunk_file::ChunkFile;
use crate::limits::SEEKS_AT_ONCE;
use skep_format::chunk::{PAGE_BYTES, REGION_BYTES, REGION_STRIDE, physical_offset};
use skep_types::{ChunkFileKey, Result};

impl ChunkStore {
    /// Returns the offset of the first byte at or after `offset` that contains data. Returns `None`
    /// if no data follows. Blocks of the file system that were never written, or were cleared
    /// completely, are holes. Cancel-safe.
    ///
    /// # Errors
    /// Errors of the file system.
    pub async fn next_data(&self, key: &ChunkFileKey, offset: u64) -> Result<Option<u64>> {
        let Some(file) = self.existing(key)? else { return Ok(None) };
        let _guard = file.lock.read(offset..u64::MAX).await;
        seek(&file, offset, |at| file.file.next_data(at)).await
    }

    /// Returns the offset of the first byte at or after `offset` that is in a hole or beyond the
    /// end of the file. Cancel-safe.
    ///
    /// # Errors
    /// Errors of the file system.
    pub async fn next_hole(&self, key: &ChunkFileKey, offset: u64) -> Result<u64> {
        let Some(file) = self.existing(key)? else { return Ok(offset) };
        let _guard = file.lock.read(offset..u64::MAX).await;
        let found = seek(&file, offset, |at| file.file.next_hole(at)).await?;
        Ok(found.unwrap_or(file.size.get()).max(offset))
    }
}

/// Calls `next` until it finds an offset that is not in a region page, because the file system also
/// reports region pages as data. Returns `None` if there is no such offset before the end of the
/// file.
async fn seek(
    file: &ChunkFile,
    offset: u64,
    next: impl Fn(u64) -> std::io::Result<Option<u64>>,
) -> Result<Option<u64>> {
    let (size, mut at) = (file.size.get(), offset);
    for step in 1_usize.. {
        if at >= size {
            break;
        }
        let found = next(physical_offset(at)).map_err(|error| file.io_error(error))?;
        let Some(found) = found else { break };
        let (region, within) = (found / REGION_STRIDE, found % REGION_STRIDE);
        if let Some(within) = within.checked_sub(PAGE_BYTES) {
            return Ok(Some(region * REGION_BYTES + within).filter(|found| *found < size));
        }
        // The file system has found a region page, so continue after the page.
        at = region * REGION_BYTES;
        if step.is_multiple_of(SEEKS_AT_ONCE) {
            skep_env::yield_now().await;
        }
    }
    Ok(None)
}
