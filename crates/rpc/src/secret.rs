//! The secrets that prove membership in a cluster, and the proofs that a process computes with
//! these secrets.
//!
//! A process holds the newest secret of its cluster and, while an administrator replaces it,
//! previous secrets. All clones of [`Secrets`] in a process share one list, so that a new secret
//! reaches every thread immediately.
//!
//! This module is not responsible for the files that store secrets (`skep_service::tokens`), or for
//! the handshake that uses secrets ([`crate::handshake`]).

use hmac::{Hmac, Mac};
use sha2::Sha256;
use skep_types::{Error, ErrorCode, Result};
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

/// Maximum number of secrets that a process holds: the newest secret and three previous secrets.
/// Further secrets would only be old secrets that an administrator forgot to revoke.
pub const MAX_SECRETS: usize = 4;

/// The text whose HMAC is the id of a secret.
const ID_LABEL: &[u8] = b"skep secret id";

/// Identifies a secret. Programs may log and send the id, because the secret cannot be computed
/// from the id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SecretId(u64);

impl SecretId {
    /// Creates an id from its number in a message.
    pub const fn new(raw: u64) -> Self {
        Self(raw)
    }

    /// Returns the id as an integer, as messages contain it.
    pub const fn raw(self) -> u64 {
        self.0
    }
}

impl fmt::Display for SecretId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl std::str::FromStr for SecretId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let is_id = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        u64::from_str_radix(text, 16).ok().filter(|_| is_id).map(Self).ok_or_else(|| {
            let what = format!(
                "invalid token id '{text}': expected 16 hexadecimal digits, as `skep token list` \
                 prints them"
            );
            Error::new(ErrorCode::InvalidArgument, what)
        })
    }
}

/// A secret of a cluster. Programs never send a secret over the network and never log a secret.
#[derive(Clone, Eq)]
pub struct Secret([u8; 32]);

impl PartialEq for Secret {
    /// Compares two secrets in a time that does not depend on where they differ.
    fn eq(&self, other: &Self) -> bool {
        let differences = self.0.iter().zip(&other.0).fold(0, |all, (a, b)| all | (a ^ b));
        std::hint::black_box(differences) == 0
    }
}

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

    /// Returns the secret as 64 hexadecimal digits, for a file that only its owner can read.
    pub fn to_hex(&self) -> String {
        use std::fmt::Write;
        self.0.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    /// Reads a secret from 64 hexadecimal digits. Returns `None` for any other text.
    pub fn from_hex(text: &str) -> Option<Self> {
        from_hex(text).map(Self)
    }

    /// Returns the id of the secret.
    pub fn id(&self) -> SecretId {
        let bytes: [u8; 32] = self.mac(&[ID_LABEL]).finalize().into_bytes().into();
        let mut first = [0; 8];
        first.copy_from_slice(&bytes[..8]);
        SecretId(u64::from_be_bytes(first))
    }

    fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of every length");
        parts.iter().for_each(|part| mac.update(part));
        mac
    }

    /// Returns the HMAC-SHA-256 of the concatenation of `parts`, with the secret as the key. The
    /// result is two little-endian halves: low, then high.
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

/// A secret in the list of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldSecret {
    /// The secret.
    pub secret: Secret,
    /// Whether the secret was revoked for nodes that have not joined yet. A closed secret still
    /// proves the membership of nodes that have a node id.
    pub is_closed: bool,
}

/// The secrets that a process accepts and uses, newest first. Never empty. All clones share one
/// list.
#[derive(Clone)]
pub struct Secrets {
    /// The list. A thread holds the lock only while it copies or replaces the list, never during an
    /// `.await` or while it takes another lock.
    list: Arc<RwLock<Vec<HeldSecret>>>,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets(..)")
    }
}

impl PartialEq for Secrets {
    /// Compares the newest secrets only, since older secrets may be revoked at any time.
    fn eq(&self, other: &Self) -> bool {
        self.newest() == other.newest()
    }
}

impl Eq for Secrets {}

impl From<Secret> for Secrets {
    fn from(newest: Secret) -> Self {
        Self::new(newest, Vec::new())
    }
}

impl Secrets {
    /// Creates a list with the newest secret and the previous secrets `former`, newest first. Drops
    /// duplicates, and secrets beyond [`MAX_SECRETS`].
    pub fn new(newest: Secret, former: Vec<HeldSecret>) -> Self {
        let newest = HeldSecret { secret: newest, is_closed: false };
        let mut list = vec![newest];
        for held in former {
            if list.len() < MAX_SECRETS && list.iter().all(|it| it.secret != held.secret) {
                list.push(held);
            }
        }
        Self { list: Arc::new(RwLock::new(list)) }
    }

    /// Creates a list with one random secret.
    pub fn generate() -> Self {
        Secret::generate().into()
    }

    /// Returns all secrets, newest first.
    pub fn held(&self) -> Vec<HeldSecret> {
        self.list.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the newest secret.
    pub fn newest(&self) -> Secret {
        self.held().swap_remove(0).secret
    }

    /// Replaces the list in all clones of `self` by the list of `other`. Open connections stay
    /// open.
    pub fn replace_by(&self, other: &Self) {
        let list = other.held();
        *self.list.write().unwrap_or_else(PoisonError::into_inner) = list;
    }

    /// Returns the ids that the connecting side offers, newest first.
    pub(crate) fn offered(&self) -> Vec<u64> {
        self.held().iter().map(|held| held.secret.id().raw()).collect()
    }

    /// Returns the secret with the id `id`. `None` means that this process does not hold this
    /// secret.
    pub(crate) fn with_id(&self, id: u64) -> Option<Secret> {
        let mut held = self.held().into_iter();
        held.find(|held| held.secret.id().raw() == id).map(|held| held.secret)
    }

    /// Whether this process holds the secret with the id `id`, and no administrator has revoked it
    /// for new nodes.
    pub fn is_open(&self, id: SecretId) -> bool {
        self.held().iter().any(|held| !held.is_closed && held.secret.id() == id)
    }

    /// Chooses the newest own secret that the connecting side offers, if possible one that was not
    /// revoked for new nodes (`is_closed`). `is_member` means that the connecting side names a node
    /// id. The handshake cannot verify this id. If a node joins with a closed secret, management
    /// must check that the node has joined before.
    ///
    /// # Errors
    /// `AuthenticationFailed` if this process holds none of the offered secrets, or if a side
    /// without a node id offers only revoked secrets.
    pub(crate) fn choose(&self, offered: &[u64], is_member: bool) -> Result<HeldSecret> {
        let held = self.held();
        let common: Vec<_> =
            held.iter().filter(|it| offered.contains(&it.secret.id().raw())).collect();
        let refused = |what: &str| Error::new(ErrorCode::AuthenticationFailed, what);
        let Some(first) = common.first() else {
            return Err(refused(
                "the token is wrong, not of this cluster, or revoked: it does not contain the \
                 secret of the service at this address; `skep cluster token --cluster DIRECTORY` \
                 on the management host prints the newest token",
            ));
        };
        let open = common.iter().find(|it| !it.is_closed);
        open.or(is_member.then_some(first)).map(|it| (*it).clone()).ok_or_else(|| {
            refused(
                "the token is revoked for new nodes; `skep cluster token --cluster DIRECTORY` on \
                 the management host prints the newest token",
            )
        })
    }
}

/// Reads `N` bytes from 2 `N` hexadecimal digits. Returns `None` for any other text.
pub(crate) fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if text.len() != 2 * N || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proof_is_valid_only_for_the_same_text_and_secret() {
        let (secret, other) = (Secret::generate(), Secret::generate());
        let (low, high) = secret.proof(&[b"a", b"bc"]);
        assert!(secret == secret.clone() && secret != other);
        assert!(secret.verify(&[b"ab", b"c"], (low, high)));
        assert!(!secret.verify(&[b"ab", b"d"], (low, high)));
        assert!(!secret.verify(&[b"abc"], (low ^ 1, high)));
        assert!(!secret.verify(&[b"abc"], (low, high ^ 1 << 127)));
        assert!(!other.verify(&[b"abc"], (low, high)));
    }

    #[test]
    fn secret_id_survives_formatting_and_reveals_no_secret() {
        let secret = Secret::generate();
        let id = secret.id();
        assert_eq!(id.to_string().parse::<SecretId>().unwrap(), id);
        assert_eq!(Secret::from_hex(&secret.to_hex()), Some(secret.clone()));
        assert!(!secret.to_hex().contains(&id.to_string()));
        for wrong in ["", "12", "+123456789abcdef", "0123456789abcdefg"] {
            assert!(wrong.parse::<SecretId>().unwrap_err().context().contains("token list"));
        }
    }

    #[test]
    fn new_secret_reaches_all_clones_of_the_list() {
        let secrets = Secrets::generate();
        let (clone, old) = (secrets.clone(), secrets.newest());
        let former = HeldSecret { secret: old.clone(), is_closed: false };
        let new = Secret::generate();
        secrets.replace_by(&Secrets::new(new.clone(), vec![former.clone(), former]));
        assert_eq!(clone.newest(), new);
        assert_eq!(clone.held().len(), 2);
        assert_eq!(clone.with_id(old.id().raw()), Some(old));
    }

    #[test]
    fn handshake_uses_the_newest_secret_that_both_nodes_have() {
        let (new, old) = (Secret::generate(), Secret::generate());
        let held = |is_closed| HeldSecret { secret: old.clone(), is_closed };
        let server = Secrets::new(new.clone(), vec![held(false)]);
        let [new_id, old_id] = [&new, &old].map(|secret| secret.id().raw());
        assert_eq!(server.choose(&[old_id, new_id], false).unwrap().secret, new);
        assert_eq!(server.choose(&[old_id], false).unwrap().secret, old);
        let stranger = server.choose(&[Secret::generate().id().raw()], true).unwrap_err();
        assert!(stranger.context().contains("skep cluster token"), "{stranger}");
    }

    #[test]
    fn secret_closed_to_new_nodes_is_accepted_from_members_only() {
        let (new, old) = (Secret::generate(), Secret::generate());
        let closed = HeldSecret { secret: old.clone(), is_closed: true };
        let server = Secrets::new(new, vec![closed]);
        let offered = [old.id().raw()];
        assert_eq!(
            server.choose(&offered, true).unwrap(),
            HeldSecret { secret: old, is_closed: true }
        );
        let refused = server.choose(&offered, false).unwrap_err();
        assert!(refused.context().contains("revoked for new nodes"), "{refused}");
    }
}
