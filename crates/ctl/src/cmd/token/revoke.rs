//! `skep token revoke`: makes services on this host refuse an old token.

use super::{DirectoryArgs, DirectoryChange};
use crate::help::{Example, examples};
use crate::output::print;
use skep_rpc::SecretId;
use skep_service::tokens;
use skep_types::Result;

const EXAMPLES: &[Example] = &[
    (
        "refuse an old token from nodes that want to join",
        "skep token revoke 5f0c6f6f0a1b2c3d --directory /srv/skep/management",
    ),
    (
        "refuse an old token from all nodes",
        "skep token revoke --entirely 5f0c6f6f0a1b2c3d --directory /srv/skep/storage",
    ),
];

/// Revoke an old token at services on this host
///
/// Without `--entirely`, commands and new nodes that have only this token are refused, and nodes
/// that have joined are still accepted. With `--entirely`, the service opens no connection to a
/// node that has only this token; use `--entirely` when all services and mounts have a newer token.
/// Connections that are open stay open.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct RevokeArgs {
    /// Refuse this token also from nodes that have joined
    #[arg(long = "entirely")]
    is_entire: bool,
    #[command(flatten)]
    place: DirectoryArgs,
    /// Id of a token, from `skep token list`
    #[arg(value_name = "TOKEN")]
    id: String,
}

pub(crate) fn run(args: &RevokeArgs) -> Result<()> {
    let id: SecretId = args.id.parse()?;
    let mut changes = Vec::new();
    for directory in &args.place.directory {
        tokens::revoke(directory, id, args.is_entire)?;
        let directory = directory.display().to_string();
        changes.push(DirectoryChange { directory, is_changed: true });
    }
    let nodes = if args.is_entire { "all nodes" } else { "nodes that have not joined yet" };
    print(&changes, |changes| {
        let line = |change: &DirectoryChange| {
            format!("{}: token {id} is revoked for {nodes}.\n", change.directory)
        };
        changes.iter().map(line).collect()
    })
}
