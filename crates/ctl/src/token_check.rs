//! Checks a token with management before a command stores it in the directory of a service.

use crate::access::{Access, PATIENCE, block_on};
use skep_rpc::{Channel, Connection, JoinToken, SecretId};
use skep_service::directory::load_token;
use skep_service::known_management;
use skep_service::tokens::{self, FOLLOW_INTERVAL};
use skep_store::identity::read_identity;
use skep_types::{Error, ErrorCode, NodeId, Result, TargetId};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time for which a token may be refused because management has not read its own new token yet.
const REFUSED_FOR: Duration = FOLLOW_INTERVAL.saturating_mul(3);
/// Pause between two attempts to prove the token to management.
const PAUSE: Duration = Duration::from_millis(250);

/// Proves the token to management. Any management node is enough, since all of them have the token
/// when a replacement of the token is complete.
///
/// # Errors
/// `AuthenticationFailed` if management refuses the token, and the error of the last attempt if no
/// management node replies.
pub(crate) fn prove(token: &JoinToken) -> Result<()> {
    let access = access_by(token.clone());
    block_on(async move {
        let until = skep_env::now() + REFUSED_FOR;
        loop {
            let Err(error) = try_addresses(&access).await else { return Ok(()) };
            let is_refused = error.code() == ErrorCode::AuthenticationFailed;
            if !is_refused || skep_env::now() >= until {
                return Err(error);
            }
            skep_env::sleep(PAUSE).await;
        }
    })
}

/// Checks a token before `--init` stores it in the directory of a service. Without a reply from
/// management the token cannot be checked, which the command logs.
///
/// # Errors
/// `AuthenticationFailed` if management refuses the token.
pub(crate) fn check_before_init(directory: &Path, token: &JoinToken) -> Result<()> {
    // A directory that has this token already, or that cannot have it, needs no check.
    let is_initialised = matches!(read_identity(directory), Ok(Some(_)));
    if is_initialised && !tokens::check_install(directory, token).unwrap_or(false) {
        return Ok(());
    }
    match prove(token) {
        Ok(()) => Ok(()),
        Err(error) if error.code() == ErrorCode::AuthenticationFailed => {
            let what = format!(
                "cannot initialise {}: management refuses the token ({}); use the token that \
                 `skep cluster token --cluster DIRECTORY` prints on the management host",
                directory.display(),
                error.context()
            );
            Err(Error::new(error.code(), what))
        }
        Err(error) => {
            tracing::warn!(
                "cannot check the token with management: {}; if the token is wrong, the start of \
                 the service fails",
                error.context()
            );
            Ok(())
        }
    }
}

/// Returns the newest secret of a directory whose node has never joined, if it differs from the one
/// of `token` and management refuses it. Such a secret was never a secret of this cluster.
/// Management must have accepted `token` before.
pub(crate) fn foreign_secret(directory: &Path, token: &JoinToken) -> Option<SecretId> {
    let identity = read_identity(directory).ok().flatten()?;
    if identity.node != NodeId::default() {
        return None;
    }
    let held = load_token(directory).ok()?.secrets.newest();
    if held == token.secrets.newest() {
        return None;
    }
    let secrets = skep_rpc::Secrets::new(held.clone(), Vec::new());
    let access = access_by(JoinToken { secrets, ..token.clone() });
    let error = block_on(async move { try_addresses(&access).await }).err()?;
    (error.code() == ErrorCode::AuthenticationFailed).then(|| held.id())
}

/// Removes a secret that [`foreign_secret`] has found from a directory that has a newer one.
///
/// # Errors
/// The errors of [`tokens::revoke`].
pub(crate) fn forget(directory: &Path, secret: Option<SecretId>) -> Result<()> {
    secret.map_or(Ok(()), |id| tokens::revoke(directory, id, true))
}

fn access_by(token: JoinToken) -> Access {
    let name = token.addresses.join(", ");
    // The token may be older than the present management nodes.
    let learned = known_management::learned_addresses(token.cluster);
    Access::new(token, &name, PathBuf::new()).with_learned(learned)
}

/// Returns success if a management node accepts the token. If any node refuses the token, returns
/// the refusal.
async fn try_addresses(access: &Access) -> Result<()> {
    let (identity, contacts) = (access.identity(), access.contacts());
    let mut failure = Error::new(ErrorCode::Disconnected, "the token names no address");
    for address in &contacts.addresses {
        let attempt = Connection::connect(address, &identity, TargetId::default(), Channel::NONE);
        let error = match skep_env::timeout(PATIENCE, attempt).await {
            Some(Ok(_)) => return Ok(()),
            Some(Err(error)) => error,
            None => {
                Error::new(ErrorCode::TimedOut, format!("{address}: no reply within {PATIENCE:?}"))
            }
        };
        if failure.code() != ErrorCode::AuthenticationFailed {
            failure = error;
        }
    }
    Err(failure)
}
