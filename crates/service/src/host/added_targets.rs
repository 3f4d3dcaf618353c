//! The list of the targets that an administrator has added to a node while the node was running.
//!
//! This module owns the file `added-targets` in the node's directory, with one path per line. The
//! node serves these targets in addition to the targets in its settings. The module
//! `target_requests` handles the requests that change the list.

use skep_store::atomic::replace_atomically;
use skep_types::{Error, ErrorCode, Result};
use std::path::{Path, PathBuf};

/// Name of the file with the added targets, in the node's directory.
pub(crate) const FILE: &str = "added-targets";

/// Returns the directories in the text of the file.
pub(crate) fn parse(text: &str) -> impl Iterator<Item = PathBuf> {
    text.lines().map(PathBuf::from)
}

/// The targets that an administrator added to a node while the node was running.
#[derive(Debug)]
pub(super) struct AddedTargets {
    file: PathBuf,
    paths: Vec<PathBuf>,
}

impl AddedTargets {
    /// Reads the file in the directory of a node. Omits the targets that the node's settings
    /// contain.
    pub(super) fn load(node: &Path, settings: &[PathBuf]) -> Result<Self> {
        let file = node.join(FILE);
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => {
                let what = format!("cannot read {}: {error}", file.display());
                return Err(Error::new(ErrorCode::Configuration, what));
            }
        };
        let paths = parse(&text).filter(|path| !settings.contains(path));
        Ok(Self { file, paths: paths.collect() })
    }

    /// Returns the directories of the added targets.
    pub(super) fn paths(&self) -> Vec<PathBuf> {
        self.paths.clone()
    }

    pub(super) fn contains(&self, path: &Path) -> bool {
        self.paths.iter().any(|added| added == path)
    }

    pub(super) fn add(&mut self, path: &Path) -> Result<()> {
        if self.contains(path) {
            return Ok(());
        }
        let mut paths = self.paths.clone();
        paths.push(path.to_owned());
        self.store(paths)
    }

    pub(super) fn remove(&mut self, path: &Path) -> Result<()> {
        let mut paths = self.paths.clone();
        paths.retain(|added| added != path);
        self.store(paths)
    }

    /// Replaces the list in the file, and then in memory. After an error, both the file and the
    /// memory still have the old list.
    fn store(&mut self, paths: Vec<PathBuf>) -> Result<()> {
        let lines: String = paths.iter().map(|it| format!("{}\n", it.display())).collect();
        replace_atomically(&self.file, lines.as_bytes())?;
        self.paths = paths;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_of_added_targets_omits_targets_in_the_settings() {
        let node = tempfile::tempdir().unwrap();
        let load = |settings: &[PathBuf]| AddedTargets::load(node.path(), settings).unwrap();
        let [first, second] = ["/disk 1/a", "/disk2/b"].map(PathBuf::from);
        let mut added = load(&[]);
        assert_eq!(added.paths(), Vec::<PathBuf>::new());
        added.add(&first).unwrap();
        added.add(&second).unwrap();
        added.add(&first).unwrap();
        assert_eq!(load(&[]).paths(), [first.clone(), second.clone()]);
        assert_eq!(load(std::slice::from_ref(&first)).paths(), std::slice::from_ref(&second));
        added.remove(&first).unwrap();
        assert_eq!(load(&[]).paths(), [second]);
    }

    #[test]
    fn failed_addition_to_the_target_list_can_be_retried() {
        let node = tempfile::tempdir().unwrap();
        let missing = node.path().join("missing");
        let mut added = AddedTargets::load(&missing, &[]).unwrap();
        added.add(Path::new("/disk1")).unwrap_err();
        assert!(!added.contains(Path::new("/disk1")));
        std::fs::create_dir(&missing).unwrap();
        added.add(Path::new("/disk1")).unwrap();
        let again = AddedTargets::load(&missing, &[]).unwrap();
        assert_eq!(again.paths(), [PathBuf::from("/disk1")]);
    }
}
