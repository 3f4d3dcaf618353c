//! Replies that wait until storage has truncated the chunk files of a file.
//!
//! This module owns the waiting replies and the locks of pending truncations. The module does not
//! own the requests to storage (`background::truncations`).
//!
//! For an open with `O_TRUNC`, one transaction both counts the open and changes the size. If
//! storage then refuses the truncation, the client gets an error and never closes the file. So the
//! target first removes the open in a second transaction, and then replies with the error.

use super::gates::PendingReply;
use super::waits::WaitReason;
use crate::engine::Engine;
use crate::namespace::truncations::{stamp, truncated_by, unfinished};
use crate::target::MetadataTarget;
use crate::tx::locks::{Owner, Resource};
use crate::tx::operation::ConnectionId;
use crate::tx::work::{CountedOpen, InternalWork};
use skep_format::metadata::{Key, TruncationRecord, decode_value, expect_parsed, truncation_of};
use skep_types::codec::Codec;
use skep_types::{Error, InodeId, Lsn, Result};
use skep_wire::Request;
use skep_wire::frame::Header;
use skep_wire::metadata::{Open, OpenMode};
use std::collections::BTreeMap;

/// A reply to a request that has truncated a file.
#[derive(Debug)]
struct TruncationReply {
    reply: PendingReply,
    /// Record that must be *safe* before the reply leaves.
    after: Option<Lsn>,
    /// The open that the request has counted. `None` means that the request has opened no file.
    opened: Option<CountedOpen>,
}

/// A request whose truncation storage has refused. The client gets the error when the target has
/// removed the open of the request.
#[derive(Debug)]
struct RefusedOpen {
    error: Error,
    /// The request, and its repetitions on other connections.
    requests: Vec<(PendingReply, Option<Lsn>)>,
}

/// The waiting replies to requests that have truncated a file.
#[derive(Debug, Default)]
pub(super) struct TruncationReplies {
    /// Replies that wait for storage, by file.
    waiting: BTreeMap<InodeId, Vec<TruncationReply>>,
    /// Refusals that wait for the transaction that removes the open.
    refused: BTreeMap<CountedOpen, RefusedOpen>,
}

/// Returns the open that a request has counted. `None` means that the request has opened no file.
fn counted_open(header: &Header, body: &[u8]) -> Option<CountedOpen> {
    if header.message != Open::ID {
        return None;
    }
    let Open { inode, open: mode, .. } = Open::from_bytes(body).ok()?;
    let Header { session, slot, sequence, .. } = *header;
    (mode != OpenMode::No).then_some(CountedOpen { session, slot, sequence, inode, mode })
}

impl<E: Engine> MetadataTarget<E> {
    /// Loads the stored truncations when the target starts.
    pub(super) fn load_truncations(&mut self) -> Result<()> {
        for (key, value) in self.table.scan(&Key::truncations(), &[], usize::MAX)? {
            expect_parsed(&key, truncation_of(&key))?;
            self.on_truncation_written(&key, Some(&value))?;
        }
        Ok(())
    }

    /// Updates the table of truncations and the locks, if `key` is the key of a truncation. The
    /// caller has written `value` to this key.
    pub(super) fn on_truncation_written(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        let Some(inode) = truncation_of(key) else { return Ok(()) };
        let record: Option<TruncationRecord> =
            value.map(|value| decode_value(key, value)).transpose()?;
        let truncations = &mut self.shared.truncations;
        truncations.on_write(inode, record);
        if truncations.pending(inode).is_some() {
            let owner = Owner::Truncation(inode);
            let now = self.shared.now;
            self.shared.locks.try_take(&Resource::Truncation(inode), owner, now);
            // Request a sync, because storage may truncate the chunk files only after the record of
            // the truncation is synced.
            self.gates.request_sync();
        }
        Ok(())
    }

    /// Replies to a request whose operation was committed. If the request has truncated a file, the
    /// reply waits until storage has truncated the chunk files, and then also lists the truncated
    /// chunk files. `body` is the body of the request.
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
        let opened = counted_open(&reply.request, body);
        if let Some(refused) = opened.and_then(|it| self.truncation_replies.refused.get_mut(&it)) {
            refused.requests.push((reply, after));
            return Ok(());
        }
        if let (Some(error), Ok(_)) = (&truncation.failure, &reply.result) {
            let error = unfinished(inode, error);
            self.refuse_truncating(TruncationReply { reply, after, opened }, error);
            return Ok(());
        }
        let reply = match reply.result {
            Ok(body) if truncation.record.is_applied => {
                let stamped = stamp(&reply.request, &truncation.record, &body)?;
                PendingReply { result: Ok(stamped), ..reply }
            }
            Ok(body) => {
                let reply = PendingReply { result: Ok(body), ..reply };
                let waiting = self.truncation_replies.waiting.entry(inode).or_default();
                waiting.push(TruncationReply { reply, after, opened });
                return Ok(());
            }
            Err(error) => PendingReply { result: Err(error), ..reply },
        };
        self.queue_reply(reply, after);
        Ok(())
    }

    /// Replies with an error to a request that has truncated a file. If the request has also opened
    /// the file, first removes the open.
    fn refuse_truncating(&mut self, waiting: TruncationReply, error: Error) {
        let TruncationReply { reply, after, opened } = waiting;
        let Some(opened) = opened else {
            self.queue_reply(PendingReply { result: Err(error), ..reply }, after);
            return;
        };
        if let Some(refused) = self.truncation_replies.refused.get_mut(&opened) {
            refused.requests.push((reply, after));
            return;
        }
        let refused = RefusedOpen { error, requests: vec![(reply, after)] };
        self.truncation_replies.refused.insert(opened, refused);
        self.start_internal(InternalWork::RemoveOpen(opened));
    }

    /// Replies with the error to an `Open` request, after the target has removed its open.
    pub(super) fn open_removed(&mut self, opened: &CountedOpen) {
        let Some(refused) = self.truncation_replies.refused.remove(opened) else { return };
        let slot = (opened.session, opened.slot);
        if self.sessions.refused(slot).is_none_or(|(sequence, _)| *sequence < opened.sequence) {
            self.sessions.refuse(slot, opened.sequence, &refused.error);
        }
        for (reply, after) in refused.requests {
            let result = Err(refused.error.clone());
            self.queue_reply(PendingReply { result, ..reply }, after);
        }
    }

    /// Reports to the meter that a request has waited for a storage group, because the truncation
    /// of the file `inode` was pending there.
    pub(super) fn note_awaited(&mut self, inode: InodeId, connection: ConnectionId, tag: u64) {
        if let Some(group) = self.shared.truncations.awaited(inode) {
            self.gates.waits.add(connection, tag, WaitReason::Storage(group));
        }
    }

    /// Releases the replies and the requests that waited for truncations that are no longer
    /// pending.
    pub(super) fn end_truncations(&mut self) -> Result<()> {
        for inode in self.shared.truncations.take_ended() {
            self.release(Owner::Truncation(inode));
            let waiting = self.truncation_replies.waiting.remove(&inode).unwrap_or_default();
            for TruncationReply { reply, after, .. } in waiting {
                self.note_awaited(inode, reply.connection, reply.request.tag);
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
        let waiting = self.truncation_replies.waiting.remove(&inode).unwrap_or_default();
        for waiting in waiting {
            self.note_awaited(inode, waiting.reply.connection, waiting.reply.request.tag);
            self.refuse_truncating(waiting, refusal.clone());
        }
        // Wake the operations that wait for the truncation. Some of these operations fail now, and
        // the other operations wait for the next attempt to truncate.
        let owner = Owner::Truncation(inode);
        self.release(owner);
        let now = self.shared.now;
        self.shared.locks.try_take(&Resource::Truncation(inode), owner, now);
    }
}
