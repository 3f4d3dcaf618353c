//! Standard error as a log that doesn't grow for ever.
//!
//! If it is a file and has reached its limit, the process that writes to it gives the file the
//! ending `.old`, in place of an older one, and goes on in a new file. It does so between two lines
//! and before the line that wouldn't fit, so none is lost: what other threads write past the logger
//! at that moment (a panic) goes to the one file or the other.
//!
//! Does nothing to pipes, terminals and the journal, nor to a file that somebody else has renamed.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Ending of the log of before.
const OLD_ENDING: &str = ".old";
/// Ending of a log that is about to take its place.
const NEW_ENDING: &str = ".new";

/// Standard error, with a limit if it is a file.
#[derive(Debug)]
pub(crate) struct LogOutput {
    /// Zero: none.
    limit: u64,
    /// Bytes in the file, as far as this process knows.
    size: u64,
    has_complained: bool,
}

impl LogOutput {
    pub(crate) fn new(limit: u64) -> Self {
        let size = output_file(2).map_or(0, |(_, file)| file.len());
        Self { limit, size, has_complained: false }
    }

    /// Begins a new file if the line doesn't fit into this one.
    fn make_room(&mut self, line: u64) {
        self.size += line;
        if self.limit == 0 || self.size <= self.limit {
            return;
        }
        match rotate(self.limit, line) {
            Ok(size) => self.size = size + line,
            Err(error) => {
                // Tries again when as much has been written once more.
                self.size = line;
                if !self.has_complained {
                    let _ = writeln!(io::stderr(), "the log can't be renamed: {error}");
                }
                self.has_complained = true;
            }
        }
    }
}

impl Write for LogOutput {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.make_room(line.len() as u64);
        io::stderr().write_all(line)?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Where standard output (1) or standard error (2) goes to, if that is a file that has a name.
fn output_file(descriptor: u32) -> Option<(PathBuf, std::fs::Metadata)> {
    let link = PathBuf::from(format!("/proc/self/fd/{descriptor}"));
    let path = std::fs::read_link(&link).ok()?;
    let (found, named) = (std::fs::metadata(&link).ok()?, std::fs::symlink_metadata(&path).ok()?);
    (found.is_file() && is_same(&found, &named)).then_some((path, found))
}

fn is_same(one: &std::fs::Metadata, other: &std::fs::Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Lets the outputs go on in a new file if theirs has no space for the line; gives its size then.
fn rotate(limit: u64, line: u64) -> io::Result<u64> {
    let Some((path, file)) = output_file(2) else { return Ok(0) };
    if file.len() + line <= limit {
        return Ok(file.len());
    }
    let both = output_file(1).is_some_and(|(_, output)| is_same(&output, &file));
    let new = with_ending(&path, NEW_ENDING);
    let opened: File =
        OpenOptions::new().create(true).append(true).mode(file.mode() & 0o777).open(&new)?;
    // By a link, so that there is a log at every moment.
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
