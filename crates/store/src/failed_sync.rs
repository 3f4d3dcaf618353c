//! How a process starts after a sync has failed. The process trusts neither the unsynced end of its
//! log nor a store whose directory has the mark of a failed sync.
//!
//! After a failed sync, the kernel considers the lost bytes written. These bytes stay in the page
//! cache until the kernel needs the memory. A later sync succeeds without writing them. A starting
//! process cannot detect this, so it does not trust bytes that may not be synced:
//! - Each start writes the unsynced end of a log again ([`write_again`]).
//! - The store cannot be written again in this way, because the library of the key-value store
//!   writes the files. If a sync fails, the service marks the directory durably ([`mark`]), and the
//!   next start reads the store as it is on the device ([`read_from_device`]). The missing changes
//!   are in the target's log, since a target removes log records only after a successful sync of
//!   the store.

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
    // Drop the old pages first. Otherwise ext4 would write the pages of the failed sync, but would
    // not record in its metadata that their blocks contain data now. This call may return the error
    // of the earlier sync.
    let _failed_before = file.drop_pages_now();
    file.borrow_std().write_all_at(bytes, offset)?;
    file.drop_pages_now()?;
    let mut read = vec![0; bytes.len()];
    file.borrow_std().read_exact_at(&mut read, offset)?;
    if read != bytes {
        let what = "the device returned other bytes than the service has written";
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, what));
    }
    Ok(())
}

/// Marks the directory of a target whose store could not be synced. The next start then reads the
/// store from the device. Blocks.
///
/// # Errors
/// Errors of the file system, which name the path.
pub fn mark(directory: &Path) -> Result<()> {
    replace_atomically(&directory.join(MARK), b"")
}

/// Whether the directory of a target has the mark of a failed sync. If it has, the page cache may
/// have bytes of the target's store that the device lacks.
pub fn is_marked(directory: &Path) -> bool {
    directory.join(MARK).exists()
}

/// Checks whether the directory of a target has the mark of a failed sync. If it has, drops the
/// pages of all files in `store` from the page cache, and removes the mark. Later reads return the
/// bytes on the device. Returns whether the directory was marked. Blocks.
///
/// # Errors
/// Errors of the file system, which name the path. After an error, the directory keeps the mark.
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

    /// docs/semantics.md 3.1.
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
        // The file already has blocks in the file system on the device. `fallocate -d` makes holes
        // of the zeros in the device's image, so new bytes in these blocks need new space in the
        // image.
        let mut dig = std::process::Command::new("fallocate");
        assert!(dig.arg("-d").arg(thin.image()).status().unwrap().success());
        thin.resize(24);
        file.write_all_at(&new, 0).unwrap();
        assert!(file.sync_all().is_err(), "the device has no space");
        thin.resize(200);
        file.sync_all().unwrap();
        assert!(std::fs::read(&path).unwrap() == new, "the page cache has the new bytes");
        assert!(read_from_device(&directory, &directory.join("store")).unwrap());
        assert!(std::fs::read(&path).unwrap() != new, "the device lacks some new bytes");
        assert!(!read_from_device(&directory, &directory.join("store")).unwrap());
    }
}
