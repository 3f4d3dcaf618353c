//! The operations, a file for each group of them.

pub(crate) mod allocation;
pub(crate) mod attributes;
pub(crate) mod directories;
pub(crate) mod files;
pub(crate) mod jobs;
pub(crate) mod locks;
pub(crate) mod names;
pub(crate) mod privileges;
pub(crate) mod xattrs;
