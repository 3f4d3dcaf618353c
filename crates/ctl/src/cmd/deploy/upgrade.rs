//! `skep deploy upgrade`: replaces the program of a running cluster.

use super::args::DeployArgs;
use crate::help::{Example, examples};
use skep_types::Result;

const EXAMPLES: &[Example] = &[
    (
        "upgrade the cluster to the version of this program",
        "skep deploy upgrade --hosts hosts.toml",
    ),
    (
        "upgrade to another program, and remount the clients",
        "skep deploy upgrade --program ./skep --remount",
    ),
];

/// Replace the program on all hosts, and restart one service after the other while the cluster
/// serves
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct UpgradeArgs {
    /// Unmount and mount the clients at the end. This fails if programs use a mount
    #[arg(long = "remount")]
    remounts: bool,
    #[command(flatten)]
    deploy: DeployArgs,
}

pub(crate) fn run(args: &UpgradeArgs) -> Result<()> {
    args.deploy.change(|run| run.upgrade(args.remounts), "Upgraded cluster")
}
