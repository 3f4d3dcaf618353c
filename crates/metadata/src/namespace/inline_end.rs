//! Ends the inline component in the stripe pattern of a file that has no inline bytes
//! (docs/design/0009-first-bytes-in-metadata.md, "Files that are large from the first write").
//!
//! The client that has created a file may write its first bytes to storage instead of metadata, and
//! reports the write later. The target ends the inline component at the next report or close of
//! this client, or when its session ends.
//!
//! # Invariants
//! - Until the component has ended, no other session has the file open, so no other client reads
//!   or writes the first bytes of the file.
//!
//! The invariant relates the target to its clients, so no function here can check it.
//!
//! Held by the test `client_cannot_end_the_inline_component_of_a_shared_file`, and by the checker
//! `check_unused` of the simulator, which reads the open files of all clients.

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_cluster::striping;
use skep_format::metadata::{InodeRecord, Key, OpenCounts};
use skep_types::{Error, ErrorCode, FileKind, InodeId, Result, SessionId, StripePattern};

impl<E: Engine> Context<'_, E> {
    /// Ends the inline component of a file if a report or a close of a writer requests this end.
    /// `ends_inline` is the generation of the pattern with this component. The caller stores the
    /// inode. Returns `false` if the component cannot end.
    pub(crate) fn end_inline_as_reported(
        &mut self,
        record: &mut InodeRecord,
        ends_inline: Option<u32>,
    ) -> Result<bool, Stop> {
        let Some(generation) = ends_inline else { return Ok(true) };
        let named = record.pattern.as_ref().filter(|it| it.generation == generation);
        if named.is_some_and(StripePattern::has_moved_inline) {
            // An earlier report of the client has ended the component.
            return Ok(true);
        }
        if named.is_none() {
            return Ok(false);
        }
        let session = self.session()?;
        self.end_unused_inline(record, session)
    }

    /// Ends the inline component of a file if no client has written inline bytes, and only
    /// `session` has the file open for writing. The caller stores the inode. Returns whether the
    /// component has ended.
    pub(crate) fn end_unused_inline(
        &mut self,
        record: &mut InodeRecord,
        session: SessionId,
    ) -> Result<bool, Stop> {
        let moved = self.without_unused_inline(record, session)?;
        let is_ended = moved.is_some();
        if is_ended {
            record.pattern = moved;
            self.unlogged.changed_patterns.push(record.attributes.inode);
        }
        Ok(is_ended)
    }

    /// Returns the pattern of a file without its unused inline component. `None` means that the
    /// component must stay: a client may have written inline bytes, or another session has the file
    /// open, or the pattern has no such component.
    fn without_unused_inline(
        &self,
        record: &InodeRecord,
        session: SessionId,
    ) -> Result<Option<StripePattern>, Stop> {
        let attributes = &record.attributes;
        // A file that was truncated may have had inline bytes before the truncation, so its inline
        // component does not count as unused.
        let is_unused = attributes.kind == FileKind::Regular
            && attributes.size == 0
            && attributes.truncate_generation == 0;
        if !is_unused || !self.is_only_writer(session, attributes.inode)? {
            return Ok(None);
        }
        let moved = record.pattern.as_ref().and_then(striping::without_inline);
        // Inline bytes beyond the size belong to a write in progress, or to a write of a dead
        // client. So the inline component is in use.
        if moved.is_none() || self.inline_reach(record)? > 0 {
            return Ok(None);
        }
        Ok(moved)
    }

    /// Returns whether `session` has a file open for writing, and no other session has the file
    /// open.
    pub(crate) fn is_only_writer(&self, session: SessionId, inode: InodeId) -> Result<bool, Stop> {
        let own = self.get::<OpenCounts>(&Key::SessionOpen(session, inode))?.unwrap_or_default();
        Ok(own.writers > 0 && own == self.opens(inode)?)
    }
}

/// Returns the error for a report that asks to end an inline component which must stay.
pub(crate) fn refusal(inode: InodeId) -> Error {
    let what = format!(
        "cannot end the inline component of file {inode}: another client has the file open, or a \
         client may have written inline bytes"
    );
    Error::new(ErrorCode::Stale, what)
}
