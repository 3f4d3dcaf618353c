//! Names: the entries of directories, and listing them.

pub(crate) mod directory;
pub(crate) mod entries;
