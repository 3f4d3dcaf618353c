//! Names in mdtest's manner: a tree of directories, and items in them that processes create, stat,
//! read and remove.
//!
//! Names follow mdtest (`test-dir.0`, `mdtest_tree.0`, `file.mdtest.3.17`). They are always the
//! same where one run creates items and another reads them.

mod items;
mod outcome;
pub(crate) mod plan;
mod run;
mod work;

/// The results of a run.
pub type Outcome = crate::workload::Outcome<Plan>;

pub use plan::{OPERATIONS, Plan};
pub use run::{run, run_by};
pub(crate) use work::MetadataEngine;
