//! Asks storage to truncate the chunk files of truncated files, and later to sync these chunk files
//! (`docs/design/0010-truncations.md`). A truncation is *pending* until storage has truncated all
//! its chunk files, and then *applied* until storage has synced them.

mod refused;

use super::task::{BackgroundCall, JobContext, TruncationCall};
use crate::engine::Engine;
use crate::limits::{RETRY_PAUSE, SETTLES_AT_ONCE};
use crate::tx::operation::OutgoingCall;
use crate::tx::work::InternalWork;
use refused::{RefusedFiles, refusal_line};
use skep_format::metadata::{Key, TruncatedChunkFile, TruncationRecord};
use skep_metrics::LineLimit;
use skep_types::codec::Codec;
use skep_types::{Error, ErrorCode, GroupId, HostIncarnation, InodeId, Result};
use skep_wire::storage::{SyncChunk, SyncChunkReply, TruncateChunk, TruncateChunkReply};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The requests of one truncation to storage, one for each chunk file, and the replies so far.
#[derive(Debug)]
struct Round {
    generation: u64,
    /// The chunk files of the truncation when the round began. The work item may have fewer chunk
    /// files now.
    chunk_files: Vec<TruncatedChunkFile>,
    missing_replies: usize,
    /// The incarnation of each chunk file's storage host, from its reply, by the index of the chunk
    /// file. Zero until the reply arrives.
    incarnations: Vec<HostIncarnation>,
    /// The first request that failed: the index of the chunk file, its storage group, and the
    /// error.
    failure: Option<(usize, GroupId, Error)>,
}

impl Round {
    fn new(item: &TruncationRecord) -> Self {
        let count = item.chunk_files.len();
        Self {
            generation: item.generation,
            chunk_files: item.chunk_files.clone(),
            missing_replies: count,
            incarnations: vec![HostIncarnation::default(); count],
            failure: None,
        }
    }

    fn on_reply(&mut self, index: usize, group: GroupId, result: Result<HostIncarnation>) {
        self.missing_replies -= 1;
        match result {
            Ok(incarnation) => self.incarnations[index] = incarnation,
            Err(error) => drop(self.failure.get_or_insert((index, group, error))),
        }
    }
}

/// Replaces the error `TargetLost` by `incarnation`. A lost storage target has no bytes of the
/// chunk file any more, so the chunk file counts as truncated, and no power loss can bring the
/// bytes back.
fn or_if_lost(
    result: Result<HostIncarnation>,
    incarnation: HostIncarnation,
) -> Result<HostIncarnation> {
    match result {
        Err(error) if error.code() == ErrorCode::TargetLost => Ok(incarnation),
        result => result,
    }
}

/// The job that sends requests about truncations to storage.
///
/// # Invariants
/// - No file in `paused` is in `truncating`.
/// - For each missing reply, a call is in flight.
#[derive(Debug, Default)]
pub(crate) struct Truncations {
    truncating: BTreeMap<InodeId, Round>,
    settling: BTreeMap<InodeId, Round>,
    /// Files whose truncation storage has refused, each with the time of the next attempt.
    paused: BTreeMap<InodeId, Duration>,
    /// Applied truncations, ordered by the time at which the job asks storage to sync their chunk
    /// files.
    due: BTreeSet<(Duration, InodeId)>,
    refused: RefusedFiles,
    /// Limits the rate of log lines about failed truncations.
    lines: LineLimit,
    /// Limits the rate of log lines about failed syncs of truncations.
    sync_lines: LineLimit,
}

impl Truncations {
    /// Schedules the syncs of the applied truncations when the target starts.
    pub(crate) fn load<E: Engine>(&mut self, context: &JobContext<'_, E>) {
        let at = context.shared.now + context.shared.limits.settle_after;
        self.due.extend(context.shared.truncations.all_applied().map(|inode| (at, inode)));
    }

    /// Ends the expired pauses of files. Returns whether any pause has ended.
    pub(crate) fn end_pauses(&mut self, now: Duration) -> bool {
        let before = self.paused.len();
        self.paused.retain(|_, until| *until > now);
        self.paused.len() < before
    }

    /// Asks storage to truncate the chunk files of each pending truncation whose work item is in
    /// the engine. The engine has only *safe* changes, so neither a power loss nor another primary
    /// can revert a truncation that is in the engine.
    pub(crate) fn start<E: Engine>(&mut self, context: &mut JobContext<'_, E>) -> Result<()> {
        // Forget the refused files that were removed meanwhile: their truncations are no longer
        // pending.
        let is_pending = |inode| context.shared.truncations.pending(inode).is_some();
        self.refused.retain(is_pending, context.shared.now);
        let pending: Vec<_> = context.shared.truncations.all_pending().collect();
        for inode in pending {
            if self.truncating.contains_key(&inode) || self.paused.contains_key(&inode) {
                continue;
            }
            let key = Key::Truncation(inode).to_bytes();
            let Some(item) = context.table.get_safe::<TruncationRecord>(&key)? else { continue };
            let newest = context.shared.truncations.pending(inode);
            if item.is_applied || newest.is_none_or(|it| it.record.generation != item.generation) {
                continue;
            }
            self.truncating.insert(inode, Round::new(&item));
            for (index, chunk) in item.chunk_files.iter().enumerate() {
                let (key, size, generation) = (chunk.key, chunk.size, item.generation);
                let request =
                    OutgoingCall::new(chunk.group, &TruncateChunk { key, size, generation });
                let call = TruncationCall { inode, index };
                context.call(request, BackgroundCall::Truncate(call));
            }
        }
        Ok(())
    }

    /// Asks storage to sync the chunk files of each applied truncation for which the sync is due.
    pub(crate) fn settle<E: Engine>(&mut self, context: &mut JobContext<'_, E>) {
        for inode in context.shared.truncations.take_urgent() {
            self.sync(inode, context);
        }
        while let Some((at, inode)) = self.due.first().copied()
            && at <= context.shared.now
            && self.settling.len() < SETTLES_AT_ONCE
        {
            self.due.pop_first();
            self.sync(inode, context);
        }
    }

    fn sync<E: Engine>(&mut self, inode: InodeId, context: &mut JobContext<'_, E>) {
        let Some(truncation) = context.shared.truncations.get(inode) else { return };
        if !truncation.record.is_applied || self.settling.contains_key(&inode) {
            return;
        }
        let item = truncation.record.clone();
        self.settling.insert(inode, Round::new(&item));
        for (index, chunk) in item.chunk_files.iter().enumerate() {
            let request = OutgoingCall::new(chunk.group, &SyncChunk { key: chunk.key });
            context.call(request, BackgroundCall::SyncTruncated(TruncationCall { inode, index }));
        }
    }

    /// Handles the reply of storage to a request to truncate a chunk file. After the last reply of
    /// a truncation, if a request has failed, returns the truncate generation and the error.
    pub(crate) fn on_truncated<E: Engine>(
        &mut self,
        call: &TruncationCall,
        result: Result<Vec<u8>>,
        context: &mut JobContext<'_, E>,
    ) -> Option<(u64, Error)> {
        let inode = call.inode;
        let result = result.and_then(|body| TruncateChunkReply::from_bytes(&body));
        let result = or_if_lost(result.map(|reply| reply.incarnation), HostIncarnation::default());
        let truncation = context.shared.truncations.get(inode);
        let chunk = truncation.and_then(|it| it.record.chunk_files.get(call.index));
        let group = chunk.map(|chunk| chunk.group).unwrap_or_default();
        let round =
            self.truncating.get_mut(&inode).expect("a round is stored until its last reply");
        round.on_reply(call.index, group, result);
        if round.missing_replies > 0 {
            return None;
        }
        let Round { generation, incarnations, failure, .. } = self.truncating.remove(&inode)?;
        let slowest = failure.as_ref().map_or(call.index, |(index, ..)| *index);
        let pending = context.shared.truncations.pending(inode);
        let chunk = pending.and_then(|it| it.record.chunk_files.get(slowest));
        if let Some(group) = chunk.map(|chunk| chunk.group) {
            context.shared.truncations.note_awaited(inode, generation, group);
        }
        let now = context.shared.now;
        let Some((_, group, error)) = failure else {
            self.refused.retain(|it| it != inode, now);
            context.start(InternalWork::ApplyTruncation { inode, generation, incarnations });
            return None;
        };
        self.refused.add(inode, now);
        if let Some(count) = self.lines.count(now) {
            tracing::warn!("{}", refusal_line(&context.shared.map, inode, (group, &error), count));
        }
        self.paused.insert(inode, now + RETRY_PAUSE);
        Some((generation, error))
    }

    /// Handles the reply of storage to a request to sync a truncated chunk file.
    pub(crate) fn on_synced<E: Engine>(
        &mut self,
        call: &TruncationCall,
        result: Result<Vec<u8>>,
        context: &mut JobContext<'_, E>,
    ) {
        let inode = call.inode;
        let result = result.and_then(|body| SyncChunkReply::from_bytes(&body));
        let round = self.settling.get_mut(&inode).expect("a round is stored until its last reply");
        let TruncatedChunkFile { group, incarnation, .. } = round.chunk_files[call.index];
        let result = or_if_lost(result.map(|reply| reply.incarnation), incarnation);
        round.on_reply(call.index, group, result);
        if round.missing_replies > 0 {
            return;
        }
        let Some(Round { generation, chunk_files, incarnations, failure, .. }) =
            self.settling.remove(&inode)
        else {
            return;
        };
        if let Some((_, _, error)) = failure {
            if self.sync_lines.is_due(context.shared.now) {
                tracing::warn!(
                    "metadata cannot sync the truncation of file {inode} at storage yet, and \
                     retries: {error}"
                );
            }
            self.due.insert((context.shared.now + RETRY_PAUSE, inode));
            return;
        }
        // If a later truncation has replaced the work item meanwhile, the `SettleTruncation`
        // transaction does nothing.
        let lost = chunk_files.iter().zip(incarnations);
        let lost = lost.filter(|(chunk, now)| chunk.incarnation != *now);
        let lost = lost.map(|(chunk, _)| (chunk.key.component, chunk.key.index)).collect();
        context.start(InternalWork::SettleTruncation { inode, generation, lost });
    }

    /// Schedules the sync of a file's truncated chunk files, if the file now has an applied
    /// truncation.
    pub(crate) fn after_commit<E: Engine>(&mut self, inode: InodeId, context: &JobContext<'_, E>) {
        let truncation = context.shared.truncations.get(inode);
        if truncation.is_some_and(|it| it.record.is_applied) {
            self.due.insert((context.shared.now + context.shared.limits.settle_after, inode));
        }
    }

    /// Returns two maps with the number of missing replies of storage for each file. The first map
    /// is for requests to truncate chunk files, the second for requests to sync them.
    pub(crate) fn missing_replies(&self) -> [BTreeMap<InodeId, usize>; 2] {
        [&self.truncating, &self.settling]
            .map(|rounds| rounds.iter().map(|(inode, it)| (*inode, it.missing_replies)).collect())
    }

    /// Panics if an invariant of the type is violated.
    pub(crate) fn check_invariants(&self) {
        assert!(
            self.paused.keys().all(|inode| !self.truncating.contains_key(inode)),
            "a paused truncation has no request in flight"
        );
    }
}
