//! Finds the values of the kernel that suit a role of Skep on a host, and changes and restores
//! these values (`skep tune`).
//!
//! The crate owns the rules (data in `data/rules.toml`), their check, and changes with their undo.
//! All files are below a root directory, which is `/` in production. Tests use artificial trees.
//!
//! # Invariants
//! - The previous state of a file is durable in [`changes::STATE`] before the file is changed.
//! - The first recorded state of a file is never replaced, however often `apply` runs.
//!
//! The crate does not own the settings of Skep's services or the printing (`skep-ctl`).

pub mod changes;
pub mod check;
mod keep;
pub mod rules;
mod tree;

pub use rules::{Role, Rules};
pub use tree::Tree;

use skep_types::{Error, ErrorCode};

/// Creates the error for a wrong input.
fn invalid(context: impl Into<String>) -> Error {
    Error::new(ErrorCode::InvalidArgument, context)
}
