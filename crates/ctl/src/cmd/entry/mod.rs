//! Verbs of `skep entry`.

pub(super) mod info;
pub(super) mod who;
