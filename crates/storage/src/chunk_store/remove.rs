//! Removes chunk files durably.

use super::ChunkStore;
use super::names::leaf_of;
use crate::limits::PARALLEL_SYNCS;
use skep_env::local::Semaphore;
use skep_types::{ChunkFileKey, Error, Result};
use std::collections::BTreeSet;
use std::io;
use std::rc::Rc;

impl ChunkStore {
    /// Removes chunk files. When this function returns, the removal survives a power loss, so the
    /// caller need not repeat the request. Skips missing chunk files, but also makes their absence
    /// durable, since the previous process may have removed these files just before its end.
    ///
    /// # Errors
    /// Errors of the file system. After an error, some of the files may have been removed.
    pub async fn remove(self: &Rc<Self>, keys: &[ChunkFileKey]) -> Result<()> {
        self.check_writable()?;
        let permits = Semaphore::new(PARALLEL_SYNCS);
        let mut tasks = Vec::with_capacity(keys.len());
        for key in keys {
            let permit = permits.acquire().await;
            let (store, key) = (Rc::clone(self), *key);
            tasks.push(skep_env::spawn(async move {
                let _permit = permit;
                store.remove_one(&key).await
            }));
        }
        let mut result = Ok(());
        for task in tasks {
            result = result.and(task.await);
        }
        result?;
        let leaves: BTreeSet<_> = keys.iter().map(leaf_of).collect();
        self.names.sync_leaves(&leaves).await.map_err(|error| self.note_failure(error))
    }

    async fn remove_one(&self, key: &ChunkFileKey) -> Result<()> {
        let open = self.open.borrow().get(key);
        let _guard = match &open {
            Some(file) => Some(file.lock.exclusive(0..u64::MAX).await),
            None => None,
        };
        let path = self.names.path(key);
        let removed = skep_env::remove_file(&path).await;
        if let Err(error) = removed
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(self.note_failure(Error::from(error).within(path.display())));
        }
        // Mark two open files as removed: `open` from before the removal, and the file in the
        // table. The two differ if another operation has opened the chunk file during the removal.
        for file in [open.as_ref(), self.open.borrow().get(key).as_ref()].into_iter().flatten() {
            file.is_removed.set(true);
        }
        self.open.borrow_mut().remove(key);
        self.truncate_dirty(key, 0);
        Ok(())
    }
}
