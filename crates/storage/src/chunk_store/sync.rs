//! Makes acknowledged writes durable.

use super::ChunkStore;
use super::chunk_file::ChunkFile;
use super::names::leaf_of;
use skep_types::{ChunkFileKey, Result};
use std::collections::BTreeSet;

impl ChunkStore {
    /// Makes all acknowledged changes of a chunk file durable, and its name. Does nothing for a
    /// chunk file that does not exist. Cancel-safe.
    ///
    /// # Errors
    /// `DeviceFailed` if a sync fails: the target refuses writes from then on.
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
        // Another operation may have met a failure while this one waited.
        self.check_writable()
    }
}
