//! `skep management remove`: removes a management node from the members and from the cluster map.

use super::status;
use crate::access::{ClusterArgs, block_on};
use crate::help::{Example, examples};
use crate::output::print;
use crate::view::node_named;
use serde::Serialize;
use skep_types::{NodeId, Result};
use skep_wire::consensus::RemoveMember;

const EXAMPLES: &[Example] =
    &[("remove a management node whose host is lost", "skep management remove 9")];

/// Remove a management node, even if it does not run
///
/// A majority of the members must run. To remove the leader, stop its service first, so that
/// another member becomes the leader. The directory of a removed node cannot be used again.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct RemoveArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// Id or name of the management node
    node: String,
}

/// The JSON output: the removed member.
#[derive(Debug, Serialize)]
struct Removed {
    id: u32,
    name: String,
    voters: usize,
    warning: String,
}

pub(crate) fn run(args: RemoveArgs) -> Result<()> {
    let RemoveArgs { query, node } = args;
    let access = query.access(None)?;
    let removed = block_on(async move {
        let map = access.map().await?;
        // An earlier attempt may have removed the node from the map, or only from the members.
        let (id, name) = match (node_named(&map, &node), node.parse()) {
            (Ok(node), _) => (node.id, node.name.clone()),
            (Err(_), Ok(id)) => (NodeId::new(id), String::new()),
            (Err(error), Err(_)) => return Err(error),
        };
        access.ask(&RemoveMember { node: id }).await?;
        let status = status::of(&access).await?;
        let (voters, warning) = (status.voters(), status.warning());
        Ok(Removed { id: id.raw(), name, voters, warning })
    })?;
    print(&removed, |Removed { id, name, voters, warning }| {
        let left =
            if *voters == 1 { "1 member is".into() } else { format!("{voters} members are") };
        format!("{name} [ID: {id}] is removed; {left} left.\n{warning}")
    })
}
