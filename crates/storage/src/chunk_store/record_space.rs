//! Reserved space for the target's own records on a full disk.
//!
//! The module owns the file `reserved` in the target's directory. If the disk is full, the target
//! frees the space of this file for its state record and its dirty log. So a target can start on a
//! disk that another program has filled, and can read and remove chunk files on this disk.

use super::STATE_FILE;
use skep_env::File;
use skep_format::chunk::TargetState;
use skep_store::atomic::replace_atomically;
use skep_types::{ErrorCode, Result};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Name of the file that reserves the space.
const RESERVED_FILE: &str = "reserved";
/// Maximum size of the file, which is enough for a dirty log of `MAX_DIRTY_REGIONS` entries and a
/// state record.
const MOST_BYTES: u64 = 4 << 20;
/// Divisor of the file system's size. On a small file system, the file takes one in `SHARE` bytes
/// of the file system.
const SHARE: u64 = 256;
/// Number of bytes that each device writes completely or not at all.
const SECTOR_BYTES: usize = 512;

/// Replaces a record of the target atomically. If the disk is full, uses the reserved space.
///
/// # Errors
/// Errors of the file system, with the path.
pub(super) fn replace_record(directory: &Path, path: &Path, bytes: &[u8]) -> Result<()> {
    match replace_atomically(path, bytes) {
        Err(error) if error.code() == ErrorCode::NoSpace && release(directory) => {
            tracing::warn!(
                "{error}; the target writes the file with the space that it has reserved for its \
                 own records"
            );
            let result = replace_atomically(path, bytes);
            hold(directory);
            result
        }
        other => other,
    }
}

/// Replaces the state record like [`replace_record`]. If the disk has no space for a new file, this
/// function overwrites the old record in place. On most file systems, an overwrite needs no new
/// space. The record is shorter than a sector, so a power loss leaves no mixture of the old and the
/// new record.
///
/// # Errors
/// Errors of the file system, with the path.
pub(super) fn replace_state(directory: &Path, state: &TargetState) -> Result<()> {
    let (path, bytes) = (directory.join(STATE_FILE), state.to_file());
    match replace_record(directory, &path, &bytes) {
        Err(error) if matches!(error.code(), ErrorCode::NoSpace | ErrorCode::QuotaExceeded) => {
            overwrite(&path, &bytes).map_err(|_in_place| error)
        }
        other => other,
    }
}

/// Overwrites a file durably in place. The file must have the length of `bytes`.
fn overwrite(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    if bytes.len() > SECTOR_BYTES || file.metadata()?.len() != bytes.len() as u64 {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    file.write_all_at(bytes, 0)?;
    file.sync_all()
}

/// Frees the reserved space. Returns `false` if the file `reserved` does not exist or cannot be
/// truncated.
fn release(directory: &Path) -> bool {
    let Ok(file) = OpenOptions::new().write(true).open(directory.join(RESERVED_FILE)) else {
        return false;
    };
    // The sync makes file systems free the space immediately.
    file.set_len(0).and_then(|()| file.sync_all()).is_ok()
}

/// Allocates the space of the file `reserved`, unless the file already has this space. If the disk
/// has too little space, a later call repeats the allocation.
pub(super) fn hold(directory: &Path) {
    let path = directory.join(RESERVED_FILE);
    let Ok(space) = skep_env::space(directory) else { return };
    let wanted = (space.total_bytes / SHARE).min(MOST_BYTES);
    if std::fs::metadata(&path).is_ok_and(|found| found.len() >= wanted) {
        return;
    }
    let Ok(file) = OpenOptions::new().create(true).truncate(false).write(true).open(&path) else {
        return;
    };
    let file = File::from(file);
    if file.reserve(0..wanted).is_ok() {
        // A later call of this function recognises by this length that the file already reserves
        // the space.
        let _next_time = file.borrow_std().set_len(wanted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_is_overwritten_in_place_if_no_new_file_can_be_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        std::fs::write(&path, "old").unwrap();
        overwrite(&path, b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        overwrite(&path, b"longer").unwrap_err();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        overwrite(&dir.path().join("other"), b"new").unwrap_err();
    }
}
