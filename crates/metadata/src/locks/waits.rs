//! The requests `WaitLock` and `EndWait`, and the replies to parked waits. Neither `WaitLock` nor
//! `EndWait` uses a slot of the session or becomes an operation. If each wait used a slot and an
//! operation, no slot or operation might be free for the request that releases the lock.

use crate::engine::Engine;
use crate::locks::queue::WaitAnswer;
use crate::locks::request::{LockClaim, check};
use crate::target::MetadataTarget;
use crate::tx::operation::ConnectionId;
use skep_format::metadata::Key;
use skep_types::codec::Codec;
use skep_types::{Error, ErrorCode, Result};
use skep_wire::file_locks::{EndWait, LockKind, WaitLock, WaitLockReply};
use skep_wire::frame::Header;

impl<E: Engine> MetadataTarget<E> {
    /// Loads the file locks when the target starts.
    pub(crate) fn load_file_locks(&mut self) -> Result<()> {
        for (key, value) in self.table.scan(&Key::all_file_locks(), &[], usize::MAX)? {
            self.shared.file_locks.on_write(&key, Some(&value))?;
        }
        Ok(())
    }

    /// Handles a `WaitLock` request: refuses it immediately, or parks it and replies later.
    pub(crate) fn wait_for_lock(&mut self, connection: ConnectionId, header: Header, body: &[u8]) {
        if let Err(error) = self.park_wait(connection, &header, body) {
            self.refuse(connection, header, error);
        }
    }

    fn park_wait(&mut self, connection: ConnectionId, header: &Header, body: &[u8]) -> Result<()> {
        let protocol = |what: &str| Error::new(ErrorCode::Protocol, what);
        let WaitLock { lock, wait } =
            WaitLock::from_bytes(body).map_err(|error| protocol(error.context()))?;
        check(&lock)?;
        let claim =
            LockClaim::of(header.session, &lock).filter(|_| wait != 0).ok_or_else(|| {
                protocol(
                    "cannot wait for the lock: the request is an unlock, or has no wait number",
                )
            })?;
        let (file_key, number) = ((lock.inode, lock.kind), (header.session, wait));
        let limits = &self.shared.limits;
        let locks = &mut self.shared.file_locks;
        if lock.kind == LockKind::Posix && locks.closes_cycle(lock.inode, &claim) {
            locks.end_wait(file_key, number);
            let what = format!(
                "cannot lock file {}: the waiting processes would form a deadlock cycle",
                lock.inode
            );
            return Err(Error::new(ErrorCode::Deadlock, what));
        }
        if locks.wait_count() >= limits.lock_waits && !locks.is_waiting(file_key, number) {
            return Err(Error::new(
                ErrorCode::TooManyLocks,
                format!(
                    "cannot wait for a lock on file {}: {} requests already wait for locks of its \
                     metadata target, which is the limit; try again later",
                    lock.inode, limits.lock_waits
                ),
            ));
        }
        let request = (connection, header.clone(), self.shared.now);
        if let Some(before) = locks.wait(lock.inode, claim, wait, request) {
            self.answer_wait(before);
        }
        Ok(())
    }

    /// Handles an `EndWait` request, which removes a wait from its queue.
    pub(crate) fn end_lock_wait(&mut self, session: &Header, body: &[u8]) -> Result<()> {
        let EndWait { inode, wait } = EndWait::from_bytes(body)
            .map_err(|error| Error::new(ErrorCode::Protocol, error.context()))?;
        for kind in LockKind::ALL {
            self.shared.file_locks.end_wait((inode, kind), (session.session, wait));
        }
        Ok(())
    }

    /// Replies to the waiters that can now set their locks, and to the waiters that must poll
    /// again.
    pub(crate) fn wake_lock_waits(&mut self) {
        for answer in self.shared.file_locks.wake(self.shared.now) {
            self.answer_wait(answer);
        }
    }

    fn answer_wait(&mut self, answer: WaitAnswer) {
        let WaitAnswer { connection, header, is_woken } = answer;
        self.reply_now(connection, header, WaitLockReply { is_called: is_woken }.to_bytes());
    }
}
