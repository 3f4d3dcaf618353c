//! `skep management status`: lists the management nodes, each with the number of entries of the
//! replicated log that the node has stored.

use crate::access::{Access, ClusterArgs, block_on};
use crate::help::{Example, examples};
use crate::output::{print, render, table};
use crate::view::reachability;
use serde::Serialize;
use skep_types::map::Reachability;
use skep_types::{ClusterMap, NodeKind, Result};
use skep_wire::consensus::{ListMembers, MemberEntry, MemberList};

const EXAMPLES: &[Example] = &[("list the management nodes", "skep management status")];

/// List the management nodes: role, state, and the lag of each
///
/// A management node with the role `none` is not a member yet; `skep management add` makes such a
/// node a member.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    query: ClusterArgs,
}

/// The management nodes of a cluster, as JSON.
#[derive(Debug, Serialize)]
pub(super) struct Status {
    /// Id of the leader.
    leader: u32,
    /// The term of the leader. Each election begins a new term.
    term: u64,
    /// Index of the last entry in the replicated log.
    last: u64,
    /// Index of the last log entry that the leader has applied.
    applied: u64,
    /// Number of members that may vote.
    voters: usize,
    /// Whether `skep cluster format` has divided the namespace.
    formatted: bool,
    nodes: Vec<MemberReport>,
}

/// A management node, as one entry of the list.
#[derive(Debug, Serialize)]
struct MemberReport {
    id: u32,
    name: String,
    addresses: Vec<String>,
    /// `leader`, `follower`, `learner` (a node that receives the log, but does not vote yet), or
    /// `none` (not a member).
    role: &'static str,
    reachability: &'static str,
    /// Index of the last log entry that the node has stored. `null` means that the node has not
    /// answered the current leader.
    stored: Option<u64>,
    /// Number of log entries that the node has not stored yet.
    lag: Option<u64>,
}

pub(crate) fn run(args: StatusArgs) -> Result<()> {
    let access = args.query.access(None)?;
    let status = block_on(async move { of(&access).await })?;
    print(&status, as_table)
}

/// Asks management for the state of its nodes.
pub(super) async fn of(access: &Access) -> Result<Status> {
    let list = access.ask(&ListMembers {}).await?;
    let map = access.map().await?;
    Ok(status(&list, &map))
}

impl Status {
    /// Returns the number of members that may vote.
    pub(super) fn voters(&self) -> usize {
        self.voters
    }

    /// Returns a warning if the loss of one member would stop management, although management has
    /// several members.
    pub(super) fn warning(&self) -> String {
        match self.voters {
            2 => "Management has two members, and stops after the loss of one member: add a third \
                  member.\n"
                .to_owned(),
            count if count > 2 && count % 2 == 0 => format!(
                "Management has {count} members, and survives the loss of at most {}: use an odd \
                 number of members.\n",
                count / 2 - 1
            ),
            _ => String::new(),
        }
    }
}

fn status(list: &MemberList, map: &ClusterMap) -> Status {
    let mut nodes: Vec<_> = list.members.iter().map(|it| report(it, list, map)).collect();
    let is_member = |id| list.members.iter().any(|member| member.node == id);
    let others = map.nodes.iter().filter(|it| it.kind == NodeKind::Management);
    nodes.extend(others.filter(|node| !is_member(node.id)).map(|node| MemberReport {
        id: node.id.raw(),
        name: node.name.clone(),
        addresses: node.addresses.clone(),
        role: "none",
        reachability: reachability(node.reachability),
        stored: None,
        lag: None,
    }));
    nodes.sort_by_key(|node| node.id);
    Status {
        leader: list.leader.raw(),
        term: list.term,
        last: list.last,
        applied: list.applied,
        voters: list.members.iter().filter(|member| member.is_voter).count(),
        formatted: map.formatted,
        nodes,
    }
}

fn report(member: &MemberEntry, list: &MemberList, map: &ClusterMap) -> MemberReport {
    let node = map.node(member.node);
    let role = match (member.node == list.leader, member.is_voter) {
        (true, _) => "leader",
        (false, true) => "follower",
        (false, false) => "learner",
    };
    MemberReport {
        id: member.node.raw(),
        name: node.map(|node| node.name.clone()).unwrap_or_default(),
        addresses: member.addresses.clone(),
        role,
        reachability: reachability(node.map_or(Reachability::Offline, |it| it.reachability)),
        stored: member.stored,
        lag: member.stored.map(|stored| list.last.saturating_sub(stored)),
    }
}

fn as_table(status: &Status) -> String {
    let mut shown = table(&["ID", "NAME", "ROLE", "STATE", ">STORED", ">LAG", "ADDRESSES"]);
    let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |it| it.to_string());
    for node in &status.nodes {
        shown.add_row([
            node.id.to_string(),
            node.name.clone(),
            node.role.to_owned(),
            node.reachability.to_owned(),
            number(node.stored),
            number(node.lag),
            node.addresses.join(" "),
        ]);
    }
    let Status { term, last, applied, .. } = status;
    let end = format!("Term {term}. The log has {last} changes, {applied} of them applied.\n");
    render(&shown) + &end + &status.warning()
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{ClusterId, NodeId};

    #[test]
    fn lag_and_role_of_each_member_are_shown() {
        let entry = |node, is_voter, stored| MemberEntry {
            node: NodeId::new(node),
            addresses: vec![format!("h{node}:7400")],
            is_voter,
            stored,
        };
        let members =
            vec![entry(1, true, Some(90)), entry(4, true, Some(87)), entry(6, false, None)];
        let list = MemberList { leader: NodeId::new(1), term: 3, last: 90, applied: 89, members };
        let status = status(&list, &ClusterMap::empty(ClusterId::new([1; 16])));
        let shown: Vec<_> = status.nodes.iter().map(|it| (it.role, it.lag)).collect();
        assert_eq!(shown, [("leader", Some(0)), ("follower", Some(3)), ("learner", None)]);
        assert!(as_table(&status).contains("add a third member"));
    }
}
