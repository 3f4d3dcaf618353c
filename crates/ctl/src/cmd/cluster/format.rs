//! `skep cluster format`: divides the namespace over the metadata targets, once.

use crate::access::{ClusterArgs, PATIENCE};
use crate::output::say;
use skep_types::Result;
use skep_wire::management::Format;

pub(crate) fn run(args: ClusterArgs) -> Result<()> {
    let access = args.access(None)?;
    let update = super::super::block_on(async move {
        access.management().call(&Format {}, Some(PATIENCE)).await
    })?;
    let groups = update.map.map_or(0, |map| map.shards.len());
    say(&format!("The namespace is divided over {groups} metadata targets; clients can mount now."))
}
