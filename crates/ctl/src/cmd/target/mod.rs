//! Verbs of `skep target`.

pub(super) mod list;
