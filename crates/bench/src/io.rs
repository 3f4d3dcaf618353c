//! Reads and writes in IOR's patterns: N processes share one file, or each uses its own file. The
//! processes transfer blocks and segments in sequential or random order.
//!
//! As in IOR, a phase begins when the first process begins to open its file, and ends when the last
//! process has closed its file. There are two differences from IOR: the first process creates a
//! shared file before the measured time begins, and a run overwrites existing files only with the
//! option `-E`.

mod outcome;
pub(crate) mod pattern;
pub(crate) mod plan;
mod run;
mod samples;
mod stamp;
mod work;

/// The results of a run of `skep bench io`.
pub type Outcome = crate::workload::Outcome<Plan>;

pub use plan::Plan;
pub use run::run;
pub(crate) use work::IoEngine;
