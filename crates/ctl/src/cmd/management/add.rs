//! `skep management add`: makes a management node a member. A member stores the log of management
//! and votes.

use super::status;
use crate::access::{ClusterArgs, block_on};
use crate::help::{Example, examples};
use crate::output::print;
use crate::view::node_named;
use serde::Serialize;
use skep_store::identity::read_identity;
use skep_types::{Error, ErrorCode, Result};
use skep_wire::consensus::AddMember;
use std::path::{Path, PathBuf};
use std::time::Duration;

const EXAMPLES: &[Example] = &[
    ("make node 9 a member, after its service has started", "skep management add 9"),
    (
        "make the node of a directory on this host a member",
        "skep management add --directory /srv/skep/management",
    ),
];

/// Time limit for copying the log to the new member.
const PATIENCE: Duration = Duration::from_secs(60);

/// Make a management node a member of management
///
/// Initialise the node with `skep management --init --join`, and start its service. This command
/// copies the log to the node, and then the node votes. Three members survive the loss of one
/// member, and five the loss of two.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct AddArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// Id or name of the management node
    #[arg(required_unless_present = "directory", conflicts_with = "directory")]
    node: Option<String>,
    /// Directory of the management node on this host, in place of its id
    #[arg(long)]
    directory: Option<PathBuf>,
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
    let AddArgs { query, node, directory } = args;
    let node = match directory {
        Some(directory) => node_of(&directory)?,
        None => node.expect("clap requires the node or the directory"),
    };
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

/// Returns the id of the management node to which a directory belongs.
fn node_of(directory: &Path) -> Result<String> {
    let identity = read_identity(directory)?;
    let node = identity.map_or(0, |identity| identity.node.raw());
    if node == 0 {
        let what = format!(
            "cannot add the node of {}: the directory belongs to no registered management node; \
             initialise the directory with `skep management --init --join`",
            directory.display()
        );
        return Err(Error::new(ErrorCode::NotFound, what));
    }
    Ok(node.to_string())
}
