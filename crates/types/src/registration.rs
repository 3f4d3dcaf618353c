//! The registration of a server: a part of its message to management, and a part of the command in
//! management's log.

use crate::codec::record;
use crate::map::{NodeKind, TargetKind};
use crate::{NodeId, TargetId};

record! {
    /// One target of a server that registers.
    pub struct TargetClaim {
        /// Id of the target. Zero for a new target, to which management then assigns an id.
        pub target: TargetId,
        /// Random number drawn when the target's directory was initialised. Distinguishes the
        /// target from a blank disk mounted in its place.
        pub uuid: u128,
        /// Kind of the target.
        pub kind: TargetKind,
        /// Path of the target's directory, for output only.
        pub path: String,
    }
}

record! {
    /// A server that registers, with all its targets.
    pub struct ServerRegistration {
        /// Id of the server. Zero for a new server, to which management then assigns an id.
        pub node: NodeId,
        /// Random number drawn when the server's directory was initialised.
        pub uuid: u128,
        /// Kind of the server: any kind except `Client`.
        pub kind: NodeKind,
        /// Name of the server. If empty, management generates a name.
        pub name: String,
        /// Addresses on which the server listens, as `host:port`, the preferred one first.
        pub addresses: Vec<String>,
        /// New failure domain of the server. With an empty name, the server alone counts as a
        /// failure domain. `None` keeps the current domain.
        pub domain: Option<String>,
        /// Version of the server program.
        pub version: String,
        /// All targets of the server.
        pub targets: Vec<TargetClaim>,
    }
}

/// Maximum length of the name of a failure domain, in bytes.
pub const MAX_DOMAIN_BYTES: usize = 64;

/// Returns why `name` cannot name a failure domain, or `None` if the name is valid.
pub fn domain_problem(name: &str) -> Option<String> {
    let may_be_in = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_one = (1..=MAX_DOMAIN_BYTES).contains(&name.len()) && name.bytes().all(may_be_in);
    (!is_one).then(|| {
        format!(
            "'{name}' cannot name a failure domain: expected 1 to {MAX_DOMAIN_BYTES} ASCII \
             letters, digits, and the characters - _ and ."
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_domain_names_have_limited_length_and_letters() {
        for name in ["rack-2", "a", "Row_1.3", &"x".repeat(MAX_DOMAIN_BYTES)] {
            assert_eq!(domain_problem(name), None);
        }
        for name in ["", "rack 2", "rack/2", "r\u{e4}ck", "a\n", &"x".repeat(65)] {
            assert!(domain_problem(name).is_some_and(|it| it.contains("1 to 64")), "{name}");
        }
    }
}
