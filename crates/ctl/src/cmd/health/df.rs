//! `skep health df`: shows the space on all targets.

use crate::access::ClusterArgs;
use crate::help::{Example, examples};
use crate::output::print;
use crate::view;
use skep_types::Result;

const EXAMPLES: &[Example] = &[("free space on all targets", "skep health df")];

/// Show total and free space of all targets
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct DfArgs {
    #[command(flatten)]
    query: ClusterArgs,
}

pub(crate) fn run(args: DfArgs) -> Result<()> {
    let access = args.query.access(None)?;
    let map = crate::cmd::block_on(async move { access.map().await })?;
    print(&view::targets(&map), |targets| view::df(targets))
}
