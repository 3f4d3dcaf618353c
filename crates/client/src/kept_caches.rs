//! Which version of each file the kernel's page cache may hold, so that an open can say whether the
//! cache is still right.
//!
//! A version is the inode's change counter. Each change of data or attributes raises it by one, so
//! a reply to a change of our own that is exactly one higher tells that nobody else changed the
//! file meanwhile, and the cache, which has our own writes, is still right.

use crate::limits::{MAX_REMEMBERED_VERSIONS, TABLE_PARTS};
use crate::tables::part_of;
use skep_types::InodeId;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

#[derive(Debug, Default)]
struct Part {
    young: HashMap<InodeId, u64>,
    /// What was young before; forgotten when `young` is full again.
    old: HashMap<InodeId, u64>,
}

/// Versions by inode; the least recently noted are forgotten.
#[derive(Debug)]
pub(crate) struct KeptCaches {
    /// Each mutex protects its part alone; none is taken while another is held.
    parts: Vec<Mutex<Part>>,
}

impl KeptCaches {
    pub(crate) fn new() -> Self {
        Self { parts: (0..TABLE_PARTS).map(|_| Mutex::default()).collect() }
    }

    fn with<T>(&self, inode: InodeId, f: impl FnOnce(&mut Part) -> T) -> T {
        let part = &self.parts[part_of(inode.raw())];
        f(&mut part.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes that the cache will hold this version from now on; says whether it already does.
    pub(crate) fn opened(&self, inode: InodeId, version: u64) -> bool {
        self.with(inode, |part| part.note(inode, version) == Some(version))
    }

    /// Notes the version after a change of our own.
    pub(crate) fn changed_by_us(&self, inode: InodeId, version: u64) {
        self.with(inode, |part| {
            let held = part.young.get(&inode).or_else(|| part.old.get(&inode)).copied();
            if held.is_some_and(|held| held + 1 == version) {
                part.note(inode, version);
            }
        });
    }
}

impl Part {
    /// Notes a version and gives the one noted before.
    fn note(&mut self, inode: InodeId, version: u64) -> Option<u64> {
        if self.young.len() >= MAX_REMEMBERED_VERSIONS / TABLE_PARTS / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        let before = self.young.insert(inode, version);
        before.or_else(|| self.old.remove(&inode))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_kept_over_own_changes_and_dropped_after_those_of_others() {
        let caches = KeptCaches::new();
        let inode = InodeId::new(9);
        assert!(!caches.opened(inode, 5), "never seen");
        assert!(caches.opened(inode, 5));
        caches.changed_by_us(inode, 6);
        assert!(caches.opened(inode, 6));
        caches.changed_by_us(inode, 8);
        assert!(!caches.opened(inode, 8), "somebody else made 7");
        caches.changed_by_us(InodeId::new(10), 3);
        assert!(!caches.opened(InodeId::new(10), 3));
    }

    #[test]
    fn what_was_noted_long_ago_is_forgotten() {
        let caches = KeptCaches::new();
        let first = InodeId::new(1);
        caches.opened(first, 1);
        for number in 2..=2 * MAX_REMEMBERED_VERSIONS as u64 {
            caches.opened(InodeId::new(number), 1);
        }
        let held: usize = caches.parts.iter().map(|p| p.lock().unwrap().young.len()).sum();
        assert!(held <= MAX_REMEMBERED_VERSIONS);
        assert!(!caches.opened(first, 1));
    }
}
