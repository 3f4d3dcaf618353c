//! Lists directories, and returns the capacity of the file system and all information that metadata
//! stores about one inode.

use crate::attributes::stat::InodeAttributes;
use crate::client::Client;
use crate::limits::ROOT_PATIENCE;
use skep_types::{Attributes, ErrorCode, InodeId, MAX_NAME_BYTES, Result};
use skep_wire::limits::MAX_DIRECTORY_BYTES;
use skep_wire::metadata::{DirectoryEntries, EntryInfo, GetEntryInfo, ReadDirectory};
use std::time::Duration;

/// The capacity of the file system, as returned by `statfs(2)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatFs {
    /// Total size of all storage targets, in bytes.
    pub total_bytes: u64,
    /// Free space of all storage targets, in bytes.
    pub free_bytes: u64,
    /// Total number of inodes of all storage targets.
    pub files: u64,
    /// Number of free inodes of all storage targets.
    pub free_files: u64,
    /// Maximum length of an entry's name, in bytes.
    pub name_max: u32,
}

/// Lists directories, and returns the capacity of the file system.
pub trait Directories {
    /// Returns the attributes of a directory's parent. The root is its own parent.
    ///
    /// # Errors
    /// Returns `Stale` if the directory or its parent was removed.
    fn parent(&self, directory: InodeId) -> impl Future<Output = Result<Attributes>>;

    /// Begins to list a directory. Returns `true` if the kernel's cached listing is certainly still
    /// valid: the directory has not changed since the kernel read the listing. If this mount sent a
    /// change of the directory less than `max_age` ago, uses the attributes in the reply to this
    /// change. This function opens the root even while metadata does not reply, since `df` opens
    /// the mount point.
    ///
    /// The kernel may use the entries of its listing for `max_age`. After that time, this function
    /// returns `false` for a directory whose listing fits into one reply. The kernel then gets the
    /// entries again with one request.
    ///
    /// # Errors
    /// Returns the errors of a request to metadata. To open a removed directory is not an error.
    fn open_directory(
        &self,
        directory: InodeId,
        max_age: Duration,
    ) -> impl Future<Output = Result<bool>>;

    /// Returns the entries after `cursor`, in at most about `max_bytes` bytes. A `cursor` of zero
    /// means the beginning of the directory.
    ///
    /// # Errors
    /// - `NotFound` if the directory does not exist.
    /// - `NotDirectory` if the inode is not a directory.
    fn read_directory(
        &self,
        directory: InodeId,
        cursor: u64,
        max_bytes: u32,
        with_attributes: bool,
    ) -> impl Future<Output = Result<DirectoryEntries>>;

    /// Returns whether the last reply to [`Self::read_directory`] has shown that a directory has no
    /// entries after `cursor`. The mount must have sent the request for this reply less than
    /// `max_age` ago, and no program may have opened the directory or read other entries of it
    /// since. Returns `true` at most once for each reply.
    fn has_listed_all(&self, _directory: InodeId, _cursor: u64, _max_age: Duration) -> bool {
        false
    }

    /// Returns the capacity that the storage targets have last reported.
    ///
    /// # Errors
    /// `Client` returns no error, but other implementations of this trait may return errors.
    fn statfs(&self) -> impl Future<Output = Result<StatFs>>;
}

impl Directories for Client {
    async fn parent(&self, directory: InodeId) -> Result<Attributes> {
        let parent = self.ask(directory, &GetEntryInfo { inode: directory }).await?.parent;
        self.attributes(parent).await
    }

    async fn open_directory(&self, directory: InodeId, max_age: Duration) -> Result<bool> {
        let (caches, seen) = (&self.mount().caches, &self.mount().seen);
        caches.listing_ends.begin(directory);
        let has_expired = caches.listings.has_expired(directory, max_age, skep_env::now());
        if !caches.is_known(directory) || has_expired {
            // The kernel has no cached listing of this directory, or drops it now. So the mount
            // need not request attributes to check the listing. A listing that begins now is at
            // least as new as the attributes that the mount saw last.
            if let Some(seen) = seen.special(directory) {
                caches.listed(directory, seen.change_counter);
            }
            return Ok(false);
        }
        if let Some((attributes, _)) = self.after_own_change(directory, max_age) {
            return Ok(caches.listed(directory, attributes.change_counter));
        }
        let answer = match directory {
            InodeId::ROOT => skep_env::timeout(ROOT_PATIENCE, self.attributes(directory)).await,
            _ => Some(self.attributes(directory).await),
        };
        match answer {
            Some(Ok(attributes)) => Ok(caches.listed(directory, attributes.change_counter)),
            Some(Err(gone)) if matches!(gone.code(), ErrorCode::NotFound | ErrorCode::Stale) => {
                Ok(false)
            }
            Some(Err(error)) => Err(error),
            // Metadata did not reply in time, so open the directory without its attributes. When
            // the program reads the directory, the mount sends a request and waits for the reply.
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
        let caches = &self.mount().caches;
        let (number, sent) = (caches.listing_ends.begin(directory), skep_env::now());
        let mut entries = self.ask(directory, &request).await?;
        if cursor == 0 {
            let is_whole = with_attributes && entries.end;
            caches.listings.note(directory, is_whole.then_some(sent));
        }
        // An empty page ends the listing, and the next request of the kernel belongs to another
        // listing. So do not record the end. The first page of an empty directory is an exception:
        // the kernel also gets `.` and `..`, and its next request belongs to this listing.
        let last = entries.entries.last().map(|entry| entry.cursor);
        if entries.end
            && let Some(last) = last.or((cursor == 0).then_some(0))
        {
            caches.listing_ends.note(directory, number, last, sent);
        }
        for attributes in entries.entries.iter_mut().filter_map(|it| it.entry.attributes.as_mut()) {
            self.note_attributes(attributes, sent);
        }
        Ok(entries)
    }

    fn has_listed_all(&self, directory: InodeId, cursor: u64, max_age: Duration) -> bool {
        self.mount().caches.listing_ends.take(directory, cursor, max_age, skep_env::now())
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
    /// Returns all information that metadata stores about an inode.
    ///
    /// # Errors
    /// Returns `NotFound` if the inode does not exist.
    pub async fn entry_info(&self, inode: InodeId) -> Result<EntryInfo> {
        let sent = skep_env::now();
        let mut info = self.ask(inode, &GetEntryInfo { inode }).await?;
        self.note_attributes(&mut info.attributes, sent);
        Ok(info)
    }
}
