//! The options that limit a purge to some entries. This module does no I/O.

use super::entry::EntryAttributes;
use super::glob::Glob;
use rustix::fs::FileType;
use std::path::Path;

/// Selects entries by name, owner and size.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Entries that match one of these patterns stay. If a directory matches, all entries below it
    /// stay too.
    pub exclude: Vec<Glob>,
    /// Only entries of these users are removed. Empty means all users.
    pub users: Vec<u32>,
    /// Entries of these users stay.
    pub excluded_users: Vec<u32>,
    /// Only regular files that are longer than this number of bytes are removed. `None` means all
    /// entries.
    pub larger_than: Option<u64>,
}

impl Selection {
    /// Whether a pattern names the entry. `path` is its path below the directory that is purged.
    pub(crate) fn excludes(&self, path: &Path) -> bool {
        self.exclude.iter().any(|pattern| pattern.matches(path))
    }

    /// Whether the entries of a user are selected.
    pub(crate) fn includes_owner(&self, uid: u32) -> bool {
        (self.users.is_empty() || self.users.contains(&uid)) && !self.excluded_users.contains(&uid)
    }

    /// Whether the options for owner and size select an entry.
    pub(crate) fn includes(&self, entry: &EntryAttributes) -> bool {
        let has_size = self
            .larger_than
            .is_none_or(|limit| entry.kind == FileType::RegularFile && entry.bytes > limit);
        has_size && self.includes_owner(entry.uid)
    }
}
