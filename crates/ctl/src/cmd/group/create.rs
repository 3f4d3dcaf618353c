//! `skep group create`: creates a group from targets that wait for a group.

use crate::access::{ClusterArgs, block_on};
use crate::help::{Example, examples};
use crate::output::print;
use crate::view::target_named;
use serde::Serialize;
use skep_types::{ClusterMap, Error, ErrorCode, Group, Result, Target, TargetId, TargetKind};
use skep_wire::management::CreateGroup;
use std::collections::BTreeSet;

const EXAMPLES: &[Example] = &[
    ("create a group of metadata target 3", "skep group create 3"),
    (
        "create a group of two metadata targets, with target 3 as the primary",
        "skep group create 3 5",
    ),
];

/// Create a group from targets that have no group and no data
///
/// A new metadata target waits for a group if the setting metadata-copies is above 1. `skep cluster
/// format` divides the namespace over the groups that exist at that time: a group that is created
/// after this command serves no part of the namespace. All targets of a group hold the same data;
/// the first target is the primary. The targets must lie on different nodes and in different
/// failure domains, unless --allow-same-node is given.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct CreateArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// Ids of targets without a group (`skep target list`)
    #[arg(value_name = "TARGET", required = true, num_args = 1..=3)]
    targets: Vec<String>,
    /// Accept targets on one node or in one failure domain, although a single failure may lose all
    /// these targets
    #[arg(long)]
    allow_same_node: bool,
}

/// The JSON output: the new group.
#[derive(Debug, Serialize)]
struct CreatedGroup {
    id: u32,
    /// Id of the primary.
    target: u32,
    /// Ids of all members, with the primary first.
    targets: Vec<u32>,
    map_version: u64,
    /// Facts about the group that an administrator may not expect.
    notes: Vec<String>,
}

pub(crate) fn run(args: CreateArgs) -> Result<()> {
    let CreateArgs { query, targets, allow_same_node } = args;
    let access = query.access(None)?;
    let created = block_on(async move {
        let map = access.map().await?;
        let named: Result<Vec<&Target>> =
            targets.iter().map(|name| target_named(&map, name)).collect();
        let named = named?;
        if !allow_same_node {
            check_domains(&map, &named)?;
        }
        let targets: Vec<_> = named.iter().map(|target| target.id).collect();
        if let Some(group) = group_of_exactly(&map, &targets) {
            return Ok(CreatedGroup {
                id: group.id.raw(),
                target: group.primary.raw(),
                targets: group.members.iter().map(|member| member.target.raw()).collect(),
                map_version: map.version.raw(),
                notes: vec![
                    "a group of these targets exists already, so nothing was changed".into(),
                ],
            });
        }
        let reply = access.ask(&CreateGroup { targets: targets.clone() }).await?;
        Ok(CreatedGroup {
            notes: notes(&map, &named, reply.group.raw()),
            id: reply.group.raw(),
            target: targets.first().map_or(0, |target| target.raw()),
            targets: targets.iter().map(|target| target.raw()).collect(),
            map_version: reply.version.raw(),
        })
    })?;
    print(&created, |created| {
        let first = match created.targets.as_slice() {
            [target] => format!("Group {} consists of target {target}.", created.id),
            targets => {
                let targets: Vec<_> = targets.iter().map(u32::to_string).collect();
                format!("Group {} consists of targets {}.", created.id, targets.join(", "))
            }
        };
        let notes = created.notes.iter().map(|note| format!("\nNote: {note}"));
        first + &notes.collect::<String>()
    })
}

/// Returns the group whose members are exactly `targets`. Such a group exists if an administrator
/// repeats the command.
fn group_of_exactly<'a>(map: &'a ClusterMap, targets: &[TargetId]) -> Option<&'a Group> {
    let set: BTreeSet<_> = targets.iter().copied().collect();
    let is_same =
        |group: &&Group| group.members.iter().map(|it| it.target).collect::<BTreeSet<_>>() == set;
    map.groups.iter().find(is_same)
}

/// Returns the facts about a new group that an administrator may not expect. `map` was read before
/// the command created the group.
fn notes(map: &ClusterMap, members: &[&Target], group: u32) -> Vec<String> {
    let is_metadata = members.iter().all(|target| target.kind == TargetKind::Metadata);
    let (found, wanted) = (members.len(), usize::from(map.policy.metadata_copies));
    let mut notes = Vec::new();
    if is_metadata && found < wanted {
        notes.push(format!(
            "the group has {found} of the {wanted} copies that the setting metadata-copies asks \
             for; `skep group add {group} TARGET` adds a copy"
        ));
    }
    if is_metadata && map.formatted {
        notes.push(
            "the namespace was divided over the metadata groups at `skep cluster format`, so this \
             group serves no part of the namespace, and gets no files and directories"
                .into(),
        );
    }
    notes
}

/// Returns an error if two of the targets are on the same node or in the same failure domain,
/// because one failure would lose both targets.
pub(crate) fn check_domains(map: &ClusterMap, targets: &[&Target]) -> Result<()> {
    for (index, target) in targets.iter().enumerate() {
        for other in &targets[index + 1..] {
            let domain = |target: &Target| map.node(target.node).map(|node| node.domain.as_str());
            let is_same_domain = domain(target) == domain(other) && domain(target) != Some("");
            let shared = match target.node == other.node {
                true => "node",
                false if is_same_domain => "failure domain",
                false => continue,
            };
            let context = format!(
                "cannot put targets {} and {} into one group: both are on the same {shared}, so \
                 one failure would lose both; choose other targets (`skep target list`), or add \
                 --allow-same-node",
                target.id, other.id
            );
            return Err(Error::new(ErrorCode::InvalidArgument, context));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::map::{Node, Reachability};
    use skep_types::{ClusterId, GroupId, NodeId, NodeKind};

    fn target(id: u32, node: u32) -> Target {
        Target {
            reachability: Reachability::Online,
            ..Target::new(TargetId::new(id), TargetKind::Metadata, NodeId::new(node), "/d")
        }
    }

    #[test]
    fn group_create_warns_of_missing_copies_and_of_an_unused_group() {
        let mut map = ClusterMap::empty(ClusterId::default());
        let (one, two) = (target(1, 1), target(2, 2));
        assert!(notes(&map, &[&one], 8).is_empty());
        map.policy.metadata_copies = 2;
        assert!(notes(&map, &[&one, &two], 8).is_empty());
        let found = notes(&map, &[&one], 8);
        assert!(found[0].contains("1 of the 2 copies"), "{found:?}");
        assert!(found[0].contains("skep group add 8"), "{found:?}");
        map.formatted = true;
        let found = notes(&map, &[&one, &two], 8);
        assert!(
            found.len() == 1 && found[0].contains("serves no part of the namespace"),
            "{found:?}"
        );
        let storage = Target { kind: TargetKind::Storage, ..target(3, 3) };
        assert!(notes(&map, &[&storage], 8).is_empty());
    }

    #[test]
    fn repeated_group_create_accepts_targets_in_another_order() {
        let mut map = ClusterMap::empty(ClusterId::default());
        let ids = [1, 2].map(TargetId::new);
        let group = skep_cluster::groups::create(GroupId::new(5), TargetKind::Metadata, &ids);
        map.groups.push(group.unwrap());
        for (targets, found) in [(&[1, 2][..], true), (&[2, 1], true), (&[1], false)] {
            let targets: Vec<_> = targets.iter().map(|id| TargetId::new(*id)).collect();
            assert_eq!(group_of_exactly(&map, &targets).is_some(), found, "{targets:?}");
        }
    }

    #[test]
    fn group_of_targets_on_one_node_or_in_one_domain_is_refused() {
        let mut map = ClusterMap::empty(ClusterId::default());
        for (id, domain) in [(1, "a"), (2, "a"), (3, "b"), (4, ""), (5, "")] {
            let node = Node::online(NodeId::new(id), NodeKind::Metadata, format!("n{id}"));
            map.nodes.push(Node { domain: domain.into(), ..node });
        }
        let refused = |nodes: &[u32]| {
            let targets: Vec<_> = (1..).zip(nodes).map(|(id, node)| target(id, *node)).collect();
            check_domains(&map, &targets.iter().collect::<Vec<_>>()).is_err()
        };
        assert!(refused(&[1, 1]) && refused(&[1, 2]) && refused(&[3, 1, 2]));
        assert!(!refused(&[1, 3]) && !refused(&[4, 5]) && !refused(&[1]));
    }
}
