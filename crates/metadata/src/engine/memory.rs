//! The in-memory engine, for simulation and tests. A simulated power loss reverts the engine to its
//! last checkpoint, or to the state after one of the later batches. A real device, too, may have
//! stored some batches without a sync.

use super::{Engine, Mutations, start_of_scan};
use skep_format::metadata::Key;
use skep_types::codec::Codec;
use skep_types::{Lsn, Result};
use std::collections::BTreeMap;
use std::ops::Bound;

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// An ordered map that a simulated power loss can revert to a checkpoint or a later batch.
#[derive(Debug, Default, Clone)]
pub struct MemoryEngine {
    live: Pairs,
    durable: Pairs,
    since: Vec<Mutations>,
}

fn change(pairs: &mut Pairs, batch: &Mutations) {
    for (key, value) in batch {
        match value {
            Some(value) => pairs.insert(key.clone(), value.clone()),
            None => pairs.remove(key),
        };
    }
}

impl MemoryEngine {
    /// Makes all applied batches durable, so that a simulated power loss does not revert them.
    pub fn checkpoint(&mut self) {
        self.checkpoint_first(self.since.len());
    }

    /// Makes only the first `count` batches since the last checkpoint durable.
    pub fn checkpoint_first(&mut self, count: usize) {
        let count = count.min(self.since.len());
        self.since.drain(..count).for_each(|batch| change(&mut self.durable, &batch));
    }

    /// Returns the engine after a simulated power loss: it has the durable batches, and the first
    /// `survivors` batches that were applied since the last checkpoint.
    #[must_use]
    pub fn after_power_loss(&self, survivors: usize) -> Self {
        let mut live = self.durable.clone();
        self.since.iter().take(survivors).for_each(|batch| change(&mut live, batch));
        Self { durable: live.clone(), live, since: Vec::new() }
    }

    /// Returns the number of batches applied since the last checkpoint.
    pub fn batches_since_checkpoint(&self) -> usize {
        self.since.len()
    }

    /// Iterates over all key-value pairs in ascending key order.
    pub fn pairs(&self) -> impl Iterator<Item = (&Vec<u8>, &Vec<u8>)> {
        self.live.iter()
    }

    /// Iterates over the pairs whose key begins with `prefix` and is greater than `after`.
    fn range(&self, prefix: &[u8], after: &[u8]) -> impl Iterator<Item = (&Vec<u8>, &Vec<u8>)> {
        let from = start_of_scan(prefix, after);
        let range = self.live.range::<[u8], _>((from, Bound::Unbounded));
        range.take_while(move |(key, _)| key.starts_with(prefix))
    }
}

impl Engine for MemoryEngine {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.live.get(key).cloned())
    }

    fn scan(&self, prefix: &[u8], after: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let found = self.range(prefix, after).take(limit);
        Ok(found.map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    fn scan_keys(&self, prefix: &[u8], after: &[u8], limit: usize) -> Result<Vec<Vec<u8>>> {
        Ok(self.range(prefix, after).take(limit).map(|(key, _)| key.clone()).collect())
    }

    fn approximate_pairs(&self) -> u64 {
        self.live.len() as u64
    }

    fn apply(&mut self, batch: &Mutations, applied: Lsn) -> Result<()> {
        let mut batch = batch.clone();
        batch.insert(Key::Applied.to_bytes(), Some(applied.to_bytes()));
        change(&mut self.live, &batch);
        self.since.push(batch);
        Ok(())
    }
}
