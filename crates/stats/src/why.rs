//! Explains why a cluster is slow: where the time of requests went, and the causes, in words with
//! figures.
//!
//! [`Evidence`] has the measured times of a span. [`explain`] divides the time of the requests in a
//! [`Scope`] into phases and compares each target with its peers. The rules for causes
//! ([`causes()`]) are only in this module. `skep why`, `skep health check`, the findings of the
//! monitor and its page use these rules.
//!
//! The module does not own the problems that the cluster map shows by itself
//! (`skep_cluster::problems`). `docs/design/0017-why.md` has the reasons for the rules and their
//! thresholds.

mod cause;
mod causes;
mod comparison;
mod evidence;
mod links;
mod metadata_load;
pub(crate) mod names;
mod open_requests;
pub(crate) mod phases;
mod report;
mod traffic;

pub use cause::{Cause, Thresholds};
pub use causes::causes;
pub use evidence::{
    Evidence, Holder, Link, MAX_NAMED, OpenRequests, Requests, TargetEvidence, Times,
};
pub use phases::Phase;
pub(crate) use report::findings_of_map;
pub use report::{Finding, Report, Scope, explain};
pub use traffic::{Interval, Traffic};

#[cfg(test)]
pub(crate) mod tests;
