//! Recovers the size of a file from its chunk files after a writer of the file has died.

use super::storage_name::storage_name;
use super::task::{BackgroundCall, JobContext, StatCall};
use crate::engine::Engine;
use crate::limits::{RETRY_PAUSE, SIZE_RECOVERIES_AT_ONCE};
use crate::tx::context::Context;
use crate::tx::locks::Resource;
use crate::tx::operation::{OutgoingCall, Stop};
use crate::tx::work::{InternalWork, RecoveryQuestion};
use skep_cluster::striping::{self, ChunkFileSize};
use skep_format::metadata::{InodeRecord, Key, decode_value, expect_parsed, last_u64};
use skep_metrics::LineLimit;
use skep_types::codec::Codec;
use skep_types::{ChunkFileKey, ErrorCode, GroupId, InodeId, Result, StripePattern};
use skep_wire::metadata::WrittenExtent;
use skep_wire::storage::{ChunkStat, StatChunk};
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Debug)]
struct SizeRecovery {
    pattern: StripePattern,
    question: RecoveryQuestion,
    /// The groups of the chunk files whose sizes are not known yet, by component and index of the
    /// chunk file.
    missing: BTreeMap<(u16, u16), GroupId>,
    /// Largest file size that results from the replies so far. Each reply contains the size of one
    /// chunk file.
    size: u64,
    /// The first group that has refused a request.
    failed: Option<GroupId>,
}

/// A file whose recovery has failed.
#[derive(Debug)]
struct Paused {
    /// Time until which the job skips the file.
    until: Duration,
    /// The storage group that has refused the request for a size.
    group: GroupId,
}

/// The files whose size the target is recovering.
///
/// # Invariants
/// - At most [`SIZE_RECOVERIES_AT_ONCE`] files are in `recovering`.
/// - No file in `paused` is in `recovering`.
#[derive(Debug, Default)]
pub(crate) struct SizeRecoveries {
    recovering: BTreeMap<InodeId, SizeRecovery>,
    paused: BTreeMap<InodeId, Paused>,
    /// Limits the rate of log lines about failed recoveries.
    lines: LineLimit,
}

impl SizeRecoveries {
    /// Ends the expired pauses of files whose size recovery has failed. Returns whether any pause
    /// has ended.
    pub(crate) fn end_pauses(&mut self, now: Duration) -> bool {
        let before = self.paused.len();
        self.paused.retain(|_, paused| paused.until > now);
        self.paused.len() < before
    }

    /// Returns the storage group for which the size recovery of a file waits. `None` means that the
    /// recovery of the file has not begun, or has the replies of all groups.
    pub(crate) fn awaited(&self, inode: InodeId) -> Option<GroupId> {
        let recovering = self.recovering.get(&inode);
        let missing = recovering.and_then(|it| it.missing.values().next().copied());
        missing.or_else(|| self.paused.get(&inode).map(|it| it.group))
    }

    /// Starts size recoveries, until [`SIZE_RECOVERIES_AT_ONCE`] are in progress.
    pub(crate) fn start<E: Engine>(&mut self, context: &mut JobContext<'_, E>) -> Result<()> {
        if self.recovering.len() >= SIZE_RECOVERIES_AT_ONCE {
            return Ok(());
        }
        let prefix = Key::size_recoveries();
        let skipped = self.paused.len() + context.shared.truncations.len();
        let limit = 2 * SIZE_RECOVERIES_AT_ONCE + skipped;
        for key in context.table.engine().scan_keys(&prefix, &[], limit)? {
            let inode = expect_parsed(&key, last_u64(&key).map(InodeId::new))?;
            // Skip a file whose recovered size is already logged: the deletion of its work item has
            // not reached the engine yet.
            let Some(death) = context.table.get(&key)? else { continue };
            let truncation = context.shared.truncations.get(inode);
            let lost = truncation.filter(|it| it.is_lost).map(|it| &it.record.chunk_files);
            let lost = lost.into_iter().flatten().map(|it| (it.key.component, it.key.index));
            let lost: Vec<_> = lost.collect();
            if let Some(truncation) = truncation.filter(|it| !it.is_lost) {
                // First complete the truncation, because the recovered size must not include bytes
                // that the truncation has removed. Until the truncation is synced, these bytes may
                // reappear after a power loss of a storage host.
                if truncation.record.is_applied {
                    context.shared.truncations.settle_soon(inode);
                }
                continue;
            }
            let is_new = !self.recovering.contains_key(&inode) && !self.paused.contains_key(&inode);
            if is_new && self.recovering.len() < SIZE_RECOVERIES_AT_ONCE {
                self.recover(inode, decode_value(&key, &death)?, &lost, context)?;
            }
        }
        Ok(())
    }

    /// Starts the recovery of the size of a file. `lost` has the component and index of the chunk
    /// files that the recovery ignores. These chunk files may have old bytes beyond the end of the
    /// file, because their storage host may have lost a truncation.
    fn recover<E: Engine>(
        &mut self,
        inode: InodeId,
        death: u64,
        lost: &[(u16, u16)],
        context: &mut JobContext<'_, E>,
    ) -> Result<()> {
        let key = Key::Inode(inode).to_bytes();
        let record: Option<InodeRecord> =
            context.table.get(&key)?.map(|value| decode_value(&key, &value)).transpose()?;
        let truncate_generation =
            record.as_ref().map_or(0, |record| record.attributes.truncate_generation);
        let question = RecoveryQuestion { death, truncate_generation };
        let pattern = record.and_then(|record| record.pattern);
        let is_measured = |it: &ChunkFileSize| !lost.contains(&(it.component, it.index));
        let all: Vec<_> = pattern
            .iter()
            .flat_map(|pattern| striping::chunk_sizes(pattern, 0).filter(is_measured))
            .collect();
        let Some(pattern) = pattern.filter(|_| !all.is_empty()) else {
            context.start(InternalWork::RecordSize { inode, size: 0, question });
            return Ok(());
        };
        for chunk in &all {
            let key = ChunkFileKey {
                inode,
                generation: pattern.generation,
                component: chunk.component,
                index: chunk.index,
            };
            let request = OutgoingCall::new(chunk.group, &StatChunk { key });
            let (component, index) = (chunk.component, chunk.index);
            context.call(request, BackgroundCall::StatChunk(StatCall { inode, component, index }));
        }
        let missing = all.iter().map(|it| ((it.component, it.index), it.group)).collect();
        let recovery = SizeRecovery { pattern, question, missing, size: 0, failed: None };
        self.recovering.insert(inode, recovery);
        Ok(())
    }

    /// Handles the reply with the size of a chunk file, or the failure of the request. Returns
    /// whether the recovery has now ended with a failure, so that the recovery of another file can
    /// begin.
    pub(crate) fn on_reply<E: Engine>(
        &mut self,
        call: &StatCall,
        result: Result<Vec<u8>>,
        context: &mut JobContext<'_, E>,
    ) -> bool {
        let inode = call.inode;
        let stat = result.and_then(|body| ChunkStat::from_bytes(&body));
        let recovery = self
            .recovering
            .get_mut(&inode)
            .expect("a recovery is stored until it has the replies of all chunk files");
        let (component, index) = (call.component, call.index);
        let group = recovery
            .missing
            .remove(&(component, index))
            .expect("each chunk file of a recovery has one reply");
        match stat {
            Ok(stat) => {
                let size =
                    striping::size_from_chunk(&recovery.pattern, component, index, stat.size);
                recovery.size = recovery.size.max(size);
            }
            // The chunk file on a lost target does not contribute to the file size. The size is
            // computed from the replies about the other chunk files.
            Err(error) if error.code() == ErrorCode::TargetLost => {}
            Err(error) => {
                if self.lines.is_due(context.shared.now) {
                    tracing::warn!(
                        "metadata cannot ask {} for the size of file {inode}, whose writer has \
                         died, and retries each second; until a retry succeeds, the file may \
                         appear too short, and programs that lock the file wait: {error}",
                        storage_name(&context.shared.map, group)
                    );
                }
                recovery.failed.get_or_insert(group);
            }
        }
        if !recovery.missing.is_empty() {
            return false;
        }
        let (size, question) = (recovery.size, recovery.question);
        if let Some(group) = recovery.failed {
            // Without the size of this chunk file, the computed file size may be too small. Bytes
            // in the chunk file would then lie beyond the end of the file. So repeat the recovery
            // after a pause.
            self.recovering.remove(&inode);
            let until = context.shared.now + RETRY_PAUSE;
            self.paused.insert(inode, Paused { until, group });
            return true;
        }
        context.start(InternalWork::RecordSize { inode, size, question });
        false
    }

    /// Ends a size recovery, after its transaction has logged the size or has found it outdated.
    pub(crate) fn after_commit(&mut self, inode: InodeId) {
        self.recovering.remove(&inode);
    }

    /// Panics if an invariant of the type is violated.
    pub(crate) fn check_invariants(&self) {
        assert!(
            self.recovering.len() <= SIZE_RECOVERIES_AT_ONCE,
            "{} sizes are recovered at a time",
            self.recovering.len()
        );
        assert!(
            self.paused.keys().all(|inode| !self.recovering.contains_key(inode)),
            "a paused file is not being recovered"
        );
    }
}

/// Writes the recovered size of a file to the store, unless this size is outdated. `size` was
/// computed from the sizes of the chunk files.
pub(super) fn record_size<E: Engine>(
    context: &mut Context<'_, E>,
    inode: InodeId,
    size: u64,
    question: RecoveryQuestion,
) -> Result<(), Stop> {
    let Some(death) = context.get::<u64>(&Key::SizeRecovery(inode))? else { return Ok(()) };
    if context.shared.truncations.pending(inode).is_some() {
        // Storage is truncating the chunk files from which the size was computed. So wait for the
        // end of this truncation.
        return Err(Stop::Held(Resource::Truncation(inode)));
    }
    let record = context.find_inode(inode)?;
    let truncate_generation =
        record.as_ref().map_or(0, |record| record.attributes.truncate_generation);
    if question != (RecoveryQuestion { death, truncate_generation }) {
        // Since the recovery began, another writer has died or the file was truncated, so the size
        // is outdated. The job starts the recovery again.
        return Ok(());
    }
    context.delete(&Key::SizeRecovery(inode));
    if let Some(mut record) = record {
        let size = size.max(context.inline_reach(&record)?);
        // The writer may have overwritten bytes without a report. Without a new version and a new
        // modification time, other clients would read outdated cached pages.
        context.touch_modified(&mut record.attributes);
        if size > record.attributes.size {
            let truncate_generation = record.attributes.truncate_generation;
            // The dead writer may have left gaps between its writes, which the sizes of the chunk
            // files do not show. So assume that the file has holes.
            let written = WrittenExtent {
                end: size,
                truncate_generation,
                may_leave_holes: true,
                reach: 0,
                ends_inline: None,
            };
            context.merge_written(&mut record, &written);
        }
        record.high_water = record.high_water.max(size);
        context.put_inode(&record);
    }
    Ok(())
}
