//! Opens of files: counted for each session and each inode, in the transaction of the request.

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::locks::{Owner, Resource};
use crate::tx::operation::Stop;
use skep_format::metadata::{Key, OpenCounts};
use skep_types::{Error, ErrorCode, InodeId, Result, SessionId};
use skep_wire::metadata::OpenMode;

impl<E: Engine> Context<'_, E> {
    /// Whether the file that the session is about to open is shared: others have it open too, and
    /// one of all of them may write. Stops until those know who must.
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
            // One who waits to write to it needn't wait for this session too; but for what it has
            // open already, whose answer may have said otherwise, and come before this one's.
            if !holders.contains(&session) {
                self.shared.sharing.acknowledged_by_open(inode, session);
            }
            return Ok(is_being_shared);
        }
        // Also this session, if it has the file open already: what it opened before must not rely
        // on being alone from the moment on in which others are answered, and that may be before
        // the answer to this is there.
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

    /// Frees what a session has locked of a file that it has no longer open. Its clients do that
    /// before they close; this makes sure of it.
    fn unlock_closed(&mut self, closed: &Key<'_>) {
        if let Key::SessionOpen(session, inode) = closed {
            for owner in self.shared.file_locks.owners(*session, *inode) {
                self.delete(&Key::FileLocks(owner));
            }
        }
    }

    /// Takes back opens of a session; `false` if it had none such.
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
