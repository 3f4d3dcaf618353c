//! Verbs of `skep health`.

pub(super) mod check;
pub(super) mod df;
