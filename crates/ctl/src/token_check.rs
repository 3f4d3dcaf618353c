//! Checks a token with management before a command stores it in the directory of a service.

use crate::access::block_on;
use crate::output::warn;
use skep_rpc::{JoinToken, SecretId};
use skep_service::directory::load_token;
use skep_service::{known_management, token_proof, tokens};
use skep_store::identity::read_identity;
use skep_types::{Error, ErrorCode, NodeId, Result};
use std::path::Path;

/// Proves the token to management. The reply of any management node is enough, because all
/// management nodes have the token when a replacement of the token is complete.
///
/// # Errors
/// `AuthenticationFailed` if management refuses the token, and the error of the last attempt if no
/// management node replies.
pub(crate) fn prove(token: &JoinToken) -> Result<()> {
    let token = with_learned_addresses(token.clone());
    block_on(async move { token_proof::prove(&token).await })
}

/// Warns about management nodes that refuse a token which another management node has accepted.
/// Services and mounts that have only this token cannot reach the refusing nodes, and so cannot
/// reach the leader if a refusing node leads. Does nothing for a cluster with one management node.
pub(crate) fn warn_about_refusals(token: &JoinToken) {
    let asked = token.clone();
    warn_about(token, async move { Ok(token_proof::refusing_addresses(&asked).await) });
}

/// Does the same as [`warn_about_refusals`] for a token that was installed a moment ago. A
/// management node reads its new token only after a moment. So the warning names only nodes that
/// refuse the token also after this moment.
pub(crate) fn warn_about_lasting_refusals(token: &JoinToken) {
    let asked = token.clone();
    warn_about(token, async move { Ok(token_proof::lasting_refusals(&asked).await) });
}

fn warn_about(token: &JoinToken, asking: impl Future<Output = Result<Vec<String>>> + 'static) {
    if token.addresses.len() < 2 {
        return;
    }
    if let Some(text) = block_on(asking).ok().and_then(|refusing| refusals(&refusing)) {
        warn(&text);
    }
}

/// Returns the warning about the management nodes at the addresses `refusing`, if the list is not
/// empty.
fn refusals(refusing: &[String]) -> Option<String> {
    if refusing.is_empty() {
        return None;
    }
    Some(format!(
        "management at {} does not accept this token yet: before services and clients use this \
         token, run `skep token install --token-file FILE --directory DIRECTORY` on each of these \
         management nodes, with the directory of management",
        refusing.join(", ")
    ))
}

/// Checks a token before `--init` stores it in the directory of a service. If management does not
/// reply, logs that the token was not checked.
///
/// # Errors
/// `AuthenticationFailed` if management refuses the token.
pub(crate) fn check_before_init(directory: &Path, token: &JoinToken) -> Result<()> {
    // If the directory has this token already, or cannot store it, `--init` stores no token.
    let is_initialised = matches!(read_identity(directory), Ok(Some(_)));
    if is_initialised && !tokens::check_install(directory, token).unwrap_or(false) {
        return Ok(());
    }
    match prove(token) {
        Ok(()) => Ok(()),
        Err(error) if error.code() == ErrorCode::AuthenticationFailed => {
            let what = format!(
                "cannot initialise {}: management refuses the token ({}){}",
                directory.display(),
                error.context(),
                way_to_the_token(&error)
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

/// Returns a hint on how to get the right token after a refusal, unless the error already contains
/// this hint.
pub(crate) fn way_to_the_token(error: &Error) -> &'static str {
    match error.context().contains("skep cluster token") {
        true => "",
        false => {
            "; use the token that `skep cluster token --cluster DIRECTORY` prints on the \
             management host"
        }
    }
}

/// Returns the newest secret of a directory whose node has never joined, if management refuses this
/// secret. Such a secret was never a secret of this cluster. Returns `None` if the secret is also
/// the newest secret of `token`. Management must have accepted `token` before.
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
    let previous = JoinToken { secrets, ..token.clone() };
    let error = block_on(async move { token_proof::prove_once(&previous).await }).err()?;
    (error.code() == ErrorCode::AuthenticationFailed).then(|| held.id())
}

/// Removes from a directory the secret that [`foreign_secret`] has found. The directory must have a
/// newer secret.
///
/// # Errors
/// The errors of [`tokens::revoke`].
pub(crate) fn forget(directory: &Path, secret: Option<SecretId>) -> Result<()> {
    secret.map_or(Ok(()), |id| tokens::revoke(directory, id, true))
}

/// Returns the token with the addresses of management that this host has learned. The token may not
/// contain the addresses of newer management nodes.
fn with_learned_addresses(mut token: JoinToken) -> JoinToken {
    for address in known_management::learned_addresses(token.cluster) {
        if !token.addresses.contains(&address) {
            token.addresses.push(address);
        }
    }
    token
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warning_names_management_nodes_that_refuse_the_token() {
        assert_eq!(refusals(&[]), None);
        let text = refusals(&["10.0.0.2:7400".into(), "10.0.0.3:7400".into()]).unwrap();
        assert!(text.contains("at 10.0.0.2:7400, 10.0.0.3:7400 does not accept"), "{text}");
        assert!(text.contains("skep token install"), "{text}");
    }
}
