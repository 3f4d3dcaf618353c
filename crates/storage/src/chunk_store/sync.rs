//! Makes acknowledged changes durable.
//!
//! # Failed write-back
//! A device may refuse data that the file system has accepted, for example a thinly provisioned
//! device without space. The kernel then reports the error to one sync, and treats the pages as
//! clean, so the next sync would succeed without writing these pages. Therefore, after such an
//! error, the target writes the unsynced regions again from the page cache, and every later sync
//! reports the current state of the device. Granules that the page cache has lost keep their
//! checksums, so that reads of these granules fail. The incarnation changes, so that the `fsync` of
//! every writer fails once.

use super::ChunkStore;
use super::chunk_file::{ChunkFile, Region};
use super::names::leaf_of;
use super::record_space::replace_state;
use super::region::data_range;
use futures_lite::future::zip;
use skep_format::chunk::{
    GRANULES, RegionHeader, TargetState, granule_checksum, physical_offset, region_of,
};
use skep_types::{ChunkFileKey, Error, ErrorCode, GRANULE_BYTES, HostIncarnation, Result};
use std::collections::BTreeSet;
use std::rc::Rc;

impl ChunkStore {
    /// Makes all acknowledged changes of a chunk file and its name durable. Does nothing if the
    /// chunk file does not exist. Not cancel-safe, because a dropped sync may have received the
    /// only report of a failed write-back.
    ///
    /// # Errors
    /// - `NoSpace` if the device has no space for data that the file system has accepted.
    /// - `DeviceFailed` if a sync or an earlier write has failed. After this error, the target
    ///   refuses writes.
    pub async fn sync(&self, key: &ChunkFileKey) -> Result<()> {
        self.check_writable()?;
        match self.existing(key)? {
            Some(file) => self.sync_file(&file).await,
            None => Ok(()),
        }
    }

    pub(super) async fn sync_file(&self, file: &Rc<ChunkFile>) -> Result<()> {
        // Sync the data and the name at the same time, because the disk's file system usually makes
        // both durable with one commit of its journal.
        let (data, name) = zip(self.sync_data(file), self.sync_name(file)).await;
        data.and(name)?;
        // Check again whether the target accepts writes, because another operation may have failed
        // while this operation waited for its sync.
        self.check_writable()
    }

    async fn sync_name(&self, file: &ChunkFile) -> Result<()> {
        if file.is_name_synced.get() || file.is_removed.get() {
            return Ok(());
        }
        let synced = self.names.sync_leaves(&BTreeSet::from([leaf_of(&file.key)])).await;
        synced.map_err(|error| self.note_failure(error))?;
        file.is_name_synced.set(true);
        Ok(())
    }

    async fn sync_data(&self, file: &Rc<ChunkFile>) -> Result<()> {
        let wanted = file.changes.get();
        if file.synced_changes.get() >= wanted {
            return Ok(());
        }
        let _permit = file.syncing.acquire().await;
        if file.synced_changes.get() >= wanted {
            return Ok(());
        }
        // When a file is closed, the kernel may drop the error of a failed write-back together with
        // the file. So the changes of a chunk file that the target has closed before this sync need
        // a sync of the whole file system.
        let was_closed = || {
            self.cleaner.full_sync.is_owed.get()
                || self.open.borrow().was_evicted_unsynced(&file.key)
        };
        self.sync_all(was_closed).await?;
        let changes = file.changes.get();
        let synced = file.file.sync_data().await;
        file.writes.write_backs.wait().await;
        let early = file.writes.failed_write_back.take();
        match early.map_or(synced, Err) {
            Ok(()) => {
                file.synced_changes.set(changes.max(file.synced_changes.get()));
                Ok(())
            }
            Err(error) => {
                let error = self.note_failure(file.io_error(error));
                if error.code() != ErrorCode::DeviceFailed {
                    tracing::error!(
                        "target {}: the target cannot sync a chunk file, and writes the unsynced \
                         data of the file again: {error}",
                        self.target
                    );
                    self.write_again(file).await?;
                }
                Err(error)
            }
        }
    }

    /// Writes the unsynced regions of a file again from the page cache, after the kernel could not
    /// write them to the device.
    async fn write_again(&self, file: &Rc<ChunkFile>) -> Result<()> {
        let _guard = file.lock.exclusive(0..u64::MAX).await;
        if file.is_removed.get() {
            return Ok(());
        }
        file.note_change();
        let mut is_complete = true;
        // Regions beyond the end of the file may still be dirty, because their entries are in the
        // dirty log. A truncation has removed the data of these regions, so no data is lost.
        let last = region_of(file.size.get().saturating_sub(1));
        let dirty = self.dirty.regions_of(&file.key).into_iter();
        for index in dirty.filter(|index| *index <= last) {
            let cached = file.regions.borrow().get(&index).map(Rc::clone);
            // If the region page is not in memory, the page in the file may be older than
            // acknowledged writes. So the region counts as incomplete.
            is_complete &= cached.is_some();
            let region = match cached {
                Some(region) => region,
                None => self.region(file, index).await?,
            };
            is_complete &= self.write_region_again(file, index, &region).await?;
        }
        if !is_complete {
            self.report_loss(format_args!("chunk file {}", file.path.display()))?;
        }
        Ok(())
    }

    /// Writes one region again from the page cache. Returns `false` if data of the region is lost.
    async fn write_region_again(
        &self,
        file: &ChunkFile,
        index: u64,
        region: &Region,
    ) -> Result<bool> {
        let range = data_range(file, index);
        let data = self.read_region(file, &range).await?;
        let checksums: Vec<u32> = region.checksums.borrow().to_vec();
        let mut is_complete = true;
        let bytes = data.bytes();
        let granules = bytes.chunks(GRANULE_BYTES as usize).zip(&checksums[..GRANULES]);
        for ((granule, stored), start) in
            granules.zip((range.start..).step_by(GRANULE_BYTES as usize))
        {
            if granule_checksum(granule) != *stored {
                is_complete = false;
            } else if *stored != 0 {
                // A granule with a stored checksum of zero contains only zeros, and may be a hole.
                // So do not write this granule.
                let written = file.file.write_now(granule, physical_offset(start));
                written.map_err(|error| self.note_failure(file.io_error(error)))?;
            }
        }
        if let Some(header) = region.header.get().filter(|_| !is_complete) {
            // Mark the region as synced, so that no later start treats the mismatch as the result
            // of a crash.
            region.header.set(Some(RegionHeader { synced: true, ..header }));
        }
        self.write_page(file, index, region)?;
        Ok(is_complete)
    }

    /// Changes the incarnation because acknowledged changes are lost or may be lost. The next
    /// `fsync` of each client that wrote to the target then fails once.
    pub(super) fn report_loss(&self, of: impl std::fmt::Display) -> Result<()> {
        let mut state = self.state.get();
        state.incarnation = HostIncarnation::new(skep_env::random_u64());
        tracing::error!(
            "target {}: the device lost acknowledged data of {of}; reads of this data fail, and \
             the next fsync of each client fails",
            self.target
        );
        // Change the incarnation in memory even if the state record cannot be written, since the
        // running target must report the loss to clients. The cleaner then repeats the write of the
        // record.
        self.state.set(state);
        self.write_state(&state).map_err(|error: Error| self.note_failure(error))
    }

    /// Writes the target's state record.
    pub(super) fn write_state(&self, state: &TargetState) -> Result<()> {
        let written = replace_state(&self.directory, state);
        self.problems.is_state_unrecorded.set(written.is_err());
        written
    }

    /// Writes the state record again if the last write of this record failed. Without the record,
    /// the next start after a kill of the process would use the old incarnation, and clients would
    /// get no report of a loss.
    pub(super) fn record_state_if_needed(&self) {
        if self.problems.is_state_unrecorded.get()
            && let Err(error) = self.write_state(&self.state.get())
        {
            tracing::error!(
                "{}; the target tries to record this failure again",
                self.note_failure(error)
            );
        }
    }
}
