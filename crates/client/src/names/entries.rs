//! The entries of directories: lookup, creation and removal of directories and links, rename and
//! exchange.

use crate::cache::directory_changes::SentChange;
use crate::client::Client;
use crate::limits::MAX_LOOKUPS;
use crate::session::request::ModifyOptions;
use skep_types::codec::Bytes;
use skep_types::{Attributes, ErrorCode, InodeId, Result};
use skep_wire::Request;
use skep_wire::metadata::{
    EntryReply, Exchange, Link, Lookup, MakeDirectory, MakeSymlink, NamesReply, NewEntryReply,
    NewInode, ReadLink, RemoveDirectory, Rename, Unlink,
};
use std::time::Duration;

/// Reads and changes the entries of directories.
///
/// # Errors
/// Each function that changes an entry also returns `Io` if the session was lost and the client
/// cannot find out whether metadata executed the change.
pub trait Names {
    /// Finds an entry, and returns the attributes of its inode.
    ///
    /// # Errors
    /// - `NotFound` if the directory has no such entry or does not exist.
    /// - `NotDirectory` if `directory` is not a directory.
    /// - `NameTooLong` if the name is too long.
    fn lookup(&self, directory: InodeId, name: &[u8]) -> impl Future<Output = Result<Attributes>>;

    /// Creates a directory.
    ///
    /// # Errors
    /// - `Exists` if the name exists.
    /// - `NotFound` if the parent directory does not exist.
    /// - `NotDirectory` if the parent is not a directory.
    /// - `NameTooLong` if the name is too long.
    /// - `NoSpace` if metadata has no space for the new inode.
    fn make_directory(
        &self,
        directory: InodeId,
        name: &[u8],
        new: NewInode,
    ) -> impl Future<Output = Result<Attributes>>;

    /// Creates a symbolic link.
    ///
    /// # Errors
    /// - The errors of [`Self::make_directory`].
    /// - `InvalidArgument` if `link_target` is empty or too long.
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
    /// - `InvalidArgument` if the inode is not a symbolic link.
    /// - `NotFound` if the inode does not exist.
    fn read_link(&self, inode: InodeId) -> impl Future<Output = Result<Vec<u8>>>;

    /// Creates a hard link: another name for an inode. Returns the attributes of the inode.
    ///
    /// # Errors
    /// - `Exists` if the name exists.
    /// - `NotFound` if the inode or the directory does not exist.
    /// - `NotPermitted` if the inode is a directory.
    /// - `TooManyLinks` if the inode has the maximum number of links.
    /// - `NameTooLong` if the name is too long.
    fn link(
        &self,
        inode: InodeId,
        directory: InodeId,
        name: &[u8],
    ) -> impl Future<Output = Result<Attributes>>;

    /// Removes a name of a file that is not a directory.
    ///
    /// # Errors
    /// - `NotFound` if the name does not exist.
    /// - `IsDirectory` if the name belongs to a directory.
    fn unlink(&self, directory: InodeId, name: &[u8]) -> impl Future<Output = Result<()>>;

    /// Removes an empty directory.
    ///
    /// # Errors
    /// - `NotFound` if the name does not exist.
    /// - `NotDirectory` if the name does not belong to a directory.
    /// - `NotEmpty` if the directory has entries.
    fn remove_directory(&self, directory: InodeId, name: &[u8])
    -> impl Future<Output = Result<()>>;

    /// Renames an entry. If an entry with the new name exists, replaces this entry unless
    /// `no_replace` is set. If `whiteout` is given, the old name refers to a new whiteout inode
    /// afterwards (`RENAME_WHITEOUT`).
    ///
    /// # Errors
    /// - `NotFound` if the old name or the new directory does not exist.
    /// - `Exists` if the new name exists and `no_replace` is set.
    /// - `NotEmpty` if the replaced directory has entries.
    /// - `IsDirectory` if a directory would be replaced by another kind of file.
    /// - `NotDirectory` if another kind of file would be replaced by a directory.
    /// - `InvalidArgument` if a directory would become its own descendant.
    fn rename(
        &self,
        from_directory: InodeId,
        from_name: &[u8],
        to_directory: InodeId,
        to_name: &[u8],
        no_replace: bool,
        whiteout: Option<NewInode>,
    ) -> impl Future<Output = Result<()>>;

    /// Exchanges the inodes of two names. Both names must exist.
    ///
    /// # Errors
    /// - `NotFound` if either name does not exist.
    /// - `NotDirectory` if either parent is not a directory.
    /// - `InvalidArgument` if a directory would become its own descendant.
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
        let request = Lookup { directory, name: name.into() };
        let hints = &self.mount().caches.name_hints;
        let key = hints.key(directory, name);
        let mut lookups = 1;
        // Retry: looks the name up again without a pause, at most `MAX_LOOKUPS` times, if another
        // client has removed the inode that the name referred to. The group of the directory and
        // the group of the inode do not reply at the same moment. So the name may have referred to
        // an existing inode at every moment.
        loop {
            let (sent, hinted) = (skep_env::now(), hints.get(key));
            // If the result of this task is not needed, the end of the iteration drops the task,
            // and so cancels it.
            let early = hinted.map(|inode| {
                let client = self.clone();
                skep_env::spawn(async move { client.fetch_attributes(inode).await })
            });
            let reply = self.ask(directory, &request).await;
            let without = reply.as_ref().ok().filter(|it| it.attributes.is_none());
            let found = without.map(|it| it.inode);
            if hinted.is_some() && hinted != found {
                hints.forget(key);
            }
            let reply = reply?;
            let result = match early {
                Some(task) if hinted == found => task.await,
                _ => self.attributes_of(reply, sent).await,
            };
            let error = match result {
                Err(error) if lookups < MAX_LOOKUPS => error,
                Err(error) => return Err(error),
                Ok(attributes) => {
                    if let Some(inode) = found.filter(|it| self.is_elsewhere(*it, directory)) {
                        hints.note(key, inode);
                    }
                    return Ok(attributes);
                }
            };
            if !matches!(error.code(), ErrorCode::NotFound | ErrorCode::Stale) {
                return Err(error);
            }
            lookups += 1;
        }
    }

    async fn make_directory(
        &self,
        directory: InodeId,
        name: &[u8],
        new: NewInode,
    ) -> Result<Attributes> {
        let request = MakeDirectory { directory, name: name.into(), new };
        self.make_name(directory, request).await
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
        self.make_name(directory, request).await
    }

    async fn read_link(&self, inode: InodeId) -> Result<Vec<u8>> {
        let Bytes(link_target) = self.ask(inode, &ReadLink { inode }).await?.bytes;
        Ok(link_target)
    }

    async fn link(&self, inode: InodeId, directory: InodeId, name: &[u8]) -> Result<Attributes> {
        let request = Link { inode, directory, name: name.into() };
        let attributes = self.make_name(directory, request).await;
        self.mount().inodes.count_change(inode);
        attributes
    }

    async fn unlink(&self, directory: InodeId, name: &[u8]) -> Result<()> {
        let request = Unlink { directory, name: name.into() };
        let sent = self.mount().directory_changes.send(skep_env::now());
        let reply = self.change(directory, request).await;
        self.note_changed_directory(directory, sent, reply.as_ref().ok().map(|it| &it.directory));
        reply.map(|_| ())
    }

    async fn remove_directory(&self, directory: InodeId, name: &[u8]) -> Result<()> {
        let request = RemoveDirectory { directory, name: name.into() };
        self.remove_or_move(directory, request).await
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
        let done = self.remove_or_move(to_directory, request).await;
        self.mount().inodes.count_name_change();
        done
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
        let done = self.remove_or_move(to_directory, request).await;
        self.mount().inodes.count_name_change();
        done
    }
}

impl Client {
    /// Whether another metadata group than the group of the directory serves the inode.
    fn is_elsewhere(&self, inode: InodeId, directory: InodeId) -> bool {
        self.group_of(inode).ok() != self.group_of(directory).ok()
    }

    /// Returns the attributes in the reply to a request that the client sent at the time `sent`. If
    /// the reply contains none, requests them from the group that serves the inode.
    async fn attributes_of(&self, reply: EntryReply, sent: Duration) -> Result<Attributes> {
        match reply.attributes {
            Some(mut attributes) => {
                self.note_attributes(&mut attributes, sent);
                Ok(attributes)
            }
            None => self.fetch_attributes(reply.inode).await,
        }
    }

    /// Sends a request that creates a name in a directory. Returns the attributes of the name's
    /// inode.
    async fn make_name<R>(&self, directory: InodeId, request: R) -> Result<Attributes>
    where
        R: Request<Reply = NewEntryReply> + 'static,
    {
        let sent = self.mount().directory_changes.send(skep_env::now());
        let reply = self.change(directory, request).await;
        self.note_changed_directory(directory, sent, reply.as_ref().ok().map(|it| &it.directory));
        self.attributes_of(reply?.entry, sent.time()).await
    }

    /// Sends a request that may remove a directory, or change a directory whose attributes are not
    /// in the reply.
    async fn remove_or_move<R>(&self, directory: InodeId, request: R) -> Result<()>
    where
        R: Request<Reply = NamesReply> + 'static,
    {
        let sent = self.mount().directory_changes.send(skep_env::now());
        let reply = self.change(directory, request).await;
        // If the outcome of the change is unknown, metadata may have executed it. So forget the
        // attributes in every case.
        let sent = self.mount().directory_changes.forget_all(sent);
        let NamesReply { directory: after } = reply?;
        if let Some(sent) = sent {
            self.note_changed_directory(directory, sent, Some(&after));
        }
        Ok(())
    }

    /// Records the attributes of a directory from the reply to a change of one of its entries.
    /// `reply` is `None` if the client got an error for the change, but metadata may have executed
    /// the change nevertheless. A reply to a repeated request contains no attributes. In both
    /// cases, the mount forgets the old attributes of the directory.
    pub(crate) fn note_changed_directory(
        &self,
        directory: InodeId,
        sent: SentChange,
        reply: Option<&Option<Attributes>>,
    ) {
        let changes = &self.mount().directory_changes;
        changes.forget(directory);
        if let Some(Some(attributes)) = reply {
            let mut attributes = attributes.clone();
            self.note_attributes(&mut attributes, sent.time());
            changes.note(sent, &attributes, skep_env::now());
        }
    }

    /// Sends a change of the namespace. If the caller drops the future, the client ignores the
    /// reply.
    async fn change<R: Request + 'static>(&self, inode: InodeId, request: R) -> Result<R::Reply> {
        self.modify(inode, request, ModifyOptions::default(), |_, _| ()).await
    }
}
