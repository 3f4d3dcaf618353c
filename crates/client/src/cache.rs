//! Tables of limited size about inodes: the versions that the kernel caches, the attributes that
//! the mount saw last, the attributes of directories after this mount's changes of their entries,
//! the ages of short listings, the ends of listings, the inodes that names have recently had, and
//! the inodes without certain extended attributes. No I/O.

pub(crate) mod directory_changes;
pub(crate) mod listing_ends;
pub(crate) mod listings;
pub(crate) mod name_hints;
pub(crate) mod recent;
pub(crate) mod seen;
pub(crate) mod versions;
pub(crate) mod xattr_absence;
