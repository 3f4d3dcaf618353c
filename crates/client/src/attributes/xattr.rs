//! Extended attributes.

use crate::cache::xattr_absence::is_asked_by_kernel;
use crate::client::Client;
use crate::limits::ROOT_PATIENCE;
use crate::session::request::ModifyOptions;
use skep_types::codec::Bytes;
use skep_types::{Attributes, ErrorCode, InodeId, Result};
use skep_wire::metadata::{BytesReply, GetXattr, ListXattrs, RemoveXattr, SetXattr, XattrMode};

/// Extended attributes of inodes.
pub trait Xattrs {
    /// Reads an extended attribute. Of a directory, pipe, socket or device that was removed (a
    /// program may still have it open) none is left.
    ///
    /// # Errors
    /// `NoAttribute`, `NotFound`.
    fn get_xattr(&self, inode: InodeId, name: &[u8]) -> impl Future<Output = Result<Vec<u8>>>;

    /// Sets an extended attribute; with an access control list perhaps clears the set-group-id bit.
    ///
    /// # Errors
    /// `Exists` or `NoAttribute` as `mode` asks, `TooLarge`, `NotFound`.
    fn set_xattr(
        &self,
        inode: InodeId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        clear_set_group_id: bool,
    ) -> impl Future<Output = Result<()>>;

    /// Lists the names of extended attributes, in byte order.
    ///
    /// # Errors
    /// `NotFound`.
    fn list_xattrs(&self, inode: InodeId) -> impl Future<Output = Result<Vec<Vec<u8>>>>;

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `NoAttribute`, `NotFound`.
    fn remove_xattr(&self, inode: InodeId, name: &[u8]) -> impl Future<Output = Result<()>>;
}

impl Xattrs for Client {
    async fn get_xattr(&self, inode: InodeId, name: &[u8]) -> Result<Vec<u8>> {
        if self.mount().xattr_absence.is_absent(inode, name, skep_env::now()) {
            return Err(ErrorCode::NoAttribute.into());
        }
        let request = GetXattr { inode, name: name.into() };
        let answer = match self.is_plain_root(inode) && is_asked_by_kernel(name) {
            // `df` of any user comes here, and mustn't hang while metadata doesn't answer.
            true => skep_env::timeout(ROOT_PATIENCE, self.ask(inode, &request))
                .await
                .unwrap_or_else(|| Err(ErrorCode::NoAttribute.into())),
            false => self.ask(inode, &request).await,
        };
        match answer {
            Ok(BytesReply { bytes: Bytes(value) }) => Ok(value),
            // The kernel asks for a list before each step from a directory, and goes by the mode.
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
        let how = match mode {
            XattrMode::Create => ModifyOptions::ambiguous_on(ErrorCode::Exists),
            XattrMode::Any | XattrMode::Replace => ModifyOptions::default(),
        };
        let request =
            SetXattr { inode, name: name.into(), value: value.into(), mode, clear_set_group_id };
        if name == b"security.capability"
            && let Some(state) = self.mount().inodes.get(inode)
        {
            // A report of what was written before would take it away again.
            self.report_written(&state, ModifyOptions::default()).await?;
        }
        self.mount().xattr_absence.forget(inode, name, skep_env::now());
        let done = self.modify(inode, request, how, |_, _| ()).await;
        self.mount().xattr_absence.forget(inode, name, skep_env::now());
        done.map(|_| ())
    }

    async fn list_xattrs(&self, inode: InodeId) -> Result<Vec<Vec<u8>>> {
        let names = self.ask(inode, &ListXattrs { inode }).await?.names;
        Ok(names.into_iter().map(|Bytes(name)| name).collect())
    }

    async fn remove_xattr(&self, inode: InodeId, name: &[u8]) -> Result<()> {
        let request = RemoveXattr { inode, name: name.into() };
        let how = ModifyOptions::ambiguous_on(ErrorCode::NoAttribute);
        self.modify(inode, request, how, |_, _| ()).await.map(|_| ())
    }
}

impl Client {
    /// Notes whether an inode has extended attributes that the kernel asks for.
    pub(crate) fn note_xattrs(&self, attributes: &Attributes) {
        self.mount().xattr_absence.note(attributes, skep_env::now());
    }

    /// Whether this is the root, and it had no such attribute when it was last seen.
    fn is_plain_root(&self, inode: InodeId) -> bool {
        let lacks_all = |seen: Attributes| !seen.has_capability && !seen.has_acl;
        inode == InodeId::ROOT && self.mount().seen.root().is_some_and(lacks_all)
    }
}
