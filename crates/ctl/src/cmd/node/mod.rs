//! Verbs of `skep node`.

pub(super) mod list;
