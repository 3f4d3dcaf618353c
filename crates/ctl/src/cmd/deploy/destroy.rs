//! `skep deploy destroy`: removes a whole cluster from its hosts.

use super::args::DeployArgs;
use crate::help::{Example, examples};
use skep_types::Result;

const EXAMPLES: &[Example] = &[(
    "remove a cluster with all its data",
    "skep deploy destroy --hosts hosts.toml --destroy-data",
)];

/// Remove the cluster from all hosts: mounts, services, data, configuration and program
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct DestroyArgs {
    /// Remove the cluster even if it stores data. All its data is lost
    #[arg(long = "destroy-data")]
    destroys_data: bool,
    /// Leave out hosts that do not answer
    #[arg(long = "skip-absent")]
    skips_absent: bool,
    #[command(flatten)]
    deploy: DeployArgs,
}

pub(crate) fn run(args: &DestroyArgs) -> Result<()> {
    let command =
        |run: &skep_deploy::commands::Run<'_>| run.destroy(args.destroys_data, args.skips_absent);
    args.deploy.change(command, "Removed cluster")
}
