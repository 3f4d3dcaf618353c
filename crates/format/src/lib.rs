//! All records that Skep's services store on disk: layouts, versions, keys.
//!
//! Owns the translation between bytes and structs. Pure: no files, no clock. Each record has a page
//! in `docs/format/`, which states the write that makes a field valid and when readers may trust
//! it.

pub mod cached_map;
pub mod chunk;
pub mod identity;
pub mod log;
pub mod management;
pub mod metadata;
pub mod sealed;
