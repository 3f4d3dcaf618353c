//! The order in which a sender tries the addresses of the members of management.
//!
//! This module is responsible for the facts about the leader that replies have shown, but not for
//! the addresses themselves or the connections ([`super::Management`]).

use crate::refusal::is_token_refusal;
use skep_types::Error;
use std::collections::{BTreeMap, HashSet};

/// The information about the leader that a sender has from the replies of members.
#[derive(Debug, Default)]
pub(super) struct MemberAddresses {
    /// The address whose member answered last. `None` after the member at this address has refused
    /// a request.
    answered: Option<String>,
    /// The addresses of the leader, as named by the member that refused a request last.
    leader: Vec<String>,
    /// The addresses whose members have refused a request after the leader's last answer, in the
    /// order of the refusals.
    refused: Vec<String>,
    /// The addresses whose members have refused the token of this process at the last handshake,
    /// with the error.
    token_refusals: BTreeMap<String, String>,
}

impl MemberAddresses {
    /// Whether a member has reported the leader, and the leader has not answered yet.
    pub(super) fn knows_leader(&self) -> bool {
        !self.leader.is_empty()
    }

    /// Remembers the result of a handshake with the member at `address`.
    pub(super) fn note_handshake(&mut self, address: &str, error: Option<&Error>) {
        match error.filter(|error| is_token_refusal(error)) {
            Some(refusal) => {
                self.token_refusals.insert(address.to_owned(), refusal.to_string());
            }
            None => {
                self.token_refusals.remove(address);
            }
        }
    }

    /// Returns the error of a member at `addresses` that has refused the token of this process.
    pub(super) fn token_refusal(&self, addresses: &[String]) -> Option<&str> {
        addresses.iter().find_map(|address| self.token_refusals.get(address)).map(String::as_str)
    }

    /// Remembers that the member at `address` has answered.
    pub(super) fn note_answer(&mut self, address: &str) {
        self.answered = Some(address.to_owned());
    }

    /// Remembers that the member that answered last is the leader.
    pub(super) fn note_leader(&mut self) {
        self.leader.clear();
        self.refused.clear();
    }

    /// Remembers that the member at `address` is not the leader. `leader` is the list of the
    /// leader's addresses in the member's reply.
    pub(super) fn note_refusal(&mut self, address: &str, leader: Vec<String>) {
        self.answered.take_if(|answered| answered == address);
        self.refused.retain(|other| other != address);
        self.refused.push(address.to_owned());
        self.leader = leader;
    }

    /// Returns the addresses in the order in which the sender tries them, without duplicates:
    ///
    /// 1. the leader's addresses,
    /// 2. the address that answered last,
    /// 3. all other addresses,
    /// 4. addresses whose members have refused a request, in the order of the refusals.
    pub(super) fn sorted(&self, all: Vec<String>) -> Vec<String> {
        let first = self.leader.iter().chain(&self.answered).cloned();
        let mut sorted: Vec<String> = first.chain(all).collect();
        let mut seen = HashSet::new();
        sorted.retain(|address| seen.insert(address.clone()));
        sorted.sort_by_key(|address| match self.refused.iter().position(|it| it == address) {
            _ if self.leader.contains(address) => 0,
            None => 0,
            Some(at) => 1 + at,
        });
        sorted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(addresses: &MemberAddresses) -> String {
        addresses.sorted(["a", "b", "c", "b"].map(String::from).into()).join(" ")
    }

    #[test]
    fn member_with_the_most_recent_reply_is_asked_first() {
        let mut addresses = MemberAddresses::default();
        assert_eq!(order(&addresses), "a b c");
        addresses.note_answer("c");
        assert_eq!(order(&addresses), "c a b");
    }

    #[test]
    fn reported_leader_is_asked_first_and_refusing_members_last() {
        let mut addresses = MemberAddresses::default();
        addresses.note_answer("a");
        addresses.note_refusal("a", vec!["d".into(), "c".into()]);
        assert!(addresses.knows_leader());
        assert_eq!(order(&addresses), "d c b a");
        addresses.note_answer("c");
        addresses.note_leader();
        assert!(!addresses.knows_leader());
        assert_eq!(order(&addresses), "c a b");
    }

    #[test]
    fn no_member_is_asked_twice_before_every_member_was_asked() {
        let mut addresses = MemberAddresses::default();
        for (member, next) in [("a", "b c a"), ("b", "c a b"), ("c", "a b c"), ("a", "b c a")] {
            addresses.note_answer(member);
            addresses.note_refusal(member, Vec::new());
            assert_eq!(order(&addresses), next);
        }
    }
}
