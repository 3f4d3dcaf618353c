//! Appends to a file that other clients may also extend. The clients take a lock at metadata for
//! each such append, so that each append begins at the end of the file.

use crate::client::Client;
use crate::data::write::WritePosition;
use crate::driven::drive;
use crate::files::handles::HandleId;
use crate::files::open_file::OpenFile;
use crate::inode_state::AppendPart;
use crate::locks::file_locks::{FileLock, LockOutcome, Locks};
use skep_env::Buf;
use skep_types::Result;
use skep_wire::file_locks::{LockKind, LockMode};
use skep_wire::limits::LOCK_END;
use std::sync::Arc;

impl Client {
    /// Appends to a file while other clients may also append to it. Takes a lock that is not
    /// visible to programs.
    pub(super) async fn append_under_lock(
        &self,
        file: Arc<OpenFile>,
        handle: HandleId,
        data: Buf,
        part: AppendPart,
    ) -> Result<()> {
        // Each append uses a new lock owner. With a common owner, two appends of this mount could
        // have the lock at the same time.
        let wait = self.new_lock_wait();
        let (kind, mode) = (LockKind::Append, Some(LockMode::Exclusive));
        let lock = FileLock { kind, owner: wait, mode, range: 0..LOCK_END, pid: 0 };
        let unlocked = FileLock { mode: None, ..lock.clone() };
        let held = AppendLock { client: self.clone(), handle, unlocked: Some(unlocked) };
        while self.set_lock(handle, lock.clone(), wait).await? == LockOutcome::Refused {
            self.wait_for_lock(handle, &lock, wait).await?;
        }
        let client = self.clone();
        let appending = async move {
            // The reply to the lock request contains the size of the file. Until this client
            // releases the lock, no other append changes the size of the file.
            let result = client.write_to(file, WritePosition::End, data).await;
            result.and(held.release().await)
        };
        drive(part.complete(appending), |_| ()).await
    }
}

/// The append lock of a file, or the request that waits for this lock. When this value is dropped,
/// the client releases the lock.
struct AppendLock {
    client: Client,
    handle: HandleId,
    unlocked: Option<FileLock>,
}

impl AppendLock {
    async fn release(mut self) -> Result<()> {
        let Some(unlocked) = self.unlocked.take() else { return Ok(()) };
        self.client.set_lock(self.handle, unlocked, 0).await.map(|_| ())
    }
}

impl Drop for AppendLock {
    fn drop(&mut self) {
        let Some(unlocked) = self.unlocked.take().filter(|_| skep_env::is_running()) else {
            return;
        };
        let (client, handle) = (self.client.clone(), self.handle);
        skep_env::spawn(async move {
            // If the request fails, metadata releases the lock when the handle is closed.
            if let Err(error) = client.set_lock(handle, unlocked, 0).await {
                tracing::debug!(
                    "handle {}: cannot release the append lock: {error:#}",
                    handle.raw()
                );
            }
        })
        .detach();
    }
}
