//! The client as the file system behind a mount: passes each call on, and translates where the
//! words of the two differ. No logic.

use skep_client::{Client, Mount};
use skep_env::Buf;
use skep_fuse::{CreateRequest, FileSystem, HandleId, OpenedFile, RenameRequest, StatFs};
use skep_types::{Attributes, InodeId, Result};
use skep_wire::metadata::{Create, DirectoryEntries, NewInode, OpenMode, SetAttributes, XattrMode};
use std::sync::Arc;

/// One worker's client.
#[derive(Debug, Clone)]
pub(crate) struct MountedClient(Client);

impl MountedClient {
    /// The client of a worker, made on its thread.
    pub(crate) fn new(mount: Arc<Mount>, worker: usize) -> Result<Self> {
        Client::new(mount, worker).map(Self)
    }
}

fn to_client(handle: HandleId) -> skep_client::HandleId {
    skep_client::HandleId::new(handle.0)
}

fn from_client(handle: skep_client::HandleId) -> HandleId {
    HandleId(handle.raw())
}

impl FileSystem for MountedClient {
    async fn lookup(&self, directory: InodeId, name: &[u8]) -> Result<Attributes> {
        self.0.lookup(directory, name).await
    }

    async fn attributes(&self, inode: InodeId) -> Result<Attributes> {
        self.0.attributes(inode).await
    }

    async fn set_attributes(&self, change: SetAttributes) -> Result<Attributes> {
        self.0.set_attributes(change).await
    }

    async fn create(&self, request: CreateRequest) -> Result<(Attributes, Option<HandleId>)> {
        let CreateRequest { directory, name, kind, new, device, open } = request;
        let name = name.into();
        let request = Create { directory, name, kind, new, device, exclusive: true, open };
        let created = self.0.create(request).await?;
        Ok((created.attributes, created.handle.map(from_client)))
    }

    async fn open(&self, inode: InodeId, mode: OpenMode, truncate: bool) -> Result<OpenedFile> {
        let opened = self.0.open(inode, mode, truncate).await?;
        Ok(OpenedFile { handle: from_client(opened.handle), keep_cache: opened.keep_cache })
    }

    async fn read(&self, handle: HandleId, offset: u64, into: Buf) -> Result<usize> {
        self.0.read(to_client(handle), offset, into).await
    }

    async fn write(&self, handle: HandleId, offset: u64, data: Buf) -> Result<()> {
        self.0.write(to_client(handle), offset, data).await
    }

    async fn flush(&self, handle: HandleId) -> Result<()> {
        self.0.flush(to_client(handle)).await
    }

    async fn fsync(&self, handle: HandleId, data_only: bool) -> Result<()> {
        self.0.fsync(to_client(handle), data_only).await
    }

    async fn close(&self, handle: HandleId) -> Result<()> {
        self.0.close(to_client(handle)).await
    }

    async fn make_directory(
        &self,
        directory: InodeId,
        name: &[u8],
        new: NewInode,
    ) -> Result<Attributes> {
        self.0.make_directory(directory, name, new).await
    }

    async fn make_symlink(
        &self,
        directory: InodeId,
        name: &[u8],
        link_target: &[u8],
        new: NewInode,
    ) -> Result<Attributes> {
        self.0.make_symlink(directory, name, link_target, new).await
    }

    async fn read_link(&self, inode: InodeId) -> Result<Vec<u8>> {
        self.0.read_link(inode).await
    }

    async fn link(&self, inode: InodeId, directory: InodeId, name: &[u8]) -> Result<Attributes> {
        self.0.link(inode, directory, name).await
    }

    async fn unlink(&self, directory: InodeId, name: &[u8]) -> Result<()> {
        self.0.unlink(directory, name).await
    }

    async fn remove_directory(&self, directory: InodeId, name: &[u8]) -> Result<()> {
        self.0.remove_directory(directory, name).await
    }

    async fn rename(&self, request: RenameRequest) -> Result<()> {
        let RenameRequest { from_directory, from_name, to_directory, to_name, no_replace } =
            request;
        self.0.rename(from_directory, &from_name, to_directory, &to_name, no_replace).await
    }

    async fn read_directory(
        &self,
        directory: InodeId,
        cursor: u64,
        max_bytes: u32,
        with_attributes: bool,
    ) -> Result<DirectoryEntries> {
        self.0.read_directory(directory, cursor, max_bytes, with_attributes).await
    }

    async fn get_xattr(&self, inode: InodeId, name: &[u8]) -> Result<Vec<u8>> {
        self.0.get_xattr(inode, name).await
    }

    async fn set_xattr(
        &self,
        inode: InodeId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.0.set_xattr(inode, name, value, mode).await
    }

    async fn list_xattrs(&self, inode: InodeId) -> Result<Vec<Vec<u8>>> {
        self.0.list_xattrs(inode).await
    }

    async fn remove_xattr(&self, inode: InodeId, name: &[u8]) -> Result<()> {
        self.0.remove_xattr(inode, name).await
    }

    async fn statfs(&self) -> Result<StatFs> {
        let skep_client::StatFs { total_bytes, free_bytes, files, free_files, name_max } =
            self.0.statfs().await?;
        Ok(StatFs { total_bytes, free_bytes, files, free_files, name_max })
    }

    async fn sync_all(&self) -> Result<()> {
        self.0.sync_names().await
    }
}
