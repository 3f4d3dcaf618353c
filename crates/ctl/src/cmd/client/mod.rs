//! Verbs of `skep client`.

pub(super) mod list;
