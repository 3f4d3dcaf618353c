//! Proofs that two processes belong to one cluster. Owns the secret, the join token, and the
//! identities of this process and of its peers.

use hmac::{Hmac, Mac};
use sha2::Sha256;
use skep_types::{ClusterId, Error, ErrorCode, NodeId, NodeKind, Result, TargetId};
use std::fmt;

/// The secret that all nodes of a cluster share. It is never sent over the network and never
/// logged.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; 32]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// Creates a random secret.
    pub fn generate() -> Self {
        Self(skep_env::random_bytes())
    }

    fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of every length");
        parts.iter().for_each(|part| mac.update(part));
        mac
    }

    /// Returns HMAC-SHA-256 over the concatenation of `parts`, keyed with the secret, as two
    /// little-endian halves: low, then high.
    pub(crate) fn proof(&self, parts: &[&[u8]]) -> (u128, u128) {
        let bytes: [u8; 32] = self.mac(parts).finalize().into_bytes().into();
        let half = |at: usize| {
            let mut half = [0; 16];
            half.copy_from_slice(&bytes[at..at + 16]);
            u128::from_le_bytes(half)
        };
        (half(0), half(16))
    }

    /// Whether `proof` is the result of [`Self::proof`] for the same parts. The comparison takes
    /// the same time for every wrong proof.
    pub(crate) fn verify(&self, parts: &[&[u8]], proof: (u128, u128)) -> bool {
        let bytes = [proof.0.to_le_bytes(), proof.1.to_le_bytes()].concat();
        self.mac(parts).verify_slice(&bytes).is_ok()
    }
}

/// A node's channel to a target: a sequence of connections, in which each new connection ends the
/// previous one. A sender needs a channel if a delayed copy of an old request must not run after
/// its newer requests. An example is a copy of a write that the target has not yet read from an old
/// connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Channel(pub(crate) u64);

impl Channel {
    /// No channel: a new connection ends no other connection.
    pub const NONE: Self = Self(0);

    /// Creates a channel with a random number.
    pub fn random() -> Self {
        Self(skep_env::random_u64() | 1 << 63)
    }

    /// Returns the channel of the process that owns `target`. The channel is the same after each
    /// restart, so the first connection of the new process ends the connections of the dead one.
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
    /// The cluster's secret.
    pub secret: Secret,
    /// The addresses of management, each as `host:port`.
    pub addresses: Vec<String>,
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinToken({} at {})", self.cluster, self.addresses.join(","))
    }
}

impl JoinToken {
    /// Returns the token as text. There is no `Display`, so that the secret is not logged by
    /// accident.
    pub fn to_text(&self) -> String {
        use std::fmt::Write;
        let mut text = format!("skep1-{}-", self.cluster);
        for byte in self.secret.0 {
            let _ = write!(text, "{byte:02x}");
        }
        text + "@" + &self.addresses.join(",")
    }
}

fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if text.len() != 2 * N || !text.is_ascii() {
        return None;
    }
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(bytes)
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
                secret: Secret(from_hex(secret)?),
                addresses,
            })
        };
        parse().ok_or_else(|| {
            Error::new(
                ErrorCode::Configuration,
                "not a join token: it has the form skep1-<cluster>-<secret>@<host:port>; \
                 `skep cluster token` on the management host prints it",
            )
        })
    }
}

/// The identity that a process presents to its peers.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The cluster's id.
    pub cluster: ClusterId,
    /// The cluster's secret.
    pub secret: Secret,
    /// The id of this node; zero before its first registration.
    pub node: NodeId,
    /// The kind of this node.
    pub kind: NodeKind,
}

/// The authenticated peer of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// The peer's node id; zero if management has not assigned one yet.
    pub node: NodeId,
    /// The peer's kind.
    pub kind: NodeKind,
    /// The target that the peer addresses; zero for the node itself.
    pub target: TargetId,
    /// The peer's channel to the target.
    pub channel: Channel,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proof_is_valid_only_for_the_same_text_and_secret() {
        let (secret, other) = (Secret::generate(), Secret::generate());
        let (low, high) = secret.proof(&[b"a", b"bc"]);
        assert!(secret.verify(&[b"ab", b"c"], (low, high)));
        assert!(!secret.verify(&[b"ab", b"d"], (low, high)));
        assert!(!secret.verify(&[b"abc"], (low ^ 1, high)));
        assert!(!secret.verify(&[b"abc"], (low, high ^ 1 << 127)));
        assert!(!other.verify(&[b"abc"], (low, high)));
    }

    #[test]
    fn token_round_trips_and_malformed_tokens_are_refused() {
        let token = JoinToken {
            cluster: ClusterId::new([0xAB; 16]),
            secret: Secret::generate(),
            addresses: vec!["10.0.0.1:7400".into(), "[::1]:7400".into()],
        };
        let text = token.to_text();
        assert_eq!(text.parse::<JoinToken>().unwrap(), token);
        assert!(!format!("{token:?}").contains(&text[40..60]), "secrets don't show in logs");
        for wrong in
            ["", "skep1-", &text[1..], &text[..50], &text.replace('@', "-"), "skep1-a-b@c:1"]
        {
            assert!(wrong.parse::<JoinToken>().is_err(), "{wrong}");
        }
    }
}
