//! Verbs of `skep lock`.

pub(super) mod list;
