//! A simulated storage target: the set of its chunk files and their sizes. A simulated storage
//! target has no file contents and no torn writes, because the metadata core does not depend on
//! file contents. A power loss undoes truncations that were not synced, so that the truncated bytes
//! reappear. The checkers report a violation if a metadata target uses the size of a chunk file in
//! which truncated bytes have reappeared.

use crate::knobs::PlantedBug;
use crate::moves::StoredFirstBytes;
use crate::network::{Node, Purpose};
use crate::world::{SimEvent, World, message};
use skep_types::codec::Codec;
use skep_types::{
    ChunkFileKey, ClusterMap, Error, ErrorCode, HostIncarnation, NodeId, Result, SessionId,
};
use skep_wire::frame::Header;
use skep_wire::management::EmptyReply;
use skep_wire::senders::SenderEpochs;
use skep_wire::{Request, storage as st};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// A simulated storage target.
#[derive(Debug)]
pub(crate) struct StorageProcess {
    pub(crate) life: u64,
    pub(crate) is_running: bool,
    /// Sizes of the chunk files, in bytes.
    pub(crate) chunks: BTreeMap<ChunkFileKey, u64>,
    unanswered_checks: usize,
    /// The newest cluster map that the target has received.
    pub(crate) map: Arc<ClusterMap>,
    senders: SenderEpochs,
    /// Sessions that had ended at a metadata target when that target asked for the size of a chunk
    /// file. From then on, no write of these sessions may succeed.
    pub(crate) fenced: BTreeSet<SessionId>,
    /// A number that changes whenever a power loss may have undone truncations.
    incarnation: u64,
    /// Chunk files with a truncation that is not synced. The value is the size before the
    /// truncation, and the truncation's generation.
    unsynced: BTreeMap<ChunkFileKey, (u64, u64)>,
    /// Chunk files with bytes that a truncation had removed, and that have appeared again after a
    /// power loss. The value is the generation of that truncation.
    pub(crate) old_tails: BTreeMap<ChunkFileKey, u64>,
    /// The generation of the newest truncation of each chunk file, according to the memory of the
    /// process.
    generations: BTreeMap<ChunkFileKey, u64>,
    /// The newest generation in which each chunk file was ever truncated. Only the checkers use
    /// this map.
    pub(crate) truncated: BTreeMap<ChunkFileKey, u64>,
    /// The contents of chunk files at the offset of inline bytes.
    pub(crate) first_bytes: BTreeMap<ChunkFileKey, StoredFirstBytes>,
}

fn decode<R: Request>(body: &[u8]) -> Result<R> {
    R::from_bytes(body).map_err(|error| Error::new(ErrorCode::Protocol, error.context()))
}

impl StorageProcess {
    pub(crate) fn new(map: &Arc<ClusterMap>) -> Self {
        let map = Arc::clone(map);
        Self {
            life: 1,
            is_running: true,
            chunks: BTreeMap::new(),
            unanswered_checks: 0,
            map,
            senders: SenderEpochs::default(),
            fenced: BTreeSet::new(),
            incarnation: 1,
            unsynced: BTreeMap::new(),
            old_tails: BTreeMap::new(),
            generations: BTreeMap::new(),
            truncated: BTreeMap::new(),
            first_bytes: BTreeMap::new(),
        }
    }

    /// Checks whether the target may serve a request. Requests of metadata targets have session 0.
    pub(crate) fn check(&mut self, header: &Header, plant: Option<PlantedBug>) -> Result<()> {
        if plant != Some(PlantedBug::ObeyDeposed) {
            self.senders.check(header, &self.map)?;
        }
        let writes_for_evicted =
            plant == Some(PlantedBug::WriteForEvicted) && header.message == st::WriteChunk::ID;
        if !writes_for_evicted
            && self.map.has_removed(NodeId::new((header.session.raw() >> 32) as u32))
        {
            return Err(ErrorCode::Evicted.into());
        }
        if header.lowest_map > self.map.version {
            return Err(ErrorCode::StaleMap.into());
        }
        Ok(())
    }

    /// Serves a request, and returns the reply. The caller must have checked the sender.
    pub(crate) fn serve(
        &mut self,
        header: &Header,
        body: &[u8],
        plant: Option<PlantedBug>,
    ) -> Result<Vec<u8>> {
        match header.message {
            st::WriteChunk::ID => {
                let write = decode::<st::WriteChunk>(body)?;
                let end = write.offset + u64::from(header.data_bytes);
                let size = self.chunks.entry(write.key).or_default();
                *size = (*size).max(end);
                let first_bytes = self.first_bytes.entry(write.key).or_default();
                first_bytes.write(&write, header.is_durable());
                let written =
                    st::WriteChunkReply { incarnation: Default::default(), free_bytes: 1 << 40 };
                Ok(written.to_bytes())
            }
            st::TruncateChunk::ID => {
                self.truncate(&decode::<st::TruncateChunk>(body)?);
                let incarnation = HostIncarnation::new(self.incarnation);
                Ok(st::TruncateChunkReply { incarnation }.to_bytes())
            }
            st::SyncChunk::ID => {
                let key = decode::<st::SyncChunk>(body)?.key;
                self.unsynced.remove(&key);
                self.first_bytes.entry(key).or_default().sync();
                let incarnation = HostIncarnation::new(self.incarnation);
                let exists = self.chunks.contains_key(&key);
                Ok(st::SyncChunkReply { incarnation, exists }.to_bytes())
            }
            st::StatChunk::ID => {
                let key = decode::<st::StatChunk>(body)?.key;
                let is_hidden = plant == Some(PlantedBug::HideSizes);
                let size = self.chunks.get(&key).copied().filter(|_| !is_hidden);
                let stat = st::ChunkStat {
                    exists: size.is_some(),
                    size: size.unwrap_or(0),
                    allocated: size.unwrap_or(0),
                    modified: Default::default(),
                };
                Ok(stat.to_bytes())
            }
            st::RemoveChunks::ID => {
                for key in decode::<st::RemoveChunks>(body)?.keys {
                    if plant != Some(PlantedBug::IgnoreRemovals) {
                        self.remove(&key);
                    }
                }
                Ok(EmptyReply {}.to_bytes())
            }
            other => Err(Error::new(ErrorCode::Unsupported, format!("message {other}"))),
        }
    }

    /// Removes the chunk files whose inodes do not exist, according to the metadata target's reply.
    pub(crate) fn remove_orphans(&mut self, keys: &[ChunkFileKey], result: Result<Vec<u8>>) {
        self.unanswered_checks -= 1;
        let existing = result.and_then(|body| st::WhichExistReply::from_bytes(&body));
        for (key, exists) in keys.iter().zip(existing.map(|it| it.exists).unwrap_or_default()) {
            if !exists {
                self.remove(key);
            }
        }
    }

    fn remove(&mut self, key: &ChunkFileKey) {
        self.chunks.remove(key);
        self.unsynced.remove(key);
        self.old_tails.remove(key);
        self.first_bytes.remove(key);
    }

    fn truncate(&mut self, truncation: &st::TruncateChunk) {
        let st::TruncateChunk { key, size, generation } = *truncation;
        let newest = self.truncated.entry(key).or_default();
        *newest = generation.max(*newest);
        if self.generations.get(&key).is_some_and(|it| generation <= *it) {
            return;
        }
        self.generations.insert(key, generation);
        self.first_bytes.entry(key).or_default().truncate(size);
        // If writes have extended the file beyond the reappeared bytes, this truncation does not
        // remove the reappeared bytes. Such bytes are no violation, because after a power loss any
        // mixture of unsynced changes is possible.
        if self.old_tails.get(&key).is_some_and(|it| generation >= *it) {
            self.old_tails.remove(&key);
        }
        let Some(now) = self.chunks.get_mut(&key).filter(|now| **now > size) else { return };
        let (longest, _) = self.unsynced.get(&key).copied().unwrap_or_default();
        self.unsynced.insert(key, (longest.max(*now), generation));
        *now = size;
    }

    /// Undoes the truncations that were not synced.
    fn lose_power(&mut self, plant: Option<PlantedBug>) {
        if plant != Some(PlantedBug::KeepIncarnation) {
            self.incarnation += 1;
        }
        self.first_bytes.values_mut().for_each(StoredFirstBytes::lose_power);
        for (key, (longest, generation)) in std::mem::take(&mut self.unsynced) {
            if let Some(size) = self.chunks.get_mut(&key).filter(|size| **size < longest) {
                *size = longest;
                self.old_tails.insert(key, generation);
            }
        }
    }
}

impl World {
    /// Begins a search of a storage target for orphaned chunk files, which are chunk files without
    /// an inode.
    pub(crate) fn find_orphans(&mut self, storage: usize) {
        self.after(Duration::from_millis(700), SimEvent::Clean { storage });
        let process = &self.storages[storage];
        // With this planted bug, the target does not search for orphans, because a search would
        // hide the effect of the bug.
        let ignores_removals = self.knobs.plant == Some(PlantedBug::IgnoreRemovals);
        if !process.is_running || process.unanswered_checks > 0 || ignores_removals {
            return;
        }
        let mut by_group: BTreeMap<_, Vec<ChunkFileKey>> = BTreeMap::new();
        for key in process.chunks.keys() {
            if let Some(group) = self.map.shard_group(key.inode.shard()) {
                by_group.entry(group).or_default().push(*key);
            }
        }
        self.storages[storage].unanswered_checks = by_group.len();
        for (group, keys) in by_group {
            let inodes = keys.iter().map(|key| key.inode).collect();
            let (header, body) = message(&st::WhichExist { inodes });
            self.call(Node::Storage(storage), group, header, body, Purpose::Cleaner(keys));
        }
    }

    /// Stops a storage target for a while. The stopped target keeps its chunk files. If the target
    /// loses power, its unsynced truncations are undone.
    pub(crate) fn stop_storage(&mut self, storage: usize) {
        let process = &mut self.storages[storage];
        if !process.is_running {
            return;
        }
        process.is_running = false;
        process.life += 1;
        process.generations.clear();
        process.unanswered_checks = 0;
        if self.knobs.faults.power_losses && self.random.percent(50) {
            self.trace.note(self.now, || format!("storage {storage} loses power"));
            self.storages[storage].lose_power(self.knobs.plant);
        }
        let node = Node::Storage(storage);
        self.network.forget_calls(node);
        self.break_all(node, 20_000);
        let pause = self.random.micros(1_000, 1_500_000);
        self.after(pause, SimEvent::Restart { node });
    }
}
