//! Replacing small files so that a crash at any moment leaves the old bytes or the new ones.

use skep_types::{Error, Result};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

/// Ending of the file that is being written; one that a crash left behind is overwritten next time.
const TEMPORARY_ENDING: &str = ".new";

fn io_error(what: &str, path: &Path) -> impl Fn(std::io::Error) -> Error {
    move |error| Error::from(error).within(format!("{what} {}", path.display()))
}

/// Replaces (or creates) the file at `path` durably: when this returns, the new bytes survive a
/// power loss; after a crash before that, the file holds the old bytes or the new ones, never a
/// mixture.
///
/// Blocks for two syncs: for what changes rarely.
///
/// # Errors
/// Those of the file system, with the path.
pub fn replace_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    replace_with_mode(path, bytes, 0o644)
}

/// Like [`replace_atomically`], for secrets: nobody but the owner may read the file at any moment.
///
/// # Errors
/// Those of the file system, with the path.
pub fn replace_secret(path: &Path, bytes: &[u8]) -> Result<()> {
    replace_with_mode(path, bytes, 0o600)
}

fn replace_with_mode(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(TEMPORARY_ENDING);
    let temporary = Path::new(&temporary);
    // One that a crash left behind may have another mode.
    match std::fs::remove_file(temporary) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(io_error("cannot remove", temporary)(error));
        }
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(temporary)
        .map_err(io_error("cannot create", temporary))?;
    file.write_all(bytes).map_err(io_error("cannot write", temporary))?;
    file.sync_all().map_err(io_error("cannot sync", temporary))?;
    std::fs::rename(temporary, path).map_err(io_error("cannot replace", path))?;
    sync_directory(path.parent().unwrap_or(Path::new(".")))
}

/// Makes the names in a directory durable.
///
/// # Errors
/// Those of the file system, with the path.
pub fn sync_directory(path: &Path) -> Result<()> {
    // The parent of a bare file name is the empty path.
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let directory = File::open(path).map_err(io_error("cannot open directory", path))?;
    directory.sync_all().map_err(io_error("cannot sync directory", path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_is_replaced_and_what_a_crash_left_is_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record");
        std::fs::write(dir.path().join("record.new"), "torn").unwrap();
        replace_atomically(&path, b"one").unwrap();
        replace_atomically(&path, b"two").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_secret_is_for_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        std::fs::write(dir.path().join("secret.new"), "readable by all").unwrap();
        replace_secret(&path, b"key").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn errors_name_the_path() {
        let error = replace_atomically(Path::new("/nonexistent/record"), b"x").unwrap_err();
        assert!(error.context().contains("/nonexistent/record.new"), "{error}");
    }
}
