//! Attributes of inodes: `stat`, extended attributes, stripe patterns.

pub(crate) mod pattern;
pub(crate) mod queries;
pub(crate) mod stat;
pub(crate) mod xattr;
