//! Operations on names, as in mdtest: processes create, stat, read and remove items in a tree of
//! directories. An item is a file or a directory.
//!
//! Names have the form of mdtest (`test-dir.0`, `mdtest_tree.0`, `file.mdtest.3.17`). A run that
//! creates items and another run that reads these items use the same names.

mod items;
mod outcome;
pub(crate) mod plan;
mod run;
mod work;

/// The results of a run of `skep bench metadata`.
pub type Outcome = crate::workload::Outcome<Plan>;

pub use plan::{OPERATIONS, Plan};
pub use run::run;
pub(crate) use work::MetadataEngine;
