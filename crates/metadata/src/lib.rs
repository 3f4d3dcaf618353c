//! The namespace: entries, inodes, sessions, and transactions between targets.
//!
//! Owns what a metadata target knows and decides. [`target::MetadataTarget`] is the pure state
//! machine; [`service`] runs it for real. Reads on from there: [`engine`] is the store below,
//! `handlers` has one file for each request, `steps` what transactions between targets are made of,
//! `background` what a target does by itself, `truncations` how files are truncated, `inline` the
//! first bytes of files that lie here, `file_locks` what applications have locked. Does not know
//! chunk files beyond their names.

mod background;
pub mod engine;
mod free_space;
mod handlers;
pub mod limits;
mod locks;
mod namespace;
pub mod service;
mod sessions;
pub mod settings;
mod sharing;
pub mod target;
mod tx;

pub use service::{initialise, run};
pub use settings::MetadataSettings;

pub use tx::operation::{CallId, ConnectionId, OutgoingCall};
