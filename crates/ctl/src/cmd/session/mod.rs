//! Verbs of `skep session`.

pub(super) mod list;
