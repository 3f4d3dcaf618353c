//! Checks truncations between metadata and storage (`docs/design/0010-truncations.md`):
//! - storage truncates a chunk file only after metadata has synced the new size;
//! - metadata acknowledges a truncation only after storage has truncated its chunk files;
//! - metadata never uses the size of a chunk file in which truncated bytes have reappeared.
//!
//! At the end of the run, `checks` verifies that no truncated bytes are left.

use crate::knobs::PlantedBug;
use crate::network::{Node, Purpose};
use crate::operation::Op;
use crate::world::{World, message};
use skep_format::metadata::{Batch, InodeRecord, Key, TruncationRecord, truncation_of};
use skep_metadata::engine::Engine;
use skep_types::codec::Codec;
use skep_types::{ChunkFileKey, GroupId, InodeId, Lsn, Result};
use skep_wire::frame::Header;
use skep_wire::{Request, metadata as md, storage as st};
use std::collections::BTreeMap;

/// All logged truncations, by file and generation.
pub(crate) type LoggedTruncations = BTreeMap<(InodeId, u64), LoggedTruncation>;

/// A truncation that is in the log of a metadata target.
#[derive(Debug, Clone)]
pub(crate) struct LoggedTruncation {
    target: usize,
    lsn: Lsn,
    chunk_files: Vec<(GroupId, ChunkFileKey)>,
}

impl World {
    pub(crate) fn storage_of(&self, group: GroupId) -> usize {
        group.raw() as usize - 1 - self.targets.len()
    }

    /// Remembers the pending truncations that a log record contains. If the bug `TruncateTooSoon`
    /// is planted, the target sends the requests for these truncations to storage immediately,
    /// before it has synced the record.
    pub(crate) fn note_truncations(&mut self, target: usize, lsn: Lsn, payload: &[u8]) {
        for change in Batch::from_bytes(payload).map(|it| it.mutations).unwrap_or_default() {
            let (Some(inode), Some(value)) = (truncation_of(&change.key.0), change.value) else {
                continue;
            };
            let Ok(item) = TruncationRecord::from_bytes(&value.0) else { continue };
            if item.is_applied {
                continue;
            }
            let chunk_files = item.chunk_files.iter().map(|it| (it.group, it.key)).collect();
            let logged = LoggedTruncation { target, lsn, chunk_files };
            self.truncations.insert((inode, item.generation), logged);
            if self.knobs.plant != Some(PlantedBug::TruncateTooSoon) {
                continue;
            }
            for chunk in item.chunk_files {
                let (key, size, generation) = (chunk.key, chunk.size, item.generation);
                let (header, body) = message(&st::TruncateChunk { key, size, generation });
                let purpose = Purpose::Cleaner(Vec::new());
                self.call(Node::Target(target), chunk.group, header, body, purpose);
            }
        }
    }

    /// A power loss of the target has reverted some log records. Removes the truncations of these
    /// records. The target executes none of these truncations, and gives their generations to no
    /// other truncation.
    pub(crate) fn forget_truncations(&mut self, target: usize, last_kept: Lsn) {
        self.truncations.retain(|_, it| it.target != target || it.lsn <= last_kept);
    }

    /// Removes the truncations of removed files. The simulation calls this method before a target
    /// ends. The target has acknowledged these truncations without truncating chunk files. If a
    /// power loss reverts the removal of a file, the target finishes the truncation after its next
    /// start.
    pub(crate) fn forget_truncations_of_removed(&mut self) {
        let inodes = &self.witness.model.inodes;
        self.truncations.retain(|(inode, _), _| inodes.contains_key(inode));
    }

    /// Checks a truncation request from a metadata target when the request arrives at a storage
    /// target.
    pub(crate) fn check_truncation(
        &mut self,
        caller: Node,
        storage: usize,
        header: &Header,
        body: &[u8],
    ) {
        let Node::Target(target) = caller else { return };
        if let (st::StatChunk::ID, Ok(stat)) = (header.message, st::StatChunk::from_bytes(body))
            && self.storages[storage].old_tails.contains_key(&stat.key)
        {
            let key = stat.key;
            return self.fail(format!(
                "target {target} measures chunk file {key}, in which the old tail has reappeared"
            ));
        }
        if header.message != st::TruncateChunk::ID {
            return;
        }
        let Ok(truncation) = st::TruncateChunk::from_bytes(body) else { return };
        let Some(running) = &self.targets[target].running else { return };
        let (key, generation) = (truncation.key, truncation.generation);
        if let Some(backup) = &self.targets[target].backup {
            // Look up the truncation in the log, because after a take-over the engine of the new
            // primary may lack records that both members have synced.
            let logged = self.truncations.get(&(key.inode, generation));
            if logged.is_some_and(|it| it.lsn > backup.synced()) {
                self.fail(format!("chunk file {key} is truncated before both members synced it"));
            }
            return;
        }
        // The engine contains only changes that are synced.
        let record = running.engine().get(&Key::Inode(key.inode).to_bytes()).ok().flatten();
        let record = record.and_then(|value| InodeRecord::from_bytes(&value).ok());
        if record.is_some_and(|it| it.attributes.truncate_generation < generation) {
            self.fail(format!("chunk file {key} is truncated before the size is synced"));
        }
    }

    /// Checks a reply to a client's task. If the reply acknowledges a truncation, storage must have
    /// truncated all chunk files of the file.
    pub(crate) fn check_acknowledged(
        &mut self,
        client: usize,
        task: usize,
        result: &Result<Vec<u8>>,
    ) {
        let Ok(reply) = result else { return };
        let Some(current) = &self.clients[client].tasks[task].current else { return };
        if current.op.truncations().is_none() {
            return;
        }
        let attributes = match &current.op {
            Op::Open(_) => md::OpenReply::from_bytes(reply).map(|it| it.attributes),
            _ => md::SetAttributesReply::from_bytes(reply).map(|it| it.attributes),
        };
        if let Ok(attributes) = attributes {
            self.check_truncated(attributes.inode, attributes.truncate_generation);
        }
    }

    /// Checks an acknowledged truncation.
    fn check_truncated(&mut self, inode: InodeId, generation: u64) {
        // The truncation of a removed file need not be complete, because storage removes the file's
        // chunk files.
        if self.witness.is_blind || !self.witness.model.inodes.contains_key(&inode) {
            return;
        }
        let logged = self.truncations.get(&(inode, generation)).cloned();
        for (group, key) in logged.map(|it| it.chunk_files).unwrap_or_default() {
            let storage = &self.storages[self.storage_of(group)];
            if storage.truncated.get(&key).is_none_or(|newest| *newest < generation) {
                return self.fail(format!(
                    "truncation {generation} is acknowledged, but chunk file {key} is not truncated"
                ));
            }
        }
    }
}
