//! The bytes of files: reading, writing, allocating and copying them. Metadata targets store the
//! first bytes of a file, and storage targets store the rest.

pub(crate) mod allocate;
pub(crate) mod append;
pub(crate) mod chunk_stats;
pub(crate) mod complete;
pub(crate) mod copy;
pub(crate) mod granules;
pub(crate) mod holes;
pub(crate) mod inline;
pub(crate) mod inline_end;
pub(crate) mod locked;
pub(crate) mod move_inline;
pub(crate) mod plan;
pub(crate) mod read;
pub(crate) mod size;
pub(crate) mod write;
pub(crate) mod write_piece;
