//! Repeats the acknowledged changes that a power loss of a metadata host has reverted, before the
//! mount changes anything else at the metadata group. The target executes the lost changes of all
//! clients in the order in which it first executed them.
//!
//! The mount sends no other change of the session until the replay has ended. So a replay is a
//! separate task, which does not end if a program is killed. `acknowledged` has the lost changes.
//! `compare_slots` finds them, and reports the changes that stay lost.

use crate::client::Client;
use crate::session::acknowledged::{Attempt, Change, NextReplay};
use crate::session::table::is_lost;
use skep_rpc::{CallFacts, CallOptions};
use skep_types::codec::{Codec, Described};
use skep_types::{Attributes, ErrorCode, GroupId, InodeId, Lsn, Result, SessionId};
use skep_wire::inline::{InlineMark, RemoveInline, WriteInline, WriteInlineReply};
use skep_wire::limits::REPLAY_SLOT;
use skep_wire::metadata::{
    Close, Create, EndReplay, Open, OpenReply, Replay, ReplayReply, ReportWritten, SetAttributes,
    SetPattern,
};
use skep_wire::{Request, catalog};
use std::collections::HashSet;
use std::rc::Rc;

/// The name in logs of a lost change: the truncation by an `open` with `O_TRUNC`. The target has
/// executed the open again, but not its truncation.
const TRUNCATION: &str = "truncation by an open";

/// Changes that concern the contents of a file or its attributes, and no name.
const OF_FILES: [&str; 4] = [SetAttributes::NAME, SetPattern::NAME, RemoveInline::NAME, TRUNCATION];

/// The changes that one replay has sent or skipped.
#[derive(Debug, Default)]
struct Replayed {
    count: u64,
    /// The changes that stay lost, because this replay skipped them or the target refused them.
    failed: Vec<Change>,
    /// The inodes of the changes that this replay has skipped. Changes that the target has refused
    /// in this replay do not count.
    changed_otherwise: HashSet<InodeId>,
    /// The files of which this replay skips an inline write or a report of a size.
    lacking_bytes: HashSet<InodeId>,
    /// Whether one of the changes that were not replayed is a change of names.
    lacks_names: bool,
}

impl Replayed {
    /// Adds a change that is not replayed.
    fn skip(&mut self, change: Change) {
        self.changed_otherwise.extend(change.inodes.into_iter().flatten());
        self.refused(change);
    }

    /// Adds the truncation of a file by an open, which this replay does not repeat. `replay` is the
    /// replay of the open.
    fn skip_truncation(&mut self, inode: InodeId, replay: &Replay, sequence: u64) {
        let (slot, place) = (REPLAY_SLOT, (replay.start, replay.change));
        let (request, inodes) = (TRUNCATION, Some([inode; 2]));
        self.skip(Change { slot, sequence, place, request, inodes, kept: None, mark: None });
    }

    /// Adds a change that the target has refused to replay.
    fn refused(&mut self, change: Change) {
        let request = change.kept.as_ref().map(|it| it.replay(change.place));
        self.lacking_bytes
            .extend(request.filter(|it| concerns_bytes(it)).and_then(|it| inode_of(&it)));
        self.lacks_names |= change.inodes.is_some() && !OF_FILES.contains(&change.request);
        self.failed.push(change);
    }

    /// Whether a change must not be replayed after the changes that this replay has skipped. First
    /// case: the change writes bytes of a file that a skipped change concerns, or reports the size
    /// of this file. For example, a size reported after a lost truncation would show zeros in place
    /// of bytes. Second case: the change removes a name after a skipped change of names. The
    /// removed name may be the last name of a file, because the skipped change would have created
    /// another name of the file. After a change that the target itself has refused, the target
    /// makes this check for all clients, but only until it starts again.
    fn depends_on_skipped(&self, change: &Replay) -> bool {
        if self.lacks_names && catalog::removes_name(change.message) {
            return true;
        }
        concerns_bytes(change)
            && inode_of(change).is_some_and(|inode| self.changed_otherwise.contains(&inode))
    }

    /// Prepares a request for a lost change. If earlier bytes of the file are not replayed, the
    /// target must not restore the truncate generation of the file. The file may be empty only
    /// because these bytes are missing. The missing report may also have ended the inline component
    /// of the file, and `InodeState::compare` concludes from a truncate generation above zero that
    /// this end is durable. The truncation then counts as lost.
    fn prepare(&self, mut request: Box<Replay>) -> Box<Replay> {
        if self.lacking_bytes.contains(&request.inode) {
            request.truncate_generation = 0;
        }
        request
    }
}

/// A replay in progress. If its thread ends earlier, the next request of another thread continues
/// the replay, see `acknowledged::interrupted`.
#[derive(Debug)]
struct RunningReplay {
    client: Client,
    group: GroupId,
    session: SessionId,
    replayed: Replayed,
    has_ended: bool,
}

impl Drop for RunningReplay {
    fn drop(&mut self) {
        // This function writes no log line, because the thread may be ending.
        if !self.has_ended {
            let failed = std::mem::take(&mut self.replayed.failed);
            let changes = &self.client.mount().sessions.changes;
            changes.replay_interrupted(self.group, self.session, failed);
        }
    }
}

/// Whether a change writes bytes of a file or reports its size.
fn concerns_bytes(change: &Replay) -> bool {
    [Close::ID, ReportWritten::ID, WriteInline::ID].contains(&change.message)
}

/// Returns the reply to a replayed open or create. `None` means that the change is of another kind.
fn opened_in(message: u16, reply: &ReplayReply) -> Option<OpenReply> {
    let opens = [Open::ID, Create::ID].contains(&message);
    opens.then(|| OpenReply::from_bytes(&reply.reply.0).ok()).flatten()
}

/// Returns the inode of a change whose request has the inode as its first field: a close, a report
/// of a size, or an inline write.
fn inode_of(change: &Replay) -> Option<InodeId> {
    change.request.0.get(..8).and_then(|it| InodeId::from_bytes(it).ok())
}

impl Client {
    /// Begins an attempt to send a change or a sync. If a replay of the session is running, first
    /// waits until it has ended. If the replay was interrupted, first continues it.
    pub(super) async fn next_attempt(&self, group: GroupId, id: SessionId) -> Attempt {
        let changes = &self.mount().sessions.changes;
        loop {
            let attempt = changes.attempt(group, id);
            if !attempt.is_replaying {
                return attempt;
            }
            if let Some(stay_lost) = changes.resume_replay(group, id) {
                self.begin_replay(group, id, stay_lost);
            }
            changes.await_replay(group, id).await;
        }
    }

    /// Begins the replay of the lost changes of a session, as a task. `stay_lost` are the changes
    /// that an interrupted replay has not repeated.
    pub(super) fn begin_replay(&self, group: GroupId, id: SessionId, stay_lost: Vec<Change>) {
        let mut replayed = Replayed::default();
        stay_lost.into_iter().for_each(|change| replayed.skip(change));
        let client = self.clone();
        let running = RunningReplay { client, group, session: id, replayed, has_ended: false };
        let client = self.clone();
        skep_env::spawn(async move { client.replay_lost(running).await }).detach();
    }

    async fn replay_lost(&self, mut running: RunningReplay) {
        let (group, id) = (running.group, running.session);
        if let Err(error) = self.try_replay(group, id, &mut running.replayed).await {
            tracing::debug!(
                "cannot complete the replay of session {id} at group {group}: {error:#}"
            );
        }
        let changes = &self.mount().sessions.changes;
        let Replayed { count, mut failed, .. } = std::mem::take(&mut running.replayed);
        while let Some(change) = changes.replay_failed(group, id) {
            failed.push(change);
        }
        self.meter().replayed.add(count);
        self.meter().not_replayed.add(failed.len() as u64);
        if count > 0 {
            tracing::warn!(
                "the metadata target of group {group} lost {count} acknowledged changes of this \
                 mount in a power loss; the mount has repeated them"
            );
        }
        self.report_reverted(group, &failed);
        running.has_ended = true;
        changes.replay_ended(group, id);
    }

    /// Sends the lost changes of a session again, and then `EndReplay`.
    ///
    /// # Errors
    /// Returns the error of the group, for example if it has ended the session. All changes that
    /// are not replayed yet then stay lost.
    async fn try_replay(
        &self,
        group: GroupId,
        id: SessionId,
        replayed: &mut Replayed,
    ) -> Result<()> {
        let changes = &self.mount().sessions.changes;
        let _running = self.mount().sessions.requests.begin();
        // Retry: compares the changes again if the target has started again, without a pause, and
        // once for each start of the target.
        loop {
            let start = changes.attempt(group, id).start;
            let options = CallOptions { session: id, start, ..CallOptions::default() };
            let Some(next) = changes.next_lost(group, id) else {
                match self.router().call(group, &EndReplay {}, options).await {
                    Err(error) if error.code() == ErrorCode::StaleStart => {
                        self.compare_again(group, id).await?;
                        continue;
                    }
                    result => return result.map(|_| ()),
                }
            };
            let NextReplay { request, sequence, mark, truncated } = next;
            let Some(request) = request.filter(|it| !replayed.depends_on_skipped(it)) else {
                if let Some(change) = changes.replay_failed(group, id) {
                    replayed.skip(change);
                }
                continue;
            };
            let request = replayed.prepare(request);
            let facts = Rc::new(CallFacts::default());
            let options = CallOptions {
                slot: REPLAY_SLOT,
                sequence,
                trace: self.next_trace(),
                facts: Some(Rc::clone(&facts)),
                ..options
            };
            match self.router().call(group, &*request, options).await {
                Ok((reply, _)) => {
                    if let Some(opened) = opened_in(request.message, &reply) {
                        self.note_opened(&opened);
                        let Attributes { inode, truncate_generation: present, .. } =
                            opened.attributes;
                        // The target has not restored the generation of the truncation, so the file
                        // may have old bytes. The replay of later writes would not remove these
                        // bytes.
                        if truncated.is_some_and(|lost| lost != present) {
                            replayed.skip_truncation(inode, &request, sequence);
                            changes.truncation_lost(group, id);
                        }
                    }
                    let mark = mark.and_then(|lost| self.note_rewritten(&request, lost, &reply));
                    let is_durable = facts.change.get() == 0;
                    let undurable = (!is_durable).then(|| (mark, skep_env::now()));
                    changes.replayed(group, id, undurable);
                    replayed.count += 1;
                }
                Err(error) if error.code() == ErrorCode::StaleStart => {
                    // The reply that was lost would have shown whether the file has bytes, so the
                    // truncation counts as lost.
                    if self.compare_again(group, id).await? && truncated.is_some() {
                        replayed.skip_truncation(request.inode, &request, sequence);
                    }
                }
                Err(error) if is_lost(&error) => return Err(error),
                Err(error) => {
                    tracing::debug!("cannot repeat a change at group {group}: {error:#}");
                    if let Some(change) = changes.replay_failed(group, id) {
                        replayed.refused(change);
                    }
                }
            }
        }
    }

    /// If the reply to a replayed open or create shows that the file is shared, marks the file as
    /// shared. The target may not notify this mount again, for example if the other client that had
    /// the file open before the power loss has died.
    fn note_opened(&self, opened: &OpenReply) {
        let state = self.mount().inodes.get(opened.attributes.inode);
        if let Some(state) = state.filter(|_| opened.is_shared) {
            self.mount().share(&state);
        }
    }

    /// Replaces the mark of a lost inline write, because the target has executed the write again:
    /// the next `fsync` of the file then checks the second execution. Returns the mark that the
    /// state of the inode has for the write now. `None` means that the state has no mark of this
    /// write, so the next `fsync` checks the marks that the state has.
    fn note_rewritten(
        &self,
        request: &Replay,
        lost: InlineMark,
        reply: &ReplayReply,
    ) -> Option<InlineMark> {
        let state = self.mount().inodes.get(inode_of(request)?)?;
        let repeated = WriteInlineReply::from_bytes(&reply.reply.0).ok().map(|it| it.mark);
        // A target of an earlier release does not put the LSN into this reply. The mark of the lost
        // write then stays, so the next `fsync` fails.
        let Some(repeated) = repeated.filter(|it| it.record != Lsn::default()) else {
            return Some(lost);
        };
        state.inline_repeated(lost, repeated).then_some(repeated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::kept_requests::KeptRequest;
    use skep_wire::metadata::{Link, Unlink};
    use std::sync::Arc;

    /// Hole H51 in `docs/tests/holes.md`.
    #[test]
    fn no_removal_is_replayed_after_a_refused_change_of_names() {
        let replay = |message| Replay {
            start: 1,
            change: 2,
            message,
            request: b"body"[..].into(),
            inode: InodeId::default(),
            created: false,
            pattern: None,
            truncate_generation: 0,
        };
        let change = |request, inodes| Change {
            slot: 0,
            sequence: 1,
            place: (1, 1),
            request,
            inodes,
            kept: None,
            mark: None,
        };
        let mut replayed = Replayed::default();
        replayed.refused(change(Open::NAME, None));
        assert!(!replayed.depends_on_skipped(&replay(Unlink::ID)), "an open changes no name");
        replayed.refused(change(Link::NAME, Some([InodeId::ROOT; 2])));
        assert!(replayed.depends_on_skipped(&replay(Unlink::ID)));
        assert!(!replayed.depends_on_skipped(&replay(Link::ID)), "a link removes no name");
        assert_eq!(replayed.failed.len(), 2);
    }

    /// Hole H180 in `docs/tests/holes.md`. The target has refused a report, so the file may be
    /// empty without the truncation.
    #[test]
    fn truncate_generation_is_not_restored_after_refused_report() {
        let inode = InodeId::new(9);
        let report = ReportWritten { inode, written: None, synced: None };
        let kept = KeptRequest {
            request: Arc::new(report),
            body_bytes: 10,
            inode: InodeId::default(),
            created: false,
            pattern: None,
            truncated: None,
        };
        let replay = || {
            let kept = KeptRequest { inode, truncated: Some(4), ..kept.clone() };
            kept.replay((1, 2))
        };
        let mut replayed = Replayed::default();
        assert_eq!(replayed.prepare(replay()).truncate_generation, 4);
        replayed.refused(Change {
            slot: 0,
            sequence: 1,
            place: (1, 1),
            request: ReportWritten::NAME,
            inodes: None,
            kept: Some(kept.clone()),
            mark: None,
        });
        assert_eq!(replayed.prepare(replay()).truncate_generation, 0);
    }
}
