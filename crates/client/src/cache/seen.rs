//! Attributes as this mount saw them last, of inodes whose removal the kernel does not report.

use crate::cache::recent::Recent;
use crate::limits::MAX_REMEMBERED_SPECIAL;
use skep_types::{Attributes, InodeId};
use std::sync::{Mutex, PoisonError};

/// Attributes of directories, pipes, sockets and devices. A program may still have one open after
/// its removal, and the kernel does not send its opens to this mount.
#[derive(Debug)]
pub(crate) struct SeenAttributes {
    special: Recent<Attributes>,
    /// The root, which stays in the table forever. The mutex protects the value alone.
    root: Mutex<Option<Attributes>>,
}

impl SeenAttributes {
    pub(crate) fn new() -> Self {
        Self { special: Recent::new(MAX_REMEMBERED_SPECIAL), root: Mutex::default() }
    }

    /// Notes the attributes of a directory or another special file.
    pub(crate) fn note(&self, attributes: &Attributes) {
        if attributes.inode == InodeId::ROOT {
            *self.root.lock().unwrap_or_else(PoisonError::into_inner) = Some(attributes.clone());
        }
        self.special.note(attributes.inode, attributes.clone());
    }

    /// Returns the attributes of a special file as the mount saw them last.
    pub(crate) fn special(&self, inode: InodeId) -> Option<Attributes> {
        self.special.get(inode)
    }

    /// Returns the attributes of the root as the mount saw them last.
    pub(crate) fn root(&self) -> Option<Attributes> {
        self.root.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
