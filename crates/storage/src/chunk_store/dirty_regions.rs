//! The dirty regions, which are the regions that have changed since they were last synced to the
//! device. The set of dirty regions exists only in memory.
//!
//! # Invariants
//! `count` is the number of dirty regions, and each listed chunk file has at least one dirty region
//! ([`DirtyRegions::check_invariants`]).

use skep_format::chunk::DirtyRegion;
use skep_types::ChunkFileKey;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

#[derive(Debug, Clone, Copy)]
struct Change {
    /// Sequence number of the last change of the region. The changes of the whole target share one
    /// sequence.
    last: u64,
    /// Number of changes in progress that concern the region.
    in_flight: u32,
}

/// The dirty regions of a target.
#[derive(Debug, Default)]
pub(crate) struct DirtyRegions {
    files: RefCell<HashMap<ChunkFileKey, BTreeMap<u64, Change>>>,
    count: Cell<usize>,
    next: Cell<u64>,
}

/// Marks a change in progress. The change ends when the guard is dropped.
#[derive(Debug)]
pub(crate) struct ChangeGuard<'a> {
    dirty: &'a DirtyRegions,
    key: ChunkFileKey,
    regions: Range<u64>,
}

/// A chunk file and its dirty regions that no operation is changing. Each pair is the index of a
/// region and the sequence number of its last change.
pub(crate) type UnchangedRegions = (ChunkFileKey, Vec<(u64, u64)>);

impl DirtyRegions {
    /// Creates the set of dirty regions with `regions` as its first members.
    pub(crate) fn new(regions: &[DirtyRegion]) -> Self {
        let dirty = Self::default();
        regions.iter().for_each(|it| drop(dirty.change(it.key, it.region..it.region + 1)));
        dirty
    }

    /// Returns the number of dirty regions.
    pub(crate) fn len(&self) -> usize {
        self.count.get()
    }

    /// Begins a change of the regions `regions` of a chunk file. These regions become dirty.
    pub(crate) fn change(&self, key: ChunkFileKey, regions: Range<u64>) -> ChangeGuard<'_> {
        let last = self.next_number();
        let mut files = self.files.borrow_mut();
        let changes = files.entry(key).or_default();
        for region in regions.clone() {
            let change = changes.entry(region).or_insert_with(|| {
                self.count.set(self.count.get() + 1);
                Change { last, in_flight: 0 }
            });
            change.last = last;
            change.in_flight += 1;
        }
        ChangeGuard { dirty: self, key, regions }
    }

    /// Returns the indexes of a chunk file's dirty regions in ascending order.
    pub(crate) fn regions_of(&self, key: &ChunkFileKey) -> Vec<u64> {
        let files = self.files.borrow();
        files.get(key).map(|changes| changes.keys().copied().collect()).unwrap_or_default()
    }

    fn next_number(&self) -> u64 {
        self.next.set(self.next.get() + 1);
        self.next.get()
    }

    /// Returns the dirty regions that no operation is changing, grouped by chunk file.
    pub(crate) fn unchanged(&self) -> Vec<UnchangedRegions> {
        let files = self.files.borrow();
        let unchanged = files.iter().map(|(key, changes)| {
            let unchanged = changes.iter().filter(|(_, change)| change.in_flight == 0);
            (*key, unchanged.map(|(region, change)| (*region, change.last)).collect())
        });
        unchanged.filter(|(_, regions): &UnchangedRegions| !regions.is_empty()).collect()
    }

    /// Removes a region unless the region has changed since [`Self::unchanged`] returned `number`
    /// for this region. Returns whether the region was removed.
    pub(crate) fn take_if_unchanged(&self, key: &ChunkFileKey, region: u64, number: u64) -> bool {
        let mut files = self.files.borrow_mut();
        // After [`Self::unchanged`] was called, a truncation or the cleaner may have removed the
        // file from the set.
        let Some(changes) = files.get_mut(key) else { return false };
        let unchanged =
            changes.get(&region).is_some_and(|it| it.in_flight == 0 && it.last == number);
        if unchanged {
            changes.remove(&region);
            self.count.set(self.count.get() - 1);
            if changes.is_empty() {
                files.remove(key);
            }
        }
        unchanged
    }

    /// Removes the regions of a chunk file from index `from` on, because the file was truncated or
    /// removed. Regions that an operation is changing stay in the set, as do regions for which
    /// `is_kept` returns `true`.
    pub(crate) fn truncate(&self, key: &ChunkFileKey, from: u64, is_kept: impl Fn(u64) -> bool) {
        let mut files = self.files.borrow_mut();
        // A file without dirty regions has nothing to remove.
        let Some(changes) = files.get_mut(key) else { return };
        let before = changes.len();
        changes.retain(|region, change| *region < from || change.in_flight > 0 || is_kept(*region));
        self.count.set(self.count.get() - (before - changes.len()));
        if changes.is_empty() {
            files.remove(key);
        }
    }
}

impl DirtyRegions {
    /// Checks the invariants of this module and the sequence numbers of the changes.
    ///
    /// # Panics
    /// Panics if a checked value is wrong.
    pub(crate) fn check_invariants(&self) {
        let files = self.files.borrow();
        let count: usize = files.values().map(BTreeMap::len).sum();
        assert_eq!(self.count.get(), count, "the count of dirty regions");
        assert!(
            files.values().all(|changes| !changes.is_empty()),
            "each listed file has a dirty region"
        );
        let last = files.values().flat_map(BTreeMap::values).map(|change| change.last).max();
        assert!(last.unwrap_or(0) <= self.next.get(), "change numbers are below the next one");
    }
}

impl Drop for ChangeGuard<'_> {
    fn drop(&mut self) {
        let last = self.dirty.next_number();
        let mut files = self.dirty.files.borrow_mut();
        // The chunk file is in the map, because a region with a change in progress is never
        // removed.
        let changes = files.get_mut(&self.key).expect("a changing chunk file stays");
        for region in self.regions.clone() {
            let change = changes.get_mut(&region).expect("a changing region stays");
            change.last = last;
            change.in_flight -= 1;
        }
    }
}

impl super::ChunkStore {
    /// Returns the number of regions that have changed since they were last synced to the disk.
    pub(crate) fn dirty_regions(&self) -> usize {
        self.dirty.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::InodeId;

    #[test]
    fn region_changed_during_cleaning_stays_dirty() {
        let inode = InodeId::new(5);
        let key = ChunkFileKey { inode, generation: 0, component: 0, index: 0 };
        let dirty = DirtyRegions::default();
        let first = dirty.change(key, 0..3);
        assert!(dirty.unchanged().is_empty());
        drop(first);
        let (_, unchanged) = dirty.unchanged().remove(0);
        assert_eq!(unchanged.len(), 3);
        let second = dirty.change(key, 1..2);
        assert!(dirty.take_if_unchanged(&key, 0, unchanged[0].1));
        assert!(!dirty.take_if_unchanged(&key, 1, unchanged[1].1), "the region is being changed");
        drop(second);
        assert!(!dirty.take_if_unchanged(&key, 1, unchanged[1].1), "the region was changed");
        assert_eq!(dirty.len(), 2);
        dirty.truncate(&key, 2, |region| region == 2);
        assert_eq!(dirty.len(), 2);
        dirty.truncate(&key, 2, |_| false);
        assert_eq!(dirty.len(), 1);
        dirty.truncate(&key, 0, |_| false);
        assert_eq!((dirty.len(), dirty.unchanged().len()), (0, 0));
        dirty.check_invariants();
    }
}
