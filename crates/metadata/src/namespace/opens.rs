//! Opens of files: counted for each session and each inode, in the transaction of the request.

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::locks::{Owner, Resource};
use crate::tx::operation::Stop;
use skep_format::metadata::{Key, OpenCounts};
use skep_types::{Error, ErrorCode, InodeId, Result, SessionId};
use skep_wire::metadata::OpenMode;

impl<E: Engine> Context<'_, E> {
    /// Whether the file that the session is about to open is shared: other sessions have it open
    /// too, and at least one of all may write. Stops until the sessions that must acknowledge this
    /// have done so.
    pub(crate) fn check_shared(&mut self, inode: InodeId, mode: OpenMode) -> Result<bool, Stop> {
        let session = self.session()?;
        let holders = self.shared.sharing.holders(inode);
        if holders.iter().all(|it| *it == session) {
            return Ok(false);
        }
        let has_writers = self.opens(inode)?.writers > 0;
        if has_writers && holders.len() > 1 {
            return Ok(true);
        }
        if mode != OpenMode::Write && !has_writers {
            let is_being_shared = self.shared.sharing.is_being_shared(inode);
            // A writer that waits for acknowledgements need not wait for this session, whose reply
            // marks the file as shared. If the session has the file open already, the writer waits:
            // the earlier reply may not have that mark, and may arrive after this one.
            if !holders.contains(&session) {
                self.shared.sharing.acknowledged_by_open(inode, session);
            }
            return Ok(is_being_shared);
        }
        // Also this session, if it has the file open already: its earlier open must no longer rely
        // on being alone once other sessions get their replies, perhaps before the reply to this
        // request arrives.
        let holders = holders.to_vec();
        let number = self.next_number()?;
        if self.shared.sharing.notify(inode, &holders, number) {
            return Ok(true);
        }
        self.shared.locks.try_take(&Resource::Sharing(inode), Owner::Holders(inode));
        Err(Stop::Held(Resource::Sharing(inode)))
    }

    /// Counts an open of a session.
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

    /// Releases the locks of a session on a file that it no longer has open. Clients do that before
    /// they close; this makes sure of it.
    fn unlock_closed(&mut self, closed: &Key<'_>) {
        if let Key::SessionOpen(session, inode) = closed {
            for owner in self.shared.file_locks.owners(*session, *inode) {
                self.delete(&Key::FileLocks(owner));
            }
        }
    }

    /// Subtracts opens of a session. Returns `false` if the session does not have them.
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

    /// The session of the request.
    pub(crate) fn session(&self) -> Result<SessionId, Stop> {
        match self.op.header() {
            Some(header) if header.session.raw() != 0 => Ok(header.session),
            _ => Err(Error::new(ErrorCode::Protocol, "the request needs a session").into()),
        }
    }
}
