//! The file of `skep health check --watch --history FILE`. The file contains the newest starts and
//! ends of problems, one JSON value in each line.
//!
//! This module writes the file, and limits its length. The module [`super::watch`] finds the
//! changes.

use serde::Serialize;
use skep_store::atomic::replace_atomically;
use skep_types::{Error, ErrorCode, Result};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};

/// Maximum number of starts and ends of problems in the file. If there are more, the oldest lines
/// are removed. A cluster with ten outages a day reaches this number after seven weeks. The file is
/// then about 300 KiB long.
const MAX_CHANGES: usize = 1000;

/// The history of outages, which is stored in a file.
#[derive(Debug)]
pub(super) struct OutageHistory {
    file: PathBuf,
    /// The lines of the file, oldest first.
    lines: VecDeque<String>,
}

impl OutageHistory {
    /// Reads the history from `file`. If the file does not exist, the history is empty.
    ///
    /// # Errors
    /// - `Configuration` if a line of the file is not the start or the end of a problem.
    /// - Errors of the file system, with the path.
    pub(super) fn open(file: &Path) -> Result<Self> {
        let text = match std::fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => {
                return Err(Error::from(error)
                    .within(format_args!("cannot read the history {}", file.display())));
            }
        };
        for (index, line) in text.lines().enumerate() {
            let value = serde_json::from_str::<serde_json::Value>(line);
            if !value.is_ok_and(|value| value.get("change").is_some()) {
                let what = format!(
                    "cannot keep the history in {}: line {} is not a record of problems; name \
                     another file with --history",
                    file.display(),
                    index + 1
                );
                return Err(Error::new(ErrorCode::Configuration, what));
            }
        }
        let lines = text.lines().map(str::to_owned).collect();
        Ok(Self { file: file.to_owned(), lines })
    }

    /// Adds starts and ends of problems to the history, and replaces the file. Does not write the
    /// file if `changes` is empty.
    ///
    /// # Errors
    /// Errors of the file system, with the path.
    pub(super) fn add<T: Serialize>(&mut self, changes: &[T]) -> Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        for change in changes {
            let line = serde_json::to_string(change);
            let line = line.map_err(|error| Error::new(ErrorCode::Io, error.to_string()))?;
            self.lines.push_back(line);
        }
        self.lines.drain(..self.lines.len().saturating_sub(MAX_CHANGES));
        let text: String = self.lines.iter().map(|line| format!("{line}\n")).collect();
        replace_atomically(&self.file, text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_survives_a_restart_and_keeps_the_newest_changes() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("outages");
        let change = |number: usize| serde_json::json!({ "change": "begins", "what": number });
        let mut history = OutageHistory::open(&file).unwrap();
        history.add::<serde_json::Value>(&[]).unwrap();
        assert!(!file.exists());
        history.add(&(0..900).map(change).collect::<Vec<_>>()).unwrap();
        let mut history = OutageHistory::open(&file).unwrap();
        history.add(&(900..1200).map(change).collect::<Vec<_>>()).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!(text.lines().count(), MAX_CHANGES);
        assert_eq!(text.lines().next(), Some(change(200).to_string()).as_deref());
    }

    #[test]
    fn file_other_than_a_history_is_not_replaced() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("token");
        std::fs::write(&file, "something else\n").unwrap();
        let refused = OutageHistory::open(&file).unwrap_err();
        assert!(refused.context().contains("line 1 is not a record of problems"), "{refused}");
    }
}
