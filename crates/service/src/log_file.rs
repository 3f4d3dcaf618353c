//! Standard error as a log file whose size is limited.
//!
//! If standard error is a file that has reached its limit, the process renames the file to `.old`
//! and continues in a new file. The renamed file replaces an older `.old` file. The process renames
//! the file before it writes the first line that exceeds the limit, so no line is lost. At that
//! moment, another thread may write to standard error without the logger, for example a panic
//! message. This output is then in one of the two files.
//!
//! If another program, such as logrotate, renames or removes the file, the process continues in a
//! new file with the former name. The process checks the name before each line, so the other
//! program need not send a signal. Lines that the process has written before the rename stay in the
//! renamed file.
//!
//! The process does not rotate pipes, terminals, or systemd's journal.

use skep_types::text::escape_controls;
use std::borrow::Cow;
use std::fs::{Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Suffix of the previous log file.
const OLD_ENDING: &str = ".old";
/// Suffix of a new log file until it replaces the current log file.
const NEW_ENDING: &str = ".new";

/// Standard error. Its size is limited if standard error is a file.
#[derive(Debug)]
pub(crate) struct LogOutput {
    /// Maximum size of the log file in bytes. Zero means no limit.
    limit: u64,
    /// Size of the log file in bytes as counted by this process. Other processes may also write to
    /// the file.
    size: u64,
    has_warned: bool,
    /// The log file. `None` means that standard error is not a file.
    file: Option<LogFile>,
}

/// The file behind standard error, with the name that it had when the process began to use it.
#[derive(Debug)]
struct LogFile {
    path: PathBuf,
    metadata: Metadata,
}

impl LogFile {
    fn current() -> Option<Self> {
        output_file(2).map(|(path, metadata)| Self { path, metadata })
    }

    /// Whether the name of the file now refers to another file or to no file.
    fn is_renamed(&self) -> bool {
        !std::fs::symlink_metadata(&self.path).is_ok_and(|named| is_same(&named, &self.metadata))
    }
}

impl LogOutput {
    pub(crate) fn new(limit: u64) -> Self {
        let file = LogFile::current();
        let size = file.as_ref().map_or(0, |file| file.metadata.len());
        Self { limit, size, has_warned: false, file }
    }

    /// Continues in a new file if another program has renamed or removed the log file.
    fn follow_rename(&mut self) {
        let Some(file) = self.file.take_if(|file| file.is_renamed()) else { return };
        // If the process has redirected standard error to another file in the meantime, leave the
        // redirection unchanged.
        if !behind(2).is_some_and(|used| is_same(&used, &file.metadata)) {
            return;
        }
        match reopen(&file) {
            Ok(()) => *self = Self::new(self.limit),
            Err(error) => {
                self.warn_once(&format!(
                    "cannot create a new log file {} after a rename of the log file, so the \
                     log continues in the renamed file: {error}",
                    file.path.display()
                ));
                self.file = Some(file);
            }
        }
    }

    fn warn_once(&mut self, text: &str) {
        if !std::mem::replace(&mut self.has_warned, true) {
            let _ = writeln!(io::stderr(), "{text}");
        }
    }

    /// Starts a new log file if a line of `line` bytes would make the current log file exceed the
    /// limit.
    fn rotate_if_full(&mut self, line: u64) {
        self.size += line;
        if self.limit == 0 || self.size <= self.limit {
            return;
        }
        match rotate(self.limit, line) {
            Ok(size) => {
                self.size = size + line;
                self.file = LogFile::current();
            }
            Err(error) => {
                // After a failed rename, reset the count to zero, so that the next attempt follows
                // after `limit` more bytes.
                self.size = line;
                self.warn_once(&format!(
                    "cannot rename the log file, so this file grows beyond its limit: {error}"
                ));
            }
        }
    }
}

impl Write for LogOutput {
    /// Writes one event of the log.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let line = one_line(event);
        self.follow_rename();
        self.rotate_if_full(line.len() as u64);
        io::stderr().write_all(&line)?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Returns an event as one line, with its final newline. Escapes all other control characters,
/// because text from a peer or from a file name may contain them and could otherwise forge log
/// lines. The escape character (ESC) stays unchanged, because the logger uses this character for
/// colours, and has already escaped it in values.
fn one_line(event: &[u8]) -> Cow<'_, [u8]> {
    let (text, end) = match event.strip_suffix(b"\n") {
        Some(text) => (text, &b"\n"[..]),
        None => (event, &b""[..]),
    };
    let text = String::from_utf8_lossy(text);
    let escaped: Vec<_> = text.split('\x1b').map(escape_controls).collect();
    if let [Cow::Borrowed(_)] = escaped[..]
        && matches!(text, Cow::Borrowed(_))
    {
        return Cow::Borrowed(event);
    }
    Cow::Owned([escaped.join("\x1b").as_bytes(), end].concat())
}

/// Returns path and metadata of the file behind standard output (1) or standard error (2). Returns
/// `None` if the output is not a file, or if its path no longer leads to that file.
fn output_file(descriptor: u32) -> Option<(PathBuf, Metadata)> {
    let path = std::fs::read_link(link_of(descriptor)).ok()?;
    let (found, named) = (behind(descriptor)?, std::fs::symlink_metadata(&path).ok()?);
    (found.is_file() && is_same(&found, &named)).then_some((path, found))
}

fn link_of(descriptor: u32) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{descriptor}"))
}

/// Returns the metadata of the file behind a descriptor, also if the file was removed.
fn behind(descriptor: u32) -> Option<Metadata> {
    std::fs::metadata(link_of(descriptor)).ok()
}

/// Redirects standard error to the file at the former path of a renamed log file. Creates this file
/// if it does not exist. Also redirects standard output if standard output is the renamed file.
fn reopen(file: &LogFile) -> io::Result<()> {
    let both = behind(1).is_some_and(|output| is_same(&output, &file.metadata));
    let mut options = OpenOptions::new();
    options.append(true).mode(file.metadata.mode() & 0o777);
    let opened = skep_env::open_output(&file.path, &mut options)?;
    skep_env::replace_output(&opened, both)
}

fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Continues the log in a new file if a line of `line` bytes would make the current log file exceed
/// the limit. Returns the size of the file that is in use after the call.
fn rotate(limit: u64, line: u64) -> io::Result<u64> {
    let Some((path, file)) = output_file(2) else { return Ok(0) };
    if file.len() + line <= limit {
        return Ok(file.len());
    }
    let both = output_file(1).is_some_and(|(_, output)| is_same(&output, &file));
    let new = with_ending(&path, NEW_ENDING);
    let mut options = OpenOptions::new();
    options.append(true).mode(file.mode() & 0o777);
    let opened = skep_env::open_output(&new, &mut options)?;
    // A hard link gives the old file its new name, so that a log file with the current name exists
    // at every moment.
    let old = with_ending(&path, OLD_ENDING);
    match std::fs::remove_file(&old) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => std::fs::hard_link(&path, &old)?,
    }
    std::fs::rename(&new, &path)?;
    skep_env::replace_output(&opened, both)?;
    Ok(0)
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(ending);
    path.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_log_event_is_written_as_one_line() {
        let check = |event: &[u8], expected: &str| {
            assert_eq!(String::from_utf8_lossy(&one_line(event)), expected);
        };
        check(b"INFO serves t1\n", "INFO serves t1\n");
        check(b"WARN a\nINFO forged\r\n", "WARN a\\nINFO forged\\r\n");
        check(b"\x1b[33m WARN\x1b[0m a\x07\n", "\x1b[33m WARN\x1b[0m a\\u{7}\n");
        check("gr\u{f6}\u{202e}\n".as_bytes(), "gr\u{f6}\\u{202e}\n");
        check(b"\xff\n", "\u{fffd}\n");
    }
}
