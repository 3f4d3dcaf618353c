//! Benchmarks of a file system from several hosts at once: the launcher that starts processes
//! together, and the engines that they run.
//!
//! [`launcher`] starts an *agent* on each host and processes (*workers*) through it, holds the
//! workers at barriers, and converts their times to one time line. [`io`] moves data in IOR's
//! patterns and [`metadata`] creates and removes names as mdtest does: these two measure any
//! mounted file system. [`storage`] makes storage targets measure themselves, [`net`] measures the
//! network between hosts and services. [`tool`] runs other programs (IOR, mdtest, fio, IOzone) for
//! the work.
//!
//! # Rules for every engine
//! Each phase begins on all processes at one barrier and counts from the first begin to the last
//! end. A run keeps the results of each process, not only means. After a failure it returns the
//! results that it has, with the reason for the failure.
//!
//! `skep bench` is the command line of this crate. `cargo xtask bench` is separate: it compares
//! Skep with its peers on one machine, starts and stops them, and is for developers of Skep.

pub mod environment;
pub mod io;
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
