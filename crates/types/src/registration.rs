//! How a server reports itself: in a message to management, and in the command that management's
//! log keeps of it.

use crate::codec::record;
use crate::map::{NodeKind, TargetKind};
use crate::{NodeId, TargetId};

record! {
    /// One target that a server says it has.
    pub struct TargetClaim {
        /// Its id; zero: it is new and gets one.
        pub target: TargetId,
        /// Drawn when its directory was initialised; tells a blank disk from the one that had the
        /// id.
        pub uuid: u128,
        /// What it stores.
        pub kind: TargetKind,
        /// Where it lies, for people.
        pub path: String,
    }
}

record! {
    /// A server, with all its targets.
    pub struct ServerRegistration {
        /// Its id; zero: it is new and gets one.
        pub node: NodeId,
        /// Drawn when its directory was initialised.
        pub uuid: u128,
        /// Any kind but `Client`.
        pub kind: NodeKind,
        /// Name for people; empty: management makes one.
        pub name: String,
        /// Where it listens, `host:port`, best first.
        pub addresses: Vec<String>,
        /// Failure domain that it has from now on; empty: it is one by itself. None: the one that
        /// it had, at first none.
        pub domain: Option<String>,
        /// Version of its program.
        pub version: String,
        /// Its targets.
        pub targets: Vec<TargetClaim>,
    }
}

/// Longest name of a failure domain, in bytes.
pub const MAX_DOMAIN_BYTES: usize = 64;

/// What is wrong with the name of a failure domain.
pub fn domain_problem(name: &str) -> Option<String> {
    let may_be_in = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_one = (1..=MAX_DOMAIN_BYTES).contains(&name.len()) && name.bytes().all(may_be_in);
    (!is_one).then(|| {
        format!(
            "'{name}' can't name a failure domain: that takes 1 to {MAX_DOMAIN_BYTES} ASCII \
             letters, digits, and the characters - _ and ."
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_domains_are_short_words() {
        for name in ["rack-2", "a", "Row_1.3", &"x".repeat(MAX_DOMAIN_BYTES)] {
            assert_eq!(domain_problem(name), None);
        }
        for name in ["", "rack 2", "rack/2", "r\u{e4}ck", "a\n", &"x".repeat(65)] {
            assert!(domain_problem(name).is_some_and(|it| it.contains("1 to 64")), "{name}");
        }
    }
}
