//! `skep cluster format`: divides the namespace over the metadata targets, once.

use crate::access::ClusterArgs;
use crate::output::print;
use serde::Serialize;
use skep_types::Result;
use skep_wire::management::Format;

/// What was done.
#[derive(Debug, Serialize)]
struct Formatted {
    metadata_targets: usize,
}

pub(crate) fn run(args: ClusterArgs) -> Result<()> {
    let access = args.access(None)?;
    let update = super::super::block_on(async move { access.ask(&Format {}).await })?;
    let formatted = Formatted { metadata_targets: update.map.map_or(0, |map| map.shards.len()) };
    print(&formatted, |it| {
        let targets = it.metadata_targets;
        format!("The namespace is divided over {targets} metadata targets; clients can mount now.")
    })
}
