//! Locks of applications: `flock` locks, and the byte-range locks of `fcntl`.
//!
//! Metadata decides whether an owner gets a lock. The client records the ranges that each owner has
//! locked and the handles of the lock requests, because it must release the locks later.
//! - A `flock` lock belongs to its handle.
//! - A POSIX lock belongs to a process. The kernel sends the process's lock owner id with each
//!   `close(2)`.
//! - An open file description (OFD) lock looks like a POSIX lock, but the kernel never sends its
//!   owner id again. So the client releases the ranges of such a lock when the handle of the lock
//!   request is closed.

use crate::client::Client;
use crate::driven::drive;
use crate::files::handles::HandleId;
use crate::files::open_file::OpenFile;
use crate::limits::DEADLOCK_SEARCH_AFTER;
use crate::locks::owners::{Owner, OwnerTurn, RangeLock};
use crate::session::request::ModifyOptions;
use skep_cluster::lock_ranges::LockRanges;
use skep_types::{Error, ErrorCode, GroupId, InodeId, Result};
use skep_wire::file_locks::{
    EndWait, HeldLock, LockKind, LockMode, LockRequest, SetLock, TestLock, WaitLock,
};
use skep_wire::limits::LOCK_END;
use std::ops::Range;

/// A lock that a program sets, tests or releases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileLock {
    /// The kind of the lock. Only locks of the same kind conflict.
    pub kind: LockKind,
    /// The owner, a number that the caller chooses. For a `flock` lock, the client ignores this
    /// number, since the owner is the handle.
    pub owner: u64,
    /// Shared or exclusive; `None` unlocks the range.
    pub mode: Option<LockMode>,
    /// The locked range in bytes, without its end. The end is at most 2^63.
    pub range: Range<u64>,
    /// The process id that another program gets from `F_GETLK`.
    pub pid: u32,
}

/// The result of a lock request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockOutcome {
    /// Another owner has a conflicting lock.
    Refused,
    /// Metadata granted the lock or unlocked the range.
    Granted {
        /// Whether the kernel's page cache of the file is certainly still valid: no other client
        /// has changed the file since this mount last opened or locked it.
        keep_cache: bool,
        /// Whether the attributes of the file that the mount last sent to the kernel are still
        /// valid.
        are_attributes_shown: bool,
        /// The version of the file in the reply to the lock, for [`Locks::pages_dropped`]. Zero for
        /// an unlock.
        version: u64,
    },
}

impl LockOutcome {
    /// The outcome of an unlock. The kernel's caches stay valid after an unlock.
    const UNLOCKED: Self =
        Self::Granted { keep_cache: true, are_attributes_shown: true, version: 0 };
}

/// A wait for a lock. If this value is dropped before the wait has ended, the client notifies
/// metadata of the end of the wait.
struct LockWaitGuard {
    client: Client,
    request: Option<EndWait>,
}

impl Drop for LockWaitGuard {
    fn drop(&mut self) {
        let Some(request) = self.request.take().filter(|_| skep_env::is_running()) else { return };
        let client = self.client.clone();
        skep_env::spawn(async move {
            // Without this request, metadata wakes the next waiter only after the time for which it
            // reserves the lock.
            if let Err(error) = client.ask(request.inode, &request).await {
                tracing::debug!(
                    "file {}: cannot notify metadata of the end of a lock wait: {error:#}",
                    request.inode
                );
            }
        })
        .detach();
    }
}

/// Sets, tests and releases the locks of programs.
pub trait Locks {
    /// Returns a new id that identifies one attempt to get a lock, for the `wait` parameter of
    /// [`Self::set_lock`] and [`Self::wait_for_lock`].
    fn new_lock_wait(&self) -> u64;

    /// Locks or unlocks a range, like `F_SETLK`. Does not wait until other owners unlock. Before
    /// the client releases a lock, it reports all writes under that lock to metadata, and waits for
    /// the changes of programs that were killed. The request runs to completion even if the caller
    /// drops the future.
    ///
    /// # Errors
    /// - `Stale` if the handle is not open.
    /// - `Io` if the locks of the handle were lost.
    /// - `TooManyLocks` if metadata has too many locks.
    /// - `InvalidArgument` if the range is invalid.
    fn set_lock(
        &self,
        handle: HandleId,
        lock: FileLock,
        wait: u64,
    ) -> impl Future<Output = Result<LockOutcome>>;

    /// Records that the kernel has dropped its cached pages of a file because of a lock. `version`
    /// is the version in the outcome of the lock. Until the caller has called this function, each
    /// lock and open of this version also makes the kernel drop its pages.
    fn pages_dropped(&self, _inode: InodeId, _version: u64) {}

    /// Waits until the lock may be free, but at most for a few seconds. The caller then calls
    /// [`Self::set_lock`] again. During a long wait for a POSIX lock, the client searches for a
    /// deadlock cycle over several metadata targets. The caller may drop the future at any await.
    ///
    /// # Errors
    /// - `Deadlock` if this wait is part of a deadlock cycle, and must end to resolve the cycle.
    /// - The errors of [`Self::set_lock`].
    fn wait_for_lock(
        &self,
        handle: HandleId,
        lock: &FileLock,
        wait: u64,
    ) -> impl Future<Output = Result<()>>;

    /// Returns a lock that conflicts with `lock`, like `F_GETLK`. The process id in the result is
    /// zero if a process of another client holds the lock.
    ///
    /// # Errors
    /// Returns the errors of [`Self::set_lock`].
    fn test_lock(
        &self,
        handle: HandleId,
        lock: &FileLock,
    ) -> impl Future<Output = Result<Option<HeldLock>>>;

    /// Releases all POSIX locks of a process on a file. The caller calls this function when the
    /// process has closed a descriptor of the file.
    ///
    /// # Errors
    /// Returns the errors of the requests to metadata.
    fn unlock_process(&self, handle: HandleId, owner: u64) -> impl Future<Output = Result<()>>;

    /// Returns whether a process of this mount has ever set a POSIX lock. After that, any
    /// `close(2)` may release locks, so the caller must call [`Self::unlock_process`] for each
    /// `close(2)`.
    fn has_process_locks(&self) -> bool;
}

impl Locks for Client {
    fn new_lock_wait(&self) -> u64 {
        self.mount().locks.new_wait()
    }

    async fn set_lock(&self, handle: HandleId, lock: FileLock, wait: u64) -> Result<LockOutcome> {
        let file = self.mount().handles.get_live(handle)?;
        let client = self.clone();
        let setting = async move {
            let owner = owner_of(&file, handle, &lock);
            let turn = client.mount().locks.turn(owner, false).await;
            let Some(turn) = turn else { return Ok(LockOutcome::UNLOCKED) };
            let releases = lock.mode != Some(LockMode::Exclusive)
                && lock.kind != LockKind::Append
                && !turn.with(|ranges| ranges.is_empty());
            if releases {
                // A killed program may have shared this lock (`data::locked`). An append releases
                // its own lock before the append ends, so that release must not wait here.
                file.inode.await_orphaned_changes().await;
            }
            if lock.kind == LockKind::Posix {
                client.mount().locks.note_posix();
            }
            client.mount().locks.note_use();
            file.inode.set_locked();
            let locked = client.set_in_turn(&file, handle, &turn, &lock, wait).await?;
            // Metadata may have granted the new lock in a newer session than the earlier locks of
            // this handle. The earlier locks were then lost with their session, and this check
            // fails.
            file.check_live()?;
            Ok(locked)
        };
        drive(setting, |_| ()).await
    }

    fn pages_dropped(&self, inode: InodeId, version: u64) {
        self.mount().caches.pages_dropped(inode, version);
    }

    async fn wait_for_lock(&self, handle: HandleId, lock: &FileLock, wait: u64) -> Result<()> {
        let file = self.mount().handles.get_live(handle)?;
        let owner = owner_of(&file, handle, lock);
        let end = EndWait { inode: owner.inode, wait };
        let mut waiting = LockWaitGuard { client: self.clone(), request: Some(end) };
        let request = WaitLock { lock: request_of(owner, lock), wait };
        let mut asking = std::pin::pin!(self.ask(owner.inode, &request));
        let answer = match skep_env::timeout(DEADLOCK_SEARCH_AFTER, asking.as_mut()).await {
            Some(answer) => answer,
            None if lock.kind == LockKind::Posix && self.must_give_way(lock.owner, wait).await => {
                let what = "the waiting processes would form a deadlock cycle over several \
                            metadata targets";
                let what = format!("cannot lock file {}: {what}", owner.inode);
                return Err(Error::new(ErrorCode::Deadlock, what));
            }
            None => asking.await,
        };
        waiting.request = None;
        answer.map(|_| ())
    }

    async fn test_lock(&self, handle: HandleId, lock: &FileLock) -> Result<Option<HeldLock>> {
        let file = self.mount().handles.get_live(handle)?;
        let owner = owner_of(&file, handle, lock);
        let request = TestLock { lock: request_of(owner, lock) };
        let mut conflict = self.ask(owner.inode, &request).await?.conflict;
        let own = self.session(self.group_of(owner.inode)?).await?.id;
        if let Some(held) = conflict.as_mut().filter(|held| held.session != own) {
            held.pid = 0;
        }
        Ok(conflict)
    }

    async fn unlock_process(&self, handle: HandleId, owner: u64) -> Result<()> {
        let file = self.mount().handles.get(handle)?;
        let (inode, kind) = (file.inode.id, LockKind::Posix);
        // The close of a process without locks must not wait for the writes of other processes.
        if !file.inode.is_locked() || !self.mount().locks.is_known(Owner { inode, kind, owner }) {
            return Ok(());
        }
        let client = self.clone();
        let unlocking = async move {
            // The lock of a killed process may protect an append that is still in progress.
            file.inode.await_appends().await;
            client.unlock(&file, handle, (kind, owner), false).await
        };
        drive(unlocking, |_| ()).await
    }

    fn has_process_locks(&self) -> bool {
        self.mount().locks.has_posix()
    }
}

impl Client {
    async fn set_in_turn(
        &self,
        file: &OpenFile,
        handle: HandleId,
        turn: &OwnerTurn,
        lock: &FileLock,
        wait: u64,
    ) -> Result<LockOutcome> {
        let how = ModifyOptions { is_driven: true, ..ModifyOptions::default() };
        // Report the writes before the release of the lock, so that the next owner of the lock can
        // read all bytes that programs have written under the lock.
        let reported = match lock.mode {
            Some(LockMode::Exclusive) => Ok(None),
            _ if lock.kind == LockKind::Append => self.report_written(&file.inode, how).await,
            _ => {
                file.inode.note_release();
                // Wait for a report that runs beside an `fsync`, and send no second one.
                let _releasing = self.change_times(&file.inode).await;
                self.report_written(&file.inode, how).await
            }
        };
        let inode = file.inode.id;
        let request = SetLock { lock: request_of(turn.owner, lock), wait };
        let how = ModifyOptions { ends_with_session: true, ..how };
        let sent = self.moment();
        let set = match self.modify(inode, request, how, |_, _| ()).await {
            // The file was removed together with its locks, so there is nothing left to unlock.
            Err(error) if lock.mode.is_none() && error.code() == ErrorCode::Stale => {
                turn.with(|ranges| *ranges = LockRanges::default());
                return Ok(LockOutcome::UNLOCKED);
            }
            result => result?,
        };
        if set.conflict.is_some() {
            if lock.kind == LockKind::Flock {
                // Metadata has refused the lock in the new mode. Before it refused, metadata
                // released the lock in the old mode, so the owner has no lock now.
                turn.with(|ranges| *ranges = LockRanges::default());
            }
            return Ok(LockOutcome::Refused);
        }
        let held = lock.mode.map(|mode| RangeLock { handle, mode, pid: lock.pid });
        turn.with(|ranges| ranges.set(lock.range.clone(), held));
        reported?;
        // A database releases a range right after it has set a lock, and then calls `fstat`.
        file.inode.know(&set.attributes, sent.after_own_change());
        if lock.mode.is_none() {
            return Ok(LockOutcome::UNLOCKED);
        }
        file.inode.observe(&set.attributes, sent.time);
        let (caches, version) = (&self.mount().caches, set.attributes.change_counter);
        let are_attributes_shown = caches.is_shown(inode, version);
        let keep_cache = caches.has_pages(inode, version);
        Ok(LockOutcome::Granted { keep_cache, are_attributes_shown, version })
    }

    /// Releases all locks that programs have set through a handle. The client calls this function
    /// while it closes the handle.
    pub(crate) async fn unlock_handle(&self, file: &OpenFile, handle: HandleId) {
        for owner in self.mount().locks.owners_through(file.inode.id, handle) {
            // If the request fails, only log the error: metadata releases the lock when the session
            // closes its last open of the file.
            if let Err(error) = self.unlock(file, handle, owner, true).await {
                tracing::warn!(
                    "file {}: cannot release its locks before the close: {error}; metadata \
                     releases them when this mount has closed the file",
                    file.inode.id
                );
            }
        }
    }

    /// Releases the locks of an owner on a file. If `only_of_handle` is set, releases only the
    /// locks that were set through `handle`.
    async fn unlock(
        &self,
        file: &OpenFile,
        handle: HandleId,
        (kind, owner): (LockKind, u64),
        only_of_handle: bool,
    ) -> Result<()> {
        let owner = Owner { inode: file.inode.id, kind, owner };
        let Some(turn) = self.mount().locks.turn(owner, true).await else { return Ok(()) };
        let ranges = turn.with(|ranges| ranges.clone());
        let is_of_handle = |(_, lock): &(Range<u64>, RangeLock)| lock.handle == handle;
        let unlocked: Vec<_> = match only_of_handle {
            true => ranges.iter().filter(is_of_handle).map(|(range, _)| range).collect(),
            false if ranges.is_empty() => Vec::new(),
            false => std::iter::once(0..LOCK_END).collect(),
        };
        for range in unlocked {
            let lock = FileLock { kind, owner: owner.owner, mode: None, range, pid: 0 };
            self.set_in_turn(file, handle, &turn, &lock, 0).await?;
        }
        Ok(())
    }

    /// Records that all locks at a group were lost with the session. From then on, operations
    /// through the handles of these locks fail.
    pub(crate) fn lose_locks(&self, group: GroupId) {
        let mount = self.mount();
        let map = mount.map();
        let lost = mount.locks.lose(|inode| map.shard_group(inode.shard()) == Some(group));
        for handle in lost {
            self.lose_locks_of(handle, "when metadata ended the session of this mount");
        }
    }

    /// Records that locks of a handle were lost. From then on, operations through the handle fail.
    pub(crate) fn lose_locks_of(&self, handle: HandleId, how: &str) {
        if let Ok(file) = self.mount().handles.get(handle) {
            tracing::warn!(
                "file {}: its locks were lost {how}; operations through the open file fail until \
                 the program opens it again",
                file.inode.id
            );
            file.set_locks_lost();
        }
    }

    /// If the file has locks, confirms that the lease has not run out. The client calls this
    /// function before each read and write. While the lease is valid, no other client can have the
    /// locks.
    pub(crate) async fn confirm_locks(&self, file: &OpenFile) -> Result<()> {
        if !file.inode.is_locked() {
            return Ok(());
        }
        self.confirm_lease(file.inode.id).await?;
        file.check_live()
    }
}

/// Returns the owner for requests to metadata. For `flock`, this is the id of the handle, which the
/// mount never uses again. The kernel's own id of the open file is not suitable, because the kernel
/// may reuse this id while the unlock of the old file is still in progress.
fn owner_of(file: &OpenFile, handle: HandleId, lock: &FileLock) -> Owner {
    let owner = match lock.kind {
        LockKind::Posix | LockKind::Append => lock.owner,
        LockKind::Flock => handle.raw(),
    };
    Owner { inode: file.inode.id, kind: lock.kind, owner }
}

pub(crate) fn request_of(owner: Owner, lock: &FileLock) -> LockRequest {
    LockRequest {
        inode: owner.inode,
        kind: owner.kind,
        owner: owner.owner,
        mode: lock.mode,
        start: lock.range.start,
        end: lock.range.end,
        pid: lock.pid,
    }
}
