//! `skep node rename`: gives a server another name.

use crate::access::{ClusterArgs, block_on};
use crate::help::{Example, examples};
use crate::output::print;
use crate::view::node_named;
use serde::Serialize;
use skep_types::Result;
use skep_wire::management::RenameServer;

const EXAMPLES: &[Example] =
    &[("name a server by its place in the rack", "skep node rename storage-1 rack1-a")];

/// Give a server another name
///
/// If the settings of the service have `node.name`, the service takes that name again at its next
/// start.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct RenameArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// Name or id of the server
    node: String,
    /// The new name
    name: String,
}

/// The JSON output: the renamed server.
#[derive(Debug, Serialize)]
struct Renaming {
    id: u32,
    former_name: String,
    name: String,
}

pub(crate) fn run(args: RenameArgs) -> Result<()> {
    let RenameArgs { query, node, name } = args;
    let access = query.access(None)?;
    let renaming = block_on(async move {
        let map = access.map().await?;
        let node = node_named(&map, &node)?;
        access.ask(&RenameServer { node: node.id, name: name.clone() }).await?;
        Ok(Renaming { id: node.id.raw(), former_name: node.name.clone(), name })
    })?;
    print(&renaming, |it| {
        format!("{} [ID: {}] is now called {}.\n", it.former_name, it.id, it.name)
    })
}
