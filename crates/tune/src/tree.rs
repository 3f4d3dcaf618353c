//! Files below a root directory: reading, writing, and patterns with `*`.

use skep_types::{Error, Result};
use std::path::{Path, PathBuf};

/// A root directory. All paths are absolute within it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    root: PathBuf,
}

impl Tree {
    /// Returns the tree of a root directory.
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Returns the real path of a file in the tree.
    pub fn real(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Reads a file. `None` means that it does not exist or cannot be read. Some kernels refuse to
    /// show settings that a machine lacks.
    pub(crate) fn read(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.real(path)).ok()
    }

    /// Reads a file that may be missing. A missing file gives `None`, and not an error.
    pub(crate) fn read_if_exists(&self, path: &str) -> Result<Option<String>> {
        match std::fs::read_to_string(self.real(path)) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::from(error).within(format!("cannot read {path}"))),
        }
    }

    /// Writes to an existing file of the kernel, in one write, as the kernel expects.
    pub(crate) fn set(&self, path: &str, text: &str) -> Result<()> {
        use std::io::Write;
        let mut options = std::fs::OpenOptions::new();
        let opened = options.write(true).truncate(true).open(self.real(path));
        opened.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| {
            Error::from(error).within(format!("cannot write '{}' to {path}", text.trim()))
        })
    }

    /// Creates or replaces a file durably, with its directories.
    pub(crate) fn replace(&self, path: &str, text: &str) -> Result<()> {
        let real = self.real(path);
        if let Some(parent) = real.parent() {
            std::fs::create_dir_all(parent).map_err(|error| {
                Error::from(error).within(format!("cannot create {}", parent.display()))
            })?;
        }
        skep_store::atomic::replace_atomically(&real, text.as_bytes())
    }

    /// Removes a file durably. A missing file is not an error.
    pub(crate) fn remove(&self, path: &str) -> Result<()> {
        let real = self.real(path);
        match std::fs::remove_file(&real) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(Error::from(error).within(format!("cannot remove {path}"))),
            Ok(()) => {
                let parent = real.parent().unwrap_or(Path::new("/"));
                Ok(std::fs::File::open(parent).and_then(|directory| directory.sync_all())?)
            }
        }
    }

    /// Returns the names in a directory, in order. The list is empty if the directory does not
    /// exist.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.real(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Returns the existing files that a pattern matches. A pattern may have one `*` in each
    /// component.
    pub(crate) fn matches(&self, pattern: &str) -> Vec<String> {
        let mut found = vec![String::new()];
        for component in pattern.split('/').filter(|it| !it.is_empty()) {
            let extend = |path: &String| -> Vec<String> {
                let Some((start, end)) = component.split_once('*') else {
                    return vec![format!("{path}/{component}")];
                };
                let is_match = |name: &String| {
                    let is_long = name.len() >= start.len() + end.len();
                    is_long && name.starts_with(start) && name.ends_with(end)
                };
                let names = self.names(path).into_iter().filter(is_match);
                names.map(|name| format!("{path}/{name}")).collect()
            };
            found = found.iter().flat_map(extend).collect();
        }
        found.retain(|path| self.real(path).is_file());
        found
    }
}
