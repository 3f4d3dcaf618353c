//! Lists chunk files and returns their attributes.

use super::ChunkStore;
use super::names::{leaf_of, order_in_leaf};
use crate::limits::MAX_LISTED;
use skep_types::{ChunkFileKey, Error, Result, Timestamp};
use skep_wire::storage::ChunkStat;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

/// Returns the position of a chunk file in listings. The high bits are the index of the leaf, and
/// the low bits are the order in the leaf. The position is never zero.
fn cursor_of(key: &ChunkFileKey) -> u64 {
    u64::from(leaf_of(key)) << 48 | order_in_leaf(key) | 1
}

impl ChunkStore {
    /// Returns the attributes of a chunk file. The attributes are zero if the file does not exist.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn stat(&self, key: &ChunkFileKey) -> Result<ChunkStat> {
        let Some(file) = self.existing(key)? else {
            return Ok(ChunkStat {
                exists: false,
                size: 0,
                allocated: 0,
                modified: Timestamp::default(),
            });
        };
        let metadata = file.file.borrow_std().metadata().map_err(|error| file.io_error(error))?;
        Ok(ChunkStat {
            exists: true,
            size: file.size.get(),
            allocated: metadata.blocks() * 512,
            modified: Timestamp {
                seconds: metadata.mtime(),
                nanoseconds: metadata.mtime_nsec() as u32,
            },
        })
    }

    /// Returns the chunk files after `cursor`, and the cursor for the next page. A caller begins
    /// the listing with a cursor of zero. A returned cursor of zero means that the page is the last
    /// page. Files that are created or removed between two pages may be missing. The listing
    /// contains every other file exactly once. A page may exceed `limit`, since it contains all
    /// files with the same position.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn list(&self, cursor: u64, limit: u32) -> Result<(Vec<ChunkFileKey>, u64)> {
        let limit = limit.clamp(1, MAX_LISTED) as usize;
        let mut found: Vec<(u64, ChunkFileKey)> = Vec::new();
        for leaf in self.names.leaves((cursor >> 48) as u16)? {
            let keys = self.names.list(leaf)?;
            found.extend(
                keys.into_iter().map(|key| (cursor_of(&key), key)).filter(|(at, _)| *at > cursor),
            );
            if found.len() > limit {
                break;
            }
        }
        found.sort_unstable();
        let mut next = 0;
        if found.len() > limit {
            let last = found[limit - 1].0;
            let end = found.partition_point(|(at, _)| *at <= last);
            if end < found.len() {
                next = last;
            }
            found.truncate(end);
        }
        Ok((found.into_iter().map(|(_, key)| key).collect(), next))
    }

    /// Returns the existing leaf directories in ascending order.
    ///
    /// # Errors
    /// Errors of the file system.
    pub(crate) fn leaves(&self) -> Result<Vec<u16>> {
        self.names.leaves(0)
    }

    /// Returns the chunk files in one leaf directory that were last changed at least `age` ago.
    ///
    /// # Errors
    /// Errors of the file system.
    pub(crate) fn older_than(&self, leaf: u16, age: Duration) -> Result<Vec<ChunkFileKey>> {
        let now = skep_env::wall_time();
        let now = i128::from(now.seconds) * 1_000_000_000 + i128::from(now.nanoseconds);
        let is_old = |metadata: &std::fs::Metadata| {
            let changed =
                i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
            now - changed >= age.as_nanos() as i128
        };
        let mut keys = Vec::new();
        for key in self.names.list(leaf)? {
            let path = self.names.path(&key);
            match std::fs::metadata(&path) {
                Ok(metadata) if is_old(&metadata) => keys.push(key),
                Ok(_) => {}
                // A request removed the file after the listing of its directory.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(Error::from(error).within(path.display())),
            }
        }
        Ok(keys)
    }
}
