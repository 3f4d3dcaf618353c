//! The lock on the record of the changes ([`crate::changes`]). The lock is on the directory of the
//! record, so that `skep tune undo` leaves no file.

use crate::tree::Tree;
use skep_types::{Error, ErrorCode, Result};
use std::fs::{File, TryLockError};
use std::time::{Duration, Instant};

/// The directory of the record.
pub(crate) const DIRECTORY: &str = "/var/lib/skep/tune";
/// Time limit for the lock. Another command holds the lock while it writes its files, which usually
/// takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time between two attempts to get the lock.
const PAUSE: Duration = Duration::from_millis(20);

/// Locks the record, and returns the locked directory. The lock ends when the caller drops the
/// value. Creates the directory if it does not exist.
///
/// # Errors
/// - `Busy` if another command holds the lock for [`PATIENCE`].
/// - Errors of the file system.
pub(crate) fn lock(tree: &Tree) -> Result<File> {
    let path = tree.real(DIRECTORY);
    let named = |error: std::io::Error| {
        Error::from(error).within(format_args!("cannot use the directory {}", path.display()))
    };
    std::fs::create_dir_all(&path).map_err(named)?;
    let directory = File::open(&path).map_err(named)?;
    let began = Instant::now();
    loop {
        match directory.try_lock() {
            // Some network file systems cannot lock directories. On a host with such a root
            // directory, two commands can run at the same time.
            Ok(()) | Err(TryLockError::Error(_)) => return Ok(directory),
            // Retry: until the other command has ended, at most for `PATIENCE`.
            Err(TryLockError::WouldBlock) if began.elapsed() < PATIENCE => {
                std::thread::sleep(PAUSE);
            }
            Err(TryLockError::WouldBlock) => {
                let what = format!(
                    "cannot change settings: another `skep tune` has used {} for {} s; wait for \
                     its end, and run the command again",
                    path.display(),
                    PATIENCE.as_secs()
                );
                return Err(Error::new(ErrorCode::Busy, what));
            }
        }
    }
}
