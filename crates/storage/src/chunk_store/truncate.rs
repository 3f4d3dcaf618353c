//! Truncates chunk files. The module ignores truncations that arrive late, and refuses writes that
//! a client began before a truncation that the target has already executed.

use super::ChunkStore;
use super::chunk_file::{ChunkFile, granule_in_region};
use crate::limits::MAX_GENERATIONS;
use skep_format::chunk::{DirtyRegion, REGION_BYTES, RegionHeader, granule_checksum, region_of};
use skep_types::{ChunkFileKey, Error, ErrorCode, GRANULE_BYTES, Result};
use std::collections::{HashMap, VecDeque};

/// The newest truncate generations of the chunk files that were truncated most recently.
///
/// The process stores the generations in memory only. A late request can only arrive on a
/// connection that this process has accepted, and a restart of the process ends all connections.
///
/// # Invariants
/// `order` has each key of `newest` once, in the order of the truncations.
#[derive(Debug, Default)]
pub(super) struct Generations {
    newest: HashMap<ChunkFileKey, u64>,
    order: VecDeque<ChunkFileKey>,
}

impl Generations {
    /// Whether the chunk file was truncated in this generation or a newer generation.
    fn has(&self, key: &ChunkFileKey, generation: u64) -> bool {
        self.newest.get(key).is_some_and(|newest| generation <= *newest)
    }

    /// Whether the chunk file was truncated in a newer generation.
    fn has_newer(&self, key: &ChunkFileKey, generation: u64) -> bool {
        self.newest.get(key).is_some_and(|newest| generation < *newest)
    }

    fn note(&mut self, key: &ChunkFileKey, generation: u64) {
        if let Some(newest) = self.newest.get_mut(key) {
            *newest = generation.max(*newest);
            return;
        }
        self.newest.insert(*key, generation);
        self.order.push_back(*key);
        if self.order.len() > MAX_GENERATIONS
            && let Some(oldest) = self.order.pop_front()
        {
            self.newest.remove(&oldest);
        }
        if cfg!(debug_assertions) {
            self.check_invariants();
        }
    }

    /// Panics if an invariant of the type is violated. Compares only the lengths, because a new key
    /// is added to both collections, and removed from both.
    fn check_invariants(&self) {
        assert_eq!(self.order.len(), self.newest.len(), "`order` has each key of `newest` once");
        assert!(self.order.len() <= MAX_GENERATIONS, "the number of generations has a limit");
    }
}

impl ChunkStore {
    /// Truncates a chunk file to `size`. Does nothing if the file is shorter than the new size or
    /// does not exist, since bytes beyond its end already read as zeros. Also does nothing if the
    /// file was truncated in the same `generation` or a newer generation. A request with such a
    /// generation is a late copy, and must not remove the data of later writes. A damaged granule
    /// at the new end stays damaged, and so does a damaged page, unless `size` is zero. Not
    /// cancel-safe, see [`super`].
    ///
    /// # Errors
    /// `DeviceFailed` if a write fails.
    pub async fn truncate(&self, key: &ChunkFileKey, size: u64, generation: u64) -> Result<()> {
        self.check_writable()?;
        loop {
            let Some(file) = self.existing(key)? else { break };
            let _guard = file.lock.exclusive(0..u64::MAX).await;
            if file.is_removed.get() {
                continue;
            }
            // Check the generation under the lock, because a newer truncation may have been
            // executed while this request waited for the lock.
            if !self.generations.borrow().has(key, generation) && size < file.size.get() {
                self.truncate_locked(&file, size).await?;
                file.note_change();
            }
            break;
        }
        self.generations.borrow_mut().note(key, generation);
        Ok(())
    }

    /// Checks that this process has not executed a truncation of the chunk file in a newer
    /// generation than `generation`. `generation` is the generation of the write, clearing or
    /// reservation that the caller is about to execute.
    ///
    /// # Errors
    /// `EndMoved` if the operation belongs to an older generation. The client may rely on bytes
    /// that the truncation has removed, and bytes of an older write must not appear after the
    /// truncation.
    pub(super) fn check_generation(&self, key: &ChunkFileKey, generation: u64) -> Result<()> {
        if !self.generations.borrow().has_newer(key, generation) {
            return Ok(());
        }
        let text = format!(
            "cannot write to chunk file {key}: the file was truncated after the client began the \
             write"
        );
        Err(Error::new(ErrorCode::EndMoved, text))
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
        self.truncate_dirty(&file.key, last + 1);
        Ok(())
    }

    /// Updates the checksums of region `last`, which contains the new end of the file.
    async fn truncate_checksums(&self, file: &ChunkFile, last: u64, size: u64) -> Result<()> {
        let region = match self.region(file, last).await {
            // No byte of the region stays, so the file needs neither the bytes nor their checksums.
            Err(error) if error.code() == ErrorCode::Corrupt && size == 0 => {
                return self.clear_first_page(file).await;
            }
            // Damage does not prevent the truncation. The page and the region stay damaged.
            Err(error) if error.code() == ErrorCode::Corrupt => return Ok(()),
            region => region?,
        };
        // Without a page, the region is a hole and has no checksums.
        let Some(header) = region.header.get() else { return Ok(()) };
        let tail = size % GRANULE_BYTES;
        let start = size - tail;
        let mut tail_checksum = 0;
        if tail > 0 {
            let old = self.read_region(file, &(start..start + GRANULE_BYTES)).await?;
            let stored = region.checksums.borrow()[granule_in_region(start)];
            let is_damaged = granule_checksum(&old.bytes()) != stored;
            tail_checksum = granule_checksum(&old.bytes()[..tail as usize]);
            if is_damaged {
                // Store a wrong checksum, so that reads of the damaged granule still fail.
                tail_checksum = !tail_checksum;
            }
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

    /// Removes the damaged page of region 0. The caller then sets the length of the file.
    async fn clear_first_page(&self, file: &ChunkFile) -> Result<()> {
        // The damaged page does not show whether the region is on the device.
        let dirty = DirtyRegion { key: file.key, region: 0 };
        let recorded = self.dirty_log.record(&[dirty]).await;
        recorded.map_err(|error| self.note_failure(error))?;
        let emptied = file.file.borrow_std().set_len(0);
        emptied.map_err(|error| self.note_failure(file.io_error(error)))
    }
}
