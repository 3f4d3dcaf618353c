//! Access control lists: extended attributes in the kernel's layout. The target keeps them
//! consistent with the mode of the inode.
//!
//! The kernel of a client checks permissions against these lists. Besides `setxattr` and
//! `removexattr`, two operations change the lists of an inode. `chmod` changes the mask of the
//! access list, or the entry of the owning group if the list has no mask. A new inode inherits the
//! default list of its directory, in the transaction that creates the inode. The target does not
//! store an access list that permits exactly what the mode permits.

use crate::engine::Engine;
use crate::namespace::inodes::{PERMISSION_BITS, SET_GROUP_ID};
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_format::metadata::{InodeRecord, Key};
use skep_types::{ACCESS_ACL, Acl, DEFAULT_ACL, Error, ErrorCode, FileKind, InodeId, Result};
use skep_wire::metadata::NewInode;

/// The nine permission bits of the mode (`rwxrwxrwx`). If the inode has an access list, the list
/// determines these bits.
const CLASS_BITS: u32 = 0o777;

/// The permissions that a new inode inherits from its directory.
#[derive(Debug, Default)]
pub(crate) struct Inherited {
    /// Permission bits of the new inode.
    pub(crate) permissions: u32,
    /// Access list of the new inode. Empty means no list.
    pub(crate) access: Vec<u8>,
    /// Default list of a new directory. Inodes that are created in this directory inherit it. Empty
    /// means no list.
    pub(crate) default: Vec<u8>,
}

impl Inherited {
    /// Whether the inode gets an access list or a default list.
    pub(crate) fn has_acl(&self) -> bool {
        !self.access.is_empty() || !self.default.is_empty()
    }
}

/// Whether the extended attribute `name` is an access control list.
pub(crate) fn is_acl(name: &[u8]) -> bool {
    name == ACCESS_ACL || name == DEFAULT_ACL
}

impl<E: Engine> Context<'_, E> {
    fn acl(&self, inode: InodeId, name: &[u8]) -> Result<Option<Acl>> {
        let bytes = self.get_raw(&Key::Xattr(inode, name))?;
        let stored = |error: Error| {
            Error::new(ErrorCode::Corrupt, format!("inode {inode}: {}", error.context()))
        };
        bytes.map(|bytes| Acl::from_xattr(&bytes).map_err(stored)).transpose()
    }

    /// Returns the permissions and access control lists of a new inode in `directory`. The umask
    /// applies only if the directory has no default list.
    pub(crate) fn inherited(
        &self,
        directory: &InodeRecord,
        kind: FileKind,
        new: &NewInode,
    ) -> Result<Inherited> {
        let permissions = new.permissions & PERMISSION_BITS;
        let attributes = &directory.attributes;
        let acl = match attributes.has_acl && kind != FileKind::Symlink {
            true => self.acl(attributes.inode, DEFAULT_ACL)?,
            false => None,
        };
        let Some(default) = acl else {
            let permissions = permissions & !(new.umask & CLASS_BITS);
            return Ok(Inherited { permissions, ..Inherited::default() });
        };
        let access = default.inherited(permissions);
        let is_directory = kind == FileKind::Directory;
        Ok(Inherited {
            permissions: permissions & !CLASS_BITS | access.mode(),
            access: if access.is_just_a_mode() { Vec::new() } else { access.to_xattr() },
            default: if is_directory { default.to_xattr() } else { Vec::new() },
        })
    }

    /// Stores the access control lists of a new inode.
    pub(crate) fn put_acls(&mut self, inode: InodeId, access: &[u8], default: &[u8]) {
        for (name, bytes) in [(ACCESS_ACL, access), (DEFAULT_ACL, default)] {
            if !bytes.is_empty() {
                self.put_raw(&Key::Xattr(inode, name), bytes);
            }
        }
    }

    /// Sets an access control list. An access list also sets the permission bits of the mode.
    ///
    /// # Errors
    /// - `InvalidArgument` or `TooLarge` if the list is malformed.
    /// - `PermissionDenied` if `name` is the default list and the inode is not a directory.
    /// - `Unsupported` if the inode is a symbolic link.
    pub(crate) fn set_acl(
        &mut self,
        record: &mut InodeRecord,
        name: &[u8],
        value: &[u8],
        clear_set_group_id: bool,
    ) -> Result<(), Stop> {
        let acl = Acl::from_xattr(value)?;
        let attributes = &mut record.attributes;
        let key = Key::Xattr(attributes.inode, name);
        match attributes.kind {
            FileKind::Symlink => return Err(ErrorCode::Unsupported.into()),
            FileKind::Directory => {}
            _ if name == DEFAULT_ACL => return Err(ErrorCode::PermissionDenied.into()),
            _ => {}
        }
        if name == ACCESS_ACL {
            attributes.permissions = attributes.permissions & !CLASS_BITS | acl.mode();
            if clear_set_group_id {
                attributes.permissions &= !SET_GROUP_ID;
            }
            if acl.is_just_a_mode() {
                return self.remove_acl(record, name);
            }
        }
        self.put_raw(&key, &acl.to_xattr());
        record.attributes.has_acl = true;
        record.has_xattrs = true;
        Ok(())
    }

    /// Removes an access control list of an inode, if the inode has this list.
    pub(crate) fn remove_acl(&mut self, record: &mut InodeRecord, name: &[u8]) -> Result<(), Stop> {
        let inode = record.attributes.inode;
        if record.attributes.has_acl {
            self.delete(&Key::Xattr(inode, name));
            let other = if name == ACCESS_ACL { DEFAULT_ACL } else { ACCESS_ACL };
            record.attributes.has_acl = self.is_stored(&Key::Xattr(inode, other))?;
        }
        Ok(())
    }

    /// Updates the access list of an inode, if it has one, after a request has set the permission
    /// bits.
    pub(crate) fn acl_follows_mode(&mut self, record: &InodeRecord) -> Result<(), Stop> {
        let attributes = &record.attributes;
        if attributes.has_acl
            && let Some(mut acl) = self.acl(attributes.inode, ACCESS_ACL)?
        {
            acl.set_mode(attributes.permissions);
            self.put_raw(&Key::Xattr(attributes.inode, ACCESS_ACL), &acl.to_xattr());
        }
        Ok(())
    }
}
