//! Data in IOR's patterns: N processes in one file or in a file each, in blocks and segments, in
//! order or at random.
//!
//! A phase counts from the first process that begins to open its file to the last that has closed
//! it, as IOR's does. One difference: the first process creates the file that all processes share
//! before the clock starts, and never overwrites an existing file.

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
