//! Benchmarks of a file system from several hosts at once: what starts their processes together,
//! and what these do.
//!
//! [`launcher`] starts an *agent* on each host and through it processes (*workers*), holds them at
//! barriers, and brings their times onto one time line. [`io`] moves data in IOR's patterns,
//! [`metadata`] makes and removes names as mdtest does: any mounted file system can be measured by
//! these two. [`storage`] lets storage targets measure themselves, [`net`] measures the network
//! between hosts and services. [`tool`] lets programs of others do the work.
//!
//! # What every engine keeps to
//! Each phase begins on all processes at one barrier and counts from the first begin to the last
//! end. Results of each process are kept, not only means. What was measured before something went
//! wrong is given back with the reason.
//!
//! `skep bench` is the command line of this. `cargo xtask bench` is another thing: it compares Skep
//! with its peers on one machine, starts and stops them, and is for who develops Skep.

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
