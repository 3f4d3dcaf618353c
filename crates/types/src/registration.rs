//! The registration of a server, in its message to management and in the command in management's
//! log.

use crate::codec::record;
use crate::map::{NodeKind, TargetKind};
use crate::{NodeId, TargetId};

record! {
    /// One target of a registration.
    pub struct TargetClaim {
        /// Its id. Zero if it is new; management then gives it an id.
        pub target: TargetId,
        /// Random number from the initialisation of its directory. It distinguishes a blank disk
        /// from the one that has the id.
        pub uuid: u128,
        /// Its kind.
        pub kind: TargetKind,
        /// Its directory, for output.
        pub path: String,
    }
}

record! {
    /// A server, with all its targets.
    pub struct ServerRegistration {
        /// Its id. Zero if it is new; management then gives it an id.
        pub node: NodeId,
        /// Random number from the initialisation of its directory.
        pub uuid: u128,
        /// Its kind: any but `Client`.
        pub kind: NodeKind,
        /// Its name. If empty, management makes one.
        pub name: String,
        /// Addresses on which it listens, `host:port`, best first.
        pub addresses: Vec<String>,
        /// Its new failure domain. If empty, the server is a domain by itself. `None` keeps the
        /// domain that it has.
        pub domain: Option<String>,
        /// Version of its program.
        pub version: String,
        /// Its targets.
        pub targets: Vec<TargetClaim>,
    }
}

/// Longest name of a failure domain, in bytes.
pub const MAX_DOMAIN_BYTES: usize = 64;

/// Returns the problem with the name of a failure domain, or `None` if the name is valid.
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
    fn domain_names_are_short_words() {
        for name in ["rack-2", "a", "Row_1.3", &"x".repeat(MAX_DOMAIN_BYTES)] {
            assert_eq!(domain_problem(name), None);
        }
        for name in ["", "rack 2", "rack/2", "r\u{e4}ck", "a\n", &"x".repeat(65)] {
            assert!(domain_problem(name).is_some_and(|it| it.contains("1 to 64")), "{name}");
        }
    }
}
