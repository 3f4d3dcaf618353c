//! Chunk files on storage targets.
