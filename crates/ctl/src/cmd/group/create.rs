//! `skep group create`: creates a group from targets that wait for one.

use crate::access::{ClusterArgs, block_on};
use crate::help::{Example, examples};
use crate::output::print;
use crate::view::target_named;
use serde::Serialize;
use skep_types::{ClusterMap, Error, ErrorCode, Result, Target};
use skep_wire::management::CreateGroup;

const EXAMPLES: &[Example] = &[
    ("make a group of metadata target 3, which then serves", "skep group create 3"),
    ("make a group of two metadata targets, with target 3 as the primary", "skep group create 3 5"),
];

/// Create a group from targets that have no group and no data
///
/// A new metadata target waits for a group if the setting metadata-copies is above 1. It serves as
/// soon as it is in a group. All targets of a group hold the same data; the first one is the
/// primary. The targets must lie on different nodes and in different failure domains, unless
/// --allow-same-node is given.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct CreateArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// Ids of targets without a group (`skep target list`)
    #[arg(value_name = "TARGET", required = true, num_args = 1..=3)]
    targets: Vec<String>,
    /// Accept targets on one node or in one failure domain: all are lost with it
    #[arg(long)]
    allow_same_node: bool,
}

/// The new group.
#[derive(Debug, Serialize)]
struct CreatedGroup {
    id: u32,
    /// The primary.
    target: u32,
    /// All members.
    targets: Vec<u32>,
    map_version: u64,
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
        let reply = access.ask(&CreateGroup { targets: targets.clone() }).await?;
        Ok(CreatedGroup {
            id: reply.group.raw(),
            target: targets.first().map_or(0, |target| target.raw()),
            targets: targets.iter().map(|target| target.raw()).collect(),
            map_version: reply.version.raw(),
        })
    })?;
    print(&created, |created| match created.targets.as_slice() {
        [target] => format!("Target {target} is group {}.", created.id),
        targets => {
            let targets: Vec<_> = targets.iter().map(u32::to_string).collect();
            format!("Targets {} are group {}.", targets.join(", "), created.id)
        }
    })
}

/// Refuses two targets that one failure can take away.
fn check_domains(map: &ClusterMap, targets: &[&Target]) -> Result<()> {
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
                "cannot create a group of targets {} and {}: they are in the same {shared}, and \
                 are lost together; choose others (`skep target list`), or add --allow-same-node",
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
    use skep_types::{ClusterId, NodeId, NodeKind, TargetId, TargetKind};

    fn target(id: u32, node: u32) -> Target {
        Target {
            reachability: Reachability::Online,
            ..Target::new(TargetId::new(id), TargetKind::Metadata, NodeId::new(node), "/d")
        }
    }

    #[test]
    fn members_lie_on_different_nodes_and_domains() {
        let mut map = ClusterMap::empty(ClusterId::default());
        for (id, domain) in [(1, "a"), (2, "a"), (3, "b"), (4, ""), (5, "")] {
            map.nodes.push(Node {
                id: NodeId::new(id),
                kind: NodeKind::Metadata,
                name: format!("n{id}"),
                addresses: Vec::new(),
                domain: domain.into(),
                reachability: Reachability::Online,
                version: String::new(),
            });
        }
        let refused = |nodes: &[u32]| {
            let targets: Vec<_> = (1..).zip(nodes).map(|(id, node)| target(id, *node)).collect();
            check_domains(&map, &targets.iter().collect::<Vec<_>>()).is_err()
        };
        assert!(refused(&[1, 1]) && refused(&[1, 2]) && refused(&[3, 1, 2]));
        assert!(!refused(&[1, 3]) && !refused(&[4, 5]) && !refused(&[1]));
    }
}
