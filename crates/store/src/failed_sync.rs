//! The start of a process after a failed sync. Such a process trusts neither the end of a log nor a
//! marked store.
//!
//! After a failed sync, the kernel considers the lost bytes written. They stay in the page cache
//! until the kernel needs the memory, and a later sync succeeds without writing them. A starting
//! process cannot see this, so it does not trust bytes that were perhaps never synced:
//! - Each start writes the end of a log again ([`write_again`]).
//! - A store that a library writes cannot be written again. If a sync fails, the service marks the
//!   directory durably ([`mark`]), and the next start reads the store as it is on the device
//!   ([`read_from_device`]). The target's log has the missing changes, since a target trims its log
//!   only after a successful sync of the store.

use crate::atomic::{replace_atomically, sync_directory};
use skep_env::File;
use skep_types::{Error, Result};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Name of the mark file in the directory of a target.
const MARK: &str = "sync-failed";

/// Writes `bytes` at `offset` of a file again, syncs them, and verifies that the device has them.
/// Blocks.
///
/// # Errors
/// Errors of the file system, and `InvalidData` if the device returns other bytes.
pub fn write_again(file: &File, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
    // Drop the old pages first, because ext4 writes the pages of a failed sync without a note in
    // its metadata that their blocks have data now. This call may return the error of the earlier
    // sync.
    let _failed_before = file.drop_pages_now();
    file.borrow_std().write_all_at(bytes, offset)?;
    file.drop_pages_now()?;
    let mut read = vec![0; bytes.len()];
    file.borrow_std().read_exact_at(&mut read, offset)?;
    if read != bytes {
        let what = "the device returns other bytes than were written";
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, what));
    }
    Ok(())
}

/// Marks the directory of a target whose store could not be synced. Blocks.
///
/// # Errors
/// Errors of the file system, with the path.
pub fn mark(directory: &Path) -> Result<()> {
    replace_atomically(&directory.join(MARK), b"")
}

/// Whether the directory of a target is marked. If so, the page cache may have bytes of its store
/// that the device lacks.
pub fn is_marked(directory: &Path) -> bool {
    directory.join(MARK).exists()
}

/// If the directory of a target is marked, drops the pages of all files in `store` from the page
/// cache and removes the mark. Later reads return the bytes on the device. Returns whether the
/// directory was marked. Blocks.
///
/// # Errors
/// Errors of the file system, with the path. After an error the mark stays.
pub fn read_from_device(directory: &Path, store: &Path) -> Result<bool> {
    let mark = directory.join(MARK);
    if !is_marked(directory) {
        return Ok(false);
    }
    drop_pages(store)?;
    std::fs::remove_file(&mark).map_err(|error| Error::from(error).within(mark.display()))?;
    sync_directory(directory)?;
    Ok(true)
}

fn drop_pages(path: &Path) -> Result<()> {
    let failed = |error: std::io::Error| {
        let what = format!("cannot read {} from the device again", path.display());
        Error::from(error).within(what)
    };
    let kind = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        found => found.map_err(failed)?.file_type(),
    };
    if kind.is_dir() {
        for entry in std::fs::read_dir(path).map_err(failed)? {
            drop_pages(&entry.map_err(failed)?.path())?;
        }
    } else if kind.is_file() {
        let file = File::open(path, OpenOptions::new().read(true)).map_err(failed)?;
        file.drop_pages_now().map_err(failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_testkit::thin::ThinDisk;

    /// Semantics 3.1.
    #[test]
    fn a_store_is_read_from_the_device_after_a_failed_sync() {
        let scratch = tempfile::tempdir().unwrap();
        let Some(thin) = ThinDisk::new(scratch.path(), 200) else { return };
        let directory = thin.path();
        let store = directory.join("store/tables");
        std::fs::create_dir_all(&store).unwrap();
        let path = store.join("1");
        let (old, new) = (vec![0; 40 << 20], vec![2; 40 << 20]);
        std::fs::write(&path, &old).unwrap();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.sync_all().unwrap();
        mark(&directory).unwrap();
        // The file system has allocated space for the file. `fallocate -d` replaces its zeros in
        // the image of the device by a hole, so new bytes need new space on the device.
        let mut dig = std::process::Command::new("fallocate");
        assert!(dig.arg("-d").arg(thin.image()).status().unwrap().success());
        thin.resize(24);
        file.write_all_at(&new, 0).unwrap();
        assert!(file.sync_all().is_err(), "the device has no space");
        thin.resize(200);
        file.sync_all().unwrap();
        assert!(std::fs::read(&path).unwrap() == new, "the page cache has the new bytes");
        assert!(read_from_device(&directory, &directory.join("store")).unwrap());
        assert!(std::fs::read(&path).unwrap() != new, "the device lacks some of them");
        assert!(!read_from_device(&directory, &directory.join("store")).unwrap());
    }
}
