//! All records that Skep's services keep on disk: layouts, versions, keys.
//!
//! Owns: bytes in, structs out, for everything durable. Pure: no files, no clock. Each record has a
//! page in `docs/format/` that says which write makes a field true and when it may be trusted.

pub mod cached_map;
pub mod chunk;
pub mod identity;
pub mod log;
pub mod management;
pub mod metadata;
pub mod sealed;
