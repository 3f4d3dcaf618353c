//! Reads small files, and replaces them atomically. After a crash at any moment, a file contains
//! either the old bytes or the new bytes.

use crate::identity_file::is_initialised;
use skep_types::{Error, Result};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::Path;

/// Suffix of the temporary file. If a crash leaves such a file, the next replacement removes it.
const TEMPORARY_ENDING: &str = ".new";

fn io_error(failed_step: &str, path: &Path) -> impl Fn(std::io::Error) -> Error {
    move |error| Error::from(error).within(format!("{failed_step} {}", path.display()))
}

/// Reads a whole file. `None` means that the file does not exist. Blocks.
///
/// # Errors
/// Errors of the file system, which name the path.
pub(crate) fn read_if_exists(path: &Path) -> Result<Option<Vec<u8>>> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::from(error).within(path.display())),
    }
}

/// Replaces or creates the file at `path`, durably and atomically. When this function returns, the
/// new bytes survive a power loss. After a crash before the return, the file contains either the
/// old bytes or the new bytes, never a mixture.
///
/// If root calls this function, the new file belongs to the owner of its directory. So a service
/// that runs as another user can read files that a command of root has replaced.
///
/// Blocks for two syncs, so callers use this function only for files that change rarely.
///
/// # Errors
/// Errors of the file system, which name the path.
pub fn replace_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    replace_with_mode(path, bytes, 0o644, true)
}

/// Like [`replace_atomically`], for secrets: at every moment, only root and the owner can read the
/// file. If root calls this function, the file belongs to the owner of its directory only if this
/// is a directory of a service. In other directories, such as the directory of a backup, the file
/// belongs to root.
///
/// # Errors
/// Errors of the file system, which name the path.
pub fn replace_secret(path: &Path, bytes: &[u8]) -> Result<()> {
    replace_with_mode(path, bytes, 0o600, is_initialised(parent_of(path)))
}

fn replace_with_mode(path: &Path, bytes: &[u8], mode: u32, is_given: bool) -> Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(TEMPORARY_ENDING);
    let temporary = Path::new(&temporary);
    // A temporary file of an earlier crash may have a different mode, so remove it first.
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
    let directory = parent_of(path);
    if is_given {
        give_to_owner(&file, directory)
            .map_err(io_error("cannot change the owner of", temporary))?;
    }
    file.write_all(bytes).map_err(io_error("cannot write", temporary))?;
    file.sync_all().map_err(io_error("cannot sync", temporary))?;
    std::fs::rename(temporary, path).map_err(io_error("cannot replace", path))?;
    sync_directory(directory)
}

/// Returns the directory of a file. The parent of a bare file name is the empty path, which stands
/// for the current directory.
fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Changes the owner of a file that root has created to the owner of the file's directory.
fn give_to_owner(file: &File, directory: &Path) -> std::io::Result<()> {
    let (created, directory) = (file.metadata()?, std::fs::metadata(directory)?);
    if created.uid() != 0 || directory.uid() == 0 {
        return Ok(());
    }
    match fchown(file, Some(directory.uid()), Some(directory.gid())) {
        // Some file systems store no owners, and some refuse this change even to root. On such file
        // systems, this process cannot decide which users can read the file.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Ok(()),
        changed => changed,
    }
}

/// Syncs a directory, so that created, renamed and removed names in it are durable.
///
/// # Errors
/// Errors of the file system, which name the path.
pub fn sync_directory(path: &Path) -> Result<()> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let directory = File::open(path).map_err(io_error("cannot open directory", path))?;
    directory.sync_all().map_err(io_error("cannot sync directory", path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn replacement_overwrites_the_temporary_file_of_a_crash() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record");
        std::fs::write(dir.path().join("record.new"), "torn").unwrap();
        replace_atomically(&path, b"one").unwrap();
        replace_atomically(&path, b"two").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn only_the_owner_can_read_a_secret() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        std::fs::write(dir.path().join("secret.new"), "readable by all").unwrap();
        replace_secret(&path, b"key").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    /// A service that runs as an ordinary user must be able to read a token that root has replaced.
    #[test]
    fn file_of_root_belongs_to_the_owner_of_its_directory() {
        const OTHER: u32 = 65_534;
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(dir.path(), Some(OTHER), Some(OTHER)).expect("tests run as root");
        let path = dir.path().join("secret");
        replace_secret(&path, b"key").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().uid(), 0, "the directory may be a backup");
        replace_atomically(&dir.path().join("skep-identity"), b"id").unwrap();
        replace_secret(&path, b"key").unwrap();
        let metadata = std::fs::metadata(&path).unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (OTHER, OTHER));
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn error_of_replacing_a_file_names_its_path() {
        let error = replace_atomically(Path::new("/nonexistent/record"), b"x").unwrap_err();
        assert!(error.context().contains("/nonexistent/record.new"), "{error}");
    }
}
