//! Attributes of inodes: what `stat` shows, extended attributes, stripe patterns.

pub(crate) mod pattern;
pub(crate) mod stat;
pub(crate) mod xattr;
