//! Building blocks for durable local data: directories of targets and their identity, atomic
//! replacement of files, and log segments.
//!
//! Owns the durable replacement of small files, and the check that a directory belongs to the
//! expected cluster, node and target. Does not own the layout of records (`skep-format`). Depends
//! on no service and no network.

pub mod atomic;
pub mod failed_sync;
pub mod identity;
mod identity_file;
pub mod log;
pub mod page_cache;
pub mod page_cache_mark;
pub mod restored;
