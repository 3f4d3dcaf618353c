//! What a mount remembers of inodes: versions that the kernel caches, attributes as last seen, the
//! absence of extended attributes. All in bounded tables. No I/O.

pub(crate) mod recent;
pub(crate) mod seen;
pub(crate) mod versions;
pub(crate) mod xattr_absence;
