//! `skep deploy add`: adds a host that the hosts file describes to a running cluster.

use super::args::DeployArgs;
use crate::help::{Example, examples};
use skep_types::Result;

const EXAMPLES: &[Example] = &[(
    "add host storage-3, after it was added to the hosts file",
    "skep deploy add storage-3 --hosts hosts.toml",
)];

/// Add a host of the hosts file to the cluster, while the cluster serves
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct AddArgs {
    /// Name of the host in the hosts file
    #[arg(value_name = "HOST")]
    host: String,
    #[command(flatten)]
    deploy: DeployArgs,
}

pub(crate) fn run(args: &AddArgs) -> Result<()> {
    let done = format!("Added host {} to cluster", args.host);
    args.deploy.change(|run| run.add(&args.host), &done)
}
