//! The record of the files with several names (hard links) that have lost a name in this run.
//!
//! The removal of a name sets the change time of the file. Without this record, the purge would
//! take its own removal for a recent use of the file, and the other names would stay.

use super::entry::EntryAttributes;
use skep_types::Timestamp;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

/// Number of maps into which the record is divided by inode number. Each map has its own lock.
const PARTS: usize = 64;
/// Maximum number of files in one map. All maps together need at most 100 MiB of memory. If a map
/// is full, the remaining names of a further file stay until a later run.
const MOST_FILES: usize = 16_384;

/// A file before this run has removed its first name.
#[derive(Debug, Clone, Copy)]
struct Original {
    links: u32,
    changed: Timestamp,
    /// The change time that the last removal by this run has set.
    removal: Timestamp,
}

/// The record of all files that have lost a name by this run, by inode number.
#[derive(Debug)]
pub(crate) struct RemovedNames {
    /// The maps of the record. A thread holds the lock of a map while it removes a name of a file
    /// in the map. So no thread checks a file between the removal of a name and the record of this
    /// removal.
    parts: Vec<Mutex<HashMap<u64, Original>>>,
    /// Whether a name of any file may have been removed. Most trees have no file with several
    /// names, and then no thread needs a lock.
    has_any: AtomicBool,
}

/// One map of the record, locked.
pub(crate) struct LockedNames<'a> {
    files: MutexGuard<'a, HashMap<u64, Original>>,
}

impl RemovedNames {
    pub(crate) fn new() -> Self {
        let parts = std::iter::repeat_with(Mutex::default).take(PARTS).collect();
        Self { parts, has_any: AtomicBool::new(false) }
    }

    /// Locks the record of a file, before a name of this file is removed.
    pub(crate) fn lock(&self, inode: u64) -> LockedNames<'_> {
        let part = &self.parts[inode as usize % PARTS];
        let files = part.lock().expect("no thread panics while it has the lock");
        self.has_any.store(true, Ordering::SeqCst);
        LockedNames { files }
    }

    /// Locks the record of a file if this run has removed a name of this file. `None` means that
    /// this run has removed no name of the file.
    pub(crate) fn known(&self, inode: u64) -> Option<LockedNames<'_>> {
        if !self.has_any.load(Ordering::SeqCst) {
            return None;
        }
        let names = self.lock(inode);
        names.files.contains_key(&inode).then_some(names)
    }
}

impl LockedNames<'_> {
    /// Returns the attributes of a file as they were before this run has removed its first name.
    /// If another program has changed the file since, returns its present attributes. `present`
    /// must have been read while this value has the lock.
    pub(crate) fn original(&self, present: EntryAttributes) -> EntryAttributes {
        match self.files.get(&present.inode) {
            Some(Original { links, changed, removal }) if present.changed == *removal => {
                EntryAttributes { links: *links, changed: *changed, ..present }
            }
            _ => present,
        }
    }

    /// Records the removal of a name. `original` has the attributes of the file before this run
    /// removed its first name. `present` has the attributes after this removal. `None` means that
    /// the file does not exist any more.
    pub(crate) fn removed(&mut self, original: &EntryAttributes, present: Option<EntryAttributes>) {
        let EntryAttributes { inode, links, changed, .. } = *original;
        match present.filter(|it| it.links > 0) {
            Some(present) if self.files.len() < MOST_FILES || self.files.contains_key(&inode) => {
                self.files.insert(inode, Original { links, changed, removal: present.changed });
            }
            Some(_) => {}
            None => {
                self.files.remove(&inode);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(links: u32, changed: i64) -> EntryAttributes {
        let time = |seconds| Timestamp { seconds, nanoseconds: 0 };
        EntryAttributes {
            inode: 70,
            links,
            bytes: 12,
            modified: time(5),
            changed: time(changed),
            ..EntryAttributes::of_empty_file()
        }
    }

    #[test]
    fn file_age_ignores_removals_of_names_by_the_purge_itself() {
        let names = RemovedNames::new();
        assert!(names.known(70).is_none());
        names.lock(70).removed(&file(3, 10), Some(file(2, 1000)));
        let known = names.known(70).unwrap();
        assert_eq!(known.original(file(2, 1000)), file(3, 10));
        // Another program has changed the file since.
        assert_eq!(known.original(file(2, 1001)), file(2, 1001));
        drop(known);
        // Inode 6 belongs to the same map of the record.
        assert!(names.known(6).is_none());
        names.lock(70).removed(&file(3, 10), None);
        assert!(names.known(70).is_none());
    }
}
