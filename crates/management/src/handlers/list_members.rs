//! `ListMembers`: returns the management nodes, each with the index of its last stored log entry.

use crate::authority::Authority;
use skep_types::{NodeId, Result};
use skep_wire::consensus::{ListMembers, MemberEntry, MemberList};

pub(super) async fn handle(authority: &Authority, _request: ListMembers) -> Result<MemberList> {
    let status = authority.member().status();
    let node = |id: u64| NodeId::new(u32::try_from(id).unwrap_or(u32::MAX));
    let entry = |member: skep_consensus::MemberStatus| MemberEntry {
        node: node(member.id),
        addresses: member.addresses,
        is_voter: member.is_voter,
        stored: member.stored,
    };
    Ok(MemberList {
        leader: authority.own(),
        term: status.term,
        last: status.last,
        applied: status.applied,
        members: status.members.into_iter().map(entry).collect(),
    })
}
