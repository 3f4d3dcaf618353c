//! Bounded tables of facts about inodes: the versions that the kernel caches, the attributes last
//! seen, the attributes of directories after own changes, and the absence of extended attributes.
//! No I/O.

pub(crate) mod directory_changes;
pub(crate) mod recent;
pub(crate) mod seen;
pub(crate) mod versions;
pub(crate) mod xattr_absence;
