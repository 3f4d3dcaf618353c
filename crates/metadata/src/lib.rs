//! The namespace: entries, inodes, sessions, and transactions between targets.
//!
//! Owns what a metadata target knows and decides. [`target::MetadataTarget`] is the pure state
//! machine; [`service`] runs it for real. Reads on from there: [`engine`] is the store below,
//! `handlers` has one file for each request, `steps` what transactions between targets are made of,
//! `background` what a target does by itself, `truncations` how files are truncated, `inline` the
//! first bytes of files that lie here, `file_locks` what applications have locked. Does not know
//! chunk files beyond their names.

mod acls;
mod background;
mod context;
pub mod engine;
mod epochs;
mod file_locks;
mod free_space;
mod group_commit;
mod handlers;
mod inline;
pub mod limits;
mod lock_waits;
mod locks;
mod namespace;
mod notifications;
mod operation;
mod requests;
pub mod service;
mod session_list;
mod sessions;
pub mod settings;
mod sharing;
mod steps;
mod table;
pub mod target;
mod truncations;

pub use service::{initialise, run};
pub use settings::MetadataSettings;

pub use operation::{CallId, ConnectionId, OutgoingCall};
