//! Files for output whose names other users may predict or choose.
//!
//! # Hazard: directories in which other users create entries
//! In a directory of other users, one of these users could create an entry with the name of the
//! output. The entry could be a symbolic link to a file of root, or a FIFO that has no reader.
//! Without the checks of this module, a process of root would change the file of root, or would
//! wait for ever.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Why a file for output cannot be used.
#[derive(Debug)]
pub enum OutputError {
    /// The entry with this name is not a regular file. The field names the kind of the entry, such
    /// as `a FIFO`.
    NotRegular(&'static str),
    /// The system has refused to open the file.
    System(io::Error),
}

impl From<OutputError> for io::Error {
    fn from(error: OutputError) -> Self {
        match error {
            OutputError::NotRegular(kind) => Self::new(
                io::ErrorKind::InvalidInput,
                format!("the path is {kind}, not a regular file"),
            ),
            OutputError::System(error) => error,
        }
    }
}

/// Opens a regular file for output, or creates it. The last part of the path must not be a symbolic
/// link. The call does not wait for a reader of a FIFO. `options` has the access, such as append,
/// and the mode of a new file. `options` must not truncate the file, because the kind of the file
/// is known only after the open.
///
/// # Errors
/// - [`OutputError::NotRegular`] if another kind of entry has the name.
/// - [`OutputError::System`] with the errors of `open(2)` and `fstat(2)`.
pub fn open_output(path: &Path, options: &mut OpenOptions) -> Result<File, OutputError> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let opened = options.create(true).custom_flags(flags).open(path);
    let file = opened.map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => OutputError::NotRegular("a symbolic link"),
        Some(libc::ENXIO) => OutputError::NotRegular("a FIFO or a socket"),
        Some(libc::EISDIR) => OutputError::NotRegular("a directory"),
        _ => OutputError::System(error),
    })?;
    match file.metadata().map_err(OutputError::System)?.is_file() {
        true => Ok(file),
        false => Err(OutputError::NotRegular("a special file")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    #[test]
    fn only_a_regular_file_is_opened_for_output() {
        let place = tempfile::tempdir().unwrap();
        let [file, link, socket] = ["file", "link", "socket"].map(|name| place.path().join(name));
        std::fs::write(&file, "old\n").unwrap();
        symlink(&file, &link).unwrap();
        let _listener = UnixListener::bind(&socket).unwrap();
        for path in [link.as_path(), &socket, place.path(), Path::new("/dev/null")] {
            let refused = open_output(path, OpenOptions::new().append(true)).unwrap_err();
            assert!(
                matches!(refused, OutputError::NotRegular(_)),
                "{}: {refused:?}",
                path.display()
            );
            assert_eq!(io::Error::from(refused).kind(), io::ErrorKind::InvalidInput);
        }
        open_output(&file, OpenOptions::new().append(true)).unwrap().write_all(b"new\n").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "old\nnew\n");
    }

    #[test]
    fn new_file_for_output_has_the_mode_of_the_options() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("new");
        let file = open_output(&path, OpenOptions::new().append(true).mode(0o600)).unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let missing = open_output(&place.path().join("a/b"), OpenOptions::new().append(true));
        let error = io::Error::from(missing.unwrap_err());
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
