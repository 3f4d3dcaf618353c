//! Compares the kernel settings of a host with the values that suit the host's roles in a Skep
//! cluster. Sets the wanted values, and restores the previous values (`skep tune`).
//!
//! The crate owns the rules (in `data/rules.toml`), the comparison of a host with the rules, and
//! the changes and their undo. All files that it reads and writes are below a root directory. In
//! production, the root is `/`. Tests use directories with artificial files.
//!
//! # Invariants
//! - Before a file is changed, its previous contents are durable in [`changes::STATE`].
//! - The recorded contents of a file are the contents before its first change, however often
//!   `apply` runs. A later `apply` never replaces them.
//!
//! `Record::check_invariants` in [`changes`] checks the second invariant. The first invariant is an
//! order of writes, which no state shows, and no test loses power during a change.
//!
//! Held by the tests `undo_after_a_crash_of_apply_restores_everything` (with the state after such a
//! power loss) and `second_apply_preserves_the_original_values_for_undo`.
//!
//! The settings of Skep's services are not a part of this crate. `skep-ctl` prints the results.

pub mod acceleration;
pub mod changes;
pub mod check;
pub mod interrupts;
mod keep;
pub mod numa;
pub mod path_mtu;
mod record_lock;
pub mod rules;
mod tree;

pub use rules::{Role, Rules};
pub use tree::Tree;

use skep_types::{Error, ErrorCode};

/// Creates an error for invalid input.
fn invalid(context: impl Into<String>) -> Error {
    Error::new(ErrorCode::InvalidArgument, context)
}
