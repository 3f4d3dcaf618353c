//! The proof of a token to management. A command proves a token before it stores the token. A
//! running process proves a token before it uses the token (`followed_token`).
//!
//! The reply of any management node is enough, because all management nodes have the token when a
//! replacement of the token is complete.

use skep_rpc::{Channel, Connection, Identity, JoinToken};
use skep_types::{Error, ErrorCode, NodeId, NodeKind, Result, TargetId};
use std::time::Duration;

/// Interval at which a running process checks whether its token has changed. A check reads the
/// metadata of at most two files, and reads the contents of changed files only.
pub const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);
/// Time for which a token may be refused because management has not read its own new token yet.
const REFUSED_FOR: Duration = FOLLOW_INTERVAL.saturating_mul(3);
/// Pause between two attempts to prove the token to management.
const PAUSE: Duration = Duration::from_millis(250);
/// Time limit for the connection to one management node.
const PATIENCE: Duration = Duration::from_secs(5);

/// Proves the newest secret of `token` to a management node at the addresses in the token. If
/// management refuses the secret, tries again for 3 s, because management may not have read its own
/// new token yet.
///
/// # Errors
/// `AuthenticationFailed` if a management node refuses the token and no other management node
/// accepts the token. If no management node replies, the error of the last attempt.
pub async fn prove(token: &JoinToken) -> Result<()> {
    let until = skep_env::now() + REFUSED_FOR;
    // Retry: the function proves a refused token again every `PAUSE`, for `REFUSED_FOR`.
    loop {
        let Err(error) = prove_once(token).await else { return Ok(()) };
        let is_refused = error.code() == ErrorCode::AuthenticationFailed;
        if !is_refused || skep_env::now() >= until {
            return Err(error);
        }
        skep_env::sleep(PAUSE).await;
    }
}

/// Like [`prove`], but does not try again after a refusal.
///
/// # Errors
/// The errors of [`prove`].
pub async fn prove_once(token: &JoinToken) -> Result<()> {
    let mut failure =
        Error::new(ErrorCode::Disconnected, "the token contains no address of management");
    for address in &token.addresses {
        let Err(error) = prove_at(address, token).await else { return Ok(()) };
        if failure.code() != ErrorCode::AuthenticationFailed {
            failure = error;
        }
    }
    Err(failure)
}

/// Returns the addresses in `token` at which management refuses the token, because the node at the
/// address does not have the token yet. Leaves out nodes that do not reply.
pub async fn refusing_addresses(token: &JoinToken) -> Vec<String> {
    let mut refusing = Vec::new();
    for address in &token.addresses {
        let result = prove_at(address, token).await;
        if result.is_err_and(|error| error.code() == ErrorCode::AuthenticationFailed) {
            refusing.push(address.clone());
        }
    }
    refusing
}

/// Like [`refusing_addresses`], for a token that was installed a moment ago. Leaves out nodes that
/// accept the token within 3 s, because management may not have read its own new token yet.
pub async fn lasting_refusals(token: &JoinToken) -> Vec<String> {
    let until = skep_env::now() + REFUSED_FOR;
    // Retry: the function proves the token again every `PAUSE`, for `REFUSED_FOR`.
    loop {
        let refusing = refusing_addresses(token).await;
        if refusing.is_empty() || skep_env::now() >= until {
            return refusing;
        }
        skep_env::sleep(PAUSE).await;
    }
}

/// Proves the newest secret of `token` at one address. The handshake contains no node id. If the
/// handshake contained the id of a cluster member, a refusal would have the error `Disconnected`
/// instead of `AuthenticationFailed`.
async fn prove_at(address: &str, token: &JoinToken) -> Result<()> {
    let identity = Identity {
        cluster: token.cluster,
        // Offer only the newest secret. If the offer had previous secrets, management could choose
        // a previous secret that both sides hold, which proves nothing about the newest secret.
        secrets: token.secrets.newest().into(),
        node: NodeId::default(),
        kind: NodeKind::Client,
    };
    let attempt = Connection::connect(address, &identity, TargetId::default(), Channel::NONE);
    match skep_env::timeout(PATIENCE, attempt).await {
        Some(connected) => connected.map(|connection| connection.close()),
        None => {
            let context = format!("{address}: no reply within {PATIENCE:?}");
            Err(Error::new(ErrorCode::TimedOut, context))
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::directory::tests::token;
    use skep_env::{TcpListener, block_on, spawn};
    use skep_rpc::server::authenticate;
    use skep_rpc::{HeldSecret, Secrets};

    /// Starts a management node that only authenticates its peers. Returns its address.
    pub(crate) fn management_node(secrets: &Secrets) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_address().unwrap().to_string();
        let identity = Identity {
            cluster: token(1).cluster,
            secrets: secrets.clone(),
            node: NodeId::new(1),
            kind: NodeKind::Management,
        };
        spawn(async move {
            while let Ok(stream) = listener.accept().await {
                let _refused = authenticate(&stream, &identity, 1, |_| Ok(())).await;
            }
        })
        .detach();
        address
    }

    #[test]
    fn proof_of_a_token_ignores_its_previous_secrets() {
        block_on(async {
            let held = Secrets::generate();
            let former = HeldSecret { secret: held.newest(), is_closed: false };
            let wrong = Secrets::new(Secrets::generate().newest(), vec![former]);
            let addresses = vec![management_node(&held)];
            let proof = JoinToken { secrets: wrong, addresses, ..token(1) };
            let refused = prove_once(&proof).await.unwrap_err();
            assert_eq!(refused.code(), ErrorCode::AuthenticationFailed, "{refused}");
            assert!(refused.context().contains(&proof.addresses[0]), "{refused}");
            prove_once(&JoinToken { secrets: held, ..proof }).await.unwrap();
        })
        .unwrap();
    }

    #[test]
    fn management_nodes_without_the_new_token_are_named() {
        block_on(async {
            let new = Secrets::generate();
            let lacking = management_node(&Secrets::generate());
            let addresses = vec![lacking.clone(), management_node(&new)];
            let proof = JoinToken { secrets: new, addresses, ..token(1) };
            prove_once(&proof).await.unwrap();
            assert_eq!(refusing_addresses(&proof).await, [lacking]);
        })
        .unwrap();
    }
}
