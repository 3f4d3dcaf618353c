//! Benchmarks of a file system from several hosts at the same time. The crate has the launcher,
//! which starts and synchronises processes, and the engines that these processes run.
//!
//! [`launcher`] starts an *agent* on each host, starts processes (*workers*) through the agent, and
//! synchronises the workers with barriers. The launcher also converts the times of the workers to
//! one clock. [`io`] reads and writes data in IOR's patterns, and [`metadata`] creates and removes
//! names like mdtest. Both [`io`] and [`metadata`] measure any mounted file system. [`storage`]
//! makes storage targets measure their own speed, and [`net`] measures the network between hosts
//! and services. [`tool`] runs external programs (IOR, mdtest, fio, IOzone) instead of the built-in
//! engines.
//!
//! # Rules for every engine
//! All processes begin a phase at one barrier. The time of a phase is from the start of the first
//! process to the end of the last process. A run records the results of each process, and not only
//! means. A run that fails returns the results before the failure, with the reason for the failure.
//!
//! `skep bench` is the command line of this crate. `cargo xtask bench` is a separate program for
//! developers of Skep. That program starts Skep and other file systems on one machine, and compares
//! their speed.

pub mod environment;
pub mod io;
pub mod latency;
pub mod launcher;
pub mod limits;
pub mod metadata;
pub mod net;
mod progress;
mod random;
pub mod statistics;
pub mod storage;
pub mod tool;
mod workload;

pub use launcher::{Host, agent, worker};
pub use progress::{Measurement, Progress, interrupt};
