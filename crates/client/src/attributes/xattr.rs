//! Extended attributes.

use crate::client::Client;
use crate::limits::{PLAIN_VALID, ROOT_PATIENCE};
use crate::session::request::ModifyOptions;
use skep_types::codec::Bytes;
use skep_types::{ACCESS_ACL, Attributes, DEFAULT_ACL, ErrorCode, InodeId, Result};
use skep_wire::metadata::{BytesReply, GetXattr, ListXattrs, RemoveXattr, SetXattr, XattrMode};
use std::time::Duration;

/// Whether the kernel asks for an attribute by itself: when permissions are checked, before a
/// program runs and before writes.
fn is_asked_for(name: &[u8]) -> bool {
    [b"security.capability", ACCESS_ACL, DEFAULT_ACL].contains(&name)
}

/// Whether an inode has none of the attributes that the kernel asks for by itself, which costs a
/// request that almost always finds nothing.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Plain {
    /// It had none, by attributes that came at this time.
    Since(Duration),
    /// One was set through this mount: what attributes say that come until then may be older.
    NotUntil(Duration),
}

impl Client {
    /// Takes in whether an inode has attributes that the kernel asks for.
    pub(crate) fn note_plain(&self, attributes: &Attributes) {
        let (now, is_plain) = (skep_env::now(), !attributes.has_capability && !attributes.has_acl);
        self.mount().plain.update(attributes.inode, |noted| match noted {
            Some(Plain::NotUntil(until)) if now < *until => Plain::NotUntil(*until),
            _ if is_plain => Plain::Since(now),
            _ => Plain::NotUntil(now),
        });
    }

    /// Whether an attribute isn't there, by what was seen of the inode as lately as attributes may
    /// be remembered.
    fn is_known_to_lack(&self, inode: InodeId, name: &[u8]) -> bool {
        is_asked_for(name)
            && matches!(self.mount().plain.get(inode),
                Some(Plain::Since(at)) if skep_env::now() < at + PLAIN_VALID)
    }

    /// Whether this is the root, and had none of these attributes when it was last seen.
    fn is_plain_root(&self, inode: InodeId) -> bool {
        let is_plain = |seen: Attributes| !seen.has_capability && !seen.has_acl;
        inode == InodeId::ROOT && self.mount().seen_root().is_some_and(is_plain)
    }

    /// Notes that one of these attributes is being set.
    fn forget_plain(&self, inode: InodeId, name: &[u8]) {
        if is_asked_for(name) {
            self.mount().plain.note(inode, Plain::NotUntil(skep_env::now() + PLAIN_VALID));
        }
    }

    /// Reads an extended attribute. Of a directory, pipe, socket or device that was removed (a
    /// program may still have it open) none is left.
    ///
    /// # Errors
    /// `NoAttribute`, `NotFound`.
    pub async fn get_xattr(&self, inode: InodeId, name: &[u8]) -> Result<Vec<u8>> {
        if self.is_known_to_lack(inode, name) {
            return Err(ErrorCode::NoAttribute.into());
        }
        let request = GetXattr { inode, name: name.into() };
        let answer = match self.is_plain_root(inode) && is_asked_for(name) {
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
                    && self.mount().special.get(inode).is_some() =>
            {
                Err(ErrorCode::NoAttribute.into())
            }
            Err(error) => Err(error),
        }
    }

    /// Sets an extended attribute; with an access control list perhaps clears the set-group-id bit.
    ///
    /// # Errors
    /// `Exists` or `NoAttribute` as `mode` asks, `TooLarge`, `NotFound`.
    pub async fn set_xattr(
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
        self.forget_plain(inode, name);
        let done = self.modify(inode, request, how, |_, _| ()).await;
        self.forget_plain(inode, name);
        done.map(|_| ())
    }

    /// Lists the names of extended attributes, in byte order.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn list_xattrs(&self, inode: InodeId) -> Result<Vec<Vec<u8>>> {
        let names = self.ask(inode, &ListXattrs { inode }).await?.names;
        Ok(names.into_iter().map(|Bytes(name)| name).collect())
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `NoAttribute`, `NotFound`.
    pub async fn remove_xattr(&self, inode: InodeId, name: &[u8]) -> Result<()> {
        let request = RemoveXattr { inode, name: name.into() };
        let how = ModifyOptions::ambiguous_on(ErrorCode::NoAttribute);
        self.modify(inode, request, how, |_, _| ()).await.map(|_| ())
    }
}
