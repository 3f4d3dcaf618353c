//! The stored state of a metadata target: the engine, and in memory the changes that are not synced
//! yet.
//!
//! # Invariants
//! - A change reaches the engine only after its log record is synced. So the engine never holds a
//!   change that a power loss could remove from the log.
//! - The contents of the engine are always those after one specific log record. So changes that are
//!   being synced (`syncing`) are kept separate from later ones (`current`), even for the same key.

use crate::engine::{Engine, Mutations};
use skep_format::metadata::{Batch, Mutation, decode_value};
use skep_types::codec::{Bytes, Codec};
use skep_types::{Lsn, Result};

/// The engine, and the layers of changes above it.
#[derive(Debug)]
pub(crate) struct Table<E> {
    engine: E,
    /// Changes of the current batch, not logged yet.
    batch: Mutations,
    /// Upper bound of the bytes of the batch's log payload.
    batch_bytes: usize,
    /// Logged changes that no sync covers yet.
    current: Mutations,
    /// Logged changes that the current sync covers.
    syncing: Mutations,
    scan_page: usize,
}

impl<E: Engine> Table<E> {
    pub(crate) fn new(engine: E, scan_page: usize) -> Self {
        Self {
            engine,
            batch: Mutations::new(),
            batch_bytes: 0,
            current: Mutations::new(),
            syncing: Mutations::new(),
            scan_page,
        }
    }

    pub(crate) fn engine(&self) -> &E {
        &self.engine
    }

    pub(crate) fn engine_mut(&mut self) -> &mut E {
        &mut self.engine
    }

    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        for layer in [&self.batch, &self.current, &self.syncing] {
            if let Some(value) = layer.get(key) {
                return Ok(value.clone());
            }
        }
        self.engine.get(key)
    }

    /// Returns the synced value of a key, without the layers above the engine.
    pub(crate) fn get_synced<T: Codec>(&self, key: &[u8]) -> Result<Option<T>> {
        self.engine.get(key)?.map(|value| decode_value(key, &value)).transpose()
    }

    /// Returns up to `limit` pairs with keys after `after`, in ascending key order, merged from all
    /// layers.
    pub(crate) fn scan(
        &self,
        prefix: &[u8],
        after: &[u8],
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut found = Vec::new();
        let mut after = after.to_vec();
        while found.len() < limit {
            let page = self.engine.scan(prefix, &after, self.scan_page)?;
            let is_last = page.len() < self.scan_page;
            let mut merged: Mutations =
                page.into_iter().map(|(key, value)| (key, Some(value))).collect();
            // After a full page, the engine may have more pairs. Then changes beyond the last key
            // of this page are merged with the next page.
            let end = if is_last { None } else { merged.keys().next_back().cloned() };
            for layer in [&self.syncing, &self.current, &self.batch] {
                overlay(&mut merged, layer, (prefix, &after, end.as_deref()));
            }
            found.extend(merged.into_iter().filter_map(|(key, value)| Some((key, value?))));
            match end {
                Some(end) => after = end,
                None => break,
            }
        }
        found.truncate(limit);
        Ok(found)
    }

    pub(crate) fn write(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) {
        self.batch_bytes += logged_bytes(&key, value.as_deref());
        self.batch.insert(key, value);
    }

    pub(crate) fn has_batch(&self) -> bool {
        !self.batch.is_empty()
    }

    /// Whether changes of `bytes` [`logged_bytes`] fit into the log record of the batch.
    pub(crate) fn fits(&self, bytes: usize, record_bytes: usize) -> bool {
        !self.has_batch() || self.batch_bytes + bytes <= record_bytes
    }

    /// Ends the batch. Returns its log payload, and keeps its changes as logged.
    pub(crate) fn log_batch(&mut self) -> Vec<u8> {
        self.batch_bytes = 0;
        let mutations = self
            .batch
            .iter()
            .map(|(key, value)| Mutation {
                key: Bytes(key.clone()),
                value: value.clone().map(Bytes),
            })
            .collect();
        let payload = Batch { mutations }.to_bytes();
        // Not `append`: that would rebuild the whole map, which may hold thousands of keys.
        self.current.extend(std::mem::take(&mut self.batch));
        payload
    }

    /// Begins a sync of all logged changes.
    pub(crate) fn begin_sync(&mut self) {
        debug_assert!(self.syncing.is_empty(), "one sync at a time");
        std::mem::swap(&mut self.syncing, &mut self.current);
    }

    /// Ends the sync: applies the changes that it covers to the engine.
    pub(crate) fn end_sync(&mut self, lsn: Lsn) -> Result<()> {
        self.engine.apply(&self.syncing, lsn)?;
        self.syncing.clear();
        Ok(())
    }

    /// Applies a record of the log at the start.
    pub(crate) fn replay(&mut self, lsn: Lsn, payload: &[u8]) -> Result<()> {
        let batch = Batch::from_bytes(payload)
            .map_err(|error| error.within(format_args!("log record {lsn}")))?;
        let mutations = batch
            .mutations
            .into_iter()
            .map(|it| (it.key.0, it.value.map(|value| value.0)))
            .collect();
        self.engine.apply(&mutations, lsn)
    }
}

/// Returns the bytes that a change takes in a log record: key and value, each with its length, and
/// a flag whether there is a value.
pub(crate) fn logged_bytes(key: &[u8], value: Option<&[u8]>) -> usize {
    4 + key.len() + 1 + value.map_or(0, |value| 4 + value.len())
}

fn overlay(merged: &mut Mutations, layer: &Mutations, range: (&[u8], &[u8], Option<&[u8]>)) {
    use std::ops::Bound;
    let (prefix, after, end) = range;
    let from = if after > prefix { Bound::Excluded(after) } else { Bound::Included(prefix) };
    for (key, value) in layer.range::<[u8], _>((from, Bound::Unbounded)) {
        if !key.starts_with(prefix) || end.is_some_and(|end| key.as_slice() > end) {
            break;
        }
        merged.insert(key.clone(), value.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::memory::MemoryEngine;
    use std::collections::BTreeMap;

    proptest::proptest! {
        /// Through all layers and pages, a scan returns the same pairs as one ordered map.
        #[test]
        fn scans_merge_all_layers(
            steps in proptest::collection::vec(
                (0_u8..40, proptest::option::of(0_u8..), 0_u8..10),
                1..200,
            ),
            limit in 1_usize..50,
            after in 0_u8..40,
        ) {
            let mut table = Table::new(MemoryEngine::default(), 3);
            let mut model = BTreeMap::new();
            let mut lsn = 0;
            for (key, value, what) in steps {
                match what {
                    0 if table.has_batch() => drop(table.log_batch()),
                    1 if table.syncing.is_empty() => table.begin_sync(),
                    2 => {
                        lsn += 1;
                        table.end_sync(Lsn::new(lsn)).unwrap();
                    }
                    _ => {
                        table.write(vec![9, key], value.map(|value| vec![value]));
                        match value {
                            Some(value) => model.insert(vec![9, key], vec![value]),
                            None => model.remove(&vec![9, key]),
                        };
                    }
                }
            }
            let expected: Vec<_> = model
                .into_iter()
                .filter(|(key, _)| key.as_slice() > [9, after].as_slice())
                .take(limit)
                .collect();
            proptest::prop_assert_eq!(table.scan(&[9], &[9, after], limit).unwrap(), expected);
        }
    }
}
