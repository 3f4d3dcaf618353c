//! Verbs of `skep client`.

pub(super) mod evict;
pub(super) mod files;
pub(super) mod list;
