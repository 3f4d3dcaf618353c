//! `skep client stats`: the same as `skep stats --by client`.

use crate::access::ClusterArgs;
use crate::cmd::stats::{Division, SpanArgs, show};
use crate::help::{Example, examples};
use skep_types::Result;

const EXAMPLES: &[Example] = &[
    ("show the load of each client, each second until Ctrl-C", "skep client stats"),
    (
        "show the operations and bytes of each client since the services started",
        "skep client stats --total",
    ),
];

/// Show the load by client, as `skep stats --by client`
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct StatsArgs {
    #[command(flatten)]
    query: ClusterArgs,
    #[command(flatten)]
    span: SpanArgs,
}

pub(crate) fn run(args: StatsArgs) -> Result<()> {
    show(&args.query, Division::Client, args.span)
}
