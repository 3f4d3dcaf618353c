//! The log of removed entries, and the list of entries that a dry run would remove.

use super::entry::EntryAttributes;
use crate::failure::shown_shortened;
use rustix::fs::FileType;
use serde::Serialize;
use skep_types::{Error, Result, Timestamp, utc};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Mutex;

/// A destination for lines of text. The lock is held for one write.
type Lines = Option<Mutex<Box<dyn Write + Send>>>;

/// Receivers of a line for each removed entry.
#[derive(Default)]
pub struct Records {
    /// Gets a line of text for each entry after its removal.
    log: Lines,
    /// Gets a line with a JSON value for each removed entry, or in a dry run, for each entry that
    /// would be removed.
    list: Lines,
}

/// An entry, as an element of the list.
#[derive(Debug, Serialize)]
struct Record<'a> {
    /// The whole path, escaped, and without its middle if it is very long.
    path: &'a str,
    kind: &'static str,
    bytes: u64,
    uid: u32,
    modified: String,
    changed: String,
}

impl Records {
    /// Creates records for the given receivers.
    pub fn new(log: Option<Box<dyn Write + Send>>, list: Option<Box<dyn Write + Send>>) -> Self {
        Self { log: log.map(Mutex::new), list: list.map(Mutex::new) }
    }

    /// Writes the line of an entry to the list.
    pub(crate) fn list(&self, path: &Path, entry: &EntryAttributes) -> Result<()> {
        if self.list.is_none() {
            return Ok(());
        }
        let record = Record {
            path: &shown_shortened(path),
            kind: match entry.kind {
                FileType::RegularFile => "file",
                FileType::Directory => "directory",
                FileType::Symlink => "link",
                _ => "special",
            },
            bytes: entry.bytes,
            uid: entry.uid,
            modified: utc(entry.modified),
            changed: utc(entry.changed),
        };
        let line = serde_json::to_string(&record).expect("texts and numbers can be written");
        write(&self.list, &line).map_err(|error| Error::from(error).within("cannot write the list"))
    }

    /// Writes the line of an entry that was removed at the time `now` to the log.
    pub(crate) fn log(&self, path: &Path, entry: &EntryAttributes, now: Timestamp) -> Result<()> {
        if self.log.is_none() {
            return Ok(());
        }
        let line = log_line(path, entry, now);
        write(&self.log, &line).map_err(|error| Error::from(error).within("cannot write the log"))
    }

    /// Writes all lines that are still in memory.
    pub(crate) fn flush(&self) -> Result<()> {
        for lines in [&self.log, &self.list].into_iter().flatten() {
            lines.lock().expect("no thread panics while it has the lock").flush()?;
        }
        Ok(())
    }
}

fn write(lines: &Lines, line: &str) -> io::Result<()> {
    let Some(lines) = lines else { return Ok(()) };
    // One call for the whole line, so that lines of two processes that append to one log do not
    // mix.
    let line = format!("{line}\n");
    lines.lock().expect("no thread panics while it has the lock").write_all(line.as_bytes())
}

/// Formats the line of a removed entry. The path is the last field, because it may have spaces. The
/// path has no line breaks, because it is escaped.
fn log_line(path: &Path, entry: &EntryAttributes, now: Timestamp) -> String {
    format!(
        "{} size={} uid={} mtime={} path={}",
        utc(now),
        entry.bytes,
        entry.uid,
        utc(entry.modified),
        shown_shortened(path)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_has_one_line_per_entry_even_for_a_hostile_name() {
        let entry = EntryAttributes { uid: 1000, bytes: 42, ..EntryAttributes::of_empty_file() };
        let now = Timestamp { seconds: 1_700_000_000, nanoseconds: 5 };
        let path = Path::new("/mnt/skep/a b\n2026-01-01T00:00:00Z size=0");
        assert_eq!(
            log_line(path, &entry, now),
            "2023-11-14T22:13:20Z size=42 uid=1000 mtime=1970-01-01T00:00:00Z \
             path=/mnt/skep/a b\\n2026-01-01T00:00:00Z size=0"
        );
    }
}
