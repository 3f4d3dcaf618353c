//! The file `former-secrets` in a service's directory: the secrets before the newest token. The
//! service still accepts them while an administrator replaces the token.
//!
//! Does not own the newest token ([`crate::directory`]), nor the changes ([`crate::tokens`]).

use skep_rpc::{HeldSecret, Secret};
use skep_store::atomic::replace_secret;
use skep_types::{Error, ErrorCode, Result};
use std::path::Path;

/// Name of the file. Only its owner can read it.
pub const FORMER_FILE: &str = "former-secrets";

/// Words for the state of a former secret in the file.
const OPEN: &str = "open";
const CLOSED: &str = "closed";

/// Reads the former secrets of a directory, newest first. The list is empty if there
/// is no file.
///
/// # Errors
/// `Configuration` with the path and the line if the file cannot be read or is malformed.
pub(crate) fn read(directory: &Path) -> Result<Vec<HeldSecret>> {
    let file = directory.join(FORMER_FILE);
    let wrong = |what: String| {
        let what = format!("cannot read {}: {what}", file.display());
        Error::new(ErrorCode::Configuration, what)
    };
    let text = match std::fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(wrong(error.to_string())),
    };
    let held = |line: &str| {
        let (secret, state) = line.split_once(' ')?;
        let is_closed = match state {
            OPEN => false,
            CLOSED => true,
            _ => return None,
        };
        Secret::from_hex(secret).map(|secret| HeldSecret { secret, is_closed })
    };
    let mut former = Vec::new();
    for (index, line) in text.lines().enumerate() {
        former.push(held(line).ok_or_else(|| {
            wrong(format!(
                "line {} is not a former secret; remove the file, and run `skep token install` on \
                 the hosts that still have an older token",
                index + 1
            ))
        })?);
    }
    Ok(former)
}

/// Replaces the former secrets of a directory.
///
/// # Errors
/// Errors of the file system, with the path.
pub(crate) fn write(directory: &Path, former: &[HeldSecret]) -> Result<()> {
    let line = |held: &HeldSecret| {
        let state = if held.is_closed { CLOSED } else { OPEN };
        format!("{} {state}\n", held.secret.to_hex())
    };
    let text: String = former.iter().map(line).collect();
    replace_secret(&directory.join(FORMER_FILE), text.as_bytes())
}
