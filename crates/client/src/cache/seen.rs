//! The last attributes that this mount has seen of directories and special files.

use crate::cache::recent::Recent;
use crate::limits::MAX_REMEMBERED_SPECIAL;
use skep_types::{Attributes, InodeId};
use std::sync::{Mutex, PoisonError};

/// The last attributes of directories, pipes, sockets and devices. When such an inode is removed, a
/// program may still have it open, and may ask for its attributes. The mount then returns the
/// attributes from this table, because metadata no longer has the inode. The table needs an entry
/// for every such inode, because the kernel does not report to this mount which of them programs
/// have open.
#[derive(Debug)]
pub(crate) struct SeenAttributes {
    special: Recent<Attributes>,
    /// Attributes of the root, which the table never evicts. The mutex protects only this value.
    root: Mutex<Option<Attributes>>,
}

impl SeenAttributes {
    pub(crate) fn new() -> Self {
        Self { special: Recent::new(MAX_REMEMBERED_SPECIAL), root: Mutex::default() }
    }

    /// Records the attributes of a directory or special file.
    pub(crate) fn note(&self, attributes: &Attributes) {
        if attributes.inode == InodeId::ROOT {
            *self.root.lock().unwrap_or_else(PoisonError::into_inner) = Some(attributes.clone());
        }
        self.special.note(attributes.inode, attributes.clone());
    }

    /// Returns the newest attributes of a directory or special file that the mount has seen.
    pub(crate) fn special(&self, inode: InodeId) -> Option<Attributes> {
        self.special.get(inode)
    }

    /// Returns the attributes of the root that the mount saw last.
    pub(crate) fn root(&self) -> Option<Attributes> {
        self.root.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
