//! `skep group create`: creates a group from a target that waits for a group.

use crate::access::{ClusterArgs, block_on};
use crate::help::{Example, examples};
use crate::output::print;
use crate::view::target_named;
use serde::Serialize;
use skep_types::Result;
use skep_wire::management::CreateGroup;

const EXAMPLES: &[Example] =
    &[("make a group of metadata target 3, which then serves", "skep group create 3")];

/// Create a group from a target that has no group
///
/// A new metadata target waits for a group if the setting metadata-copies is above 1. It serves as
/// soon as it is the primary of a group. This version cannot copy the data of a target to another
/// target, so a group gets one target.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct CreateArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// Id of a target without a group (`skep target list`)
    #[arg(value_name = "TARGET")]
    target: String,
}

/// The new group.
#[derive(Debug, Serialize)]
struct CreatedGroup {
    id: u32,
    target: u32,
    map_version: u64,
}

pub(crate) fn run(args: CreateArgs) -> Result<()> {
    let CreateArgs { query, target } = args;
    let access = query.access(None)?;
    let created = block_on(async move {
        let target = target_named(&access.map().await?, &target)?.id;
        let reply = access.ask(&CreateGroup { targets: vec![target] }).await?;
        Ok(CreatedGroup {
            id: reply.group.raw(),
            target: target.raw(),
            map_version: reply.version.raw(),
        })
    })?;
    print(&created, |created| format!("Target {} is group {}.", created.target, created.id))
}
