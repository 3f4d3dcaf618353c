//! Examples of messages between the members of management, and of messages of administrators about
//! these members.

use crate::vectors::{Example, example};
use skep_types::NodeId;
use skep_types::codec::Bytes;
use skep_wire::consensus::{
    AddMember, AskMember, ListMembers, MemberEntry, MemberList, MemberReply, RemoveMember,
};
use skep_wire::management::EmptyReply;

pub(super) fn examples() -> Vec<Example> {
    let ask = AskMember { to: NodeId::new(0x0102_0304), message: Bytes(b"vote".to_vec()) };
    let entry = |node: u32, stored: Option<u64>| MemberEntry {
        node: NodeId::new(node),
        addresses: vec![format!("10.0.0.{node}:7400")],
        is_voter: stored.is_some(),
        stored,
    };
    let list = MemberList {
        leader: NodeId::new(2),
        term: 7,
        last: 0x0102_0304_0506,
        applied: 0x0102_0304_0505,
        members: vec![entry(2, Some(0x0102_0304_0506)), entry(9, None)],
    };
    vec![
        example(&ask, &MemberReply { message: Bytes(b"stored".to_vec()) }),
        example(&AddMember { node: NodeId::new(9) }, &EmptyReply {}),
        example(&RemoveMember { node: NodeId::new(9) }, &EmptyReply {}),
        example(&ListMembers {}, &list),
    ]
}
