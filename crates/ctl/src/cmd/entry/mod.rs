//! Verbs of `skep entry`.

pub(super) mod create;
pub(super) mod info;
pub(super) mod map;
mod pattern;
pub(super) mod set;
pub(super) mod who;
