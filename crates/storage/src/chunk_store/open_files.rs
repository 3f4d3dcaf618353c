//! The cache of open chunk files and of their region pages. The size of the cache is limited.
//!
//! All cached contents are also in the files, because the target writes each changed region page
//! immediately. So a file that no operation uses can be evicted at any time. The clock algorithm
//! selects the file to evict. The hand of the clock skips a file once if an operation has used the
//! file since the hand last passed it.
//!
//! The cache evicts files with unsynced changes last. The kernel reports a failed write-back to the
//! open descriptor, and might forget the error after the descriptor is closed. The cache stores the
//! keys of such files, since their next sync must check the whole file system.
//!
//! # Invariants
//! `pages` is the number of region pages of all cached files, and the clock contains the key of
//! each cached file ([`OpenFiles::check_invariants`]).

use super::chunk_file::{ChunkFile, Region};
use crate::limits::MAX_CACHED_PAGES;
use skep_metrics::CacheUse;
use skep_types::ChunkFileKey;
use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// If all cached files have unsynced changes, one eviction removes the number of cached files
/// divided by `UNSYNCED_SHARE`.
const UNSYNCED_SHARE: usize = 16;

/// The cache of open chunk files.
#[derive(Debug)]
pub(crate) struct OpenFiles {
    files: HashMap<ChunkFileKey, Rc<ChunkFile>>,
    clock: VecDeque<ChunkFileKey>,
    pages: usize,
    max_files: usize,
    /// Files that were evicted with unsynced changes, each with the number of its last eviction.
    unsynced: HashMap<ChunkFileKey, u64>,
    /// Number of evictions of files with unsynced changes.
    unsynced_evictions: u64,
    pub(super) uses: CacheUses,
}

/// Counts the uses of the cache. Each lookup of a file or page counts once.
#[derive(Debug, Default)]
pub(super) struct CacheUses {
    pub(super) files: Arc<CacheUse>,
    pub(super) pages: Arc<CacheUse>,
}

impl OpenFiles {
    /// Creates an empty cache for `max_files` files. Files that are in use may exceed the limit.
    pub(crate) fn new(max_files: usize) -> Self {
        Self {
            files: HashMap::new(),
            clock: VecDeque::new(),
            pages: 0,
            max_files,
            unsynced: HashMap::new(),
            unsynced_evictions: 0,
            uses: CacheUses::default(),
        }
    }

    /// Changes the maximum number of files.
    pub(crate) fn set_max_files(&mut self, max_files: usize) {
        self.max_files = max_files;
    }

    /// Returns the cached file with the key `key`, and marks this file as used.
    pub(crate) fn get(&self, key: &ChunkFileKey) -> Option<Rc<ChunkFile>> {
        let file = self.files.get(key)?;
        file.is_recent.set(true);
        Some(Rc::clone(file))
    }

    /// Adds a file that is not cached yet. Evicts another file if the cache is full.
    pub(crate) fn insert(&mut self, file: &Rc<ChunkFile>) {
        if self.files.len() >= self.max_files {
            self.evict(1, 0);
        }
        self.clock.push_back(file.key);
        self.files.insert(file.key, Rc::clone(file));
    }

    /// Drops a file from the cache because it was removed.
    pub(crate) fn remove(&mut self, key: &ChunkFileKey) {
        if let Some(file) = self.files.remove(key) {
            self.pages -= file.regions.take().len();
        }
        self.unsynced.remove(key);
        // The key stays in the clock until the hand passes the key. If the cache has a new file
        // with the same key at this moment, the key stays in the clock for the new file.
    }

    /// Evicts a file that no operation uses, to free its descriptor. Returns `false` if
    /// all files are in use.
    pub(crate) fn evict_one(&mut self) -> bool {
        let before = self.files.len();
        self.evict(1, 0);
        self.files.len() < before
    }

    /// Whether a file was evicted with changes that may not be on the device.
    pub(crate) fn was_evicted_unsynced(&self, key: &ChunkFileKey) -> bool {
        self.unsynced.contains_key(key)
    }

    /// Returns how many files were evicted with unsynced changes, and the number of the last such
    /// eviction.
    pub(crate) fn evicted_unsynced(&self) -> (usize, u64) {
        (self.unsynced.len(), self.unsynced_evictions)
    }

    /// Returns the cached files with unsynced changes, each with the number of its last change.
    pub(crate) fn cached_unsynced(&self) -> Vec<(Weak<ChunkFile>, u64)> {
        let unsynced = self.files.values().filter(|file| file.has_unsynced_changes());
        unsynced.map(|file| (Rc::downgrade(file), file.changes.get())).collect()
    }

    /// Records that the changes of all files evicted up to the eviction number `last` are on the
    /// device, or that the target has reported their loss.
    pub(crate) fn forget_evicted(&mut self, last: u64) {
        self.unsynced.retain(|_, number| *number > last);
    }

    /// Adds a region page to an open file. Evicts other pages if the cache has too many pages.
    pub(crate) fn add_region(&mut self, file: &ChunkFile, index: u64, region: &Rc<Region>) {
        let old = file.regions.borrow_mut().insert(index, Rc::clone(region));
        // The count does not include the pages of a file that was removed from the cache.
        let is_cached = self.files.get(&file.key).is_some_and(|it| std::ptr::eq(&**it, file));
        if !is_cached || old.is_some() {
            return;
        }
        self.pages += 1;
        if self.pages > MAX_CACHED_PAGES {
            self.evict(0, MAX_CACHED_PAGES / 8);
            if self.pages > MAX_CACHED_PAGES {
                self.drop_regions(file);
            }
        }
    }

    /// Drops the region pages of a file from index `from` on, because the file was truncated.
    pub(crate) fn truncate_regions(&mut self, file: &ChunkFile, from: u64) {
        let is_cached = self.files.get(&file.key).is_some_and(|it| std::ptr::eq(&**it, file));
        let mut regions = file.regions.borrow_mut();
        let before = regions.len();
        regions.retain(|index, _| *index < from);
        if is_cached {
            self.pages -= before - regions.len();
        }
    }

    /// Drops the unused pages of one file, because this file alone has more pages than the limit.
    fn drop_regions(&mut self, file: &ChunkFile) {
        let mut regions = file.regions.borrow_mut();
        let before = regions.len();
        regions.retain(|_, region| Rc::strong_count(region) > 1);
        self.pages -= before - regions.len();
    }

    /// Moves the hand until it has evicted `files` files and `pages` pages, or has passed all files
    /// three times. A file whose next sync must report an error stays in the cache. Only the third
    /// pass evicts files with unsynced changes. The third pass evicts many of these files, so that
    /// the next evictions need not make another pass over all files.
    fn evict(&mut self, mut files: usize, mut pages: usize) {
        let length = self.clock.len();
        for step in 0..3 * length {
            if step == 2 * length && files > 0 {
                files = files.max(length / UNSYNCED_SHARE);
            }
            if files == 0 && pages == 0 {
                return;
            }
            // The loop drops the keys of removed files from the clock, so the clock may become
            // empty.
            let Some(key) = self.clock.pop_front() else { return };
            let Some(file) = self.files.get(&key) else { continue };
            let is_unsynced = file.has_unsynced_changes();
            let is_used = file.is_recent.replace(false)
                || Rc::strong_count(file) > 1
                || file.writes.failed_write_back.borrow().is_some();
            if is_used || (is_unsynced && step < 2 * length) {
                self.clock.push_back(key);
                continue;
            }
            if is_unsynced {
                self.unsynced_evictions += 1;
                self.unsynced.insert(key, self.unsynced_evictions);
            }
            let dropped = file.regions.borrow().len();
            self.pages -= dropped;
            self.files.remove(&key);
            // The subtraction saturates, because a file may have more pages than the number of
            // pages that must still be evicted.
            files = files.saturating_sub(1);
            pages = pages.saturating_sub(dropped);
        }
    }
}

impl OpenFiles {
    /// Checks the invariants of this module, and that each file is stored under its own key.
    ///
    /// # Panics
    /// Panics if a checked value is wrong.
    pub(crate) fn check_invariants(&self) {
        let pages: usize = self.files.values().map(|file| file.regions.borrow().len()).sum();
        assert_eq!(self.pages, pages, "the count of cached pages");
        let clock: HashSet<_> = self.clock.iter().collect();
        assert!(self.files.keys().all(|key| clock.contains(key)), "the clock contains each file");
        assert!(
            self.files.iter().all(|(key, file)| *key == file.key),
            "files are under their keys"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::InodeId;

    fn file(dir: &std::path::Path, number: u64) -> Rc<ChunkFile> {
        let inode = InodeId::new(number);
        let key = ChunkFileKey { inode, generation: 0, component: 0, index: 0 };
        let path = dir.join(key.to_string());
        ChunkFile::new(key, path.clone(), std::fs::File::create(path).unwrap()).unwrap()
    }

    #[test]
    fn eviction_skips_files_in_use_and_recently_used_files() {
        let dir = tempfile::tempdir().unwrap();
        let mut cache = OpenFiles::new(3);
        let held = file(dir.path(), 1);
        cache.insert(&held);
        for number in 2..=3 {
            cache.insert(&file(dir.path(), number));
        }
        let keys: Vec<_> = cache.clock.iter().copied().collect();
        // All three files are marked as used, so the hand of the clock skips each file once, and
        // then evicts the first file that no operation uses.
        cache.insert(&file(dir.path(), 4));
        assert!(cache.get(&keys[0]).is_some() && cache.get(&keys[1]).is_none());
        assert!(cache.get(&keys[2]).is_some());
        cache.check_invariants();
    }

    #[test]
    fn file_with_an_unreported_write_back_error_is_not_evicted() {
        let dir = tempfile::tempdir().unwrap();
        let mut cache = OpenFiles::new(3);
        let failed = file(dir.path(), 1);
        let error = std::io::Error::from(std::io::ErrorKind::StorageFull);
        failed.writes.failed_write_back.replace(Some(error));
        cache.insert(&failed);
        drop(failed);
        assert!(!cache.evict_one());
    }

    #[test]
    fn file_evicted_before_its_sync_is_still_synced() {
        let dir = tempfile::tempdir().unwrap();
        let mut cache = OpenFiles::new(3);
        for number in 1..=3 {
            let file = file(dir.path(), number);
            if number != 3 {
                file.note_change();
            }
            cache.insert(&file);
        }
        let key = |number| ChunkFileKey {
            inode: InodeId::new(number),
            generation: 0,
            component: 0,
            index: 0,
        };
        assert!(cache.evict_one());
        assert!(cache.get(&key(3)).is_none(), "only this file has no unsynced changes");
        assert_eq!(cache.evicted_unsynced().0, 0);
        assert!(cache.evict_one());
        assert_eq!(cache.evicted_unsynced().0, 1);
        cache.check_invariants();
    }

    #[test]
    fn file_evicted_again_during_a_full_sync_is_still_synced() {
        let dir = tempfile::tempdir().unwrap();
        let mut cache = OpenFiles::new(3);
        let mut evict_changed = || {
            let changed = file(dir.path(), 1);
            changed.note_change();
            cache.insert(&changed);
            drop(changed);
            assert!(cache.evict_one());
            cache.evicted_unsynced()
        };
        let synced = evict_changed();
        let again = evict_changed();
        cache.forget_evicted(synced.1);
        assert_eq!(cache.evicted_unsynced(), again, "the sync began before the second eviction");
        cache.forget_evicted(again.1);
        assert_eq!(cache.evicted_unsynced().0, 0);
    }

    #[test]
    fn pages_of_one_long_file_stay_within_the_cache_limit() {
        let dir = tempfile::tempdir().unwrap();
        let mut cache = OpenFiles::new(3);
        let long = file(dir.path(), 1);
        cache.insert(&long);
        let used = Rc::new(Region::blank());
        cache.add_region(&long, 0, &used);
        for index in 1..=MAX_CACHED_PAGES as u64 {
            cache.add_region(&long, index, &Rc::new(Region::blank()));
        }
        assert!(cache.pages < MAX_CACHED_PAGES);
        cache.check_invariants();
        assert!(long.regions.borrow().contains_key(&0), "a page in use stays in the cache");
        cache.truncate_regions(&long, 0);
        assert_eq!(cache.pages, 0);
    }
}
