//! Locks of the file system in memory.

use super::{Memory, Node, Owner};
use skep_client::{FileLock, HandleId, HeldLock, LockKind, LockMode, LockOutcome, Locks};
use skep_types::Result;
use std::time::Duration;

const SHARED: Option<LockMode> = Some(LockMode::Shared);

fn owner_of(handle: HandleId, lock: &FileLock) -> Owner {
    match lock.kind {
        LockKind::Posix | LockKind::Append => (lock.kind, lock.owner),
        LockKind::Flock => (lock.kind, handle.raw()),
    }
}

fn conflicts(held: &(Owner, FileLock), owner: Owner, lock: &FileLock) -> bool {
    let (by, held) = held;
    *by != owner && by.0 == owner.0 && (held.mode, lock.mode) != (SHARED, SHARED)
}

impl Locks for Memory {
    fn new_lock_wait(&self) -> u64 {
        0
    }

    /// Ignores the byte range of `lock`, and locks the whole file.
    async fn set_lock(&self, handle: HandleId, lock: FileLock, _: u64) -> Result<LockOutcome> {
        let owner = owner_of(handle, &lock);
        self.with(|tree| {
            let locks = &mut tree.opened(handle)?.locks;
            if lock.mode.is_some() && locks.iter().any(|held| conflicts(held, owner, &lock)) {
                return Ok(LockOutcome::Refused);
            }
            locks.retain(|(held, _)| *held != owner);
            if lock.mode.is_some() {
                locks.push((owner, lock));
            }
            let (keep_cache, are_attributes_shown, version) = (false, false, 1);
            Ok(LockOutcome::Granted { keep_cache, are_attributes_shown, version })
        })
    }

    async fn wait_for_lock(&self, handle: HandleId, lock: &FileLock, _: u64) -> Result<()> {
        let owner = owner_of(handle, lock);
        while self.with(|tree| {
            let locks = &tree.opened(handle)?.locks;
            Ok(locks.iter().any(|held| conflicts(held, owner, lock)))
        })? {
            skep_env::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    async fn test_lock(&self, _: HandleId, _: &FileLock) -> Result<Option<HeldLock>> {
        Ok(None)
    }

    async fn unlock_process(&self, handle: HandleId, owner: u64) -> Result<()> {
        let own = (LockKind::Posix, owner);
        let unlock = |node: &mut Node| node.locks.retain(|(held, _)| *held != own);
        self.with(|tree| tree.opened(handle).map(unlock))
    }

    fn has_process_locks(&self) -> bool {
        true
    }
}
