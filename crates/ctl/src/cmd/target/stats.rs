//! `skep target stats`: the same as `skep stats --by target`.

use crate::access::ClusterArgs;
use crate::cmd::stats::{Division, SpanArgs, show};
use crate::help::{Example, examples};
use skep_types::Result;

const EXAMPLES: &[Example] = &[
    ("show the load of each target, each second until Ctrl-C", "skep target stats"),
    (
        "show the operations and bytes of each target since the services started",
        "skep target stats --total",
    ),
];

/// Show the load by target, as `skep stats --by target`
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct StatsArgs {
    #[command(flatten)]
    query: ClusterArgs,
    #[command(flatten)]
    span: SpanArgs,
}

pub(crate) fn run(args: StatsArgs) -> Result<()> {
    show(&args.query, Division::Target, args.span)
}
