//! Explains why a cluster is slow: where requests spent their time, and the causes of the slowness,
//! in words and numbers.
//!
//! [`Evidence`] contains the times that services have measured in a time span. [`explain`] divides
//! the time of the requests in a [`Scope`] into phases, and compares each target with its peers.
//! Only this module has rules that find causes ([`causes()`]). `skep why`, `skep health check`, the
//! findings of the monitor and its page use these rules.
//!
//! `skep_cluster::problems` finds the problems that are visible in the cluster map alone.
//! `docs/design/0017-why.md` has the reasons for the rules and their thresholds.

mod cause;
mod causes;
mod comparison;
mod evidence;
mod focus;
mod host_causes;
mod hosts;
mod links;
mod median;
mod metadata_load;
pub(crate) mod names;
mod open_requests;
pub(crate) mod phases;
mod report;
mod scope;
mod traffic;

pub use cause::{Cause, Thresholds};
pub use causes::causes;
pub use evidence::{Evidence, Holder, Link, MAX_NAMED, OpenRequests, TargetEvidence, Times};
pub use focus::Focus;
pub use host_causes::clock_findings;
pub use hosts::{HostEvidence, host_address, host_of};
pub use phases::Phase;
pub(crate) use report::findings_of_map;
pub use report::{Finding, Report, explain};
pub use scope::Scope;
pub use traffic::{Interval, Traffic};

#[cfg(test)]
pub(crate) mod tests;
