//! Extended attributes.

use crate::client::Client;
use crate::session::Modify;
use skep_types::codec::Bytes;
use skep_types::{ErrorCode, InodeId, Result};
use skep_wire::metadata::{GetXattr, ListXattrs, RemoveXattr, SetXattr, XattrMode};

impl Client {
    /// Reads an extended attribute.
    ///
    /// # Errors
    /// `NoAttribute`, `NotFound`.
    pub async fn get_xattr(&self, inode: InodeId, name: &[u8]) -> Result<Vec<u8>> {
        let Bytes(value) = self.ask(inode, &GetXattr { inode, name: name.into() }).await?.bytes;
        Ok(value)
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// `Exists` or `NoAttribute` as `mode` asks, `TooLarge`, `NotFound`.
    pub async fn set_xattr(
        &self,
        inode: InodeId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let how = match mode {
            XattrMode::Create => Modify::telling(ErrorCode::Exists),
            XattrMode::Any | XattrMode::Replace => Modify::default(),
        };
        let request = SetXattr { inode, name: name.into(), value: value.into(), mode };
        self.modify(inode, request, how, |_, _| ()).await.map(|_| ())
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
        let how = Modify::telling(ErrorCode::NoAttribute);
        self.modify(inode, request, how, |_, _| ()).await.map(|_| ())
    }
}
