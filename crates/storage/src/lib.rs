//! Chunk files on storage targets.

pub mod chunk_store;
mod limits;
