//! Makes acknowledged changes durable.

use super::ChunkStore;
use super::chunk_file::ChunkFile;
use super::names::leaf_of;
use skep_types::{ChunkFileKey, Result};
use std::collections::BTreeSet;

impl ChunkStore {
    /// Makes all acknowledged changes of a chunk file and its name durable. Does nothing if the
    /// chunk file does not exist. Cancel-safe.
    ///
    /// # Errors
    /// `DeviceFailed` if a sync or an earlier write has failed. The target refuses writes from then
    /// on.
    pub async fn sync(&self, key: &ChunkFileKey) -> Result<()> {
        self.check_writable()?;
        match self.existing(key)? {
            Some(file) => self.sync_file(&file).await,
            None => Ok(()),
        }
    }

    pub(super) async fn sync_file(&self, file: &ChunkFile) -> Result<()> {
        let changes = file.changes.get();
        if file.synced_changes.get() < changes {
            let synced = file.file.sync_data().await;
            synced.map_err(|error| self.note_failure(file.io_error(error)))?;
            file.synced_changes.set(changes.max(file.synced_changes.get()));
        }
        if !file.is_name_synced.get() && !file.is_removed.get() {
            let synced = self.names.sync_leaves(&BTreeSet::from([leaf_of(&file.key)])).await;
            synced.map_err(|error| self.note_failure(error))?;
            file.is_name_synced.set(true);
        }
        // Another operation may have failed while this one waited for its sync.
        self.check_writable()
    }
}
