//! The attributes that this mount last saw of inodes whose removal the kernel does not report.

use crate::cache::recent::Recent;
use crate::limits::MAX_REMEMBERED_SPECIAL;
use skep_types::{Attributes, InodeId};
use std::sync::{Mutex, PoisonError};

/// Attributes of directories, pipes, sockets and devices. A program may hold a removed directory,
/// pipe, socket or device open. The kernel does not report such opens to this mount.
#[derive(Debug)]
pub(crate) struct SeenAttributes {
    special: Recent<Attributes>,
    /// Attributes of the root, which are never dropped. The mutex protects only this value.
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

    /// Returns the attributes of a directory or special file that the mount saw last.
    pub(crate) fn special(&self, inode: InodeId) -> Option<Attributes> {
        self.special.get(inode)
    }

    /// Returns the attributes of the root that the mount saw last.
    pub(crate) fn root(&self) -> Option<Attributes> {
        self.root.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
