//! What the FUSE layer asks of a file system: the calls of `skep_client::Client`, as a trait, so
//! that tests can mount one that lives in memory.

use skep_client::{
    Allocation, Client, CreateRequest, Created, DirectoryEntries, FileLock, Forget, HandleId,
    HeldLock, Locked, NewInode, OpenMode, OpenedFile, SetAttributes, Sought, Stat, StatFs,
    XattrMode,
};
use skep_env::Buf;
use skep_types::{Attributes, InodeId, PatternRequest, Result};
use std::future::Future;
use std::ops::Range;

/// One worker's access to a file system. Cheap to clone; stays on its thread.
///
/// Futures of calls that only look may be dropped at any time, and so may those that read or change
/// what a file holds; those of other calls are run to their end, even if nobody waits for them.
pub trait FileSystem: Clone + 'static {
    /// Finds an entry.
    fn lookup(&self, directory: InodeId, name: &[u8]) -> impl Future<Output = Result<Attributes>>;
    /// The attributes of an inode.
    fn attributes(&self, inode: InodeId) -> impl Future<Output = Result<Attributes>>;
    /// The attributes of a directory's parent; the root's is the root.
    fn parent(&self, directory: InodeId) -> impl Future<Output = Result<Attributes>>;
    /// The attributes of an inode, and how much it takes.
    fn stat(&self, inode: InodeId) -> impl Future<Output = Result<Stat>>;
    /// Whether a file may be cut through this handle.
    fn check_handle(&self, handle: HandleId) -> Result<()>;
    /// Changes attributes.
    fn set_attributes(&self, change: SetAttributes) -> impl Future<Output = Result<Attributes>>;
    /// Makes a file that is neither directory nor link, and opens it if asked.
    fn create(&self, request: CreateRequest) -> impl Future<Output = Result<Created>>;
    /// Makes a regular file without a name and opens it.
    fn create_unnamed(
        &self,
        directory: InodeId,
        new: NewInode,
        mode: OpenMode,
        pattern: Option<PatternRequest>,
    ) -> impl Future<Output = Result<Created>>;
    /// Notes that the kernel is shown these attributes. Says whether it may remember an access
    /// control list from before another mount changed the inode.
    fn note_shown(&self, attributes: &Attributes) -> bool;
    /// Opens a regular file, perhaps cutting it to nothing.
    fn open(
        &self,
        inode: InodeId,
        mode: OpenMode,
        truncate: bool,
    ) -> impl Future<Output = Result<OpenedFile>>;
    /// Reads into `into`; short only at the end of the file.
    fn read(&self, handle: HandleId, offset: u64, into: Buf)
    -> impl Future<Output = Result<usize>>;
    /// Notes that the kernel may keep the bytes of a read that is about to begin.
    fn note_cached(&self, _handle: HandleId) {}
    /// Whether the kernel may have pages of a file from such reads since it was opened.
    fn is_cached(&self, _inode: InodeId) -> bool {
        true
    }
    /// Writes all of `data`.
    fn write(&self, handle: HandleId, offset: u64, data: Buf) -> impl Future<Output = Result<()>>;
    /// Writes all of `data` at the end of the file.
    fn append(&self, handle: HandleId, data: Buf) -> impl Future<Output = Result<()>>;
    /// Reserves room, or makes zeros or a hole of a range.
    fn allocate(
        &self,
        handle: HandleId,
        range: Range<u64>,
        what: Allocation,
        keeps_size: bool,
    ) -> impl Future<Output = Result<()>>;
    /// Where data or a hole begins; none: there is no data, or the file ends before.
    fn seek(
        &self,
        handle: HandleId,
        offset: u64,
        what: Sought,
    ) -> impl Future<Output = Result<Option<u64>>>;
    /// Copies bytes from one open file to another; gives how many.
    fn copy(
        &self,
        from: (HandleId, u64),
        to: (HandleId, u64),
        length: u64,
    ) -> impl Future<Output = Result<u64>>;
    /// A file descriptor was closed; others of the same open may remain.
    fn flush(&self, handle: HandleId) -> impl Future<Output = Result<()>>;
    /// A number for an attempt to get a lock.
    fn new_lock_wait(&self) -> u64;
    /// Locks or unlocks, without waiting for others.
    fn set_lock(
        &self,
        handle: HandleId,
        lock: FileLock,
        wait: u64,
    ) -> impl Future<Output = Result<Locked>>;
    /// Waits until a lock may be had, or for some seconds. May be dropped.
    fn wait_for_lock(
        &self,
        handle: HandleId,
        lock: &FileLock,
        wait: u64,
    ) -> impl Future<Output = Result<()>>;
    /// A lock that is in the way of another.
    fn test_lock(
        &self,
        handle: HandleId,
        lock: &FileLock,
    ) -> impl Future<Output = Result<Option<HeldLock>>>;
    /// A process has closed a descriptor of a file: what it has locked of it ends.
    fn unlock_process(&self, handle: HandleId, owner: u64) -> impl Future<Output = Result<()>>;
    /// Whether other mounts have a file open that this one has open, and one of all may write.
    fn is_shared(&self, inode: InodeId) -> bool;
    /// How the kernel is made to forget attributes of a file that begins to be shared.
    fn set_forget(&self, forget: Forget);
    /// Whether any process ever locked bytes of a file.
    fn has_process_locks(&self) -> bool;
    /// Notes that what is changed through a handle is to be on the devices when the call returns.
    fn set_synced(&self, handle: HandleId);
    /// Whether that was noted.
    fn is_synced(&self, handle: HandleId) -> bool;
    /// Waits until what was written is on the devices.
    fn fsync(&self, handle: HandleId) -> impl Future<Output = Result<()>>;
    /// The open has ended.
    fn close(&self, handle: HandleId) -> impl Future<Output = Result<()>>;
    /// Makes a directory.
    fn make_directory(
        &self,
        directory: InodeId,
        name: &[u8],
        new: NewInode,
    ) -> impl Future<Output = Result<Attributes>>;
    /// Makes a symbolic link.
    fn make_symlink(
        &self,
        directory: InodeId,
        name: &[u8],
        link_target: &[u8],
        new: NewInode,
    ) -> impl Future<Output = Result<Attributes>>;
    /// What a symbolic link points to.
    fn read_link(&self, inode: InodeId) -> impl Future<Output = Result<Vec<u8>>>;
    /// Gives an inode another name.
    fn link(
        &self,
        inode: InodeId,
        directory: InodeId,
        name: &[u8],
    ) -> impl Future<Output = Result<Attributes>>;
    /// Removes a name that is not a directory's.
    fn unlink(&self, directory: InodeId, name: &[u8]) -> impl Future<Output = Result<()>>;
    /// Removes an empty directory.
    fn remove_directory(&self, directory: InodeId, name: &[u8])
    -> impl Future<Output = Result<()>>;
    /// Renames an entry, and may leave a mark at the old name that overlay file systems know.
    fn rename(
        &self,
        from_directory: InodeId,
        from_name: &[u8],
        to_directory: InodeId,
        to_name: &[u8],
        no_replace: bool,
        whiteout: Option<NewInode>,
    ) -> impl Future<Output = Result<()>>;
    /// Swaps what two names point to.
    fn exchange(
        &self,
        from_directory: InodeId,
        from_name: &[u8],
        to_directory: InodeId,
        to_name: &[u8],
    ) -> impl Future<Output = Result<()>>;
    /// Begins to list a directory: whether a listing since it was opened before is still right.
    fn open_directory(&self, directory: InodeId) -> impl Future<Output = Result<bool>>;
    /// Entries after a cursor, about `max_bytes` of them.
    fn read_directory(
        &self,
        directory: InodeId,
        cursor: u64,
        max_bytes: u32,
        with_attributes: bool,
    ) -> impl Future<Output = Result<DirectoryEntries>>;
    /// The value of an extended attribute.
    fn get_xattr(&self, inode: InodeId, name: &[u8]) -> impl Future<Output = Result<Vec<u8>>>;
    /// Sets an extended attribute; an access control list may clear the set-group-id bit.
    fn set_xattr(
        &self,
        inode: InodeId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        clear_set_group_id: bool,
    ) -> impl Future<Output = Result<()>>;
    /// The names of all extended attributes.
    fn list_xattrs(&self, inode: InodeId) -> impl Future<Output = Result<Vec<Vec<u8>>>>;
    /// Removes an extended attribute.
    fn remove_xattr(&self, inode: InodeId, name: &[u8]) -> impl Future<Output = Result<()>>;
    /// The stripe pattern of a file, or what a directory hands down, as text.
    fn pattern(&self, inode: InodeId) -> impl Future<Output = Result<Vec<u8>>>;
    /// Where the bytes of a file lie, as text.
    fn pattern_map(&self, inode: InodeId) -> impl Future<Output = Result<Vec<u8>>>;
    /// Reads a stripe pattern.
    fn read_pattern(&self, text: &[u8]) -> Result<PatternRequest>;
    /// Sets a stripe pattern; for a directory perhaps none.
    fn set_pattern(
        &self,
        inode: InodeId,
        text: Option<&[u8]>,
        uid: u32,
    ) -> impl Future<Output = Result<()>>;
    /// Room in the whole file system.
    fn statfs(&self) -> impl Future<Output = Result<StatFs>>;
    /// Waits until all changes of names and attributes are on the devices.
    fn sync_names(&self) -> impl Future<Output = Result<()>>;
    /// Waits until all that was acknowledged is on the devices.
    fn sync_all(&self) -> impl Future<Output = Result<()>>;
}

impl FileSystem for Client {
    async fn lookup(&self, directory: InodeId, name: &[u8]) -> Result<Attributes> {
        Self::lookup(self, directory, name).await
    }

    async fn attributes(&self, inode: InodeId) -> Result<Attributes> {
        Self::attributes(self, inode).await
    }

    async fn parent(&self, directory: InodeId) -> Result<Attributes> {
        Self::parent(self, directory).await
    }

    async fn stat(&self, inode: InodeId) -> Result<Stat> {
        Self::stat(self, inode).await
    }

    fn check_handle(&self, handle: HandleId) -> Result<()> {
        Self::check_handle(self, handle)
    }

    async fn set_attributes(&self, change: SetAttributes) -> Result<Attributes> {
        Self::set_attributes(self, change).await
    }

    async fn create(&self, request: CreateRequest) -> Result<Created> {
        Self::create(self, request).await
    }

    async fn create_unnamed(
        &self,
        directory: InodeId,
        new: NewInode,
        mode: OpenMode,
        pattern: Option<PatternRequest>,
    ) -> Result<Created> {
        Self::create_unnamed(self, directory, new, mode, pattern).await
    }

    fn note_shown(&self, attributes: &Attributes) -> bool {
        Self::note_shown(self, attributes)
    }

    async fn open(&self, inode: InodeId, mode: OpenMode, truncate: bool) -> Result<OpenedFile> {
        Self::open(self, inode, mode, truncate).await
    }

    async fn read(&self, handle: HandleId, offset: u64, into: Buf) -> Result<usize> {
        Self::read(self, handle, offset, into).await
    }

    fn note_cached(&self, handle: HandleId) {
        Self::note_cached(self, handle);
    }

    fn is_cached(&self, inode: InodeId) -> bool {
        self.mount().is_cached(inode)
    }

    async fn append(&self, handle: HandleId, data: Buf) -> Result<()> {
        Self::append(self, handle, data).await
    }

    async fn write(&self, handle: HandleId, offset: u64, data: Buf) -> Result<()> {
        Self::write(self, handle, offset, data).await
    }

    async fn allocate(
        &self,
        handle: HandleId,
        range: Range<u64>,
        what: Allocation,
        keeps_size: bool,
    ) -> Result<()> {
        Self::allocate(self, handle, range, what, keeps_size).await
    }

    async fn seek(&self, handle: HandleId, offset: u64, what: Sought) -> Result<Option<u64>> {
        Self::seek(self, handle, offset, what).await
    }

    async fn copy(&self, from: (HandleId, u64), to: (HandleId, u64), length: u64) -> Result<u64> {
        Self::copy(self, from, to, length).await
    }

    async fn flush(&self, handle: HandleId) -> Result<()> {
        Self::flush(self, handle).await
    }

    fn new_lock_wait(&self) -> u64 {
        Self::new_lock_wait(self)
    }

    async fn set_lock(&self, handle: HandleId, lock: FileLock, wait: u64) -> Result<Locked> {
        Self::set_lock(self, handle, lock, wait).await
    }

    async fn wait_for_lock(&self, handle: HandleId, lock: &FileLock, wait: u64) -> Result<()> {
        Self::wait_for_lock(self, handle, lock, wait).await
    }

    async fn test_lock(&self, handle: HandleId, lock: &FileLock) -> Result<Option<HeldLock>> {
        Self::test_lock(self, handle, lock).await
    }

    async fn unlock_process(&self, handle: HandleId, owner: u64) -> Result<()> {
        Self::unlock_process(self, handle, owner).await
    }

    fn is_shared(&self, inode: InodeId) -> bool {
        self.mount().is_shared(inode)
    }

    fn set_forget(&self, forget: Forget) {
        self.mount().set_forget(forget);
    }

    fn has_process_locks(&self) -> bool {
        self.mount().has_process_locks()
    }

    fn set_synced(&self, handle: HandleId) {
        Self::set_synced(self, handle);
    }

    fn is_synced(&self, handle: HandleId) -> bool {
        Self::is_synced(self, handle)
    }

    async fn fsync(&self, handle: HandleId) -> Result<()> {
        Self::fsync(self, handle).await
    }

    async fn close(&self, handle: HandleId) -> Result<()> {
        Self::close(self, handle).await
    }

    async fn make_directory(
        &self,
        directory: InodeId,
        name: &[u8],
        new: NewInode,
    ) -> Result<Attributes> {
        Self::make_directory(self, directory, name, new).await
    }

    async fn make_symlink(
        &self,
        directory: InodeId,
        name: &[u8],
        link_target: &[u8],
        new: NewInode,
    ) -> Result<Attributes> {
        Self::make_symlink(self, directory, name, link_target, new).await
    }

    async fn read_link(&self, inode: InodeId) -> Result<Vec<u8>> {
        Self::read_link(self, inode).await
    }

    async fn link(&self, inode: InodeId, directory: InodeId, name: &[u8]) -> Result<Attributes> {
        Self::link(self, inode, directory, name).await
    }

    async fn unlink(&self, directory: InodeId, name: &[u8]) -> Result<()> {
        Self::unlink(self, directory, name).await
    }

    async fn remove_directory(&self, directory: InodeId, name: &[u8]) -> Result<()> {
        Self::remove_directory(self, directory, name).await
    }

    async fn rename(
        &self,
        from_directory: InodeId,
        from_name: &[u8],
        to_directory: InodeId,
        to_name: &[u8],
        no_replace: bool,
        whiteout: Option<NewInode>,
    ) -> Result<()> {
        let (from, to) = (from_directory, to_directory);
        Self::rename(self, from, from_name, to, to_name, no_replace, whiteout).await
    }

    async fn exchange(
        &self,
        from_directory: InodeId,
        from_name: &[u8],
        to_directory: InodeId,
        to_name: &[u8],
    ) -> Result<()> {
        Self::exchange(self, from_directory, from_name, to_directory, to_name).await
    }

    async fn open_directory(&self, directory: InodeId) -> Result<bool> {
        Self::open_directory(self, directory).await
    }

    async fn read_directory(
        &self,
        directory: InodeId,
        cursor: u64,
        max_bytes: u32,
        with_attributes: bool,
    ) -> Result<DirectoryEntries> {
        Self::read_directory(self, directory, cursor, max_bytes, with_attributes).await
    }

    async fn get_xattr(&self, inode: InodeId, name: &[u8]) -> Result<Vec<u8>> {
        Self::get_xattr(self, inode, name).await
    }

    async fn set_xattr(
        &self,
        inode: InodeId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        clear_set_group_id: bool,
    ) -> Result<()> {
        Self::set_xattr(self, inode, name, value, mode, clear_set_group_id).await
    }

    async fn list_xattrs(&self, inode: InodeId) -> Result<Vec<Vec<u8>>> {
        Self::list_xattrs(self, inode).await
    }

    async fn remove_xattr(&self, inode: InodeId, name: &[u8]) -> Result<()> {
        Self::remove_xattr(self, inode, name).await
    }

    async fn pattern(&self, inode: InodeId) -> Result<Vec<u8>> {
        Self::pattern(self, inode).await
    }

    async fn pattern_map(&self, inode: InodeId) -> Result<Vec<u8>> {
        Self::pattern_map(self, inode).await
    }

    fn read_pattern(&self, text: &[u8]) -> Result<PatternRequest> {
        Self::read_pattern(self, text)
    }

    async fn set_pattern(&self, inode: InodeId, text: Option<&[u8]>, uid: u32) -> Result<()> {
        Self::set_pattern(self, inode, text, uid).await
    }

    async fn statfs(&self) -> Result<StatFs> {
        Self::statfs(self).await
    }

    async fn sync_names(&self) -> Result<()> {
        Self::sync_names(self).await
    }

    async fn sync_all(&self) -> Result<()> {
        Self::sync_all(self).await
    }
}
