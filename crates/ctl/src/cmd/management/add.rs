//! `skep management add`: makes a management node a member. A member stores the log of management
//! and votes.

use super::status;
use crate::access::{ClusterArgs, block_on};
use crate::help::{Example, examples};
use crate::output::print;
use crate::view::node_named;
use serde::Serialize;
use skep_types::Result;
use skep_wire::consensus::AddMember;
use std::time::Duration;

const EXAMPLES: &[Example] =
    &[("make node 9 a member, after its service has started", "skep management add 9")];

/// Time limit for copying the log to the new member.
const PATIENCE: Duration = Duration::from_secs(60);

/// Make a management node a member
///
/// Initialise the node with `skep management --init --join`, and start its service. This command
/// copies the log to the node, and then the node votes. Three members survive the loss of one, five
/// of two.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct AddArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// Id or name of the management node
    node: String,
}

/// The new member, as JSON.
#[derive(Debug, Serialize)]
struct Added {
    id: u32,
    name: String,
    voters: usize,
    warning: String,
}

pub(crate) fn run(args: AddArgs) -> Result<()> {
    let AddArgs { query, node } = args;
    let access = query.access(None)?;
    let added = block_on(async move {
        let map = access.map().await?;
        let node = node_named(&map, &node)?;
        access.ask_once(&AddMember { node: node.id }, PATIENCE).await?;
        let status = status::of(&access).await?;
        Ok(Added {
            id: node.id.raw(),
            name: node.name.clone(),
            voters: status.voters(),
            warning: status.warning(),
        })
    })?;
    print(&added, |Added { id, name, voters, warning }| {
        let members = if *voters == 1 { "member" } else { "members" };
        format!("{name} [ID: {id}] is one of {voters} {members} of management.\n{warning}")
    })
}
