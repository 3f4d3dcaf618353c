//! The opens of files. The transaction of an open or close updates two counts: the opens of the
//! session for this inode, and the opens of the inode over all sessions.

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::locks::{Owner, Resource};
use crate::tx::operation::Stop;
use crate::tx::work::CountedOpen;
use skep_format::metadata::{InodeRecord, Key, OpenCounts, SlotRecord};
use skep_types::{Error, ErrorCode, InodeId, Result, SessionId};
use skep_wire::metadata::OpenMode;

/// Returns the counts of one open.
fn one_open(mode: OpenMode) -> OpenCounts {
    OpenCounts {
        readers: u32::from(mode == OpenMode::Read),
        writers: u32::from(mode == OpenMode::Write),
    }
}

impl<E: Engine> Context<'_, E> {
    /// Returns whether a file is shared after the session of this request has opened it. A file is
    /// shared if several sessions have it open and at least one of them may write. Returns
    /// [`Stop::Held`] until each session that must acknowledge the sharing has acknowledged it.
    pub(crate) fn check_shared(&mut self, inode: InodeId, mode: OpenMode) -> Result<bool, Stop> {
        let session = self.session()?;
        let holders = self.shared.sharing.holders(inode);
        if holders.iter().all(|it| *it == session) {
            // Another session's open may wait until this session acknowledges that the file becomes
            // shared. The client may acknowledge for an earlier open, which it is closing now,
            // before it gets this reply. So the reply must mark the file as shared.
            return Ok(self.shared.sharing.awaits(inode, session));
        }
        let has_writers = self.opens(inode)?.writers > 0;
        if has_writers && holders.len() > 1 {
            return Ok(true);
        }
        if mode != OpenMode::Write && !has_writers {
            let is_being_shared = self.shared.sharing.is_being_shared(inode);
            // Another session's open for writing may wait until sessions acknowledge that the file
            // becomes shared. If this session does not have the file open yet, it need not
            // acknowledge, because the reply to this request marks the file as shared. If this
            // session already has the file open, it must acknowledge, because the reply to its
            // earlier open may lack the mark. That reply may arrive after this reply.
            if !holders.contains(&session) {
                self.shared.sharing.acknowledged_by_open(inode, session);
            }
            return Ok(is_being_shared);
        }
        // If this session already has the file open, notify this session too. As soon as other
        // sessions get replies, this session must no longer assume that its earlier open is the
        // only one. The reply to this request may arrive later than the replies to the other
        // sessions.
        let holders = holders.to_vec();
        let number = self.next_number()?;
        if self.shared.sharing.notify(inode, &holders, number) {
            return Ok(true);
        }
        let (resource, now) = (Resource::Sharing(inode), self.shared.now);
        self.shared.locks.try_take(&resource, Owner::Holders(inode), now);
        Err(Stop::Held(resource))
    }

    /// Makes a file shared before a `SetAttributes` request of another session changes its size.
    /// Without this step, the only client with the file open for writing would append at a wrong
    /// offset, which is the file size in its cache. Returns [`Stop::Held`] until that client has
    /// acknowledged that the file is shared.
    pub(crate) fn share_with_writers(&mut self, inode: InodeId) -> Result<(), Stop> {
        if self.opens(inode)?.writers > 0 {
            self.check_shared(inode, OpenMode::Write)?;
        }
        Ok(())
    }

    /// Counts an open for the session of the request and for the inode.
    pub(crate) fn count_open(&mut self, inode: InodeId, mode: OpenMode) -> Result<(), Stop> {
        let session = self.session()?;
        for key in [Key::SessionOpen(session, inode), Key::Opens(inode)] {
            let mut counts = self.get::<OpenCounts>(&key)?.unwrap_or_default();
            match mode {
                OpenMode::No => {}
                OpenMode::Read => counts.readers += 1,
                OpenMode::Write => counts.writers += 1,
            }
            self.put(&key, &counts);
        }
        Ok(())
    }

    /// Counts the first open of a file that this transaction creates. Reads nothing, because the
    /// store has no counts of this inode. Only the replay of a creation uses an inode id again, and
    /// the power loss has reverted the counts too.
    pub(crate) fn count_first_open(&mut self, inode: InodeId, mode: OpenMode) -> Result<(), Stop> {
        let session = self.session()?;
        for key in [Key::SessionOpen(session, inode), Key::Opens(inode)] {
            self.put(&key, &one_open(mode));
        }
        Ok(())
    }

    /// Deletes the file locks of a session on a file that the session no longer has open. `closed`
    /// is the key of the session's open counts. Clients normally release their locks before they
    /// close a file.
    fn unlock_closed(&mut self, closed: &Key<'_>) {
        if let Key::SessionOpen(session, inode) = closed {
            for owner in self.shared.file_locks.owners(*session, *inode) {
                self.delete(&Key::FileLocks(owner));
            }
        }
    }

    /// Subtracts opens of a session from the open counts of a file. Returns `false` if the counts
    /// are lower than `closed`.
    pub(crate) fn uncount_opens(
        &mut self,
        session: SessionId,
        inode: InodeId,
        closed: OpenCounts,
    ) -> Result<bool, Stop> {
        for key in [Key::SessionOpen(session, inode), Key::Opens(inode)] {
            let mut counts = self.get::<OpenCounts>(&key)?.unwrap_or_default();
            let enough = counts.readers >= closed.readers && counts.writers >= closed.writers;
            if !enough {
                return Ok(false);
            }
            counts.readers -= closed.readers;
            counts.writers -= closed.writers;
            if counts.is_zero() {
                self.delete(&key);
                self.unlock_closed(&key);
            } else {
                self.put(&key, &counts);
            }
        }
        Ok(true)
    }

    /// Subtracts one open of a session from the open counts of a file, if the session has such an
    /// open. If the file then has no open and no name, disposes of it. `record` is the newest
    /// record of the inode.
    pub(crate) fn close_one(
        &mut self,
        session: SessionId,
        record: &InodeRecord,
        mode: OpenMode,
    ) -> Result<(), Stop> {
        let inode = record.attributes.inode;
        // Ignore whether the open was counted, because a power loss may have reverted the open. The
        // size that the client has reported also applies after such a power loss.
        self.uncount_opens(session, inode, one_open(mode))?;
        if record.attributes.links == 0 && self.opens(inode)?.is_zero() {
            self.dispose(record)?;
        }
        Ok(())
    }

    /// Removes the open of a request that fails after its transaction. Also marks the request as
    /// undone in its slot. So a retry runs again, and `AskOutcome` reports that the request was not
    /// executed. The slot keeps the sequence number. A client may have received this number in a
    /// comparison of slots. From a lower number, this client would conclude that the target was
    /// restored from an old backup.
    pub(crate) fn remove_open(&mut self, open: &CountedOpen) -> Result<(), Stop> {
        let CountedOpen { session, slot, sequence, inode, mode } = *open;
        let key = Key::Slot(session, slot);
        let record = self.get::<SlotRecord>(&key)?;
        if record.is_some_and(|it| it.sequence == sequence) {
            self.put(&key, &SlotRecord::undone(sequence));
        }
        // If the session has ended, its opens may already be closed, and the file may be removed.
        match self.find_inode(inode)? {
            Some(record) => self.close_one(session, &record, mode),
            None => Ok(()),
        }
    }

    /// Returns the session of the request. Fails with `Protocol` if the request has no session.
    pub(crate) fn session(&self) -> Result<SessionId, Stop> {
        match self.op.header() {
            Some(header) if header.session.raw() != 0 => Ok(header.session),
            _ => {
                Err(Error::new(ErrorCode::Protocol, "cannot accept a request without a session")
                    .into())
            }
        }
    }
}
