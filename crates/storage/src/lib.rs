//! Storage targets store chunk files and serve these files to clients.
//!
//! The crate is responsible for the data of a storage target, and for the target's recovery from
//! crashes and damage ([`chunk_store`]). Each target belongs to one thread. A thread may own
//! several targets of one device (`event_loops`). Names, directories and files are outside this
//! crate, because a storage target has only the ids of inodes.

mod benchmark;
pub mod chunk_store;
mod emulation;
mod event_loops;
mod fair_permits;
mod handlers;
mod limits;
mod loss;
mod orphans;
mod request_meter;
mod service;
mod settings;
mod store_gauges;
mod target_thread;
mod transfers;

pub use service::{initialise, run};
pub use settings::{DEFAULT_PORT, EmulationSettings, StorageSettings};
