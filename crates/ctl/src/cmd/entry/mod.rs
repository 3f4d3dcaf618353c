//! Verbs of `skep entry`.

pub(super) mod info;
