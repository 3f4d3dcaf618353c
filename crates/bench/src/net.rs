//! Benchmarks of the network without storage devices, like BeeGFS's NetBench. These benchmarks
//! measure the links from client hosts to services, and the links between services.
//!
//! The messages have the form of messages with file data, including checksums, and use the same
//! kind of connection. The messages go to the thread that owns a storage target, but the target
//! neither writes nor reads files (`skep_rpc::link_benchmark`). On client hosts, the launcher
//! starts processes that measure links. Services measure links on request. For each pair of ends,
//! the run measures the bandwidth in both directions, and the round trips. Before the first
//! measurement, hosts probe whether packets of their interface's MTU arrive at the services.

pub(crate) mod outcome;
mod plan;
mod run;
mod work;

pub use outcome::{Judged, Outcome, Pair, PairPath, Sample, Total};
pub use plan::{Measured, Plan, Server};
pub use run::{between_servers, from_hosts};

pub(crate) use plan::Assignment;
pub(crate) use work::NetEngine;
