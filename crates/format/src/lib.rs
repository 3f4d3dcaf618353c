//! All records that Skep's services store on disk: layouts, versions and keys.
//!
//! This crate is responsible for the conversion between bytes and structs. The crate is pure: it
//! uses neither files nor a clock. Each record has a page in `docs/format/`. The page states which
//! write makes a field valid, and when a reader may trust the field.

pub mod cached_map;
pub mod chunk;
pub mod consensus;
pub mod identity;
pub mod log;
pub mod management;
pub mod member_mark;
pub mod metadata;
pub mod page_cache_mark;
pub mod sealed;
