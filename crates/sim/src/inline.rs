//! Clients that write, read and sync inline bytes, the first bytes of files that metadata targets
//! store with the inodes.
//!
//! Checks replies that the witness does not check. No power loss may revert a write that a target
//! has reported as durable. If a target reports a write as lost, the write must have been lost. The
//! two rules also hold for the end of an inline component. After the reply to a sync, the client
//! forgets the changes in the reply, as a real client does. A target remembers only its newest
//! starts. So the target may also report a change as lost if the target executed the change before
//! these starts.

use crate::operation::Op;
use crate::witness::InstanceId;
use crate::world::World;
use skep_types::InodeId;
use skep_types::codec::{Codec, crc32c};
use skep_wire::inline::{InlineMark, RemoveInlineReply, SyncInlineReply, WriteInlineReply};
use skep_wire::inline::{ReadInline, SyncInline, WriteInline};
use skep_wire::limits::MAX_STARTS;
use skep_wire::metadata::{OpenMode, ReportWritten};
use std::collections::BTreeMap;

/// The inline changes of a client that targets have acknowledged and that the client has not synced
/// yet: writes, and ends of inline components.
pub(crate) type UnsyncedWrites = BTreeMap<InodeId, Vec<(InlineMark, InstanceId)>>;

impl World {
    /// Returns a random operation on the inline bytes of an open file, or `None` if the file has no
    /// inline bytes.
    pub(crate) fn inline(&mut self, client: usize, index: usize) -> Option<Op> {
        let handle = &self.clients[client].handles[index];
        let pattern = handle.pattern.as_ref()?;
        let (inode, mode, truncate_generation) = (handle.inode, handle.mode, handle.generation);
        let (generation, most) = (pattern.generation, pattern.inline_bytes());
        if most == 0 {
            return None;
        }
        // In half of the cases, use the truncate generation in the handle. If the file has another
        // generation, the target refuses the write.
        let file = self.witness.model.inodes.get(&inode);
        let current = file.map_or(truncate_generation, |it| it.truncate_generation);
        let is_current = self.random.percent(50);
        let truncate_generation = if is_current { current } else { truncate_generation };
        let offset = self.random.below(most);
        let length = self.random.within(1, most - offset + 1).min(most - offset);
        if mode != OpenMode::Write || self.random.percent(30) {
            let length = length as u32;
            return Some(Op::ReadInline(ReadInline { inode, generation, offset, length }));
        }
        // Some of the writes consist of zeros. The model removes zeros at the end of the inline
        // bytes.
        let byte = self.random.below(4) as u8;
        let bytes = vec![byte; length as usize];
        Some(Op::WriteInline(WriteInline {
            inode,
            generation,
            offset,
            checksum: crc32c(&bytes),
            bytes: bytes.into(),
            extends: self.random.percent(80),
            truncate_generation,
            appends: false,
        }))
    }

    /// Returns a sync request for a random file that has unsynced inline writes.
    pub(crate) fn sync_inline(&mut self, client: usize) -> Option<Op> {
        let unsynced = &self.clients[client].inline_writes;
        let which = self.random.index(unsynced.len().max(1));
        let (inode, written) = unsynced.iter().nth(which)?;
        // A target gets a new start number at each restart. For each start number, the client sends
        // only the mark of its newest write.
        let newest: BTreeMap<_, _> =
            written.iter().map(|(mark, _)| (mark.start, mark.record)).collect();
        let mark = |(start, record)| InlineMark { start, record };
        let written = newest.into_iter().map(mark).collect();
        Some(Op::SyncInline(SyncInline { inode: *inode, written }))
    }

    /// Applies the reply of an inline operation to the client's state. Checks the reply of a sync.
    pub(crate) fn apply_inline_reply(
        &mut self,
        client: usize,
        op: &Op,
        instance: Option<InstanceId>,
        reply: &[u8],
    ) {
        let unsynced = &mut self.clients[client].inline_writes;
        match op {
            Op::WriteInline(it) => {
                let Ok(written) = WriteInlineReply::from_bytes(reply) else { return };
                let Some(instance) = instance else { return };
                note(unsynced, it.inode, (written.mark, instance));
            }
            Op::SyncInline(it) => {
                let Ok(synced) = SyncInlineReply::from_bytes(reply) else { return };
                let Some(of_file) = unsynced.get_mut(&it.inode) else { return };
                let is_covered = |mark: &InlineMark| {
                    let is_covering =
                        |it: &InlineMark| it.start == mark.start && it.record >= mark.record;
                    it.written.iter().any(is_covering)
                };
                // Another task may have synced the same writes in the meantime, and may have
                // received its reply first.
                let is_unsynced =
                    |mark: &InlineMark| of_file.iter().any(|(known, _)| known == mark);
                let other_task_synced = !it.written.iter().all(is_unsynced);
                let covered: Vec<_> =
                    of_file.extract_if(.., |(mark, _)| is_covered(mark)).map(|it| it.1).collect();
                if of_file.is_empty() {
                    unsynced.remove(&it.inode);
                }
                // The start number of a target is never higher than the id of its process in the
                // simulation. So if no process id exceeds the oldest start by `MAX_STARTS`, all
                // targets still remember that start.
                let oldest = it.written.iter().map(|mark| mark.start).min().unwrap_or_default();
                let lives = self.targets.iter().map(|target| target.life).max();
                let may_be_forgotten =
                    lives.is_some_and(|lives| lives >= oldest + MAX_STARTS as u64);
                let is_explained = synced.is_lost && (may_be_forgotten || other_task_synced);
                if !covered.is_empty() && !is_explained {
                    let checked = self.witness.check_inline_sync(&covered, synced.is_lost);
                    self.check(checked);
                }
            }
            Op::ReportWritten(ReportWritten { inode, written: Some(written), .. })
                if written.ends_inline.is_some() =>
            {
                self.inline_ended(client, *inode);
            }
            Op::RemoveInline(it) => {
                let Ok(removed) = RemoveInlineReply::from_bytes(reply) else { return };
                if !removed.is_removed {
                    return;
                }
                if let Some(instance) = instance {
                    note(unsynced, it.inode, (removed.mark, instance));
                }
                self.inline_removed(client, it);
            }
            _ => {}
        }
    }
}

/// Adds an acknowledged change, and keeps the changes of the file in the order of the log.
fn note(unsynced: &mut UnsyncedWrites, inode: InodeId, change: (InlineMark, InstanceId)) {
    let of_file = unsynced.entry(inode).or_default();
    of_file.push(change);
    of_file.sort_by_key(|(mark, _)| (mark.start, mark.record));
}
