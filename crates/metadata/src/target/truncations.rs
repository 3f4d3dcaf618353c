//! Replies that wait until storage has truncated the chunk files of a file.
//!
//! This module owns the waiting replies and the locks of pending truncations. It does not own the
//! requests to storage (`background::truncations`).

use super::gates::PendingReply;
use crate::engine::Engine;
use crate::namespace::truncations::{stamp, truncated_by, unfinished};
use crate::target::MetadataTarget;
use crate::tx::locks::{Owner, Resource};
use skep_format::metadata::{Key, TruncationRecord, decode_value, expect_parsed, truncation_of};
use skep_types::{Error, InodeId, Lsn, Result};
use std::collections::BTreeMap;

/// Replies to truncations, by file. Each reply has the record that must be *safe* before it leaves.
pub(super) type TruncationReplies = BTreeMap<InodeId, Vec<(PendingReply, Option<Lsn>)>>;

impl<E: Engine> MetadataTarget<E> {
    /// Loads the stored truncations when the target starts.
    pub(super) fn load_truncations(&mut self) -> Result<()> {
        for (key, value) in self.table.scan(&Key::truncations(), &[], usize::MAX)? {
            expect_parsed(&key, truncation_of(&key))?;
            self.on_truncation_written(&key, Some(&value))?;
        }
        Ok(())
    }

    /// Updates the table and the locks with a key that a transaction has written, if it is the key
    /// of a truncation.
    pub(super) fn on_truncation_written(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        let Some(inode) = truncation_of(key) else { return Ok(()) };
        let record: Option<TruncationRecord> =
            value.map(|value| decode_value(key, value)).transpose()?;
        let truncations = &mut self.shared.truncations;
        truncations.on_write(inode, record);
        if truncations.pending(inode).is_some() {
            let owner = Owner::Truncation(inode);
            self.shared.locks.try_take(&Resource::Truncation(inode), owner);
            // Request a sync, because storage may truncate the chunk files only after the record of
            // the truncation is synced.
            self.gates.request_sync();
        }
        Ok(())
    }

    /// Replies to a request that was committed. If the request has truncated a file, the reply
    /// waits until storage has truncated the chunk files, and then lists these chunk files.
    pub(crate) fn reply_committed(
        &mut self,
        body: &[u8],
        reply: PendingReply,
        after: Option<Lsn>,
    ) -> Result<()> {
        let found = match self.shared.truncations.len() {
            0 => None,
            _ => truncated_by(reply.request.message, body),
        };
        let truncation = found.and_then(|inode| Some((inode, self.shared.truncations.get(inode)?)));
        let Some((inode, truncation)) = truncation else {
            self.queue_reply(reply, after);
            return Ok(());
        };
        let reply = match (&truncation.failure, reply.result) {
            (Some(error), Ok(_)) => PendingReply { result: Err(unfinished(inode, error)), ..reply },
            (None, Ok(body)) if truncation.record.is_applied => {
                let stamped = stamp(&reply.request, &truncation.record, &body)?;
                PendingReply { result: Ok(stamped), ..reply }
            }
            (None, Ok(body)) => {
                let reply = PendingReply { result: Ok(body), ..reply };
                self.truncation_replies.entry(inode).or_default().push((reply, after));
                return Ok(());
            }
            (_, Err(error)) => PendingReply { result: Err(error), ..reply },
        };
        self.queue_reply(reply, after);
        Ok(())
    }

    /// Releases the replies and the requests that waited for truncations that are no longer
    /// pending.
    pub(super) fn end_truncations(&mut self) -> Result<()> {
        for inode in self.shared.truncations.take_ended() {
            self.release(Owner::Truncation(inode));
            for (reply, after) in self.truncation_replies.remove(&inode).unwrap_or_default() {
                let reply = match (reply.result, self.shared.truncations.get(inode)) {
                    (Ok(body), Some(truncation)) => {
                        let stamped = stamp(&reply.request, &truncation.record, &body)?;
                        PendingReply { result: Ok(stamped), ..reply }
                    }
                    (result, _) => PendingReply { result, ..reply },
                };
                self.queue_reply(reply, after);
            }
        }
        Ok(())
    }

    /// Replies with an error to the requests that have truncated a file, if storage has refused the
    /// truncation.
    pub(super) fn fail_truncation(&mut self, inode: InodeId, generation: u64, error: Error) {
        let refusal = unfinished(inode, &error);
        if !self.shared.truncations.fail(inode, generation, error) {
            return;
        }
        for (reply, after) in self.truncation_replies.remove(&inode).unwrap_or_default() {
            self.queue_reply(PendingReply { result: Err(refusal.clone()), ..reply }, after);
        }
        // Let the operations run again that wait for the truncation. Some of them fail now, and the
        // others wait for the next attempt.
        let owner = Owner::Truncation(inode);
        self.release(owner);
        self.shared.locks.try_take(&Resource::Truncation(inode), owner);
    }
}
