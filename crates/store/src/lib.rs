//! Local durable primitives: target directories and their identity, atomic replacement, log
//! segments.
//!
//! Owns how small things are made durable and how a directory is known to be the right one. Knows
//! no network and no service; what the records look like is `skep-format`'s.

pub mod atomic;
pub mod identity;
pub mod log;
