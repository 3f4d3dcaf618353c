//! `skep node remove`: removes a server that has no targets from the cluster.

use crate::access::{ClusterArgs, block_on};
use crate::help::{Example, examples};
use crate::output::print;
use crate::view::node_named;
use serde::Serialize;
use skep_types::Result;
use skep_wire::management::RemoveServer;

const EXAMPLES: &[Example] = &[
    ("check whether a retired server can be removed", "skep node remove --dry-run storage-2"),
    ("remove server storage-2 from the cluster", "skep node remove storage-2"),
];

/// Remove a server that has no targets
///
/// Remove its targets first with `skep target remove`, and stop its service. `skep client evict`
/// removes clients.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct RemoveArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// Check whether the server can be removed; change nothing
    #[arg(long = "dry-run")]
    is_dry_run: bool,
    /// Name or id of the server
    node: String,
}

/// The JSON output: the removed server.
#[derive(Debug, Serialize)]
struct Removal {
    id: u32,
    name: String,
    is_dry_run: bool,
}

pub(crate) fn run(args: RemoveArgs) -> Result<()> {
    let RemoveArgs { query, is_dry_run, node } = args;
    let access = query.access(None)?;
    let removal = block_on(async move {
        let map = access.map().await?;
        let node = node_named(&map, &node)?;
        access.ask(&RemoveServer { node: node.id, is_dry_run }).await?;
        Ok(Removal { id: node.id.raw(), name: node.name.clone(), is_dry_run })
    })?;
    print(&removal, |Removal { id, name, is_dry_run }| match is_dry_run {
        true => format!("{name} [ID: {id}] can be removed.\n"),
        false => format!("{name} [ID: {id}] is removed.\n"),
    })
}
