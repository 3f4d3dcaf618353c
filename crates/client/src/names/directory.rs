//! Directories as lists, and what is known of the whole file system and of one entry.

use crate::attributes::stat::InodeAttributes;
use crate::client::Client;
use crate::limits::ROOT_PATIENCE;
use skep_types::{Attributes, ErrorCode, InodeId, MAX_NAME_BYTES, Result};
use skep_wire::limits::MAX_DIRECTORY_BYTES;
use skep_wire::metadata::{DirectoryEntries, EntryInfo, GetEntryInfo, ReadDirectory};

/// What `statfs` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatFs {
    /// Size of all storage targets, in bytes.
    pub total_bytes: u64,
    /// Free on them, in bytes.
    pub free_bytes: u64,
    /// Inodes of all storage targets.
    pub files: u64,
    /// Free inodes on them.
    pub free_files: u64,
    /// Longest name of an entry.
    pub name_max: u32,
}

/// Directories as lists, and the capacity of the file system.
pub trait Directories {
    /// The attributes of a directory's parent; the root's is the root.
    ///
    /// # Errors
    /// `Stale` if either was removed.
    fn parent(&self, directory: InodeId) -> impl Future<Output = Result<Attributes>>;

    /// Begins to list a directory. Says whether a listing that was made since it was opened before
    /// is still right: nothing changed in between. The root is opened also while metadata doesn't
    /// answer: `df` opens what it is asked about.
    ///
    /// # Errors
    /// Those of asking metadata; a directory that was removed can be opened.
    fn open_directory(&self, directory: InodeId) -> impl Future<Output = Result<bool>>;

    /// Reads entries after a cursor (zero: from the start), in at most about `max_bytes`.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`.
    fn read_directory(
        &self,
        directory: InodeId,
        cursor: u64,
        max_bytes: u32,
        with_attributes: bool,
    ) -> impl Future<Output = Result<DirectoryEntries>>;

    /// Room on the file system, as storage targets last reported it.
    ///
    /// # Errors
    /// None now; other sources may have some.
    fn statfs(&self) -> impl Future<Output = Result<StatFs>>;
}

impl Directories for Client {
    async fn parent(&self, directory: InodeId) -> Result<Attributes> {
        let parent = self.ask(directory, &GetEntryInfo { inode: directory }).await?.parent;
        self.attributes(parent).await
    }

    async fn open_directory(&self, directory: InodeId) -> Result<bool> {
        let (caches, seen) = (&self.mount().caches, &self.mount().seen);
        if !caches.is_known(directory) {
            // Nothing was kept of it, so nothing need be asked: who listed it then saw at least
            // what is known of it now.
            if let Some(seen) = seen.special(directory) {
                caches.opened(directory, seen.change_counter);
            }
            return Ok(false);
        }
        let answer = match directory {
            InodeId::ROOT => skep_env::timeout(ROOT_PATIENCE, self.attributes(directory)).await,
            _ => Some(self.attributes(directory).await),
        };
        match answer {
            Some(Ok(attributes)) => Ok(caches.opened(directory, attributes.change_counter)),
            Some(Err(gone)) if matches!(gone.code(), ErrorCode::NotFound | ErrorCode::Stale) => {
                Ok(false)
            }
            Some(Err(error)) => Err(error),
            // Whoever lists it asks, and waits.
            None => Ok(false),
        }
    }

    async fn read_directory(
        &self,
        directory: InodeId,
        cursor: u64,
        max_bytes: u32,
        with_attributes: bool,
    ) -> Result<DirectoryEntries> {
        let max_bytes = max_bytes.min(MAX_DIRECTORY_BYTES);
        let request = ReadDirectory { directory, cursor, max_bytes, with_attributes };
        let mut entries = self.ask(directory, &request).await?;
        for attributes in entries.entries.iter_mut().filter_map(|it| it.entry.attributes.as_mut()) {
            self.note_attributes(attributes);
        }
        Ok(entries)
    }

    async fn statfs(&self) -> Result<StatFs> {
        let capacity = self.mount().capacity().await;
        Ok(StatFs {
            total_bytes: capacity.total_bytes,
            free_bytes: capacity.free_bytes,
            files: capacity.total_inodes,
            free_files: capacity.free_inodes,
            name_max: MAX_NAME_BYTES as u32,
        })
    }
}

impl Client {
    /// Everything that metadata knows of an inode.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn entry_info(&self, inode: InodeId) -> Result<EntryInfo> {
        let mut info = self.ask(inode, &GetEntryInfo { inode }).await?;
        self.note_attributes(&mut info.attributes);
        Ok(info)
    }
}
