//! The tokens of a service's directory: the newest token, and previous tokens that the service
//! still accepts while an administrator replaces the token.
//!
//! This module makes the changes of the command `skep token`. In a running process, the task in
//! [`crate::followed_token`] notices such a change.
//!
//! `docs/design/0019-tokens.md` lists the steps of an administrator who replaces the token of a
//! cluster.

use crate::directory::{load_token, write_token};
use crate::former_secrets::{self, FormerSecrets};
use skep_rpc::{JoinToken, MAX_SECRETS, SecretId, Secrets};
use skep_types::{Error, ErrorCode, Result};
use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::Duration;

/// Number of attempts of [`lock_changes`] to lock a directory. With [`LOCK_PAUSE`] all attempts
/// take 200 ms, while a change of the tokens takes a few syncs of small files. The attempts block
/// management's only thread.
const LOCK_ATTEMPTS: u32 = 20;

/// Pause between two attempts of [`lock_changes`].
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Makes `token` the newest token of a directory. The previous newest secret becomes a previous
/// secret. Returns `false` if this token is already the newest token of the directory.
///
/// # Errors
/// - `Configuration` if the token is of another cluster, if its secret was revoked in this
///   directory (entirely or for new nodes), or if the directory already has [`MAX_SECRETS`]
///   secrets.
/// - `InUse` if another process changes the tokens of the directory.
/// - Errors of the file system.
pub fn install(directory: &Path, token: &JoinToken) -> Result<bool> {
    let _lock = lock_changes(directory)?;
    install_locked(directory, token)
}

/// Returns whether [`install`] would change the directory. Changes nothing.
///
/// # Errors
/// As for [`install`], except for `InUse`.
pub fn check_install(directory: &Path, token: &JoinToken) -> Result<bool> {
    Ok(!matches!(change_by(directory, token)?, Change::None))
}

/// The changes that the installation of a token makes in a directory.
enum Change {
    None,
    /// Replace only the addresses of management.
    Addresses,
    /// Replace the newest secret. The value contains the previous secrets after the change.
    Secret(FormerSecrets),
}

fn install_locked(directory: &Path, token: &JoinToken) -> Result<bool> {
    match change_by(directory, token)? {
        Change::None => return Ok(false),
        Change::Addresses => {}
        // Write the previous secrets first, so that a crash between the two writes loses no secret.
        // After such a crash, the token file still has the old token, and both files have its
        // secret.
        Change::Secret(former) => former_secrets::write(directory, &former)?,
    }
    write_token(directory, token)?;
    Ok(true)
}

fn change_by(directory: &Path, token: &JoinToken) -> Result<Change> {
    let own = load_token(directory)?;
    let refused = |what: String| {
        let what = format!("cannot install the token in {}: {what}", directory.display());
        Err(Error::new(ErrorCode::Configuration, what))
    };
    if own.cluster != token.cluster {
        return refused(format!(
            "the token is of cluster {}, but the directory belongs to cluster {}; use the token \
             that `skep cluster token --cluster DIRECTORY` prints on the management host of this \
             cluster",
            token.cluster, own.cluster
        ));
    }
    let mut former = former_secrets::read(directory)?;
    let newest = token.secrets.newest();
    let held = own.secrets.held();
    if held[0].secret == newest {
        return Ok(match own.addresses == token.addresses {
            true => Change::None,
            false => Change::Addresses,
        });
    }
    let is_closed = held.iter().any(|it| it.secret == newest && it.is_closed);
    if is_closed || former.revoked.contains(&newest.id()) {
        return refused(
            "the token is revoked; use the newest token, which `skep cluster token --cluster \
             DIRECTORY` prints on the management host"
                .to_owned(),
        );
    }
    if held.iter().filter(|it| it.secret != newest).count() == MAX_SECRETS {
        return refused(format!(
            "the directory has {MAX_SECRETS} tokens, which is the maximum; revoke an old token \
             with `skep token revoke --entirely ID`"
        ));
    }
    former.held = held.into_iter().filter(|it| it.secret != newest).collect();
    Ok(Change::Secret(former))
}

/// Draws a new random secret for the directory of management, and returns the new token.
///
/// # Errors
/// The errors of [`install`].
pub fn replace(directory: &Path) -> Result<JoinToken> {
    let _lock = lock_changes(directory)?;
    let own = load_token(directory)?;
    let token = JoinToken { secrets: Secrets::generate(), ..own };
    install_locked(directory, &token).map(|_| token)
}

/// Replaces the addresses in the newest token of a directory, without changing the secrets.
///
/// # Errors
/// - `InUse` if another process changes the tokens of the directory.
/// - Errors of the file system.
pub fn set_addresses(directory: &Path, addresses: &[String]) -> Result<()> {
    let _lock = lock_changes(directory)?;
    let own = load_token(directory)?;
    write_token(directory, &JoinToken { addresses: addresses.to_vec(), ..own })
}

/// Prevents other processes from changing the tokens of a directory until the returned file is
/// closed. A change reads the files and then replaces them. Without the lock, management could
/// write its new addresses together with an old secret that `skep token replace` has just replaced.
fn lock_changes(directory: &Path) -> Result<File> {
    let failed = |code, what: String| {
        let place = directory.display();
        Error::new(code, format!("cannot change the tokens of {place}: {what}"))
    };
    let file = File::open(directory).map_err(|error| failed(ErrorCode::Io, error.to_string()))?;
    for _ in 0..LOCK_ATTEMPTS {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
            Err(TryLockError::Error(error)) => {
                return Err(failed(ErrorCode::Io, error.to_string()));
            }
        }
    }
    let what = "another process changes these tokens; wait until that process has ended, and \
                repeat the command";
    Err(failed(ErrorCode::InUse, what.to_owned()))
}

/// Revokes a previous secret in a directory. If `is_entire` is set, the revocation is for all
/// nodes, otherwise only for nodes that have not joined yet.
///
/// # Errors
/// - `NotFound` if the directory has no secret with this id.
/// - `InUse` if the secret is the newest secret, or if another process changes the tokens of the
///   directory.
/// - Errors of the file system.
pub fn revoke(directory: &Path, id: SecretId, is_entire: bool) -> Result<()> {
    let _lock = lock_changes(directory)?;
    let mut held = load_token(directory)?.secrets.held();
    let mut former = former_secrets::read(directory)?;
    let refused = |code, what: String| {
        let place = directory.display();
        Err(Error::new(code, format!("cannot revoke token {id} in {place}: {what}")))
    };
    let Some(index) = held.iter().position(|it| it.secret.id() == id) else {
        let what = "the directory has no token with this id; `skep token list` shows the tokens";
        return refused(ErrorCode::NotFound, what.to_owned());
    };
    if index == 0 {
        let what = "this is the newest token; first replace it with `skep token replace` on the \
                    management host, and give the new token to all services with `skep token \
                    install`";
        return refused(ErrorCode::InUse, what.to_owned());
    }
    held[index].is_closed = true;
    former.held = held.split_off(1);
    if is_entire {
        former.revoke(id);
    }
    former_secrets::write(directory, &former)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::tests::{service, token};
    use crate::directory::{TOKEN_FILE, read_token};
    use crate::former_secrets::FORMER_FILE;

    fn states(directory: &Path) -> Vec<bool> {
        load_token(directory).unwrap().secrets.held().iter().map(|held| held.is_closed).collect()
    }

    #[test]
    fn replaced_token_stays_accepted_until_its_revocation() {
        let parent = tempfile::tempdir().unwrap();
        let old = token(1);
        let path = service(parent.path(), &old);
        let new = replace(&path).unwrap();
        assert_ne!(new, old);
        assert_eq!(read_token(&path.join(TOKEN_FILE)).unwrap(), new);
        assert_eq!(states(&path), [false, false]);
        let id = old.secrets.newest().id();
        revoke(&path, id, false).unwrap();
        assert_eq!(states(&path), [false, true]);
        let revoked = install(&path, &old).unwrap_err();
        assert!(revoked.context().contains("the token is revoked"), "{revoked}");
        revoke(&path, id, true).unwrap();
        assert_eq!(states(&path), [false]);
        assert_eq!(revoke(&path, id, true).unwrap_err().code(), ErrorCode::NotFound);
        let revoked = install(&path, &old).unwrap_err();
        assert!(revoked.context().contains("the token is revoked"), "{revoked}");
        // After a later replacement, the directory still refuses the revoked secret.
        replace(&path).unwrap();
        assert!(install(&path, &old).is_err());
        assert_eq!(states(&path), [false, false]);
        let new = load_token(&path).unwrap();
        let newest = new.secrets.newest().id();
        assert_eq!(revoke(&path, newest, true).unwrap_err().code(), ErrorCode::InUse);
    }

    #[test]
    fn concurrent_token_changes_keep_the_newest_secret() {
        let parent = tempfile::tempdir().unwrap();
        let path = service(parent.path(), &token(1));
        let addresses = |round: u32| vec![format!("10.0.0.1:{round}")];
        for round in 1..=3 {
            let new = std::thread::scope(|scope| {
                let writer = scope.spawn(|| {
                    (0..40).for_each(|_| set_addresses(&path, &addresses(round)).unwrap());
                });
                let new = replace(&path).unwrap();
                writer.join().unwrap();
                new
            });
            let stored = load_token(&path).unwrap();
            assert_eq!(stored.secrets.newest(), new.secrets.newest());
            assert_eq!(stored.addresses, addresses(round));
        }
    }

    #[test]
    fn token_change_is_refused_during_another_token_change() {
        let parent = tempfile::tempdir().unwrap();
        let path = service(parent.path(), &token(1));
        let other = lock_changes(&path).unwrap();
        let refused = replace(&path).unwrap_err();
        assert_eq!(refused.code(), ErrorCode::InUse);
        assert!(refused.context().contains("repeat the command"), "{refused}");
        drop(other);
        replace(&path).unwrap();
    }

    #[test]
    fn token_of_another_cluster_and_a_fifth_token_are_refused() {
        let parent = tempfile::tempdir().unwrap();
        let first = token(1);
        let path = service(parent.path(), &first);
        let foreign = install(&path, &token(2)).unwrap_err();
        assert!(foreign.context().contains("of cluster 0202"), "{foreign}");
        assert!(!install(&path, &first).unwrap());
        let moved = JoinToken { addresses: vec!["10.0.0.2:7400".into()], ..first };
        assert!(install(&path, &moved).unwrap());
        assert_eq!(load_token(&path).unwrap().addresses, moved.addresses);
        (1..MAX_SECRETS).for_each(|_| drop(replace(&path).unwrap()));
        let full = replace(&path).unwrap_err();
        assert!(full.context().contains("skep token revoke"), "{full}");
        assert_eq!(states(&path).len(), MAX_SECRETS);
    }

    #[test]
    fn error_for_damaged_former_secrets_names_the_line() {
        let parent = tempfile::tempdir().unwrap();
        let path = service(parent.path(), &token(1));
        replace(&path).unwrap();
        let file = path.join(FORMER_FILE);
        let good = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, format!("{good}nonsense\n")).unwrap();
        let refused = load_token(&path).unwrap_err();
        assert!(refused.context().contains("line 2"), "{refused}");
    }
}
