//! All messages of Skep: the frame header, every message's layout, and the catalog that names them.
//!
//! Owns the translation between bytes and structs, and the table of messages in [`catalog`]. Does
//! not own sockets (`skep-rpc`) or the execution of requests (each service).
//!
//! Architecture invariant: layouts are explicit, little-endian, in fixed order. A changed message
//! is a new message or a new version. Bytes from the network never cause a panic.

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

/// A request: its entry in the catalog and the type of its reply.
pub trait Request: Codec + Described + std::fmt::Debug {
    /// Number in the frame header.
    const ID: u16;
    /// Version of the layout.
    const VERSION: u16;
    /// Whether the request needs a slot, so that it is executed exactly once.
    const MODIFIES: bool;
    /// The reply.
    type Reply: Codec + Described + std::fmt::Debug;
}
