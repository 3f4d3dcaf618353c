//! Counts and lengths of the entries that a purge removes: in all, by user and by directory.
//!
//! All lists are limited, so that a purge of any number of files needs little memory. This module
//! does no I/O.

use super::entry::EntryAttributes;
use crate::failure::{shown, shown_shortened};
use serde::Serialize;
use skep_types::{Timestamp, utc};
use std::collections::{BinaryHeap, HashMap};
use std::ffi::{OsStr, OsString};
use std::hash::Hash;
use std::path::{Path, PathBuf};

/// Maximum number of users and of directories that are counted separately.
const MOST_GROUPS: usize = 100_000;
/// Maximum number of users and of directories in the outcome.
const MOST_LISTED: usize = 1000;
/// Number of the oldest entries that the outcome lists.
const MOST_OLDEST: usize = 10;

/// Files of one user that are removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UserTotal {
    /// The user id. `None` means all users that are not listed separately.
    pub uid: Option<u32>,
    /// The name of the user. The caller of [`super::purge`] sets it.
    pub user: Option<String>,
    /// Number of files of the user that are removed.
    pub files: u64,
    /// Length of the files that `files` counts, in bytes.
    pub bytes: u64,
}

/// Files below one entry of the directory that is purged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DirectoryTotal {
    /// Name of the directory, escaped like all paths in the outcome. `.` stands for the top itself,
    /// with the files that are directly in it. `None` means all directories that are not listed
    /// separately.
    pub directory: Option<String>,
    /// Number of files.
    pub files: u64,
    /// Length of the files that `files` counts, in bytes.
    pub bytes: u64,
}

/// One of the oldest entries that are removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OldEntry {
    /// Path below the directory that is purged, escaped.
    pub path: String,
    /// The time from which its age counts, such as `2026-11-21T18:50:20Z`.
    pub unused_since: String,
    /// Length in bytes.
    pub bytes: u64,
}

/// Counts of the entries that stay for a reason other than their age.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// Old files and directories that an exclusion names. Entries below these directories are not
    /// counted.
    pub excluded: u64,
    /// Files that a program has open for writing.
    pub in_use: u64,
    /// Entries that a program has changed or removed during the purge.
    pub changed: u64,
    /// Entries on which another file system is mounted.
    pub mount_points: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Tally {
    files: u64,
    bytes: u64,
}

impl Tally {
    /// Adds the files and bytes of another tally. The sum of the bytes stays at `u64::MAX` if it
    /// would be larger: users can create sparse files of almost 2^63 bytes, and the sum of three of
    /// them exceeds the range of `u64`.
    fn add(&mut self, other: Self) {
        self.files += other.files;
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// The counts of a pass. Threads count in their own instances, and add them to a common one.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) scanned: u64,
    pub(crate) directories: u64,
    pub(crate) skipped: Skipped,
    all: Tally,
    /// The tallies of users. The key `None` stands for all users that have no key of their own
    /// because there are too many users. In `tops`, the key `None` stands for all directories
    /// without a key of their own.
    users: HashMap<Option<u32>, Tally>,
    tops: HashMap<Option<OsString>, Tally>,
    /// The oldest entries so far. The first element of the heap is the youngest of these entries.
    oldest: BinaryHeap<(Timestamp, PathBuf, u64)>,
}

impl Totals {
    /// Counts a file that is removed. `path` is its path below the directory that is purged, and
    /// `since` the time from which its age counts.
    ///
    /// A file with several names counts once for each removed name. Each time, its bytes are
    /// divided by the number of its names.
    pub(crate) fn add(&mut self, path: &Path, entry: &EntryAttributes, since: Timestamp) {
        let bytes = entry.bytes / u64::from(entry.links.max(1));
        let tally = Tally { files: 1, bytes };
        self.all.add(tally);
        count(&mut self.users, Some(entry.uid), tally);
        count(&mut self.tops, Some(top_of(path).to_owned()), tally);
        self.note_age(since, || path.to_owned(), entry.bytes);
    }

    fn note_age(&mut self, since: Timestamp, path: impl FnOnce() -> PathBuf, bytes: u64) {
        if self.oldest.len() >= MOST_OLDEST {
            if self.oldest.peek().is_some_and(|(youngest, ..)| *youngest <= since) {
                return;
            }
            self.oldest.pop();
        }
        self.oldest.push((since, path(), bytes));
    }

    /// Adds the counts of another instance.
    pub(crate) fn merge(&mut self, other: Self) {
        self.scanned += other.scanned;
        self.directories += other.directories;
        self.skipped.excluded += other.skipped.excluded;
        self.skipped.in_use += other.skipped.in_use;
        self.skipped.changed += other.skipped.changed;
        self.skipped.mount_points += other.skipped.mount_points;
        self.all.add(other.all);
        for (user, tally) in other.users {
            count(&mut self.users, user, tally);
        }
        for (top, tally) in other.tops {
            count(&mut self.tops, top, tally);
        }
        for (since, path, bytes) in other.oldest {
            self.note_age(since, || path, bytes);
        }
    }

    /// Returns the number of files that are removed.
    pub(crate) fn files(&self) -> u64 {
        self.all.files
    }

    /// Returns the length in bytes of the files that are removed.
    pub(crate) fn bytes(&self) -> u64 {
        self.all.bytes
    }

    /// Returns the counts of users, the most bytes first.
    pub(crate) fn by_user(&self) -> Vec<UserTotal> {
        let total = |(uid, tally): (Option<u32>, Tally)| UserTotal {
            uid,
            user: None,
            files: tally.files,
            bytes: tally.bytes,
        };
        largest(&self.users).into_iter().map(total).collect()
    }

    /// Returns the counts of directories, the most bytes first.
    pub(crate) fn by_directory(&self) -> Vec<DirectoryTotal> {
        let total = |(name, tally): (Option<OsString>, Tally)| DirectoryTotal {
            directory: name.map(|name| shown(Path::new(&name))),
            files: tally.files,
            bytes: tally.bytes,
        };
        largest(&self.tops).into_iter().map(total).collect()
    }

    /// Returns the oldest entries, the oldest first.
    pub(crate) fn oldest(&self) -> Vec<OldEntry> {
        let mut oldest: Vec<_> = self.oldest.iter().collect();
        oldest.sort();
        let entry = |(since, path, bytes): &(Timestamp, PathBuf, u64)| OldEntry {
            path: shown_shortened(path),
            unused_since: utc(*since),
            bytes: *bytes,
        };
        oldest.into_iter().map(entry).collect()
    }
}

/// Returns the name of the entry of the top directory that contains the file `path`. `.` is the
/// result for a file in the top directory itself.
fn top_of(path: &Path) -> &OsStr {
    let mut names = path.iter();
    match (names.next(), names.next()) {
        (Some(top), Some(_)) => top,
        _ => OsStr::new("."),
    }
}

/// Adds `tally` to the tally of `key`. If there are too many keys, adds it to the tally of the key
/// `None`.
fn count<K: Eq + Hash>(tallies: &mut HashMap<Option<K>, Tally>, key: Option<K>, tally: Tally) {
    let is_full = tallies.len() >= MOST_GROUPS && !tallies.contains_key(&key);
    tallies.entry(if is_full { None } else { key }).or_default().add(tally);
}

/// Returns the keys with the most bytes and their tallies. The last element has the key `None` and
/// the sum of all tallies that are not listed.
fn largest<K: Clone + Ord>(tallies: &HashMap<Option<K>, Tally>) -> Vec<(Option<K>, Tally)> {
    let mut named: Vec<_> = tallies.iter().filter(|(key, _)| key.is_some()).collect();
    let rank = |(key, tally): &(&Option<K>, &Tally)| {
        (std::cmp::Reverse((tally.bytes, tally.files)), (*key).clone())
    };
    named.sort_by_cached_key(rank);
    let mut rest = Tally::default();
    let unlisted = named.iter().skip(MOST_LISTED).map(|(_, tally)| **tally);
    let unnamed = tallies.iter().filter(|(key, _)| key.is_none()).map(|(_, tally)| *tally);
    unlisted.chain(unnamed).for_each(|tally| rest.add(tally));
    let listed = named.into_iter().take(MOST_LISTED).map(|(key, tally)| (key.clone(), *tally));
    listed.chain((rest.files > 0).then_some((None, rest))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp { seconds, nanoseconds: 0 }
    }

    fn entry(uid: u32, links: u32) -> EntryAttributes {
        EntryAttributes { uid, links, ..EntryAttributes::of_empty_file() }
    }

    fn add(totals: &mut Totals, path: &str, uid: u32, bytes: u64, links: u32) {
        let entry = EntryAttributes { bytes, ..entry(uid, links) };
        totals.add(Path::new(path), &entry, at(bytes as i64));
    }

    #[test]
    fn purged_files_are_summed_by_user_and_by_top_directory() {
        let mut totals = Totals::default();
        add(&mut totals, "a/b/c", 7, 30, 1);
        add(&mut totals, "a/d", 8, 100, 2);
        let mut other = Totals::default();
        add(&mut other, "e", 7, 5, 1);
        totals.merge(other);
        assert_eq!((totals.files(), totals.bytes()), (3, 85));
        let users: Vec<_> =
            totals.by_user().iter().map(|it| (it.uid, it.files, it.bytes)).collect();
        assert_eq!(users, [(Some(8), 1, 50), (Some(7), 2, 35)]);
        let tops = totals.by_directory();
        let tops: Vec<_> =
            tops.iter().map(|it| (it.directory.as_deref(), it.files, it.bytes)).collect();
        assert_eq!(tops, [(Some("a"), 2, 80), (Some("."), 1, 5)]);
    }

    #[test]
    fn sum_of_huge_sparse_files_does_not_overflow() {
        let mut totals = Totals::default();
        for name in ["a", "b", "c"] {
            let entry = EntryAttributes { bytes: i64::MAX as u64, ..entry(7, 1) };
            totals.add(Path::new(name), &entry, at(0));
        }
        assert_eq!((totals.files(), totals.bytes()), (3, u64::MAX));
    }

    #[test]
    fn list_of_users_is_bounded_and_ends_with_sum_of_other_users() {
        let mut totals = Totals::default();
        for number in 0..1200 {
            add(&mut totals, &format!("directory-{number}/file"), number, 1 + u64::from(number), 1);
        }
        let users = totals.by_user();
        assert_eq!(users.len(), MOST_LISTED + 1);
        assert_eq!((users[0].uid, users[MOST_LISTED].uid), (Some(1199), None));
        assert_eq!(users.iter().map(|it| it.bytes).sum::<u64>(), totals.bytes());
        let oldest = totals.oldest();
        assert_eq!((oldest.len(), oldest[0].bytes, oldest[9].bytes), (MOST_OLDEST, 1, 10));
    }
}
