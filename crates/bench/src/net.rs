//! Benchmarks of the network alone: from client hosts to services, and between services, like
//! BeeGFS's NetBench.
//!
//! The messages have the format of messages with file data, including checksums, and use the same
//! kind of connection. Messages go to the thread that owns a storage target, but no files are
//! written or read (`skep_rpc::link_benchmark`). On client hosts, the launcher starts processes
//! that measure links. Services measure links on request. For each pair, the run measures the
//! bandwidth in both directions, and round trips.

pub(crate) mod outcome;
mod plan;
mod run;
mod work;

pub use outcome::{Judged, Outcome, Pair, Sample, Total};
pub use plan::{Measured, Plan, Server};
pub use run::{between_servers, from_hosts};

pub(crate) use plan::Assignment;
pub(crate) use work::NetEngine;
