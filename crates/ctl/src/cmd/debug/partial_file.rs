//! A file that gets its name only when it is complete. Until then, the file has a temporary name in
//! the same directory, so readers cannot mistake an incomplete file for a complete one.

use crate::ending_signals::EndingSignals;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use skep_env::Signals;
use skep_types::{Error, ErrorCode, Result};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A file that is being written.
#[derive(Debug)]
pub(super) struct PartialFile {
    path: PathBuf,
    /// The name until the file is complete. The process id is a part of this name. So a file that
    /// remains after a loss of power or `SIGKILL` does not block another run of the command.
    temporary: PathBuf,
}

impl PartialFile {
    /// Creates a file that only the user of this process can read, and that gets the name `path`
    /// when it is complete.
    ///
    /// # Errors
    /// - `Exists` if a file with the name `path` exists.
    /// - `InvalidArgument` if `path` ends with a slash.
    /// - The errors of the file system.
    pub(super) fn create(path: &Path) -> Result<(Self, File)> {
        let failed = |error: Error| {
            error.within(format_args!("cannot create the bundle {}", path.display()))
        };
        if path.symlink_metadata().is_ok() {
            return Err(failed(exists()));
        }
        if path.as_os_str().as_encoded_bytes().ends_with(b"/") {
            let what = "the name ends with a slash; name a file with --file";
            return Err(failed(Error::new(ErrorCode::InvalidArgument, what)));
        }
        let temporary = path.with_file_name(format!(".skep-debug-{}.partial", std::process::id()));
        let mut options = OpenOptions::new();
        let opened = options.write(true).create_new(true).mode(0o600).open(&temporary);
        let file = opened.map_err(|error| failed(error.into()))?;
        Ok((Self { path: path.to_owned(), temporary }, file))
    }

    /// Starts a thread that removes the file and ends the process when one of `signals` arrives.
    ///
    /// # Errors
    /// Returns an error if the process cannot start a thread.
    pub(super) fn remove_at(&self, signals: EndingSignals) -> Result<()> {
        let temporary = self.temporary.clone();
        signals.follow(move |number| {
            // Ignores the error, because a complete file no longer has the temporary name.
            let _ = std::fs::remove_file(&temporary);
            Signals::end_process(number);
        })
    }

    /// Removes the file. Ignores errors, because the caller already reports another error, the
    /// reason for the removal.
    pub(super) fn remove(&self) {
        let _ = std::fs::remove_file(&self.temporary);
    }

    /// Renames the file from its temporary name to its final name.
    ///
    /// # Errors
    /// - `Exists` if another program has created a file with this name meanwhile.
    /// - The errors of the file system.
    pub(super) fn complete(&self) -> Result<()> {
        let (from, to) = (self.temporary.as_path(), self.path.as_path());
        match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) => Err(exists()),
            // The file system does not support `RENAME_NOREPLACE`.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                match to.symlink_metadata().is_ok() {
                    true => Err(exists()),
                    false => std::fs::rename(from, to).map_err(Error::from),
                }
            }
            Err(errno) => Err(io::Error::from(errno).into()),
        }
    }
}

fn exists() -> Error {
    Error::new(ErrorCode::Exists, "the file exists; name another file with --file")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn file_gets_its_name_only_when_it_is_complete() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.tar");
        let (partial, mut file) = PartialFile::create(&path).unwrap();
        file.write_all(b"content").unwrap();
        assert!(!path.exists());
        partial.complete().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"content");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn removal_of_a_partial_file_leaves_an_empty_directory() {
        let directory = tempfile::tempdir().unwrap();
        let (partial, _) = PartialFile::create(&directory.path().join("a.tar")).unwrap();
        partial.remove();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn existing_file_is_not_replaced_by_a_bundle() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.tar");
        let (partial, _) = PartialFile::create(&path).unwrap();
        std::fs::write(&path, "other").unwrap();
        assert_eq!(partial.complete().unwrap_err().code(), ErrorCode::Exists);
        partial.remove();
        assert_eq!(PartialFile::create(&path).unwrap_err().code(), ErrorCode::Exists);
        assert_eq!(std::fs::read(&path).unwrap(), b"other");
        let slash = directory.path().join("b/");
        assert_eq!(PartialFile::create(&slash).unwrap_err().code(), ErrorCode::InvalidArgument);
    }
}
