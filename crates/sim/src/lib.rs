//! Seeded deterministic simulation of the metadata core, with checkers.
//!
//! Runs the real state machine of metadata targets ([`skep_metadata::target::MetadataTarget`]) with
//! simulated disks, network, storage and clients, from one number: the seed decides sizes, limits,
//! the workload and every fault. [`run()`] gives what came of it. `witness` checks each answer
//! while the run goes on, `checks` looks at what is stored at its end. Does not simulate
//! management, changes of the cluster map, or groups with more than one member.

mod changes;
mod checks;
mod client;
mod disk;
mod inherited;
mod inline;
pub mod knobs;
mod model;
mod network;
mod notifications;
mod operation;
mod random;
mod run;
mod storage;
mod target;
mod trace;
mod waits;
mod windows;
mod witness;
mod workload;
mod world;

pub use run::{Options, Report, run};
