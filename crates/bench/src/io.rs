//! Reads and writes in IOR's patterns: N processes use one file or one file each, in blocks and
//! segments, in sequential or random order.
//!
//! Like IOR, the time of a phase is from the moment when the first process begins to open its file
//! to the moment when the last process has closed its file. One difference from IOR: before the
//! clock starts, the first process creates the file that all processes share, and never overwrites
//! an existing file.

mod outcome;
pub(crate) mod pattern;
pub(crate) mod plan;
mod run;
mod stamp;
mod work;

/// The results of a run.
pub type Outcome = crate::workload::Outcome<Plan>;

pub use plan::Plan;
pub use run::{run, run_by};
pub(crate) use work::IoEngine;
