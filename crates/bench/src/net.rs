//! The network by itself: from client hosts to services, and between services, in the manner of
//! BeeGFS's NetBench.
//!
//! Messages are those of real data, with their checksums, over connections of the same kind, to the
//! thread that owns a storage target; only files are missing (`skep_rpc::link_benchmark`). Client
//! hosts measure by processes of their own, which the launcher starts; services are asked to
//! measure to others. Each pair has its own bandwidth in both directions, and its round trips.

pub(crate) mod outcome;
mod plan;
mod run;
mod work;

pub use outcome::{Judged, Outcome, Pair, Sample, Total};
pub use plan::{Measured, Plan, Server};
pub use run::{between_servers, from_hosts};

pub(crate) use plan::Assignment;
pub(crate) use work::NetEngine;
