//! The entries of directories: lookup, creation and removal of directories and links, rename.

use crate::client::Client;
use crate::session::request::ModifyOptions;
use skep_types::codec::Bytes;
use skep_types::{Attributes, ErrorCode, InodeId, Result};
use skep_wire::Request;
use skep_wire::metadata::{
    EntryReply, Exchange, Link, Lookup, MakeDirectory, MakeSymlink, NewInode, ReadLink,
    RemoveDirectory, Rename, Unlink,
};

/// Reads and changes the entries of directories.
pub trait Names {
    /// Finds an entry and returns its attributes.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `NameTooLong`.
    fn lookup(&self, directory: InodeId, name: &[u8]) -> impl Future<Output = Result<Attributes>>;

    /// Creates a directory.
    ///
    /// # Errors
    /// `Exists`, `NotFound`, `NotDirectory`, `NameTooLong`, `NoSpace`.
    fn make_directory(
        &self,
        directory: InodeId,
        name: &[u8],
        new: NewInode,
    ) -> impl Future<Output = Result<Attributes>>;

    /// Creates a symbolic link.
    ///
    /// # Errors
    /// As [`Self::make_directory`], and `InvalidArgument` for a target that is empty or too long.
    fn make_symlink(
        &self,
        directory: InodeId,
        name: &[u8],
        link_target: &[u8],
        new: NewInode,
    ) -> impl Future<Output = Result<Attributes>>;

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// `InvalidArgument` if the inode is not a symbolic link; `NotFound`.
    fn read_link(&self, inode: InodeId) -> impl Future<Output = Result<Vec<u8>>>;

    /// Creates another name for an inode.
    ///
    /// # Errors
    /// `Exists`, `NotFound`, `NotPermitted` for a directory, `TooManyLinks`, `NameTooLong`.
    fn link(
        &self,
        inode: InodeId,
        directory: InodeId,
        name: &[u8],
    ) -> impl Future<Output = Result<Attributes>>;

    /// Removes a name of anything but a directory.
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory`.
    fn unlink(&self, directory: InodeId, name: &[u8]) -> impl Future<Output = Result<()>>;

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `NotEmpty`.
    fn remove_directory(&self, directory: InodeId, name: &[u8])
    -> impl Future<Output = Result<()>>;

    /// Renames an entry, and replaces an entry that has the new name, unless `no_replace` is set.
    ///
    /// # Errors
    /// `NotFound`, `NotEmpty`, `IsDirectory`, `NotDirectory`; `Exists` with `no_replace`; `InUse`
    /// if a directory would become its own descendant.
    fn rename(
        &self,
        from_directory: InodeId,
        from_name: &[u8],
        to_directory: InodeId,
        to_name: &[u8],
        no_replace: bool,
        whiteout: Option<NewInode>,
    ) -> impl Future<Output = Result<()>>;

    /// Swaps the inodes of two names; both names must exist.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`; `InvalidArgument` if a directory would become its own
    /// descendant; `Io` if metadata may or may not have executed the exchange.
    fn exchange(
        &self,
        from_directory: InodeId,
        from_name: &[u8],
        to_directory: InodeId,
        to_name: &[u8],
    ) -> impl Future<Output = Result<()>>;
}

impl Names for Client {
    async fn lookup(&self, directory: InodeId, name: &[u8]) -> Result<Attributes> {
        let reply = self.ask(directory, &Lookup { directory, name: name.into() }).await?;
        self.attributes_of(reply).await
    }

    async fn make_directory(
        &self,
        directory: InodeId,
        name: &[u8],
        new: NewInode,
    ) -> Result<Attributes> {
        let request = MakeDirectory { directory, name: name.into(), new };
        let reply = self.change(directory, request, ErrorCode::Exists).await?;
        self.attributes_of(reply).await
    }

    async fn make_symlink(
        &self,
        directory: InodeId,
        name: &[u8],
        link_target: &[u8],
        new: NewInode,
    ) -> Result<Attributes> {
        let (name, link_target) = (name.into(), link_target.into());
        let request = MakeSymlink { directory, name, link_target, new };
        let reply = self.change(directory, request, ErrorCode::Exists).await?;
        self.attributes_of(reply).await
    }

    async fn read_link(&self, inode: InodeId) -> Result<Vec<u8>> {
        let Bytes(link_target) = self.ask(inode, &ReadLink { inode }).await?.bytes;
        Ok(link_target)
    }

    async fn link(&self, inode: InodeId, directory: InodeId, name: &[u8]) -> Result<Attributes> {
        let request = Link { inode, directory, name: name.into() };
        let reply = self.change(directory, request, ErrorCode::Exists).await?;
        self.attributes_of(reply).await
    }

    async fn unlink(&self, directory: InodeId, name: &[u8]) -> Result<()> {
        let request = Unlink { directory, name: name.into() };
        self.change(directory, request, ErrorCode::NotFound).await.map(|_| ())
    }

    async fn remove_directory(&self, directory: InodeId, name: &[u8]) -> Result<()> {
        let request = RemoveDirectory { directory, name: name.into() };
        self.change(directory, request, ErrorCode::NotFound).await.map(|_| ())
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
        let request = Rename {
            from_directory,
            from_name: from_name.into(),
            to_directory,
            to_name: to_name.into(),
            no_replace,
            whiteout,
        };
        self.change(to_directory, request, ErrorCode::NotFound).await.map(|_| ())
    }

    async fn exchange(
        &self,
        from_directory: InodeId,
        from_name: &[u8],
        to_directory: InodeId,
        to_name: &[u8],
    ) -> Result<()> {
        let request = Exchange {
            from_directory,
            from_name: from_name.into(),
            to_directory,
            to_name: to_name.into(),
        };
        // A second exchange would undo the first.
        let how = ModifyOptions { is_undone_by_repetition: true, ..ModifyOptions::default() };
        self.modify(to_directory, request, how, |_, _| ()).await.map(|_| ())
    }
}

impl Client {
    /// Returns the attributes in a reply. If the reply has none, requests them from the group that
    /// serves the inode.
    async fn attributes_of(&self, reply: EntryReply) -> Result<Attributes> {
        match reply.attributes {
            Some(mut attributes) => {
                self.note_attributes(&mut attributes);
                Ok(attributes)
            }
            None => self.fetch_attributes(reply.inode).await,
        }
    }

    /// Sends a change of the namespace. The reply needs no action if the caller has dropped the
    /// future. `ambiguous` is the error that a repetition may get because the first attempt
    /// succeeded.
    async fn change<R: Request + 'static>(
        &self,
        inode: InodeId,
        request: R,
        ambiguous: ErrorCode,
    ) -> Result<R::Reply> {
        self.modify(inode, request, ModifyOptions::ambiguous_on(ambiguous), |_, _| ()).await
    }
}
