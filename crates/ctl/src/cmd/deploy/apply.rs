//! `skep deploy apply`: creates the cluster that a hosts file describes.

use super::args::DeployArgs;
use crate::help::{Example, examples};
use skep_types::Result;

const EXAMPLES: &[Example] = &[
    (
        "create the cluster, or continue an interrupted deployment",
        "skep deploy apply --hosts hosts.toml",
    ),
    ("install a program that was built elsewhere", "skep deploy apply --program ./skep-el9"),
];

/// Create the cluster that the hosts file describes: install, format disks, start, join, mount and
/// verify. Steps that are done already are left out
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct ApplyArgs {
    #[command(flatten)]
    deploy: DeployArgs,
}

pub(crate) fn run(args: &ApplyArgs) -> Result<()> {
    args.deploy.change(|run| run.apply(), "Deployed and verified cluster")
}
