//! All messages of Skep: the frame header, the layout of each message, and the catalog of messages.
//!
//! This crate is responsible for the conversion between bytes and structs, and for the table of
//! messages in [`catalog`]. Sockets belong to `skep-rpc`, and the execution of requests belongs to
//! the services.
//!
//! Architecture invariant: layouts are explicit, little-endian, with fields in a fixed order. A
//! message with a changed layout must get a new number or a new version. Bytes from the network
//! never cause a panic.

pub mod benchmark;
pub mod bounds;
pub mod catalog;
pub mod consensus;
pub mod file_locks;
pub mod frame;
pub mod inline;
pub mod limits;
pub mod log_shipping;
pub mod management;
pub mod metadata;
pub mod node;
pub mod senders;
pub mod session;
pub mod sharing;
pub mod storage;
pub mod traces;

use skep_types::codec::{Codec, Described};

/// A request, with its entry in the catalog and the type of its reply. A client keeps requests in
/// lists that all its threads share.
pub trait Request: Codec + Described + std::fmt::Debug + Send + Sync {
    /// Message number in the frame header.
    const ID: u16;
    /// Version of the request's layout.
    const VERSION: u16;
    /// Whether clients must send the request in a slot of their session. The slot ensures that the
    /// target executes the request exactly once.
    const MODIFIES: bool;
    /// Type of the reply.
    type Reply: Codec + Described + std::fmt::Debug + 'static;
}
