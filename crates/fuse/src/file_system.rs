//! What the FUSE layer asks of a file system: the calls of `skep_client::Client`, as a trait, so that
//! tests can mount one that lives in memory.

use skep_env::Buf;
use skep_types::{Attributes, FileKind, InodeId, Result};
use skep_wire::metadata::{DirectoryEntries, NewInode, OpenMode, SetAttributes, XattrMode};
use std::future::Future;

/// An open file; valid on all threads of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HandleId(pub u64);

/// A file to make.
#[derive(Clone, Debug)]
pub struct CreateRequest {
    /// The directory.
    pub directory: InodeId,
    /// The name.
    pub name: Vec<u8>,
    /// Its kind: all but directories and symbolic links.
    pub kind: FileKind,
    /// Permissions and owner.
    pub new: NewInode,
    /// Device number, for device files.
    pub device: u64,
    /// How to open it.
    pub open: OpenMode,
}

/// An opened file.
#[derive(Clone, Copy, Debug)]
pub struct OpenedFile {
    /// Its handle.
    pub handle: HandleId,
    /// Whether what the kernel holds of the file is still right.
    pub keep_cache: bool,
}

/// Where an entry is renamed from and to.
#[derive(Clone, Debug)]
pub struct RenameRequest {
    /// The old directory.
    pub from_directory: InodeId,
    /// The old name.
    pub from_name: Vec<u8>,
    /// The new directory.
    pub to_directory: InodeId,
    /// The new name.
    pub to_name: Vec<u8>,
    /// Fail if the new name exists.
    pub no_replace: bool,
}

/// Room in the whole file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct StatFs {
    /// Size in bytes.
    pub total_bytes: u64,
    /// Free for users, in bytes.
    pub free_bytes: u64,
    /// Files that there are and can be.
    pub files: u64,
    /// Files that can be made.
    pub free_files: u64,
    /// Longest name.
    pub name_max: u32,
}

/// One worker's access to a file system. Cheap to clone; stays on its thread.
///
/// Futures of calls that only look may be dropped at any time, and so may `read` and `write`; those
/// of other calls are run to their end, even if nobody waits for them.
pub trait FileSystem: Clone + 'static {
    /// Finds an entry.
    fn lookup(&self, directory: InodeId, name: &[u8]) -> impl Future<Output = Result<Attributes>>;
    /// The attributes of an inode.
    fn attributes(&self, inode: InodeId) -> impl Future<Output = Result<Attributes>>;
    /// Changes attributes.
    fn set_attributes(&self, change: SetAttributes) -> impl Future<Output = Result<Attributes>>;
    /// Makes a file that is neither directory nor link; `Exists` if there is one. The handle is
    /// given if an open was asked for.
    fn create(
        &self,
        request: CreateRequest,
    ) -> impl Future<Output = Result<(Attributes, Option<HandleId>)>>;
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
    /// Writes all of `data`.
    fn write(&self, handle: HandleId, offset: u64, data: Buf) -> impl Future<Output = Result<()>>;
    /// A file descriptor was closed; others of the same open may remain.
    fn flush(&self, handle: HandleId) -> impl Future<Output = Result<()>>;
    /// Waits until what was written is on the devices.
    fn fsync(&self, handle: HandleId, data_only: bool) -> impl Future<Output = Result<()>>;
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
    /// Renames an entry.
    fn rename(&self, request: RenameRequest) -> impl Future<Output = Result<()>>;
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
    /// Sets an extended attribute.
    fn set_xattr(
        &self,
        inode: InodeId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> impl Future<Output = Result<()>>;
    /// The names of all extended attributes.
    fn list_xattrs(&self, inode: InodeId) -> impl Future<Output = Result<Vec<Vec<u8>>>>;
    /// Removes an extended attribute.
    fn remove_xattr(&self, inode: InodeId, name: &[u8]) -> impl Future<Output = Result<()>>;
    /// Room in the whole file system.
    fn statfs(&self) -> impl Future<Output = Result<StatFs>>;
    /// Waits until all that was acknowledged is on the devices.
    fn sync_all(&self) -> impl Future<Output = Result<()>>;
}
