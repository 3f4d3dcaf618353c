//! In memory: which regions were changed since they were last known to be on the device.

use skep_format::chunk::DirtyRegion;
use skep_types::ChunkFileKey;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

#[derive(Debug, Clone, Copy)]
struct Change {
    /// Number of the last change, among all of the target.
    last: u64,
    /// Changes that have begun and not ended.
    in_flight: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct DirtyRegions {
    files: RefCell<HashMap<ChunkFileKey, BTreeMap<u64, Change>>>,
    count: Cell<usize>,
    next: Cell<u64>,
}

/// A change in progress; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Changing<'a> {
    dirty: &'a DirtyRegions,
    key: ChunkFileKey,
    regions: Range<u64>,
}

/// A chunk file with its regions that nobody changes now, and the number of each one's last change.
pub(crate) type Settled = (ChunkFileKey, Vec<(u64, u64)>);

impl DirtyRegions {
    /// With regions that count as changed from the start.
    pub(crate) fn new(regions: &[DirtyRegion]) -> Self {
        let dirty = Self::default();
        regions.iter().for_each(|it| drop(dirty.change(it.key, it.region..it.region + 1)));
        dirty
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.count.get()
    }

    /// Begins a change of regions of a chunk file.
    pub(crate) fn change(&self, key: ChunkFileKey, regions: Range<u64>) -> Changing<'_> {
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
        Changing { dirty: self, key, regions }
    }

    fn next_number(&self) -> u64 {
        self.next.set(self.next.get() + 1);
        self.next.get()
    }

    /// Chunk files with regions that nobody changes now.
    pub(crate) fn settled(&self) -> Vec<Settled> {
        let files = self.files.borrow();
        let settled = files.iter().map(|(key, changes)| {
            let settled = changes.iter().filter(|(_, change)| change.in_flight == 0);
            (*key, settled.map(|(region, change)| (*region, change.last)).collect())
        });
        settled.filter(|(_, regions): &Settled| !regions.is_empty()).collect()
    }

    /// Takes a region out, unless it was changed since [`Self::settled`] gave `number`.
    pub(crate) fn take_if_unchanged(&self, key: &ChunkFileKey, region: u64, number: u64) -> bool {
        let mut files = self.files.borrow_mut();
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

    /// Takes out the regions of a chunk file from `from` on that nobody changes now: they were cut
    /// off.
    pub(crate) fn cut(&self, key: &ChunkFileKey, from: u64) {
        let mut files = self.files.borrow_mut();
        let Some(changes) = files.get_mut(key) else { return };
        let before = changes.len();
        changes.retain(|region, change| *region < from || change.in_flight > 0);
        self.count.set(self.count.get() - (before - changes.len()));
        if changes.is_empty() {
            files.remove(key);
        }
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        let last = self.dirty.next_number();
        let mut files = self.dirty.files.borrow_mut();
        let Some(changes) = files.get_mut(&self.key) else { return };
        for region in self.regions.clone() {
            if let Some(change) = changes.get_mut(&region) {
                change.last = last;
                change.in_flight -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::InodeId;

    #[test]
    fn what_changes_while_it_is_cleaned_stays() {
        let inode = InodeId::new(5);
        let key = ChunkFileKey { inode, generation: 0, component: 0, index: 0 };
        let dirty = DirtyRegions::default();
        let first = dirty.change(key, 0..3);
        assert!(dirty.settled().is_empty());
        drop(first);
        let (_, settled) = dirty.settled().remove(0);
        assert_eq!(settled.len(), 3);
        let second = dirty.change(key, 1..2);
        assert!(dirty.take_if_unchanged(&key, 0, settled[0].1));
        assert!(!dirty.take_if_unchanged(&key, 1, settled[1].1), "it is being changed");
        drop(second);
        assert!(!dirty.take_if_unchanged(&key, 1, settled[1].1), "it was changed");
        assert_eq!(dirty.len(), 2);
        dirty.cut(&key, 2);
        assert_eq!(dirty.len(), 1);
        dirty.cut(&key, 0);
        assert_eq!((dirty.len(), dirty.settled().len()), (0, 0));
    }
}
