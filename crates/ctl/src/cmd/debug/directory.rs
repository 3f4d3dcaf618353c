//! Lists the files of a directory that belong in a bundle.

use std::path::{Path, PathBuf};

/// Maximum number of files of one directory in a bundle.
const MAX_FILES: usize = 500;

/// Returns the files of a directory that have one of these extensions, in the order of their names.
pub(super) fn files_in(directory: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let is_meant = |path: &PathBuf| {
        let extension = path.extension().unwrap_or_default().to_string_lossy();
        extensions.contains(&&*extension)
    };
    let mut files: Vec<_> = entries.map(|entry| entry.path()).filter(is_meant).collect();
    files.sort();
    files.truncate(MAX_FILES);
    files
}
