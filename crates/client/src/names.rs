//! Changes and lists the entries of directories.

pub(crate) mod directory;
pub(crate) mod entries;
