//! The hash of a text, in the form in which the facts of a host contain the hashes of its files.

use sha2::{Digest, Sha256};

/// Returns the SHA-256 of a text in hexadecimal digits, as `sha256sum` prints it.
pub(crate) fn text_hash(text: &str) -> String {
    let hash = Sha256::digest(text.as_bytes());
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}
