//! Verbs of `skep node`.

pub(super) mod list;
pub(super) mod log_level;
