//! Tables of limited size about inodes, for example the versions and listings in the kernel's
//! caches, and the attributes that the mount saw last. Each module documents its table. No I/O.

pub(crate) mod directory_changes;
pub(crate) mod listing_ends;
pub(crate) mod listings;
pub(crate) mod name_hints;
pub(crate) mod recent;
pub(crate) mod seen;
pub(crate) mod versions;
pub(crate) mod xattr_absence;
