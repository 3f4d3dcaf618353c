//! The file that marks a directory as one of Skep. [`crate::identity`] has its contents.

use std::path::Path;

/// Name of the identity file in each directory.
pub const IDENTITY_FILE: &str = "skep-identity";

/// Whether a directory contains the identity record of a Skep node or target.
pub fn is_initialised(path: &Path) -> bool {
    path.join(IDENTITY_FILE).exists()
}
