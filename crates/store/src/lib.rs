//! Local durable primitives: target directories and their identity, atomic replacement, log
//! segments.
//!
//! Owns the durable replacement of small files, and the check that a directory is the expected one.
//! Does not own the layout of records (`skep-format`), and depends on no service and no network.

pub mod atomic;
pub mod identity;
pub mod log;
