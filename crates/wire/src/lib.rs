//! All messages of Skep: the frame header, every message's layout, and the catalog that names them.
//!
//! Owns: bytes in, structs out, and the table *id -> request -> reply -> service -> modifying?* in
//! [`catalog`]. Does not own sockets (that is `skep-rpc`) or meaning (that is each service).
//!
//! Architecture invariant: layouts are explicit, little-endian, in fixed order; a changed message
//! is a new message or a new version; bytes from the network never panic.

pub mod benchmark;
pub mod catalog;
pub mod file_locks;
pub mod frame;
pub mod inline;
pub mod limits;
pub mod management;
pub mod metadata;
pub mod node;
pub mod session;
pub mod sharing;
pub mod storage;

use skep_types::codec::{Codec, Described};

/// A request: its place in the catalog and the type of its reply.
pub trait Request: Codec + Described + std::fmt::Debug {
    /// Number in the frame header.
    const ID: u16;
    /// Version of the layout.
    const VERSION: u16;
    /// Whether the request changes something, so that it needs a slot to be done exactly once.
    const MODIFIES: bool;
    /// What is answered.
    type Reply: Codec + Described + std::fmt::Debug;
}
