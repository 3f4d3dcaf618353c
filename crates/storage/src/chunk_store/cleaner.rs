//! The cleaner syncs written data to the device, marks the regions of this data as synced, and
//! removes these regions from the dirty log.
//!
//! The cleaner runs every [`CLEAN_INTERVAL`] and at a clean shutdown. No write waits for a sync of
//! the cleaner. A region that an operation writes during the sync stays dirty until the next round.
//!
//! # Hazard: a dropped round
//! The kernel reports a failed write-back to only one sync. If the future of a round were dropped
//! during its sync, this error would be lost, and the next sync would succeed although bytes are
//! lost. So a round runs to its end ([`ChunkStore::end_cleaning`]).

use super::dirty_regions::UnchangedRegions;
use super::{ChunkStore, CleanEnd};
use crate::limits::{CLEAN_INTERVAL, MAX_DIRTY_REGIONS, PARALLEL_SYNCS, SYNC_EACH_UP_TO};
use skep_env::Mailbox;
use skep_env::local::Semaphore;
use skep_format::chunk::{DirtyRegion, RegionHeader, TargetState};
use skep_types::{ChunkFileKey, Error, ErrorCode, Result};
use std::rc::Rc;

impl ChunkStore {
    /// Runs a round every `CLEAN_INTERVAL`, or earlier if many regions are dirty, until the
    /// target fails or [`Self::end_cleaning`] is called. Not cancel-safe.
    pub async fn clean_forever(self: &Rc<Self>) {
        // Retry: after an error, the next round begins after `CLEAN_INTERVAL` at the latest, until
        // the target fails.
        while self.failure().is_none() && !self.cleaner.is_ending.get() {
            skep_env::timeout(CLEAN_INTERVAL, self.cleaner.wanted.wait()).await;
            if self.cleaner.is_ending.get() {
                return;
            }
            if let Err(error) = self.clean().await {
                tracing::error!(
                    "target {}: the target cannot sync written data to its disk yet, and retries: \
                     {error}",
                    self.target
                );
            }
            self.record_state_if_needed();
            super::record_space::hold(&self.directory);
        }
    }

    /// Makes [`Self::clean_forever`] return when the round in progress has ended.
    pub fn end_cleaning(&self) {
        self.cleaner.is_ending.set(true);
        self.cleaner.wanted.notify();
    }

    /// Wakes the cleaner if many regions are dirty.
    pub(super) fn wake_cleaner_if_needed(&self) {
        if self.dirty.len() > MAX_DIRTY_REGIONS {
            self.cleaner.wanted.notify();
        }
    }

    /// Closes the store cleanly, like [`Self::end`], and records the end. Blocks.
    ///
    /// # Errors
    /// Returns the errors of [`Self::end`] and [`CleanEnd::record`].
    pub async fn close(self: &Rc<Self>) -> Result<()> {
        self.end().await?.record()
    }

    /// Syncs all changes to the device, including the changes of an earlier process that was
    /// killed. Returns the state record of a clean end, which shows the next start that no region
    /// can be torn. No operation may write after this call has begun.
    ///
    /// # Errors
    /// Returns the errors of [`Self::clean`], and `Io` if a dirty region cannot be cleaned. After
    /// an error, the target is not closed cleanly.
    pub async fn end(self: &Rc<Self>) -> Result<CleanEnd> {
        while self.dirty.len() > 0 || self.dirty_log.has_forgotten() {
            let before = self.dirty.len();
            self.clean().await?;
            if self.dirty.len() >= before.max(1) {
                return Err(Error::new(
                    ErrorCode::Io,
                    format!(
                        "cannot stop target {} cleanly: the written data of {before} regions of \
                         chunk files cannot be synced to the disk of the target; check this disk. \
                         The next start checks these regions",
                        self.target
                    ),
                ));
            }
        }
        self.sync_all(|| self.cleaner.full_sync.is_owed.get()).await?;
        // The last round has marked pages as synced, and no later sync makes these marks durable.
        // If a mark does not reach the device, the next start counts the page as unsynced. This
        // mistake is harmless, because the data of the page is on the device.
        self.check_writable()?;
        let state = TargetState { clean: true, ..self.state.get() };
        Ok(CleanEnd { directory: self.directory.clone(), state })
    }

    /// Runs one round of the cleaner. Not cancel-safe, see the module.
    ///
    /// # Errors
    /// `DeviceFailed` if a sync or write fails.
    pub async fn clean(self: &Rc<Self>) -> Result<()> {
        self.check_writable()?;
        // The round first loads all dirty regions. A load of a region that a crash may have torn
        // recomputes the checksums and so changes the region. Then the round cleans the regions
        // that no operation is changing.
        let mut files = Vec::new();
        for settled in self.dirty.unchanged() {
            files.extend(self.load_unchanged(settled).await);
            skep_env::yield_now().await;
        }
        let files: Vec<UnchangedRegions> = {
            let now = self.dirty.unchanged().into_iter();
            let loaded: std::collections::HashSet<_> = files.into_iter().collect();
            now.filter(|(key, _)| loaded.contains(key)).collect()
        };
        if files.is_empty() && !self.dirty_log.has_forgotten() {
            return Ok(());
        }
        if cfg!(debug_assertions) {
            self.check_invariants();
        }
        self.sync_files(files.iter().map(|(key, _)| *key).collect()).await?;
        for (key, regions) in &files {
            self.mark_synced(key, regions).await?;
            skep_env::yield_now().await;
        }
        if self.dirty_log.has_forgotten() {
            self.dirty_log.rewrite().await.map_err(|error| self.note_failure(error))?;
        }
        Ok(())
    }

    /// Loads the dirty regions of one chunk file, and returns the key of the file. Logs all errors.
    /// Returns `None` if the file does not exist or cannot be opened.
    async fn load_unchanged(&self, (key, regions): UnchangedRegions) -> Option<ChunkFileKey> {
        let file = match self.existing(&key) {
            Ok(Some(file)) => file,
            Ok(None) => {
                self.give_up(&key, &regions);
                return None;
            }
            Err(error) => {
                tracing::warn!(
                    "target {}: the target cannot sync the written data of chunk file {key} yet, \
                     and retries: {error}",
                    self.target
                );
                return None;
            }
        };
        for (region, number) in &regions {
            let _guard = file.lock.read(region_span(*region)).await;
            match self.region(&file, *region).await {
                Ok(_) => {}
                Err(error) if error.code() == ErrorCode::Corrupt => {
                    tracing::error!("target {}: {error}", self.target);
                    self.give_up(&key, &[(*region, *number)]);
                }
                Err(error) => tracing::warn!(
                    "target {}: the target cannot sync region {region} of chunk file {key} yet, \
                     and retries: {error}",
                    self.target
                ),
            }
        }
        Some(key)
    }

    /// Removes regions from the dirty log because their file no longer exists, or because a crash
    /// cannot have caused their damage.
    fn give_up(&self, key: &ChunkFileKey, regions: &[(u64, u64)]) {
        for (region, number) in regions {
            if self.dirty.take_if_unchanged(key, *region, *number) {
                self.forget(DirtyRegion { key: *key, region: *region });
            }
        }
    }

    /// Removes the regions of a chunk file from index `from` on from the dirty regions, because the
    /// file was truncated or removed. Regions in the dirty log stay dirty, since only the cleaner
    /// removes regions from the log, and the cleaner examines only dirty regions.
    pub(super) fn truncate_dirty(&self, key: &ChunkFileKey, from: u64) {
        let is_recorded = |region| self.dirty_log.has_recorded(&DirtyRegion { key: *key, region });
        self.dirty.truncate(key, from, is_recorded);
    }

    fn forget(&self, region: DirtyRegion) {
        self.dirty_log.forget(&[region]);
        self.suspects.borrow_mut().remove(&region);
    }

    async fn sync_files(self: &Rc<Self>, mut keys: Vec<ChunkFileKey>) -> Result<()> {
        // The kernel reports an error to only one sync of the whole file system. So after an error
        // the next round syncs each file, because the sync of a file also reports the error of this
        // file.
        if keys.len() > SYNC_EACH_UP_TO && !self.cleaner.full_sync.is_each_next.replace(false) {
            self.sync_all(|| true).await?;
            // Only the sync of a chunk file itself waits for its early write-backs and returns
            // their errors.
            let is_unsettled = |key: &ChunkFileKey| {
                let open = self.open.borrow().get(key);
                open.is_some_and(|file| !file.writes.are_write_backs_settled())
            };
            keys.retain(is_unsettled);
        }
        let permits = Semaphore::new(PARALLEL_SYNCS);
        let mut tasks = Vec::with_capacity(keys.len());
        for key in keys {
            let permit = permits.acquire().await;
            let store = Rc::clone(self);
            tasks.push(skep_env::spawn(async move {
                let _permit = permit;
                store.sync(&key).await
            }));
        }
        let mut result = Ok(());
        for task in tasks {
            result = result.and(task.await);
        }
        result
    }

    /// Syncs the whole file system. Uses a separate thread, because the sync takes a long time.
    /// Does nothing if `is_needed` returns `false`, either immediately or after another sync of the
    /// file system has ended.
    ///
    /// If a sync of the whole file system fails, the error does not name the affected files. An
    /// open file reports the error again at its own next sync. A file that was evicted from the
    /// cache, or that an earlier process had open, may never report the error. So the changes of
    /// such a file count as lost.
    pub(super) async fn sync_all(&self, is_needed: impl Fn() -> bool) -> Result<()> {
        if !is_needed() {
            return Ok(());
        }
        let permit = self.cleaner.full_sync.running.acquire().await;
        if !is_needed() {
            return Ok(());
        }
        let owed = &self.cleaner.full_sync.is_owed;
        let (evicted, last_eviction) = self.open.borrow().evicted_unsynced();
        let cached = self.open.borrow().cached_unsynced();
        let result = self.sync_file_system().await;
        drop(permit);
        match &result {
            Ok(()) => {
                owed.set(false);
                self.open.borrow_mut().forget_evicted(last_eviction);
                for (file, changes) in cached {
                    if let Some(file) = file.upgrade()
                        && file.writes.are_write_backs_settled()
                    {
                        file.synced_changes.set(changes.max(file.synced_changes.get()));
                    }
                }
            }
            Err(error) if matches!(error.code(), ErrorCode::NoSpace | ErrorCode::QuotaExceeded) => {
                if owed.get() {
                    self.report_loss("chunk files that its previous process had written")?;
                } else if evicted > 0 {
                    self.report_loss(format_args!(
                        "{evicted} chunk files, which the target had closed"
                    ))?;
                }
                owed.set(false);
                self.open.borrow_mut().forget_evicted(last_eviction);
                self.cleaner.full_sync.is_each_next.set(true);
            }
            Err(_) => {}
        }
        result
    }

    async fn sync_file_system(&self) -> Result<()> {
        let failed = |error: std::io::Error| {
            self.note_failure(Error::from(error).within(format_args!(
                "cannot sync the file system of {}",
                self.directory.display()
            )))
        };
        let (sender, mailbox) = Mailbox::new(1).map_err(failed)?;
        // A sync reports only the errors since its descriptor was opened, so use the descriptor
        // that was opened at the start.
        let directory = self.cleaner.full_sync.opened_at_start.try_clone().map_err(failed)?;
        let body = move || {
            let synced = skep_env::File::from(directory).sync_file_system_now();
            // The send fails if the future of the cleaner was dropped. No task needs the result
            // then.
            let _dropped = sender.send(synced);
        };
        let thread = skep_env::spawn_thread("storage-sync".into(), None, body).map_err(failed)?;
        let synced = mailbox.receive().await.map_err(failed)?;
        let _ended = thread.join();
        synced.map_err(failed)
    }

    /// Marks regions as synced, except regions that have changed since the round collected them.
    /// The round collected the regions before the sync.
    async fn mark_synced(&self, key: &ChunkFileKey, regions: &[(u64, u64)]) -> Result<()> {
        let Some(file) = self.existing(key)? else {
            self.give_up(key, regions);
            return Ok(());
        };
        for (region, number) in regions {
            let _guard = file.lock.read(region_span(*region)).await;
            let Ok(loaded) = self.region(&file, *region).await else { continue };
            // The code after this line must contain no await, because the next writer must find
            // both the flag `synced` and the changed dirty log.
            if file.is_removed.get() || !self.dirty.take_if_unchanged(key, *region, *number) {
                continue;
            }
            self.forget(DirtyRegion { key: *key, region: *region });
            if let Some(header) = loaded.header.get() {
                loaded.header.set(Some(RegionHeader { synced: true, ..header }));
                self.write_page(&file, *region, &loaded)?;
            }
        }
        Ok(())
    }
}

/// Returns the logical byte range of a region.
fn region_span(region: u64) -> std::ops::Range<u64> {
    let start = region * skep_format::chunk::REGION_BYTES;
    start..start + skep_format::chunk::REGION_BYTES
}
