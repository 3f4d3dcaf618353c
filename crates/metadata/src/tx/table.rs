//! The table of a metadata target's records: the engine with the *safe* state, and in memory the
//! changes that are not *safe* yet. A change is *safe* when every serving member of the group has
//! synced its log record.
//!
//! # Invariants
//! - A change reaches the engine only after its log record is *safe*. So the engine never has a
//!   change that a power loss or another primary could remove from the log.
//! - The engine always contains the state after one specific log record. Therefore the changes that
//!   a sync covers are in a *layer* of their own, separate from later changes (`current`) of the
//!   same keys. The table applies each layer to the engine as a whole.
//!
//! `check_invariants` checks the layers.
//!
//! Held by the checkers `check_store` and `assign_roles` of the simulator: they compare the engines
//! of the members with the log after power losses and take-overs.

use crate::engine::{Engine, Mutations, start_of_scan};
use skep_format::metadata::{Batch, decode_value};
use skep_types::codec::Codec;
use skep_types::{Lsn, Result};
use std::collections::{BTreeMap, VecDeque};

/// Maximum number of layers. If a sync begins when all layers are in use, the sync extends the last
/// layer. In a group of one member, each sync ends before the next sync begins. So there are two
/// layers at most: the changes of the last sync until the next batch applies them to the engine,
/// and the changes of the next sync.
const MAX_LAYERS: usize = 3;

/// The logged changes that one sync covers, or several syncs if all layers were in use.
#[derive(Debug)]
struct Layer {
    /// Last log record whose changes are in this layer.
    last: Lsn,
    changes: Mutations,
}

/// The engine, and the layers of changes above it.
#[derive(Debug)]
pub(crate) struct Table<E> {
    engine: E,
    /// Changes of the current log record, which is not complete yet.
    batch: Mutations,
    /// Upper bound of the size of the batch's log payload, in bytes.
    batch_bytes: usize,
    /// Logged changes that no sync covers yet.
    current: Mutations,
    /// Logged changes that a sync covers, oldest first.
    layers: VecDeque<Layer>,
    scan_page: usize,
}

impl<E: Engine> Table<E> {
    pub(crate) fn new(engine: E, scan_page: usize) -> Self {
        Self {
            engine,
            batch: Mutations::new(),
            batch_bytes: 0,
            current: Mutations::new(),
            layers: VecDeque::new(),
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
        let layers = self.layers.iter().rev().map(|layer| &layer.changes);
        for layer in [&self.batch, &self.current].into_iter().chain(layers) {
            if let Some(value) = layer.get(key) {
                return Ok(value.clone());
            }
        }
        self.engine.get(key)
    }

    /// Returns the value of a key, including changes that are not safe yet.
    pub(crate) fn get_decoded<T: Codec>(&self, key: &[u8]) -> Result<Option<T>> {
        self.get(key)?.map(|value| decode_value(key, &value)).transpose()
    }

    /// Returns the value of a key in the engine, without the changes in memory. The value is
    /// *safe*. A newer value may be *safe* too, until the next batch applies it to the engine.
    pub(crate) fn get_safe<T: Codec>(&self, key: &[u8]) -> Result<Option<T>> {
        self.engine.get(key)?.map(|value| decode_value(key, &value)).transpose()
    }

    /// Returns up to `limit` key-value pairs with keys after `after`, in ascending key order. The
    /// pairs include all changes in memory.
    pub(crate) fn scan(
        &self,
        prefix: &[u8],
        after: &[u8],
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let page = |after: &[u8]| self.engine.scan(prefix, after, self.scan_page);
        self.merged((prefix, after), limit, page, <[u8]>::to_vec)
    }

    /// Like [`Self::scan`], but returns only the keys and copies no values.
    pub(crate) fn scan_keys(
        &self,
        prefix: &[u8],
        after: &[u8],
        limit: usize,
    ) -> Result<Vec<Vec<u8>>> {
        let page = |after: &[u8]| -> Result<Vec<(Vec<u8>, ())>> {
            let keys = self.engine.scan_keys(prefix, after, self.scan_page)?;
            Ok(keys.into_iter().map(|key| (key, ())).collect())
        };
        let found = self.merged((prefix, after), limit, page, |_| ())?;
        Ok(found.into_iter().map(|(key, ())| key).collect())
    }

    /// Returns up to `limit` keys with `prefix` after `after`, in ascending order, each with its
    /// value or without one (`V`). `page` returns the next keys of the engine after a key.
    /// `part_of` converts a value in memory to `V`.
    fn merged<V>(
        &self,
        (prefix, after): (&[u8], &[u8]),
        limit: usize,
        page: impl Fn(&[u8]) -> Result<Vec<(Vec<u8>, V)>>,
        part_of: impl Fn(&[u8]) -> V,
    ) -> Result<Vec<(Vec<u8>, V)>> {
        let mut found = Vec::new();
        let mut after = after.to_vec();
        while found.len() < limit {
            let page = page(&after)?;
            let is_last = page.len() < self.scan_page;
            let mut merged: BTreeMap<_, _> =
                page.into_iter().map(|(key, value)| (key, Some(value))).collect();
            // If the page is full, the engine may have more keys. Then skip the changes in memory
            // after the last key of this page, because they belong to the next page.
            let end = if is_last { None } else { merged.keys().next_back().cloned() };
            let layers = self.layers.iter().map(|layer| &layer.changes);
            for layer in layers.chain([&self.current, &self.batch]) {
                overlay(&mut merged, layer, (prefix, &after, end.as_deref()), &part_of);
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

    /// Whether the log record in progress has space for changes of `bytes` bytes (see
    /// [`logged_bytes`]). `record_bytes` is the maximum size of a record. An empty record always
    /// has space.
    pub(crate) fn fits(&self, bytes: usize, record_bytes: usize) -> bool {
        !self.has_batch() || self.batch_bytes + bytes <= record_bytes
    }

    /// Ends the log record in progress, and returns its payload. The changes of this record then
    /// count as logged changes that no sync covers yet.
    pub(crate) fn log_batch(&mut self) -> Vec<u8> {
        self.batch_bytes = 0;
        let changes = self.batch.iter().map(|(key, value)| (key.as_slice(), value.as_deref()));
        let bytes = changes.clone().map(|(key, value)| logged_bytes(key, value)).sum();
        let payload = Batch::encode_changes(changes, bytes);
        // Do not use `append`, which would rebuild the whole map with its thousands of keys.
        self.current.extend(std::mem::take(&mut self.batch));
        payload
    }

    /// Begins a sync of all logged changes. `last` is the last logged record.
    pub(crate) fn begin_sync(&mut self, last: Lsn) {
        let changes = std::mem::take(&mut self.current);
        if changes.is_empty() {
            // The newest layer already has the changes of the last record, or the engine has them.
            return;
        }
        // If all layers are in use, extend the last layer. An extension of the first layer would
        // delay its records, and with fast syncs they might never reach the engine.
        let is_full = self.layers.len() >= MAX_LAYERS;
        match self.layers.back_mut().filter(|_| is_full) {
            Some(newest) => {
                newest.changes.extend(changes);
                newest.last = last;
            }
            None => self.layers.push_back(Layer { last, changes }),
        }
    }

    /// Whether [`Self::store`] would apply a layer to the engine. `safe` is the last safe record.
    pub(crate) fn has_to_store(&self, safe: Lsn) -> bool {
        self.layers.front().is_some_and(|layer| layer.last <= safe)
    }

    /// Applies the layers whose records are all *safe* to the engine. `safe` is the last safe
    /// record. Returns the last record of these layers, or `None` if no layer was applied.
    pub(crate) fn store(&mut self, safe: Lsn) -> Result<Option<Lsn>> {
        let mut stored = None;
        while let Some(layer) = self.layers.front().filter(|layer| layer.last <= safe) {
            self.engine.apply(&layer.changes, layer.last)?;
            stored = Some(layer.last);
            self.layers.pop_front();
        }
        Ok(stored)
    }

    /// Panics if an invariant of the layers is violated.
    pub(crate) fn check_invariants(&self) {
        assert!(self.layers.len() <= MAX_LAYERS, "a table has at most {MAX_LAYERS} layers");
        assert!(
            self.layers.iter().is_sorted_by_key(|layer| layer.last),
            "the layers are in the order of the log"
        );
    }

    /// Returns the changes in memory that a sync covers, oldest first.
    pub(crate) fn unsafe_changes(&self) -> impl Iterator<Item = (&Vec<u8>, &Option<Vec<u8>>)> {
        self.layers.iter().flat_map(|layer| &layer.changes)
    }

    /// Applies a log record when the target starts. If the record is *safe*, the table applies its
    /// changes to the engine. The changes of a record that is not *safe* count as logged changes
    /// that no sync covers yet.
    pub(crate) fn replay(&mut self, lsn: Lsn, payload: &[u8], is_safe: bool) -> Result<()> {
        let batch = Batch::from_bytes(payload)
            .map_err(|error| error.within(format_args!("cannot replay log record {lsn}")))?;
        let mutations = batch
            .mutations
            .into_iter()
            .map(|it| (it.key.0, it.value.map(|value| value.0)))
            .collect::<Mutations>();
        if is_safe {
            return self.engine.apply(&mutations, lsn);
        }
        self.current.extend(mutations);
        Ok(())
    }
}

/// Returns the number of bytes that a change takes in a log record: the key, the value, the lengths
/// of both, and a flag for the presence of a value.
pub(crate) fn logged_bytes(key: &[u8], value: Option<&[u8]>) -> usize {
    4 + key.len() + 1 + value.map_or(0, |value| 4 + value.len())
}

/// Applies the changes of a layer to the keys in `merged`. `part_of` converts a value to the type
/// that `merged` has.
fn overlay<V>(
    merged: &mut BTreeMap<Vec<u8>, Option<V>>,
    layer: &Mutations,
    range: (&[u8], &[u8], Option<&[u8]>),
    part_of: impl Fn(&[u8]) -> V,
) {
    use std::ops::Bound;
    let (prefix, after, end) = range;
    let from = start_of_scan(prefix, after);
    for (key, value) in layer.range::<[u8], _>((from, Bound::Unbounded)) {
        if !key.starts_with(prefix) || end.is_some_and(|end| key.as_slice() > end) {
            break;
        }
        merged.insert(key.clone(), value.as_deref().map(&part_of));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::memory::MemoryEngine;

    proptest::proptest! {
        /// A scan over all layers and pages returns the same pairs as a single ordered map.
        #[test]
        fn scan_returns_pending_and_stored_records_in_order(
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
                    1 => {
                        lsn += 1;
                        table.begin_sync(Lsn::new(lsn));
                        proptest::prop_assert!(table.layers.len() <= MAX_LAYERS);
                    }
                    2 => {
                        // All records up to a random LSN are *safe* now.
                        let safe = Lsn::new(lsn.saturating_sub(u64::from(key) % 4));
                        table.store(safe).unwrap();
                        let is_left = |layer: &Layer| layer.last > safe;
                        proptest::prop_assert!(table.layers.iter().all(is_left));
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
            let keys: Vec<_> = expected.iter().map(|(key, _)| key.clone()).collect();
            proptest::prop_assert_eq!(table.scan_keys(&[9], &[9, after], limit).unwrap(), keys);
            proptest::prop_assert_eq!(table.scan(&[9], &[9, after], limit).unwrap(), expected);
        }
    }

    /// The key of the first part of a file's inline bytes is a prefix of the keys of the other
    /// parts.
    #[test]
    fn paged_scan_ends_even_if_a_key_equals_the_prefix() {
        for page in 1..4 {
            let mut table = Table::new(MemoryEngine::default(), page);
            let keys = [&[9][..], &[9, 0, 1], &[9, 0, 2]];
            for key in keys {
                table.write(key.to_vec(), Some(vec![1]));
            }
            drop(table.log_batch());
            table.begin_sync(Lsn::new(1));
            table.store(Lsn::new(1)).unwrap();
            let found = table.scan(&[9], &[], usize::MAX).unwrap();
            let found: Vec<_> = found.into_iter().map(|(key, _)| key).collect();
            assert_eq!(found, keys, "{page} pairs in a page");
            assert_eq!(table.scan(&[9], &[9], 1).unwrap()[0].0, keys[1]);
        }
    }
}
