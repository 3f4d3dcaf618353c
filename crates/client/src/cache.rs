//! What a mount remembers of inodes: versions that the kernel caches, and bounded tables.

pub(crate) mod recent;
pub(crate) mod versions;
