//! Deterministic simulation of the metadata core from a seed, with checkers.
//!
//! Runs the real state machine of metadata targets ([`skep_metadata::target::MetadataTarget`]) with
//! simulated disks, network, storage targets and clients. One number, the seed, determines sizes,
//! limits, the workload and every fault. [`run()`] runs a seed and returns a report. `witness`
//! checks each reply during the run, and `checks` reads the stores at the end of the run.
//! Simulated clients keep the state of each file as mounts do ([`skep_client::InodeState`],
//! `files`), and `known_sizes` checks the sizes in this state.
//!
//! In half of the runs, targets stage transactions of two groups (`staging`).
//!
//! In some runs each target has a backup member (`backup`). A model of management decides when the
//! backup member takes over (`take_over`). `management` publishes cluster maps, and simulates
//! restarts of management. The simulation covers neither management's state machine, nor leases
//! between members, nor changes of shards in the cluster map.

mod backup;
mod calls;
mod changes;
mod checks;
mod client;
mod comparison;
mod disk;
mod faults;
mod files;
mod groups;
mod inherited;
mod inline;
mod inodes;
mod judged;
pub mod knobs;
mod known_sizes;
mod management;
mod model;
mod moves;
mod names;
mod network;
mod notifications;
mod operation;
mod plants;
mod random;
mod replay;
mod run;
mod staging;
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

pub use groups::{GroupBug, GroupOptions, GroupReport, run_group};
pub use judged::Judged;
pub use run::{
    MOST_BLIND_PERCENT, MOST_LISTINGS_SKIPPED_PERCENT, MOST_SIZES_SKIPPED_PERCENT, Options, Report,
    run,
};
