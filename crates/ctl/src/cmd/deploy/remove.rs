//! `skep deploy remove`: removes a host from a cluster.

use super::args::DeployArgs;
use crate::help::{Example, examples};
use skep_types::Result;

const EXAMPLES: &[Example] = &[
    ("remove a client", "skep deploy remove client-3 --hosts hosts.toml"),
    (
        "remove a server with all files that it stores",
        "skep deploy remove storage-3 --destroy-data",
    ),
];

/// Unmount, stop and remove everything of Skep on one host. Afterwards, delete the host from the
/// hosts file yourself
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct RemoveArgs {
    /// Name of the host in the hosts file
    #[arg(value_name = "HOST")]
    host: String,
    /// Remove the host even if it stores data of the cluster. The data is lost
    #[arg(long = "destroy-data")]
    destroys_data: bool,
    #[command(flatten)]
    deploy: DeployArgs,
}

pub(crate) fn run(args: &RemoveArgs) -> Result<()> {
    let done = format!("Removed host {} from cluster", args.host);
    args.deploy.change(|run| run.remove(&args.host, args.destroys_data), &done)
}
