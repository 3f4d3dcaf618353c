//! Reserved space for the target's own records on a full disk.
//!
//! The module owns the file `reserved` in the target's directory. If the disk is full, the target
//! frees the space of this file for its state record and its dirty log. So a target can start on a
//! disk that another program has filled, and can read and remove chunk files on this disk.

use skep_env::File;
use skep_store::atomic::replace_atomically;
use skep_types::{ErrorCode, Result};
use std::fs::OpenOptions;
use std::path::Path;

/// Name of the file whose space is reserved.
const RESERVED_FILE: &str = "reserved";
/// Maximum size of the file. This is enough for a dirty log of `MAX_DIRTY_REGIONS` entries and a
/// state record.
const MOST_BYTES: u64 = 4 << 20;
/// Divisor of the file system's size. On a small file system, the file takes one in `SHARE` bytes
/// of the file system.
const SHARE: u64 = 256;

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

/// Frees the reserved space. Returns `false` if the file `reserved` does not exist or cannot be
/// truncated.
fn release(directory: &Path) -> bool {
    let Ok(file) = OpenOptions::new().write(true).open(directory.join(RESERVED_FILE)) else {
        return false;
    };
    // The sync makes file systems free the space immediately.
    file.set_len(0).and_then(|()| file.sync_all()).is_ok()
}

/// Allocates the space of the file `reserved`, unless the file has it already. If the disk has too
/// little space, a later call repeats the allocation.
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
        // A later call of this function recognises by this length that the space is reserved.
        let _next_time = file.borrow_std().set_len(wanted);
    }
}
