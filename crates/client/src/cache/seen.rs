//! Attributes as this mount last saw them, of inodes whose removal the kernel does not report.

use crate::cache::recent::Recent;
use crate::limits::MAX_REMEMBERED_SPECIAL;
use skep_types::{Attributes, InodeId};
use std::sync::{Mutex, PoisonError};

/// Attributes of directories, pipes, sockets and devices. A program may have one open that was
/// removed, and the kernel does not pass on its opens.
#[derive(Debug)]
pub(crate) struct SeenAttributes {
    special: Recent<Attributes>,
    /// The root, which is never forgotten. Protects the value alone.
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

    /// A special file, as it was last seen.
    pub(crate) fn special(&self, inode: InodeId) -> Option<Attributes> {
        self.special.get(inode)
    }

    /// The root, as it was last seen.
    pub(crate) fn root(&self) -> Option<Attributes> {
        self.root.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
