//! Storage targets: store chunk files and serve them to clients.
//!
//! Owns the data of a storage target, and its recovery from crashes and damage: [`chunk_store`].
//! Each target has a thread of its own ([`skep_service::host`]). Does not own names, directories or
//! files: a storage target only sees inode ids.

mod benchmark;
pub mod chunk_store;
mod emulation;
mod handlers;
mod limits;
mod loss;
mod orphans;
mod request_meter;
mod service;
mod settings;
mod target_thread;

pub use service::{initialise, run};
pub use settings::{DEFAULT_PORT, EmulationSettings, StorageSettings};
