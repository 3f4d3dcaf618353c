//! An in-memory queue of the chunk files that one storage group must remove, oldest first.
//!
//! The store has a work item for each of these chunk files. With the queue, the job need not scan
//! the store: after a million removals, a scan would pass a million tombstones (markers of removed
//! keys). If the queue was full, or if the target has just started, the store has work items that
//! the queue lacks. To find these work items, the job reads the work items from the store in
//! *rounds*. A round reads each work item of the group once. Each refill of the queue continues the
//! round at a cursor.
//!
//! # Invariants
//! - Unless `has_more` is set, each work item in the store is in the queue or in a request in
//!   flight. The only exceptions are completed work items whose deletion has not reached the store
//!   yet.
//! - No chunk file is in the queue twice. While `has_more` is set, only rounds add chunk files to
//!   the queue, and a round reads each work item once.

use crate::engine::Engine;
use crate::tx::table::Table;
use skep_format::metadata::{Key, removal};
use skep_types::{ChunkFileKey, GroupId, Result};
use std::collections::VecDeque;

/// The queue of one storage group, with the position of its round in the store.
#[derive(Debug, Default)]
pub(super) struct RemovalQueue {
    keys: VecDeque<ChunkFileKey>,
    /// Whether the store may have work items that are not in `keys`.
    has_more: bool,
    /// Whether new work items have reached the store since the current round began. If so, another
    /// round must follow.
    was_full: bool,
    /// Key of the last work item that the current round has read. Empty before a round begins.
    cursor: Vec<u8>,
}

impl RemovalQueue {
    /// Returns an empty queue that will first read the work items of its group from the store.
    pub(super) fn in_store() -> Self {
        Self { has_more: true, ..Self::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether the group has at least `count` chunk files to remove, as far as the queue shows.
    /// Also true if the store may have work items that are not in the queue.
    pub(super) fn is_at_least(&self, count: usize) -> bool {
        self.has_more || self.keys.len() >= count
    }

    /// Adds a chunk file whose work item has just reached the store. If `is_full`, the queue does
    /// not accept the chunk file, and a later round reads its work item from the store.
    pub(super) fn push(&mut self, key: ChunkFileKey, is_full: bool) {
        if self.has_more {
            self.was_full = true;
        } else if is_full {
            self.has_more = true;
        } else {
            self.keys.push_back(key);
        }
    }

    /// Puts the chunk files of a failed removal request back at the front of the queue.
    pub(super) fn put_back(&mut self, keys: Vec<ChunkFileKey>) {
        for key in keys.into_iter().rev() {
            self.keys.push_front(key);
        }
    }

    /// Removes up to `limit` chunk files from the queue, and returns them. Reads work items from
    /// the store if the queue is empty and the store may have more work items. The group must have
    /// no request in flight. `limit` must be positive.
    ///
    /// # Errors
    /// Returns the error if the engine fails.
    pub(super) fn take<E: Engine>(
        &mut self,
        group: GroupId,
        limit: usize,
        table: &Table<E>,
    ) -> Result<Vec<ChunkFileKey>> {
        while self.keys.is_empty() && self.has_more {
            self.refill(group, limit, table)?;
        }
        let count = limit.min(self.keys.len());
        Ok(self.keys.drain(..count).collect())
    }

    /// Reads the next work items of the round from the engine into the queue. The engine has only
    /// *safe* changes, so no failure can revert these work items.
    fn refill<E: Engine>(&mut self, group: GroupId, limit: usize, table: &Table<E>) -> Result<()> {
        let found = table.engine().scan_keys(&Key::removals_of(group), &self.cursor, limit)?;
        if found.len() < limit {
            self.cursor.clear();
            self.has_more = std::mem::take(&mut self.was_full);
        } else if let Some(last) = found.last() {
            self.cursor.clone_from(last);
        }
        for key in found {
            // Skip completed work items whose deletion the engine does not have yet.
            if table.get(&key)?.is_some()
                && let Some((_, chunk)) = removal(&key)
            {
                self.keys.push_back(chunk);
            }
        }
        Ok(())
    }

    /// Panics if an invariant of the type is violated.
    pub(super) fn check_invariants(&self) {
        assert!(
            self.has_more || (!self.was_full && self.cursor.is_empty()),
            "a queue that has all work items does not read the store"
        );
        assert!(
            (1..self.keys.len().min(64)).all(|i| self.keys[i] != self.keys[i - 1]),
            "each chunk file is in the queue once"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::memory::MemoryEngine;
    use crate::engine::{Engine, Mutations};
    use skep_types::{InodeId, Lsn, ShardId};
    use std::collections::BTreeSet;

    const GROUP: GroupId = GroupId::new(3);

    fn chunk(number: u64) -> ChunkFileKey {
        let inode = InodeId::from_parts(ShardId::new(7), number);
        ChunkFileKey { inode, generation: 0, component: 0, index: 0 }
    }

    fn write(engine: &mut MemoryEngine, key: ChunkFileKey, is_present: bool) {
        let key = Key::Removal(GROUP, key).to_bytes();
        let batch = Mutations::from([(key, is_present.then(Vec::new))]);
        engine.apply(&batch, Lsn::new(1)).unwrap();
    }

    proptest::proptest! {
        /// Each chunk file is removed, and none is removed again after a success, in random orders
        /// of new work items, full queues, requests and failures.
        #[test]
        fn each_chunk_file_is_removed_exactly_once_despite_failures(
            steps in proptest::collection::vec((0_u8..4, 1_u64..1000), 1..200),
            most in 0_usize..6,
            limit in 1_usize..5,
        ) {
            let mut table = Table::new(MemoryEngine::default(), 3);
            let mut queue = RemovalQueue::default();
            let (mut open, mut made) = (BTreeSet::new(), BTreeSet::new());
            let mut in_flight: Option<Vec<ChunkFileKey>> = None;
            let take = |queue: &mut RemovalQueue, table: &Table<MemoryEngine>| {
                let keys = queue.take(GROUP, limit, table).unwrap();
                queue.check_invariants();
                keys
            };
            for (what, number) in steps {
                match what {
                    0 | 1 if made.insert(number) => {
                        open.insert(chunk(number));
                        write(table.engine_mut(), chunk(number), true);
                        let is_full = queue.len() >= most;
                        queue.push(chunk(number), is_full);
                    }
                    2 => match in_flight.take() {
                        Some(keys) => for key in keys {
                            proptest::prop_assert!(open.remove(&key), "{key:?} was taken twice");
                            write(table.engine_mut(), key, false);
                        },
                        None => in_flight = Some(take(&mut queue, &table)),
                    },
                    3 => if let Some(keys) = in_flight.take() { queue.put_back(keys) },
                    _ => {}
                }
                queue.check_invariants();
            }
            if let Some(keys) = in_flight.take() {
                queue.put_back(keys);
            }
            loop {
                let keys = take(&mut queue, &table);
                if keys.is_empty() {
                    break;
                }
                for key in keys {
                    proptest::prop_assert!(open.remove(&key), "{key:?} was taken twice");
                    write(table.engine_mut(), key, false);
                }
            }
            proptest::prop_assert!(open.is_empty(), "{open:?} were left");
        }
    }
}
