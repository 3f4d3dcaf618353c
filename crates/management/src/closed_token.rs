//! Checks the registrations of nodes with a closed token, which is a token that an administrator
//! has revoked for new nodes.
//!
//! When a node proves a closed secret in the handshake of a connection, it also states its node id.
//! The handshake cannot verify this id. So management refuses the registration of every node that
//! cannot prove an earlier registration. This module makes this check. Management does not check
//! other requests over such a connection, because a node of the cluster may continue with a closed
//! token (`docs/design/0019-tokens.md`). `skep_rpc::secret` chooses the secret.

use crate::authority::Authority;
use skep_rpc::{Incoming, Peer, Secrets};
use skep_types::codec::Codec;
use skep_types::{Error, ErrorCode, Result};
use skep_wire::Request;
use skep_wire::management::{RegisterClient, RegisterServer};

/// Whether a connection on which a registration has arrived must end: an administrator has revoked
/// the peer's token since the connection was opened. The peer then opens a new connection, and
/// proves its newest token in the handshake.
pub(crate) fn must_prove_again(secrets: &Secrets, peer: Peer, incoming: &Incoming) -> bool {
    let registers = [RegisterServer::ID, RegisterClient::ID].contains(&incoming.header.message);
    registers && !peer.has_closed_secret && !secrets.is_open(peer.secret)
}

/// Refuses a registration with a closed token, except a registration of a server with a known uuid.
/// Only this server and management have the uuid, because no message to another node contains it.
///
/// # Errors
/// - `AuthenticationFailed` for a registration of a client or of an unknown server.
/// - `Corrupt` if the request cannot be decoded.
pub(crate) fn check(authority: &Authority, peer: Peer, incoming: &Incoming) -> Result<()> {
    if !peer.has_closed_secret {
        return Ok(());
    }
    let has_joined = match incoming.header.message {
        RegisterServer::ID => {
            let uuid = RegisterServer::from_bytes(&incoming.body)?.server.uuid;
            authority.server_with_uuid(uuid).is_some()
        }
        // A client has no uuid, so each registration creates a new node.
        RegisterClient::ID => false,
        _ => true,
    };
    if has_joined {
        return Ok(());
    }
    let what = format!(
        "cannot register {} as a new node: its token is revoked for new nodes; copy the newest \
         token (`skep cluster token --cluster DIRECTORY` on the management host) to the token file",
        peer.node
    );
    Err(Error::new(ErrorCode::AuthenticationFailed, what))
}
