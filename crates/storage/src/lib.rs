//! Storage targets: chunk files, served to clients.
//!
//! Owns what a storage target holds and how it survives crashes and damage: [`chunk_store`]. The
//! service around it is one main thread, which accepts connections and keeps the node a member of
//! the cluster, and one thread for each target. Knows no names, directories or files beyond their
//! inode ids.

pub mod chunk_store;
mod directories;
mod handlers;
mod limits;
mod orphans;
mod service;
mod settings;
mod target_thread;

pub use directories::initialise;
pub use service::run;
pub use settings::{DEFAULT_PORT, StorageSettings};
