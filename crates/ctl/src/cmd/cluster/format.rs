//! `skep cluster format`: assigns all virtual shards of the namespace to the metadata targets. This
//! happens only once for a cluster.

use crate::access::ClusterArgs;
use crate::help::{Example, examples};
use crate::output::print;
use serde::Serialize;
use skep_types::Result;
use skep_wire::management::Format;

const EXAMPLES: &[Example] = &[(
    "format a new cluster once, after all metadata services have registered",
    "skep cluster format --cluster /srv/skep/management",
)];

/// Divide the namespace over the metadata targets, once, before the first mount
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct FormatArgs {
    #[command(flatten)]
    query: ClusterArgs,
}

/// The JSON output of the command.
#[derive(Debug, Serialize)]
struct FormatReport {
    metadata_targets: usize,
}

pub(crate) fn run(args: FormatArgs) -> Result<()> {
    let access = args.query.access(None)?;
    let update = crate::cmd::block_on(async move { access.ask(&Format {}).await })?;
    let formatted = FormatReport { metadata_targets: update.map.map_or(0, |map| map.shards.len()) };
    print(&formatted, |it| {
        let targets = it.metadata_targets;
        format!(
            "The namespace is divided over {targets} metadata targets; clients can mount the \
                 cluster now."
        )
    })
}
