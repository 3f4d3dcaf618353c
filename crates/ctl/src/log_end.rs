//! Reads the end of a log file: the lines that a process has logged after a given moment. The log
//! may be long, so the length of the result has a limit.

use crate::in_time::{LOOKUP_PATIENCE, within};
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Maximum number of bytes that [`end_of`] returns.
const MAX_END_BYTES: u64 = 1 << 20;

/// Returns the bytes of the log at `path` from the offset `from` on, at most the last
/// [`MAX_END_BYTES`] bytes. If the file is shorter than `from`, the file is a new log, and the
/// function reads this file from its beginning. Empty if the log cannot be read.
pub(crate) fn end_of(path: &Path, from: u64) -> Vec<u8> {
    match File::open(path) {
        Ok(mut file) => bytes_from(&mut file, from, MAX_END_BYTES),
        Err(_) => Vec::new(),
    }
}

/// The part of a log that a process writes after the moment at which this value is created.
///
/// The process may continue its log in another file. When the log is full, the process starts a new
/// file. When another program, such as logrotate, has renamed the log, the process starts a new
/// file under the former name before it logs the next line.
#[derive(Debug)]
pub(crate) struct RestOfLog {
    /// The log file at the creation of this value.
    file: File,
    before: FileState,
    /// The paths of the files in which the log may continue. Each path has the state that its file
    /// had at the creation of this value.
    continuations: Vec<(PathBuf, Option<FileState>)>,
}

/// The identity of a file, and its length.
#[derive(Debug, Clone, Copy)]
struct FileState {
    identity: (u64, u64),
    length: u64,
}

impl FileState {
    fn of(metadata: &Metadata) -> Self {
        Self { identity: (metadata.dev(), metadata.ino()), length: metadata.len() }
    }

    /// Returns the state of the file with this path. `None` means that there is no such file.
    fn at(path: &Path) -> Option<Self> {
        let metadata = fs::symlink_metadata(path).ok().filter(Metadata::is_file)?;
        Some(Self::of(&metadata))
    }
}

impl RestOfLog {
    /// Creates a value for the part of a log that a process writes after this call. `path` is the
    /// present path of `file`.
    pub(crate) fn from_now(file: File, path: &Path) -> Option<Self> {
        let before = FileState::of(&file.metadata().ok()?);
        let paths = possible_continuations(path).into_iter();
        let continuations = paths.map(|path| (path.clone(), FileState::at(&path))).collect();
        Some(Self { file, before, continuations })
    }

    /// Returns the last bytes of this part of the log, at most `most` bytes of each file.
    pub(crate) fn read(mut self, most: u64) -> Vec<u8> {
        let read = move || {
            let mut bytes = bytes_from(&mut self.file, self.before.length, most);
            for (path, former) in &self.continuations {
                let Some(present) = FileState::at(path) else { continue };
                if present.identity == self.before.identity {
                    continue;
                }
                let same = former.filter(|it| it.identity == present.identity);
                if let Ok(mut file) = File::open(path) {
                    bytes.extend(bytes_from(&mut file, same.map_or(0, |it| it.length), most));
                }
            }
            bytes
        };
        // The file system of the log may not reply.
        within(LOOKUP_PATIENCE, read).unwrap_or_default()
    }
}

/// Returns the bytes of a file from the offset `from` on, at most the last `most` bytes. A file
/// that is shorter than `from` was truncated, so the function then reads from the beginning of the
/// file.
fn bytes_from(file: &mut File, from: u64, most: u64) -> Vec<u8> {
    let length = file.metadata().map_or(from, |it| it.len());
    let from = if length < from { 0 } else { from };
    let start = from.max(length.saturating_sub(most));
    let mut bytes = Vec::new();
    if file.seek(SeekFrom::Start(start)).is_ok() {
        // If a read fails, the function returns the bytes before the error.
        let _ = file.take(most).read_to_end(&mut bytes);
    }
    bytes
}

/// Returns the paths of the files in which a log at `path` may continue: this path, and the
/// possible former names of a renamed log. Programs that rename logs append a suffix, as in
/// `mount.log.1` or `mount.log-20260131`.
fn possible_continuations(path: &Path) -> Vec<PathBuf> {
    const REMOVED: &[u8] = b" (deleted)";
    let name = path.file_name().unwrap_or_default().as_bytes();
    let name = name.strip_suffix(REMOVED).unwrap_or(name);
    let suffixes = (1..name.len()).filter(|start| matches!(name[*start], b'.' | b'-'));
    let ends = suffixes.chain([name.len()]);
    ends.map(|end| path.with_file_name(OsStr::from_bytes(&name[..end]))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_log_lines_are_read_even_after_the_log_was_renamed() {
        let scratch = tempfile::tempdir().unwrap();
        let path = |name: &str| scratch.path().join(name);
        let append = |name: &str, text: &str| {
            use std::io::Write;
            let mut file =
                fs::OpenOptions::new().create(true).append(true).open(path(name)).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        };
        let open =
            |name: &str| RestOfLog::from_now(File::open(path(name)).unwrap(), &path(name)).unwrap();
        let text = |log: RestOfLog, most| String::from_utf8(log.read(most)).unwrap();
        append("m.log", "old\n");
        let log = open("m.log");
        append("m.log", "new\n");
        assert_eq!(text(log, 100), "new\n");
        let log = open("m.log");
        append("m.log", "many bytes\n");
        assert_eq!(text(log, 6), "bytes\n", "the last bytes");
        // The process starts a new file, because the log file is full.
        let log = open("m.log");
        append("m.log", "a\n");
        fs::rename(path("m.log"), path("m.log.old")).unwrap();
        append("m.log", "b\n");
        assert_eq!(text(log, 100), "a\nb\n");
        // Another program has renamed the log before, and the process has logged nothing since.
        for renamed in ["m.log.1", "m.log-20260131"] {
            fs::rename(path("m.log"), path(renamed)).unwrap();
            let log = open(renamed);
            append("m.log", "last\n");
            assert_eq!(text(log, 100), "last\n", "{renamed}");
            let log = open(renamed);
            append("m.log", "later\n");
            assert_eq!(text(log, 100), "later\n", "{renamed}: without the old lines");
        }
        // Another program has copied the log and truncated it.
        let log = open("m.log");
        fs::write(path("m.log"), "x\n").unwrap();
        assert_eq!(text(log, 100), "x\n");
    }
}
