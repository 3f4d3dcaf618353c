//! The file `former-secrets` in a service's directory. The file contains the secrets of earlier
//! tokens, which the service still accepts while an administrator replaces the token. The file also
//! contains the ids of secrets that were revoked for all nodes, so that no command reinstalls such
//! a secret.
//!
//! The module [`crate::directory`] has the newest token, and [`crate::tokens`] changes tokens.

use skep_rpc::{HeldSecret, Secret, SecretId};
use skep_store::atomic::replace_secret;
use skep_types::{Error, ErrorCode, Result};
use std::path::Path;

/// Name of the file with the previous secrets. Only its owner can read the file.
pub const FORMER_FILE: &str = "former-secrets";

/// Words in the file `former-secrets` for the state of a previous secret. The service accepts an
/// open secret from all nodes, and a closed secret only from nodes that have joined already.
const OPEN: &str = "open";
const CLOSED: &str = "closed";
/// Word after the id of a secret that was revoked for all nodes.
const REVOKED: &str = "revoked";

/// Maximum number of ids of revoked secrets in the file. An administrator replaces a token by hand,
/// so a directory reaches this limit only after decades. At the limit, a new id replaces the oldest
/// id.
const MAX_REVOKED: usize = 256;

/// The contents of the file [`FORMER_FILE`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FormerSecrets {
    /// The secrets that the service accepts, newest first.
    pub(crate) held: Vec<HeldSecret>,
    /// The ids of the secrets that were revoked for all nodes, newest first.
    pub(crate) revoked: Vec<SecretId>,
}

/// Reads the previous secrets of a directory. The result is empty if there is no file.
///
/// # Errors
/// `Configuration` with the path and the line if the file cannot be read or is malformed.
pub(crate) fn read(directory: &Path) -> Result<FormerSecrets> {
    let file = directory.join(FORMER_FILE);
    let wrong = |what: String| {
        let what = format!("cannot read {}: {what}", file.display());
        Error::new(ErrorCode::Configuration, what)
    };
    let text = match std::fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(FormerSecrets::default());
        }
        Err(error) => return Err(wrong(error.to_string())),
    };
    let mut former = FormerSecrets::default();
    for (index, line) in text.lines().enumerate() {
        former.take_line(line).ok_or_else(|| {
            wrong(format!(
                "line {} is not a secret of a previous token; remove this file, and run `skep \
                 token install` on the hosts that still have an older token",
                index + 1
            ))
        })?;
    }
    Ok(former)
}

impl FormerSecrets {
    /// Parses one line of the file, and adds its contents. Returns `None` if the line is malformed.
    fn take_line(&mut self, line: &str) -> Option<()> {
        let (secret, state) = line.split_once(' ')?;
        let is_closed = match state {
            OPEN => false,
            CLOSED => true,
            REVOKED => {
                self.revoked.push(secret.parse().ok()?);
                return Some(());
            }
            _ => return None,
        };
        self.held.push(HeldSecret { secret: Secret::from_hex(secret)?, is_closed });
        Some(())
    }

    /// Records that a secret was revoked for all nodes.
    pub(crate) fn revoke(&mut self, id: SecretId) {
        self.held.retain(|held| held.secret.id() != id);
        self.revoked.retain(|revoked| *revoked != id);
        self.revoked.insert(0, id);
        self.revoked.truncate(MAX_REVOKED);
    }
}

/// Replaces the previous secrets of a directory.
///
/// # Errors
/// Errors of the file system, with the path.
pub(crate) fn write(directory: &Path, former: &FormerSecrets) -> Result<()> {
    let line = |held: &HeldSecret| {
        let state = if held.is_closed { CLOSED } else { OPEN };
        format!("{} {state}\n", held.secret.to_hex())
    };
    let mut text: String = former.held.iter().map(line).collect();
    text.extend(former.revoked.iter().map(|id| format!("{id} {REVOKED}\n")));
    replace_secret(&directory.join(FORMER_FILE), text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn previous_secrets_persist_and_old_revoked_ids_are_dropped() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(read(directory.path()).unwrap(), FormerSecrets::default());
        let held = HeldSecret { secret: Secret::generate(), is_closed: true };
        let mut former = FormerSecrets { held: vec![held.clone()], revoked: Vec::new() };
        (0..300).for_each(|id| former.revoke(SecretId::new(id)));
        assert_eq!((former.revoked.len(), former.revoked[0]), (MAX_REVOKED, SecretId::new(299)));
        write(directory.path(), &former).unwrap();
        assert_eq!(read(directory.path()).unwrap(), former);
        former.revoke(held.secret.id());
        assert_eq!((former.held.len(), former.revoked.len()), (0, MAX_REVOKED));
    }
}
