//! Deterministic simulation of the metadata core from a seed, with checkers.
//!
//! Runs the real state machine of metadata targets ([`skep_metadata::target::MetadataTarget`]) with
//! simulated disks, network, storage targets and clients. One number, the seed, determines sizes,
//! limits, the workload and every fault. [`run()`] returns the report. `witness` checks each answer
//! during the run, and `checks` reads the stores at the end of the run. In some
//! runs each target has a backup (`backup`), which takes over by a model of management
//! (`take_over`). The simulation does not cover leases between members, and changes of shards in
//! the cluster map.

mod backup;
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
mod take_over;
mod target;
mod trace;
mod truncations;
mod versions;
mod waits;
mod windows;
mod witness;
mod workload;
mod world;

pub use run::{MOST_BLIND_PERCENT, Options, Report, run};
