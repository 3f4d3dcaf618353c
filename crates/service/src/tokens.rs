//! The tokens of a service's directory: the newest one, and former ones that the service still
//! accepts while an administrator replaces them.
//!
//! Owns the changes that `skep token` makes, and the task of a running process that takes over such
//! a change. Does not own the file of the newest token ([`crate::directory`]), the file of the
//! former ones ([`crate::former_secrets`]), nor what a secret proves (`skep_rpc::secret`).
//!
//! `docs/design/0019-tokens.md` has the order of the steps in a cluster.

use crate::directory::{TOKEN_FILE, load_token, read_token, write_token};
use crate::former_secrets::{self, FORMER_FILE};
use skep_rpc::{JoinToken, MAX_SECRETS, SecretId, Secrets};
use skep_types::{Error, ErrorCode, Result};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Interval at which a running process looks for a changed token. It reads the metadata of two
/// files then.
pub const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);

/// Makes `token` the newest token of a directory. The secret that was the newest one becomes a
/// former one. Returns `false` if the directory has this token already.
///
/// # Errors
/// - `Configuration` if the token is of another cluster, if its secret was revoked here, or if the
///   directory has [`MAX_SECRETS`] secrets already.
/// - Errors of the file system.
pub fn install(directory: &Path, token: &JoinToken) -> Result<bool> {
    let own = load_token(directory)?;
    let refused = |what: String| {
        let what = format!("cannot install the token in {}: {what}", directory.display());
        Err(Error::new(ErrorCode::Configuration, what))
    };
    if own.cluster != token.cluster {
        return refused(format!(
            "it is of cluster {}, but the directory belongs to cluster {}; use the token that \
             `skep cluster token` prints on the management host of this cluster",
            token.cluster, own.cluster
        ));
    }
    let newest = token.secrets.newest();
    let held = own.secrets.held();
    if held[0].secret == newest {
        if own.addresses == token.addresses {
            return Ok(false);
        }
        write_token(directory, token)?;
        return Ok(true);
    }
    if held.iter().any(|it| it.secret == newest && it.is_closed) {
        return refused("it is revoked; use the newest one, of `skep cluster token`".to_owned());
    }
    if held.iter().filter(|it| it.secret != newest).count() == MAX_SECRETS {
        return refused(format!(
            "it has {MAX_SECRETS} tokens, which is the maximum; revoke an old one with `skep token \
             revoke --entirely ID`"
        ));
    }
    // A crash between the two writes leaves the former newest secret in both files, which is the
    // state before the change.
    let former: Vec<_> = held.into_iter().filter(|it| it.secret != newest).collect();
    former_secrets::write(directory, &former)?;
    write_token(directory, token)?;
    Ok(true)
}

/// Draws a new secret for the directory of management, and returns the new token.
///
/// # Errors
/// As for [`install`].
pub fn replace(directory: &Path) -> Result<JoinToken> {
    let own = load_token(directory)?;
    let token = JoinToken { secrets: Secrets::generate(), ..own };
    install(directory, &token).map(|_| token)
}

/// Revokes a former secret in a directory: for nodes that have not joined yet, or, with
/// `is_entire`, for all nodes.
///
/// # Errors
/// - `NotFound` if the directory has no secret with this id.
/// - `InUse` if the secret is the newest one.
/// - Errors of the file system.
pub fn revoke(directory: &Path, id: SecretId, is_entire: bool) -> Result<()> {
    let mut held = load_token(directory)?.secrets.held();
    let refused = |code, what: String| {
        let place = directory.display();
        Err(Error::new(code, format!("cannot revoke token {id} in {place}: {what}")))
    };
    let Some(index) = held.iter().position(|it| it.secret.id() == id) else {
        let what = "there is no such token; `skep token list` shows the tokens";
        return refused(ErrorCode::NotFound, what.to_owned());
    };
    if index == 0 {
        let what = "it is the newest one; first replace it with `skep token replace` on the \
                    management host, and give the new one to all services with `skep token \
                    install`";
        return refused(ErrorCode::InUse, what.to_owned());
    }
    if is_entire {
        held.remove(index);
    } else {
        held[index].is_closed = true;
    }
    former_secrets::write(directory, &held[1..])
}

/// Identifies the contents of the files with tokens, without reading them.
fn stamp(files: &[PathBuf]) -> Vec<Option<(u64, i64, i64)>> {
    let of_file = |file: &PathBuf| {
        let metadata = std::fs::metadata(file).ok()?;
        Some((metadata.ino(), metadata.mtime(), metadata.mtime_nsec()))
    };
    files.iter().map(of_file).collect()
}

/// Gives `secrets`, and so all threads of this process, each later change of the tokens in a
/// service's directory. Never returns; the caller spawns it.
pub async fn follow_directory(directory: PathBuf, secrets: Secrets) {
    let files = [directory.join(TOKEN_FILE), directory.join(FORMER_FILE)];
    follow(&files, &secrets, || Ok(load_token(&directory)?.secrets)).await;
}

/// Gives `secrets`, and so all threads of this process, each later token in a file. The process
/// still accepts and offers the secrets that it has held, since a service may not have the new one
/// yet. Never returns; the caller spawns it.
pub async fn follow_file(file: PathBuf, secrets: Secrets) {
    let files = [file.clone()];
    let read = || {
        let newest = read_token(&file)?.secrets.newest();
        Ok(Secrets::new(newest, secrets.held()))
    };
    follow(&files, &secrets, read).await;
}

async fn follow(files: &[PathBuf], secrets: &Secrets, read: impl Fn() -> Result<Secrets>) {
    let mut former = stamp(files);
    // The first round reads the files: they may have changed since the process read them.
    let mut is_first = true;
    loop {
        skep_env::sleep(FOLLOW_INTERVAL).await;
        let newest = stamp(files);
        if newest == former && !is_first {
            continue;
        }
        (former, is_first) = (newest, false);
        match read() {
            Ok(changed) if changed.held() != secrets.held() => {
                secrets.replace_by(&changed);
                let id = changed.newest().id();
                tracing::info!("this process uses the changed tokens; the newest is {id}");
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(
                    "the token has changed and cannot be used, the former stays: {error}"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeDirectory;
    use crate::directory::tests::token;
    use skep_format::identity::DirectoryKind;

    fn service(parent: &Path, token: &JoinToken) -> PathBuf {
        let path = parent.join("node");
        let kind = DirectoryKind::StorageNode;
        drop(NodeDirectory::initialise(&path, kind, token.clone()).unwrap());
        path
    }

    fn states(directory: &Path) -> Vec<bool> {
        load_token(directory).unwrap().secrets.held().iter().map(|held| held.is_closed).collect()
    }

    #[test]
    fn replaced_token_stays_accepted_until_it_is_revoked() {
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
        assert!(revoked.context().contains("it is revoked"), "{revoked}");
        revoke(&path, id, true).unwrap();
        assert_eq!(states(&path), [false]);
        assert_eq!(revoke(&path, id, true).unwrap_err().code(), ErrorCode::NotFound);
        let newest = new.secrets.newest().id();
        assert_eq!(revoke(&path, newest, true).unwrap_err().code(), ErrorCode::InUse);
    }

    #[test]
    fn foreign_token_and_a_fifth_token_are_refused() {
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
    fn damaged_former_secrets_are_refused_with_their_line() {
        let parent = tempfile::tempdir().unwrap();
        let path = service(parent.path(), &token(1));
        replace(&path).unwrap();
        let file = path.join(FORMER_FILE);
        let good = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, format!("{good}nonsense\n")).unwrap();
        let refused = load_token(&path).unwrap_err();
        assert!(refused.context().contains("line 2"), "{refused}");
    }

    #[test]
    fn running_process_takes_a_replaced_token() {
        let parent = tempfile::tempdir().unwrap();
        let path = service(parent.path(), &token(1));
        let secrets = load_token(&path).unwrap().secrets;
        let used = secrets.clone();
        let new = replace(&path).unwrap().secrets.newest();
        skep_env::block_on(async move {
            let following = follow_directory(path, secrets);
            assert!(skep_env::timeout(3 * FOLLOW_INTERVAL, following).await.is_none());
        })
        .unwrap();
        assert_eq!(used.newest(), new);
        assert_eq!(used.held().len(), 2);
    }
}
