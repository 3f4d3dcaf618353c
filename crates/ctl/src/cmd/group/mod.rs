//! Verbs of `skep group`.

pub(super) mod list;
