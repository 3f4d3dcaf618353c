//! Where data and holes begin, as the file system of the target has them.

use super::ChunkStore;
use super::chunk_file::ChunkFile;
use crate::limits::SEEKS_AT_ONCE;
use skep_format::chunk::{PAGE_BYTES, REGION_BYTES, REGION_STRIDE, physical_offset};
use skep_types::{ChunkFileKey, Result};

impl ChunkStore {
    /// The first byte of a chunk file from `offset` on that holds data. What was never written, or
    /// cleared, is a hole, as far as whole blocks of the file system go. Cancel-safe.
    ///
    /// # Errors
    /// Those of the file system.
    pub async fn next_data(&self, key: &ChunkFileKey, offset: u64) -> Result<Option<u64>> {
        let Some(file) = self.existing(key)? else { return Ok(None) };
        let _guard = file.lock.read(offset..u64::MAX).await;
        seek(&file, offset, |at| file.file.next_data(at)).await
    }

    /// The first byte of a chunk file from `offset` on that lies in a hole, or beyond its end.
    /// Cancel-safe.
    ///
    /// # Errors
    /// Those of the file system.
    pub async fn next_hole(&self, key: &ChunkFileKey, offset: u64) -> Result<u64> {
        let Some(file) = self.existing(key)? else { return Ok(offset) };
        let _guard = file.lock.read(offset..u64::MAX).await;
        let found = seek(&file, offset, |at| file.file.next_hole(at)).await?;
        Ok(found.unwrap_or(file.size.get()).max(offset))
    }
}

/// Looks for a place in the file, not counting region pages; none: there is none before its end.
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
        // A page: what counts is what follows it.
        at = region * REGION_BYTES;
        if step.is_multiple_of(SEEKS_AT_ONCE) {
            skep_env::yield_now().await;
        }
    }
    Ok(None)
}
