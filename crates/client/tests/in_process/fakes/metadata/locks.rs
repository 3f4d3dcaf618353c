//! Locks at the fake metadata target. The target supports only exclusive locks of whole files.

use super::FakeMetadata;
use skep_types::codec::Codec;
use skep_types::{InodeId, NodeId, Result, SessionId};
use skep_wire::Request;
use skep_wire::file_locks::{FileUse, HeldLock, ListLocks, LockList, SetLock, SetLockReply};
use skep_wire::frame::Header;

impl FakeMetadata {
    /// Executes a request about locks.
    pub(super) fn execute_about_locks(&mut self, header: &Header, body: &[u8]) -> Result<Vec<u8>> {
        Ok(match header.message {
            SetLock::ID => self.set_lock(header.session, &SetLock::from_bytes(body)?)?.to_bytes(),
            ListLocks::ID => self.list_locks().to_bytes(),
            other => panic!("the fake metadata target cannot execute message {other}"),
        })
    }

    fn set_lock(&mut self, session: SessionId, request: &SetLock) -> Result<SetLockReply> {
        let lock = request.lock;
        let attributes = self.inode(lock.inode)?.attributes.clone();
        let is_own = |held: &HeldLock| (held.session, held.owner) == (session, lock.owner);
        let is_other = |it: &&(InodeId, HeldLock)| it.0 == lock.inode && !is_own(&it.1);
        let conflict = self.locks.iter().find(is_other).map(|it| it.1);
        if let Some(conflict) = conflict.filter(|_| lock.mode.is_some()) {
            return Ok(SetLockReply { conflict: Some(conflict), attributes });
        }
        self.locks.retain(|it| it.0 != lock.inode || !is_own(&it.1));
        if let Some(mode) = lock.mode {
            let (kind, owner, pid) = (lock.kind, lock.owner, lock.pid);
            let (start, end) = (lock.start, lock.end);
            let held = HeldLock { session, kind, owner, mode, start, end, pid };
            self.locks.push((lock.inode, held));
        }
        Ok(SetLockReply { conflict: None, attributes })
    }

    fn list_locks(&self) -> LockList {
        let of_lock = |(inode, held): &(InodeId, HeldLock)| FileUse {
            session: held.session,
            client: NodeId::default(),
            inode: *inode,
            readers: 0,
            writers: 1,
            held: vec![*held],
            held_count: 1,
            waiting: Vec::new(),
            waiting_count: 0,
            longest_wait_ms: 0,
        };
        LockList { uses: self.locks.iter().map(of_lock).collect(), next: None }
    }

    /// Simulates a power loss that has reverted all locks. If `next_holder` is set, this session of
    /// another client has set the same locks since.
    pub(crate) fn lose_locks(&mut self, next_holder: Option<SessionId>) {
        match next_holder {
            Some(session) => self.locks.iter_mut().for_each(|it| it.1.session = session),
            None => self.locks.clear(),
        }
        self.start += 1;
    }

    /// Returns the number of locks.
    pub(crate) fn lock_count(&self) -> usize {
        self.locks.len()
    }
}
