//! Examples of messages between the members of management.

use crate::vectors::{Example, example};
use skep_types::NodeId;
use skep_types::codec::Bytes;
use skep_wire::consensus::{AskMember, MemberReply};

pub(super) fn examples() -> Vec<Example> {
    let ask = AskMember { to: NodeId::new(0x0102_0304), message: Bytes(b"vote".to_vec()) };
    vec![example(&ask, &MemberReply { message: Bytes(b"stored".to_vec()) })]
}
