//! Membership in a cluster. This module is responsible for the join token, and the identities of
//! this process and of its peers, but not for the secrets and their proofs ([`crate::secret`]).

use crate::secret::{Secret, SecretId, Secrets, from_hex};
use skep_types::{ClusterId, Error, ErrorCode, NodeId, NodeKind, Result, TargetId};
use std::fmt;

/// A node's channel to a target: a sequence of connections, in which each new connection ends the
/// previous connection. A sender needs a channel if a delayed copy of an old request must not run
/// after newer requests of the same sender. An example is a copy of a write that the target has not
/// yet read from an old connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Channel(pub(crate) u64);

impl Channel {
    /// A connection with this value belongs to no channel, and ends no other connection.
    pub const NONE: Self = Self(0);

    /// Creates a channel with a random id.
    pub fn random() -> Self {
        Self(skep_env::random_u64() | 1 << 63)
    }

    /// Returns the channel of the process that owns `target`. The channel is the same after each
    /// restart, so the first connection of the new process ends the connections of the dead
    /// process.
    pub fn of_target(target: TargetId) -> Self {
        Self(u64::from(target.raw()))
    }
}

/// Everything that a new node needs to join a cluster: the cluster's id, its secret and the
/// addresses of management.
///
/// The text form is `skep1-<cluster id>-<secret>@<address>[,<address>]`. The cluster trusts every
/// process that has the token.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// The cluster's id.
    pub cluster: ClusterId,
    /// The cluster's secrets. The text form contains only the newest secret.
    pub secrets: Secrets,
    /// The addresses of management, each as `host:port`.
    pub addresses: Vec<String>,
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinToken({} at {})", self.cluster, self.addresses.join(","))
    }
}

impl JoinToken {
    /// Returns the token as text. The type does not implement `Display`, so that a program cannot
    /// log the secret by accident.
    pub fn to_text(&self) -> String {
        let secret = self.secrets.newest().to_hex();
        format!("skep1-{}-{secret}@{}", self.cluster, self.addresses.join(","))
    }
}

impl std::str::FromStr for JoinToken {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let (secrets, addresses) = text.trim().split_once('@')?;
            let (cluster, secret) = secrets.strip_prefix("skep1-")?.split_once('-')?;
            let addresses: Vec<_> = addresses.split(',').map(str::to_owned).collect();
            if addresses.iter().any(|address| !address.contains(':')) {
                return None;
            }
            Some(Self {
                cluster: ClusterId::new(from_hex(cluster)?),
                secrets: Secret::from_hex(secret)?.into(),
                addresses,
            })
        };
        parse().ok_or_else(|| {
            Error::new(
                ErrorCode::Configuration,
                "invalid token: expected skep1-<cluster>-<secret>@<host:port>, as `skep \
                 cluster token --cluster DIRECTORY` on the management host prints it",
            )
        })
    }
}

/// The identity that a process presents to its peers.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The cluster's id.
    pub cluster: ClusterId,
    /// The cluster's secrets that this process has.
    pub secrets: Secrets,
    /// The id of this node; zero before its first registration.
    pub node: NodeId,
    /// The kind of this node.
    pub kind: NodeKind,
}

/// The authenticated peer of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// The peer's node id; zero if management has not assigned an id to the peer yet.
    pub node: NodeId,
    /// The peer's kind.
    pub kind: NodeKind,
    /// The target that the peer addresses; zero for the node itself.
    pub target: TargetId,
    /// The peer's channel to the target.
    pub channel: Channel,
    /// Whether the newest secret that the peer has in common with this process was revoked for new
    /// nodes. A handshake with such a secret does not prove the peer's node id.
    pub has_closed_secret: bool,
    /// The secret that the peer has proved. An administrator may have revoked this secret after the
    /// handshake.
    pub secret: SecretId,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_survives_formatting_and_malformed_tokens_are_refused() {
        let token = JoinToken {
            cluster: ClusterId::new([0xAB; 16]),
            secrets: Secrets::generate(),
            addresses: vec!["10.0.0.1:7400".into(), "[::1]:7400".into()],
        };
        let text = token.to_text();
        assert_eq!(text.parse::<JoinToken>().unwrap(), token);
        assert!(!format!("{token:?}").contains(&text[40..60]), "secrets do not show in logs");
        for wrong in
            ["", "skep1-", &text[1..], &text[..50], &text.replace('@', "-"), "skep1-a-b@c:1"]
        {
            assert!(wrong.parse::<JoinToken>().is_err(), "{wrong}");
        }
    }
}
