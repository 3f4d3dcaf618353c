//! Finds the start of data and of holes, as the target's file system reports them.

use super::ChunkStore;
use super::chunk_file::ChunkFile;
use crate::limits::SEEKS_AT_ONCE;
use skep_format::chunk::{PAGE_BYTES, REGION_BYTES, REGION_STRIDE, physical_offset};
use skep_types::{ChunkFileKey, Result};

impl ChunkStore {
    /// The first byte of a chunk file from `offset` on that contains data. Whole blocks of the file
    /// system that were never written, or were cleared, are holes. Cancel-safe.
    ///
    /// # Errors
    /// Errors of the file system.
    pub async fn next_data(&self, key: &ChunkFileKey, offset: u64) -> Result<Option<u64>> {
        let Some(file) = self.existing(key)? else { return Ok(None) };
        let _guard = file.lock.read(offset..u64::MAX).await;
        seek(&file, offset, |at| file.file.next_data(at)).await
    }

    /// The first byte of a chunk file from `offset` on that is in a hole or beyond the end.
    /// Cancel-safe.
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

/// Finds an offset in the file with `next`, which sees region pages too, and skips these. Returns
/// `None` if the file ends before it.
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
        // The file system found a page: continue behind it.
        at = region * REGION_BYTES;
        if step.is_multiple_of(SEEKS_AT_ONCE) {
            skep_env::yield_now().await;
        }
    }
    Ok(None)
}
