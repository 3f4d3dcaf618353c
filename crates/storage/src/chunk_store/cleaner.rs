//! The cleaner: brings what was written to the device, marks its regions as synced, and empties the
//! dirty log.
//!
//! Runs every [`CLEAN_INTERVAL`] and at a clean end. It holds up nobody: a region that is written
//! while it runs stays dirty until the next time.

use super::ChunkStore;
use super::dirty_regions::Settled;
use crate::limits::{CLEAN_INTERVAL, MAX_DIRTY_REGIONS, PARALLEL_SYNCS, SYNC_EACH_UP_TO};
use skep_env::Mailbox;
use skep_env::local::Semaphore;
use skep_format::chunk::{DirtyRegion, RegionHeader, TargetState};
use skep_store::atomic::replace_atomically;
use skep_types::{ChunkFileKey, Error, ErrorCode, Result};
use std::rc::Rc;

impl ChunkStore {
    /// Cleans again and again, until the target fails or this is dropped. Cancel-safe.
    pub async fn clean_forever(self: &Rc<Self>) {
        while self.failure().is_none() {
            skep_env::timeout(CLEAN_INTERVAL, self.cleaning_wanted.wait()).await;
            if let Err(error) = self.clean().await {
                tracing::error!("target {}: cleaning failed: {error}", self.target);
            }
        }
    }

    /// Lets the cleaner start at once if there is much to do.
    pub(super) fn want_cleaning(&self) {
        if self.dirty.len() > MAX_DIRTY_REGIONS {
            self.cleaning_wanted.notify();
        }
    }

    /// Brings everything to the device and notes that nothing is to be looked at next time. Nobody
    /// may write any more.
    ///
    /// # Errors
    /// As [`Self::clean`]; the end counts as unclean then.
    pub async fn close(self: &Rc<Self>) -> Result<()> {
        while self.dirty.len() > 0 || self.dirty_log.has_forgotten() {
            let before = self.dirty.len();
            self.clean().await?;
            if self.dirty.len() >= before.max(1) {
                return Err(Error::new(
                    ErrorCode::Io,
                    format!("target {}: {before} regions cannot be cleaned", self.target),
                ));
            }
        }
        // Pages that the last round marked as synced may not be on the device. They count as new
        // ones then, and what they describe is there.
        self.check_writable()?;
        let state = TargetState { clean: true, ..self.state.get() };
        replace_atomically(&self.directory.join(super::STATE_FILE), &state.to_file())?;
        self.state.set(state);
        Ok(())
    }

    /// One round. Cancel-safe.
    ///
    /// # Errors
    /// `DeviceFailed` if a sync fails.
    pub async fn clean(self: &Rc<Self>) -> Result<()> {
        self.check_writable()?;
        // Regions that a crash may have torn are taken as they are first: that is a change.
        let mut files = Vec::new();
        for settled in self.dirty.settled() {
            files.extend(self.load_settled(settled).await);
            skep_env::yield_now().await;
        }
        let files: Vec<Settled> = {
            let now = self.dirty.settled().into_iter();
            let loaded: std::collections::HashSet<_> = files.into_iter().collect();
            now.filter(|(key, _)| loaded.contains(key)).collect()
        };
        if files.is_empty() && !self.dirty_log.has_forgotten() {
            return Ok(());
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

    /// Loads a file's dirty regions; none if there is nothing to clean in it.
    async fn load_settled(&self, (key, regions): Settled) -> Option<ChunkFileKey> {
        let file = match self.existing(&key) {
            Ok(Some(file)) => file,
            Ok(None) => {
                self.give_up(&key, &regions);
                return None;
            }
            Err(error) => {
                tracing::warn!("target {}: cannot clean: {error}", self.target);
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
                Err(error) => tracing::warn!("target {}: cannot clean: {error}", self.target),
            }
        }
        Some(key)
    }

    /// Forgets regions that are gone, or whose damage no crash explains.
    fn give_up(&self, key: &ChunkFileKey, regions: &[(u64, u64)]) {
        for (region, number) in regions {
            if self.dirty.take_if_unchanged(key, *region, *number) {
                self.forget(DirtyRegion { key: *key, region: *region });
            }
        }
    }

    fn forget(&self, region: DirtyRegion) {
        self.dirty_log.forget(&[region]);
        self.suspects.borrow_mut().remove(&region);
    }

    async fn sync_files(self: &Rc<Self>, keys: Vec<ChunkFileKey>) -> Result<()> {
        if keys.len() > SYNC_EACH_UP_TO {
            return self.sync_all().await;
        }
        let places = Semaphore::new(PARALLEL_SYNCS);
        let mut tasks = Vec::with_capacity(keys.len());
        for key in keys {
            let permit = places.acquire().await;
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

    /// Syncs the whole file system, on a thread of its own since that takes long.
    async fn sync_all(&self) -> Result<()> {
        let failed = |error: std::io::Error| {
            self.note_failure(
                Error::from(error).within(format_args!("sync of {}", self.directory.display())),
            )
        };
        let (sender, mailbox) = Mailbox::new(1).map_err(failed)?;
        // A descriptor tells of errors since it was opened, so one from the start is used.
        let directory = self.opened_at_start.try_clone().map_err(failed)?;
        let body = move || {
            let synced = skep_env::File::from(directory).sync_file_system_now();
            // The receiver is gone if cleaning was given up.
            let _unwanted = sender.send(synced);
        };
        let thread = skep_env::spawn_thread("storage-sync".into(), None, body).map_err(failed)?;
        let synced = mailbox.receive().await.map_err(failed)?;
        let _ended = thread.join();
        synced.map_err(failed)
    }

    /// Marks regions that weren't changed since before the sync.
    async fn mark_synced(&self, key: &ChunkFileKey, regions: &[(u64, u64)]) -> Result<()> {
        let Some(file) = self.existing(key)? else {
            self.give_up(key, regions);
            return Ok(());
        };
        for (region, number) in regions {
            let _guard = file.lock.read(region_span(*region)).await;
            let Ok(loaded) = self.region(&file, *region).await else { continue };
            // No wait from here on: whoever writes next sees the mark and the log as they are then.
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

/// All logical bytes of a region.
fn region_span(region: u64) -> std::ops::Range<u64> {
    let start = region * skep_format::chunk::REGION_BYTES;
    start..start + skep_format::chunk::REGION_BYTES
}
