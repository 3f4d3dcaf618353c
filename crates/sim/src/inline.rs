//! Clients that write the first bytes of files where these lie in metadata, read them, and ask
//! whether they are safe.
//!
//! What is checked besides what the witness does: a write that is called safe is there and stays,
//! whatever power losses come; a write that is called lost was. After an answer the client knows
//! nothing of the writes that it was about, as a real one. Of a start that is so long ago that the
//! target has forgotten it, anything may be called lost.

use crate::operation::Op;
use crate::witness::InstanceId;
use crate::world::World;
use skep_types::InodeId;
use skep_types::codec::{Codec, crc32c};
use skep_wire::inline::{InlineMark, SyncInlineReply, WriteInlineReply};
use skep_wire::inline::{ReadInline, SyncInline, WriteInline};
use skep_wire::limits::MAX_EPOCHS;
use skep_wire::metadata::OpenMode;
use std::collections::BTreeMap;

/// Writes of a client that it was told are done, and that it hasn't asked for since.
pub(crate) type Unsynced = BTreeMap<InodeId, Vec<(InlineMark, InstanceId)>>;

impl World {
    /// Something to do with the first bytes of an open file, if these lie in metadata.
    pub(crate) fn inline(&mut self, client: usize, index: usize) -> Option<Op> {
        let handle = &self.clients[client].handles[index];
        let pattern = handle.pattern.as_ref()?;
        let (inode, mode) = (handle.inode, handle.mode);
        let (generation, most) = (pattern.generation, pattern.inline_bytes());
        if most == 0 {
            return None;
        }
        let offset = self.random.below(most);
        let length = self.random.within(1, most - offset + 1).min(most - offset);
        if mode != OpenMode::Write || self.random.percent(30) {
            let length = length as u32;
            return Some(Op::ReadInline(ReadInline { inode, generation, offset, length }));
        }
        // At times nothing but zeros.
        let byte = self.random.below(4) as u8;
        let bytes = vec![byte; length as usize];
        Some(Op::WriteInline(WriteInline {
            inode,
            generation,
            offset,
            checksum: crc32c(&bytes),
            bytes: bytes.into(),
            extends: self.random.percent(80),
        }))
    }

    /// A sync of a file of which a client has writes that it hasn't asked for yet.
    pub(crate) fn sync_inline(&mut self, client: usize) -> Option<Op> {
        let unsynced = &self.clients[client].inline_writes;
        let which = self.random.index(unsynced.len().max(1));
        let (inode, written) = unsynced.iter().nth(which)?;
        // The newest of each epoch.
        let newest: BTreeMap<_, _> =
            written.iter().map(|(mark, _)| (mark.epoch, mark.record)).collect();
        let mark = |(epoch, record)| InlineMark { epoch, record };
        let written = newest.into_iter().map(mark).collect();
        Some(Op::SyncInline(SyncInline { inode: *inode, written }))
    }

    /// Takes in what a client is told of such an operation.
    pub(crate) fn learn_inline(
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
                let of_file = unsynced.entry(it.inode).or_default();
                of_file.push((written.mark, instance));
                of_file.sort_by_key(|(mark, _)| (mark.epoch, mark.record));
            }
            Op::SyncInline(it) => {
                let Ok(synced) = SyncInlineReply::from_bytes(reply) else { return };
                let Some(of_file) = unsynced.get_mut(&it.inode) else { return };
                let is_meant = |mark: &InlineMark| {
                    let asked =
                        |it: &InlineMark| it.epoch == mark.epoch && it.record >= mark.record;
                    it.written.iter().any(asked)
                };
                // Another task has asked of the same writes meanwhile, and was answered.
                let is_known = |mark: &InlineMark| of_file.iter().any(|(known, _)| known == mark);
                let was_told = !it.written.iter().all(is_known);
                let meant: Vec<_> =
                    of_file.extract_if(.., |(mark, _)| is_meant(mark)).map(|it| it.1).collect();
                if of_file.is_empty() {
                    unsynced.remove(&it.inode);
                }
                // A target's starts are numbered like its lives, or lower.
                let oldest = it.written.iter().map(|mark| mark.epoch).min().unwrap_or_default();
                let lives = self.targets.iter().map(|target| target.life).max();
                let may_be_forgotten =
                    lives.is_some_and(|lives| lives >= oldest + MAX_EPOCHS as u64);
                let is_explained = synced.is_lost && (may_be_forgotten || was_told);
                if !meant.is_empty() && !is_explained {
                    let checked = self.witness.inline_synced(&meant, synced.is_lost);
                    self.check(checked);
                }
            }
            _ => {}
        }
    }
}
