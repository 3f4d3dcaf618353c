//! Extended attributes: getting, setting, listing and removing them.

use crate::cache::xattr_absence::is_asked_by_kernel;
use crate::client::Client;
use crate::limits::ROOT_PATIENCE;
use crate::session::request::ModifyOptions;
use skep_types::codec::Bytes;
use skep_types::{Attributes, ErrorCode, InodeId, Result};
use skep_wire::metadata::{BytesReply, GetXattr, ListXattrs, RemoveXattr, SetXattr, XattrMode};

/// Reads and changes the extended attributes of inodes.
pub trait Xattrs {
    /// Returns the value of an extended attribute. For a removed directory, pipe, socket or device
    /// that a program still has open, there are no extended attributes.
    ///
    /// # Errors
    /// - `NoAttribute` if the inode does not have the attribute.
    /// - `NotFound` if the inode does not exist.
    fn get_xattr(&self, inode: InodeId, name: &[u8]) -> impl Future<Output = Result<Vec<u8>>>;

    /// Sets an extended attribute. With `clear_set_group_id`, setting an access control list also
    /// clears the set-group-id bit.
    ///
    /// # Errors
    /// - `Exists` if the attribute exists and `mode` is `Create`.
    /// - `NoAttribute` if the attribute does not exist and `mode` is `Replace`.
    /// - `TooLarge` if the value is too large.
    /// - `NotFound` if the inode does not exist.
    fn set_xattr(
        &self,
        inode: InodeId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        clear_set_group_id: bool,
    ) -> impl Future<Output = Result<()>>;

    /// Returns the names of all extended attributes of an inode, in byte order.
    ///
    /// # Errors
    /// Returns `NotFound` if the inode does not exist.
    fn list_xattrs(&self, inode: InodeId) -> impl Future<Output = Result<Vec<Vec<u8>>>>;

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// - `NoAttribute` if the inode does not have the attribute.
    /// - `NotFound` if the inode does not exist.
    fn remove_xattr(&self, inode: InodeId, name: &[u8]) -> impl Future<Output = Result<()>>;
}

impl Xattrs for Client {
    async fn get_xattr(&self, inode: InodeId, name: &[u8]) -> Result<Vec<u8>> {
        let sent = skep_env::now();
        let is_absent = self.mount().xattr_absence.is_absent(inode, name, sent);
        if is_asked_by_kernel(name) {
            self.meter().absent_xattrs.note(is_absent);
        }
        if is_absent {
            return Err(ErrorCode::NoAttribute.into());
        }
        let request = GetXattr { inode, name: name.into() };
        let answer = match self.is_plain_root(inode) && is_asked_by_kernel(name) {
            // The kernel sends this request for a `df` of any user, so the mount must reply even
            // while metadata does not.
            true => skep_env::timeout(ROOT_PATIENCE, self.ask(inode, &request))
                .await
                .unwrap_or_else(|| Err(ErrorCode::NoAttribute.into())),
            false => self.ask(inode, &request).await,
        };
        match answer {
            Ok(BytesReply { bytes: Bytes(value) }) => Ok(value),
            Err(error) if error.code() == ErrorCode::NoAttribute => {
                self.mount().xattr_absence.note_missing(inode, name, sent);
                Err(error)
            }
            // The inode was removed, but a program may still have it open. The kernel requests the
            // access control list before each lookup in a directory. The reply "no attribute" makes
            // the kernel check the mode bits instead.
            Err(error)
                if error.code() == ErrorCode::Stale
                    && self.mount().seen.special(inode).is_some() =>
            {
                Err(ErrorCode::NoAttribute.into())
            }
            Err(error) => Err(error),
        }
    }

    async fn set_xattr(
        &self,
        inode: InodeId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        clear_set_group_id: bool,
    ) -> Result<()> {
        let how = ModifyOptions::default();
        let request =
            SetXattr { inode, name: name.into(), value: value.into(), mode, clear_set_group_id };
        // Metadata removes this attribute when a client reports a write. So the client reports its
        // earlier writes before it sets the attribute, and delays reports of the times until
        // metadata has set the attribute.
        let is_capability = name == b"security.capability";
        let written = if is_capability { self.mount().inodes.get(inode) } else { None };
        let _changing = match &written {
            Some(state) => {
                let changing = self.change_times(state).await;
                self.report_written(state, ModifyOptions::default()).await?;
                Some(changing)
            }
            None => None,
        };
        self.mount().xattr_absence.forget(inode, name, skep_env::now());
        let done = self.modify(inode, request, how, |_, _| ()).await;
        self.mount().xattr_absence.forget(inode, name, skep_env::now());
        self.forget_directories();
        self.mount().inodes.count_change(inode);
        done.map(|_| ())
    }

    async fn list_xattrs(&self, inode: InodeId) -> Result<Vec<Vec<u8>>> {
        let names = self.ask(inode, &ListXattrs { inode }).await?.names;
        Ok(names.into_iter().map(|Bytes(name)| name).collect())
    }

    async fn remove_xattr(&self, inode: InodeId, name: &[u8]) -> Result<()> {
        let request = RemoveXattr { inode, name: name.into() };
        let how = ModifyOptions::default();
        let done = self.modify(inode, request, how, |_, _| ()).await;
        self.forget_directories();
        self.mount().inodes.count_change(inode);
        done.map(|_| ())
    }
}

impl Client {
    /// Makes the mount forget the attributes of all directories that it has changed. The caller
    /// calls this function after a change of attributes whose reply does not contain the new
    /// attributes.
    pub(crate) fn forget_directories(&self) {
        let changes = &self.mount().directory_changes;
        changes.forget_all(changes.send(skep_env::now()));
    }

    /// Returns whether `inode` is the root, and the root had neither a capability nor an access
    /// control list when this mount last saw its attributes.
    fn is_plain_root(&self, inode: InodeId) -> bool {
        let lacks_all = |seen: Attributes| !seen.has_capability && !seen.has_acl;
        inode == InodeId::ROOT && self.mount().seen.root().is_some_and(lacks_all)
    }
}
