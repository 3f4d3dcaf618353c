//! A bounded table from inode, or another key, to value. A full table evicts the values that were
//! recorded first.

use crate::files::handles::part_of;
use crate::limits::TABLE_PARTS;
use skep_types::InodeId;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};

/// A key of a table.
pub(crate) trait TableKey: Copy + Eq + Hash {
    /// Returns a number that selects the part of the table that contains the key.
    fn number(self) -> u64;
}

impl TableKey for InodeId {
    fn number(self) -> u64 {
        self.raw()
    }
}

/// Values for a limited number of keys. A full table evicts the values that were recorded first.
#[derive(Debug)]
pub(crate) struct Recent<V, K = InodeId> {
    /// Each mutex protects one part of the table. No thread locks two parts at the same time.
    parts: Vec<Mutex<TablePart<V, K>>>,
    /// Maximum number of keys in the map `young` of each part of the table.
    most: usize,
}

#[derive(Debug)]
struct TablePart<V, K = InodeId> {
    young: HashMap<K, V>,
    /// The previous content of `young`; replaced each time `young` is full.
    old: HashMap<K, V>,
}

impl<V: Clone, K: TableKey> Recent<V, K> {
    /// Creates a table for at most `most` keys.
    pub(crate) fn new(most: usize) -> Self {
        let part = || Mutex::new(TablePart { young: HashMap::new(), old: HashMap::new() });
        Self { parts: (0..TABLE_PARTS).map(|_| part()).collect(), most: most / TABLE_PARTS / 2 }
    }

    /// Returns the value of a key, if the table has one.
    pub(crate) fn get(&self, key: K) -> Option<V> {
        self.with(key, |part| part.get(key).cloned())
    }

    /// Records a value for a key, and returns the previous value of the key.
    pub(crate) fn note(&self, key: K, value: V) -> Option<V> {
        self.with(key, |part| part.note(key, value, self.most))
    }

    /// Records the value that `f` computes from the previous value.
    pub(crate) fn update(&self, key: K, f: impl FnOnce(Option<&V>) -> V) {
        self.with(key, |part| {
            let value = f(part.get(key));
            part.note(key, value, self.most);
        });
    }

    /// Replaces the value of a key if the table has a value and `f` computes a new value from it.
    pub(crate) fn update_if(&self, key: K, f: impl FnOnce(&V) -> Option<V>) {
        self.with(key, |part| {
            if let Some(value) = part.get(key).and_then(f) {
                part.note(key, value, self.most);
            }
        });
    }

    /// Removes the value of a key.
    pub(crate) fn remove(&self, key: K) {
        self.with(key, |part| {
            part.young.remove(&key);
            part.old.remove(&key);
        });
    }

    fn with<T>(&self, key: K, f: impl FnOnce(&mut TablePart<V, K>) -> T) -> T {
        let part = &self.parts[part_of(key.number())];
        f(&mut part.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<V, K: TableKey> TablePart<V, K> {
    fn get(&self, key: K) -> Option<&V> {
        self.young.get(&key).or_else(|| self.old.get(&key))
    }

    fn note(&mut self, key: K, value: V, most: usize) -> Option<V> {
        if self.young.len() >= most {
            self.old = std::mem::take(&mut self.young);
        }
        let before = self.young.insert(key, value);
        before.or_else(|| self.old.remove(&key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::MAX_REMEMBERED_SPECIAL;

    /// docs/semantics.md 1.14: attributes of directories, pipes and devices.
    #[test]
    fn newest_8192_inodes_stay_in_the_table() {
        let (recent, count) = (Recent::new(MAX_REMEMBERED_SPECIAL), 40_000);
        for number in 1..=count {
            recent.note(InodeId::new(number), ());
        }
        let is_known = |number: &u64| recent.get(InodeId::new(*number)).is_some();
        assert!((count - 7_999..=count).all(|number| is_known(&number)));
        let known = (1..=count).filter(is_known).count();
        assert!(known <= MAX_REMEMBERED_SPECIAL, "{known}");
    }

    #[test]
    fn full_table_drops_its_oldest_values() {
        let most = 16 * TABLE_PARTS;
        let recent = Recent::new(most);
        let first = InodeId::new(1);
        recent.note(first, 1);
        assert_eq!(recent.get(first), Some(1));
        for number in 2..=4 * most as u64 {
            recent.note(InodeId::new(number), number);
        }
        let count = |part: &Mutex<TablePart<u64>>| {
            let part = part.lock().unwrap();
            part.young.len() + part.old.len()
        };
        assert!(recent.parts.iter().map(count).sum::<usize>() <= most);
        assert_eq!(recent.get(first), None);
        assert_eq!(recent.get(InodeId::new(4 * most as u64)), Some(4 * most as u64));
    }
}
