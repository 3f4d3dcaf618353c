//! `skep group list`: shows the groups of targets that store the same data, and the state of each
//! member. For a member that does not serve, the command also shows how much data the member lacks.

use crate::access::ClusterArgs;
use crate::group_progress::{Lag, LagSample};
use crate::help::{Example, examples};
use crate::output::{print, render, table};
use crate::view::{consistency, reachability, target_kind};
use serde::Serialize;
use skep_types::map::{Consistency, MemberState, Reachability};
use skep_types::{ClusterMap, Group, Result, TargetId};
use std::collections::BTreeMap;

const EXAMPLES: &[Example] = &[("list all groups with their members", "skep group list")];

/// List all groups with their members, and the state of each member
///
/// For each member of a metadata group that does not serve, also shows how much data this member
/// lacks. `skep health check` also measures the rate, and estimates the time until the member
/// serves.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct ListArgs {
    #[command(flatten)]
    query: ClusterArgs,
}

/// A group, as one entry of the list.
#[derive(Debug, Serialize)]
struct GroupEntry {
    id: u32,
    kind: &'static str,
    epoch: u64,
    /// Id of the target that serves the requests for the group.
    primary: u32,
    state: &'static str,
    /// The targets in the group, in the order in which they were added.
    members: Vec<Member>,
}

/// A target in a group.
#[derive(Debug, Serialize)]
struct Member {
    target: u32,
    node: u32,
    node_name: String,
    state: &'static str,
    is_primary: bool,
    reachability: &'static str,
    consistency: &'static str,
    /// How far the member is behind the primary. `None` if the member serves, or if the member is a
    /// storage target.
    lag: Option<Lag>,
}

/// The state of a target that was marked as lost, and of a group that has no other target.
const LOST: &str = "Lost";

pub(crate) fn run(args: ListArgs) -> Result<()> {
    let access = args.query.access(None)?;
    let (map, mut lags) = crate::cmd::block_on(async move {
        let map = access.map().await?;
        let lags = LagSample::take(&access, &map).await.lags(&map, None);
        Ok((map, lags))
    })?;
    let mut groups: Vec<&Group> = map.groups.iter().collect();
    groups.sort_by_key(|group| (group.kind, group.id));
    let lines: Vec<_> = groups.into_iter().map(|group| line(&map, group, &mut lags)).collect();
    print(&lines, |lines| as_table(lines))
}

/// Returns the entry of a group, and removes the lags of its members from `lags`.
fn line(map: &ClusterMap, group: &Group, lags: &mut BTreeMap<TargetId, Lag>) -> GroupEntry {
    let primary = map.primary(group.id).map(|target| target.id);
    let mut all_well = true;
    let mut members = Vec::new();
    for member in &group.members {
        let Some(target) = map.target(member.target) else { continue };
        all_well &= member.state == MemberState::Serving
            && target.reachability == Reachability::Online
            && target.consistency == Consistency::Good;
        members.push(Member {
            target: target.id.raw(),
            node: target.node.raw(),
            node_name: map.node(target.node).map(|node| node.name.clone()).unwrap_or_default(),
            state: match target.consistency {
                Consistency::Bad => LOST,
                _ => part(member.state),
            },
            is_primary: primary == Some(target.id),
            reachability: reachability(target.reachability),
            consistency: consistency(target.consistency),
            lag: lags.remove(&target.id),
        });
    }
    let serves = members.iter().any(|it| it.is_primary && it.reachability == "Online");
    let is_lost = !members.is_empty() && members.iter().all(|it| it.state == LOST);
    let state = match (all_well, serves) {
        _ if is_lost => LOST,
        (true, _) => "Good",
        (false, true) => "Degraded",
        (false, false) => "Unavailable",
    };
    GroupEntry {
        id: group.id.raw(),
        kind: target_kind(group.kind),
        epoch: group.epoch.raw(),
        primary: group.primary.raw(),
        state,
        members,
    }
}

fn part(state: MemberState) -> &'static str {
    match state {
        MemberState::Serving => "Serving",
        MemberState::Syncing => "Syncing",
        MemberState::Waiting => "Waiting",
        MemberState::Offline => "Offline",
    }
}

/// Returns a table with one line for each member of each group. Below the table, one line for each
/// member that is behind its primary shows the lag of this member.
fn as_table(lines: &[GroupEntry]) -> String {
    let titles = [
        "GROUP",
        "KIND",
        "EPOCH",
        "STATE",
        "TARGET",
        "PART",
        "REACHABILITY",
        "CONSISTENCY",
        "NODE",
    ];
    let mut shown = table(&titles);
    for line in lines {
        for member in &line.members {
            let role = if member.is_primary { " (primary)" } else { "" };
            shown.add_row([
                line.id.to_string(),
                line.kind.to_owned(),
                line.epoch.to_string(),
                line.state.to_owned(),
                member.target.to_string(),
                format!("{}{role}", member.state),
                member.reachability.to_owned(),
                member.consistency.to_owned(),
                format!("{} [ID: {}]", member.node_name, member.node),
            ]);
        }
    }
    let mut shown = render(&shown);
    for line in lines {
        let lags = line.members.iter().filter_map(|it| Some((it.target, it.lag.as_ref()?)));
        for (target, lag) in lags {
            let (group, lag) = (line.id, lag.words());
            shown.push_str(&format!("\nTarget {target} of group {group} lacks {lag}"));
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    use skep_types::{ClusterId, GroupId, NodeId, Target, TargetId, TargetKind};

    #[test]
    fn group_of_a_lost_target_is_lost_although_its_service_runs() {
        let mut map = ClusterMap::empty(ClusterId::default());
        map.targets.push(Target {
            reachability: Reachability::Online,
            ..Target::new(TargetId::new(7), TargetKind::Storage, NodeId::new(2), "/d")
        });
        map.groups.push(Group::of_one(GroupId::new(3), TargetKind::Storage, TargetId::new(7)));
        let states = |map: &ClusterMap| {
            let line = line(map, &map.groups[0], &mut BTreeMap::new());
            (line.state, line.members[0].state)
        };
        assert_eq!(states(&map), ("Good", "Serving"));
        map.targets[0].consistency = Consistency::Bad;
        assert_eq!(states(&map), ("Lost", "Lost"));
    }
}
