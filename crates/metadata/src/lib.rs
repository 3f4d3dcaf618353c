//! Metadata targets: directory entries, inodes, sessions, and transactions between targets.
//!
//! This crate owns the state of metadata targets. The crate does not own the contents of files at
//! storage targets. [`target::MetadataTarget`] is the pure state machine; [`service`] connects it
//! to sockets, log and clock. [`engine`] is the key-value store below the state machine. The state
//! machine consists of these modules:
//!
//! - `handlers`: the handlers of requests, one file for each request.
//! - `tx`: transactions.
//! - `namespace`: the rules for names, inodes and opens.
//! - `locks`: the file locks of applications.
//! - `sharing`: the notifications about shared files.
//! - `sessions`: the sessions of clients.
//! - [`shipping`]: the replication of the log in a group of several targets, and the role of a
//!   backup member.
//! - `background`: work that no request of a client has started.

mod background;
pub mod engine;
mod former_group;
mod free_space;
mod handlers;
pub mod limits;
mod locks;
mod meter;
mod namespace;
pub mod service;
mod sessions;
pub mod settings;
mod sharing;
pub mod shipping;
pub mod target;
mod term;
mod tx;

pub use service::{initialise, run};
pub use settings::MetadataSettings;

pub use tx::operation::{CallId, ConnectionId, OutgoingCall};
