//! Verbs of `skep cluster`.

pub(super) mod format;
pub(super) mod token;
