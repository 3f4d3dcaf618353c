//! Messages between the members of management, which keep one replicated log of commands, and
//! requests of administrators about these members. `docs/design/0018-replicated-management.md`
//! specifies the protocol.
//!
//! The messages carry encoded bytes, whose layout `skep-consensus` defines. This module also
//! defines the text of the error `NotLeader`, which contains the leader's addresses.

use crate::limits::{MAX_LEADER_ADDRESSES, MAX_LEADER_TEXT};
use skep_types::NodeId;
use skep_types::codec::{Bytes, record};

record! {
    /// A member of management sends a message about the replicated log to another member.
    ///
    /// The receiver returns `NotPermitted` if the receiver is not the member `to`, because another
    /// member may now use the address of the member `to`.
    pub struct AskMember {
        /// The member that must receive the message.
        pub to: NodeId,
        /// The message, encoded by the replicated log.
        pub message: Bytes,
    }
}

record! {
    /// Reply to [`AskMember`].
    pub struct MemberReply {
        /// The reply, encoded by the replicated log.
        pub message: Bytes,
    }
}

record! {
    /// Makes a management node a member. The leader copies the log to the node, and then makes it a
    /// voter. The request can be retried.
    #[derive(Copy)]
    pub struct AddMember {
        /// The node, which must be registered and running.
        pub node: NodeId,
    }
}

record! {
    /// Removes a member of management and its node. The member need not be running. The leader
    /// refuses to remove itself. The request can be retried.
    #[derive(Copy)]
    pub struct RemoveMember {
        /// The node.
        pub node: NodeId,
    }
}

record! {
    /// Asks for the members of management.
    #[derive(Copy)]
    pub struct ListMembers {}
}

record! {
    /// The state of a member of management, as the leader knows it.
    pub struct MemberEntry {
        /// The node of the member.
        pub node: NodeId,
        /// The addresses at which the other members reach this member.
        pub addresses: Vec<String>,
        /// Whether the member votes. If this field is not set, the member only receives the log.
        pub is_voter: bool,
        /// Index of the last entry of the log that the member has stored. `None` means that the
        /// member has not replied since the election of this leader.
        pub stored: Option<u64>,
    }
}

record! {
    /// Reply to [`ListMembers`].
    pub struct MemberList {
        /// Node id of the leader.
        pub leader: NodeId,
        /// The leader's term.
        pub term: u64,
        /// Index of the last entry of the log.
        pub last: u64,
        /// Index of the last entry that the leader has applied.
        pub applied: u64,
        /// All members, in ascending order of their ids.
        pub members: Vec<MemberEntry>,
    }
}

/// Returns the text of the error `NotLeader`: as many of the leader's addresses as the limits of
/// the text allow, separated by commas. An empty text means that the sender has no leader.
pub fn leader_text(addresses: &[String]) -> String {
    let mut text = String::new();
    for address in addresses.iter().take(MAX_LEADER_ADDRESSES) {
        if text.len() + 1 + address.len() > MAX_LEADER_TEXT {
            break;
        }
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(address);
    }
    text
}

/// Returns the leader's addresses from the text of the error `NotLeader`. The list is empty if the
/// text contains no address.
pub fn leader_addresses(text: &str) -> Vec<String> {
    let addresses = text.split(',').filter(|address| address.contains(':'));
    addresses.take(MAX_LEADER_ADDRESSES).map(Into::into).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leader_addresses_survive_formatting_and_are_bounded() {
        let addresses = vec!["10.0.0.1:7400".to_owned(), "[::1]:7400".to_owned()];
        assert_eq!(leader_addresses(&leader_text(&addresses)), addresses);
        assert_eq!(leader_addresses(&leader_text(&[])), Vec::<String>::new());
        assert_eq!(leader_addresses("no address"), Vec::<String>::new());
        let long = vec![format!("{}:1", "h".repeat(250)); MAX_LEADER_ADDRESSES + 1];
        let text = leader_text(&long);
        assert!(text.len() <= MAX_LEADER_TEXT && leader_addresses(&text)[0] == long[0]);
        let many = vec!["a:1"; MAX_LEADER_ADDRESSES + 1].join(",");
        assert_eq!(leader_addresses(&many).len(), MAX_LEADER_ADDRESSES);
    }
}
