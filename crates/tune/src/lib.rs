//! Settings of hosts: which values of the kernel suit a role of Skep, and how to change and restore
//! them (`skep tune`).
//!
//! Owns the rules (data in `data/rules.toml`), their check, and changes with their undo. All files
//! lie below a root directory, `/` in production: tests use made-up trees.
//!
//! # Invariants
//! - The former state of a file is durable in [`changes::STATE`] before the file is changed.
//! - The former state that is recorded first is never replaced, however often `apply` runs.
//!
//! Does not own: settings of Skep's services, and printing (`skep-ctl`).

pub mod changes;
pub mod check;
mod keep;
pub mod rules;
mod tree;

pub use rules::{Role, Rules};
pub use tree::Tree;

use skep_types::{Error, ErrorCode};

/// Creates the error of a wrong input.
fn invalid(context: impl Into<String>) -> Error {
    Error::new(ErrorCode::InvalidArgument, context)
}
