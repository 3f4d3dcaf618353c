//! A bounded table from inode to value. A full table evicts the values that were recorded first.

use crate::files::handles::part_of;
use crate::limits::TABLE_PARTS;
use skep_types::InodeId;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Values for a limited number of inodes. A full table evicts the values that were recorded first.
#[derive(Debug)]
pub(crate) struct Recent<V> {
    /// Each mutex protects one part of the table. No thread locks two parts at the same time.
    parts: Vec<Mutex<TablePart<V>>>,
    /// Maximum number of inodes in the map `young` of each part of the table.
    most: usize,
}

#[derive(Debug)]
struct TablePart<V> {
    young: HashMap<InodeId, V>,
    /// The previous content of `young`; replaced each time `young` is full.
    old: HashMap<InodeId, V>,
}

impl<V: Clone> Recent<V> {
    /// Creates a table for at most `most` inodes.
    pub(crate) fn new(most: usize) -> Self {
        let part = || Mutex::new(TablePart { young: HashMap::new(), old: HashMap::new() });
        Self { parts: (0..TABLE_PARTS).map(|_| part()).collect(), most: most / TABLE_PARTS / 2 }
    }

    /// Returns the value of an inode, if the table has one.
    pub(crate) fn get(&self, inode: InodeId) -> Option<V> {
        self.with(inode, |part| part.get(inode).cloned())
    }

    /// Records a value for an inode, and returns the previous value of the inode.
    pub(crate) fn note(&self, inode: InodeId, value: V) -> Option<V> {
        self.with(inode, |part| part.note(inode, value, self.most))
    }

    /// Records the value that `f` computes from the previous value.
    pub(crate) fn update(&self, inode: InodeId, f: impl FnOnce(Option<&V>) -> V) {
        self.with(inode, |part| {
            let value = f(part.get(inode));
            part.note(inode, value, self.most);
        });
    }

    /// Replaces the value of an inode if the table has a value and `f` computes a new value from
    /// it.
    pub(crate) fn update_if(&self, inode: InodeId, f: impl FnOnce(&V) -> Option<V>) {
        self.with(inode, |part| {
            if let Some(value) = part.get(inode).and_then(f) {
                part.note(inode, value, self.most);
            }
        });
    }

    fn with<T>(&self, inode: InodeId, f: impl FnOnce(&mut TablePart<V>) -> T) -> T {
        let part = &self.parts[part_of(inode.raw())];
        f(&mut part.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<V> TablePart<V> {
    fn get(&self, inode: InodeId) -> Option<&V> {
        self.young.get(&inode).or_else(|| self.old.get(&inode))
    }

    fn note(&mut self, inode: InodeId, value: V, most: usize) -> Option<V> {
        if self.young.len() >= most {
            self.old = std::mem::take(&mut self.young);
        }
        let before = self.young.insert(inode, value);
        before.or_else(|| self.old.remove(&inode))
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
