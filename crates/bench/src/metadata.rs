//! Operations on names, as in mdtest. Processes create, stat, read and remove items in a tree of
//! directories.
//!
//! Names follow mdtest (`test-dir.0`, `mdtest_tree.0`, `file.mdtest.3.17`). If one run creates
//! items and another run reads them, both use the same names.

mod items;
mod outcome;
pub(crate) mod plan;
mod run;
mod work;

/// The results of a run.
pub type Outcome = crate::workload::Outcome<Plan>;

pub use plan::{OPERATIONS, Plan};
pub use run::run;
pub(crate) use work::MetadataEngine;
