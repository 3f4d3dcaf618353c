//! The quarantine: chunk files that no inode owns stay in the quarantine for some time before the
//! target removes them permanently.
//!
//! If metadata was restored from a backup, files that were created after the backup have no inode,
//! and their chunk files look like chunk files of removed files. While these chunk files are in the
//! quarantine, an administrator can move them back. The directory `quarantine` has the same tree as
//! `chunks`.

use super::ChunkStore;
use super::names::leaf_of;
use crate::limits::QUARANTINE_AGE;
use skep_types::{ChunkFileKey, Error, Result};
use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Name of the directory that contains the quarantined chunk files of a target.
const QUARANTINE: &str = "quarantine";

impl ChunkStore {
    /// Moves chunk files to the quarantine. Skips missing chunk files. Not cancel-safe, see
    /// [`super`].
    ///
    /// # Errors
    /// Errors of the file system. After an error, some of the files may have been moved.
    pub(crate) async fn quarantine(self: &Rc<Self>, keys: &[ChunkFileKey]) -> Result<()> {
        self.check_writable()?;
        for key in keys {
            let open = self.open.borrow().get(key);
            let _guard = match &open {
                Some(file) => Some(file.lock.exclusive(0..u64::MAX).await),
                None => None,
            };
            let path = self.names.path(key);
            match move_file(&path, &self.quarantined(key)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(self.note_failure(Error::from(error).within(path.display())));
                }
                _ => {}
            }
            if let Some(file) = &open {
                file.is_removed.set(true);
            }
            self.open.borrow_mut().remove(key);
            self.truncate_dirty(key, 0);
        }
        let leaves: BTreeSet<_> = keys.iter().map(leaf_of).collect();
        self.names.sync_leaves(&leaves).await.map_err(|error| self.note_failure(error))
    }

    fn quarantined(&self, key: &ChunkFileKey) -> PathBuf {
        let leaf = leaf_of(key);
        let below = format!("{:02x}/{:02x}/{key}", leaf >> 8, leaf & 0xFF);
        self.directory.join(QUARANTINE).join(below)
    }

    /// Removes files that have been in the quarantine for `QUARANTINE_AGE`. Returns the number of
    /// removed files, and the number of files that stay in the quarantine.
    ///
    /// # Errors
    /// Errors of the file system, with the path.
    pub(crate) async fn empty_quarantine(&self) -> Result<(usize, usize)> {
        let now = skep_env::wall_time().seconds;
        let (mut removed, mut left) = (0, 0);
        let mut directories = vec![self.directory.join(QUARANTINE)];
        while let Some(directory) = directories.pop() {
            let failed = |error: io::Error| Error::from(error).within(directory.display());
            let entries = match std::fs::read_dir(&directory) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other.map_err(failed)?,
            };
            for entry in entries {
                let entry = entry.map_err(failed)?;
                let metadata = entry.metadata().map_err(failed)?;
                if metadata.is_dir() {
                    directories.push(entry.path());
                } else if now - metadata.ctime() >= QUARANTINE_AGE.as_secs() as i64 {
                    // The change time (ctime) of the file is the time of its move to the
                    // quarantine.
                    skep_env::remove_file(&entry.path()).await.map_err(failed)?;
                    removed += 1;
                } else {
                    left += 1;
                }
            }
            skep_env::yield_now().await;
        }
        Ok((removed, left))
    }
}

/// Moves a file. Creates the directory of its new path if necessary.
fn move_file(from: &Path, to: &Path) -> io::Result<()> {
    match std::fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && from.exists() => {
            std::fs::create_dir_all(to.parent().expect("a quarantined file has a directory"))?;
            std::fs::rename(from, to)
        }
        other => other,
    }
}
