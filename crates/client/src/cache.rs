//! Tables of limited size about inodes. They contain the versions that the kernel caches, and the
//! attributes that the mount saw last. Two further tables contain the attributes of directories
//! after this mount's changes of their entries, and the names of extended attributes that inodes
//! lack. No I/O.

pub(crate) mod directory_changes;
pub(crate) mod recent;
pub(crate) mod seen;
pub(crate) mod versions;
pub(crate) mod xattr_absence;
