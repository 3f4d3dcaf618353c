//! Truncates chunk files.

use super::ChunkStore;
use super::chunk_file::{ChunkFile, granule_in_region};
use skep_format::chunk::{DirtyRegion, REGION_BYTES, RegionHeader, granule_checksum, region_of};
use skep_types::{ChunkFileKey, GRANULE_BYTES, Result};

impl ChunkStore {
    /// Truncates a chunk file to `size`. Does nothing if the file is shorter or does not exist:
    /// bytes beyond its end read as zeros anyway. Not cancel-safe, see [`super`].
    ///
    /// # Errors
    /// - `Corrupt` if the new end is within a damaged granule or in a region with a damaged page.
    /// - `DeviceFailed` if a write fails.
    pub async fn truncate(&self, key: &ChunkFileKey, size: u64) -> Result<()> {
        self.check_writable()?;
        loop {
            let Some(file) = self.existing(key)? else { return Ok(()) };
            let _guard = file.lock.write(0..u64::MAX).await;
            if file.is_removed.get() {
                continue;
            }
            if size < file.size.get() {
                self.truncate_locked(&file, size).await?;
                file.note_change();
            }
            return Ok(());
        }
    }

    async fn truncate_locked(&self, file: &ChunkFile, size: u64) -> Result<()> {
        // Even with a size of zero, region 0 stays, because its page contains the stripe.
        let last = region_of(size.saturating_sub(1));
        let _changing = self.dirty.change(file.key, last..last + 1);
        file.note_change();
        self.truncate_checksums(file, last, size).await?;
        file.size.set(size);
        self.truncate_to_size(file)?;
        self.open.borrow_mut().truncate_regions(file, last + 1);
        self.dirty.truncate(&file.key, last + 1);
        Ok(())
    }

    /// Updates the checksums of region `last`, which contains the new end of the file.
    async fn truncate_checksums(&self, file: &ChunkFile, last: u64, size: u64) -> Result<()> {
        let region = self.region(file, last).await?;
        // Without a page, the region is a hole and has no checksums.
        let Some(header) = region.header.get() else { return Ok(()) };
        let tail = size % GRANULE_BYTES;
        let start = size - tail;
        let mut tail_checksum = 0;
        if tail > 0 {
            let old = self.read_region(file, &(start..start + GRANULE_BYTES)).await?;
            let stored = region.checksums.borrow()[granule_in_region(start)];
            if granule_checksum(old.bytes()) != stored {
                return Err(file.corrupt_granule(start).within(self.target));
            }
            tail_checksum = granule_checksum(&old.bytes()[..tail as usize]);
        }
        if header.synced {
            let dirty = DirtyRegion { key: file.key, region: last };
            let recorded = self.dirty_log.record(&[dirty]).await;
            recorded.map_err(|error| self.note_failure(error))?;
        }
        {
            let mut checksums = region.checksums.borrow_mut();
            // If the file ends exactly at the end of the region, all granules of the region stay.
            let first_cleared = if size > 0 && tail == 0 && start == (last + 1) * REGION_BYTES {
                checksums.len()
            } else {
                granule_in_region(start)
            };
            checksums[first_cleared..].fill(0);
            if tail > 0 {
                checksums[first_cleared] = tail_checksum;
            }
        }
        let start = self.state.get().start;
        region.header.set(Some(RegionHeader { synced: false, start, ..header }));
        self.write_page(file, last, &region)
    }
}
