//! Storage targets: chunk files, served to clients.
//!
//! Owns what a storage target holds and how it survives crashes and damage: [`chunk_store`]. Each
//! target has a thread of its own on the host that services share (`skep-service`). Knows no names,
//! directories or files beyond their inode ids.

mod benchmark;
pub mod chunk_store;
mod emulation;
mod handlers;
mod limits;
mod orphans;
mod service;
mod settings;
mod target_thread;

pub use service::{initialise, run};
pub use settings::{DEFAULT_PORT, EmulationSettings, StorageSettings};
