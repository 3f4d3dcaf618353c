//! `skep deploy remove`: removes a host from a cluster.

use super::args::DeployArgs;
use crate::help::{Example, examples};
use skep_types::Result;

const EXAMPLES: &[Example] = &[
    ("remove a client", "skep deploy remove client-3 --hosts hosts.toml"),
    (
        "remove a server whose targets were closed and emptied",
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
    /// With --destroy-data: the name of the host a second time. Needed if files of the cluster lie
    /// on its targets. These files are lost
    #[arg(long, value_name = "HOST", requires = "destroys_data")]
    confirm: Option<String>,
    #[command(flatten)]
    deploy: DeployArgs,
}

pub(crate) fn run(args: &RemoveArgs) -> Result<()> {
    let done = format!("Removed host {} from cluster", args.host);
    let confirm = args.confirm.as_deref();
    args.deploy.change(|run| run.remove(&args.host, args.destroys_data, confirm), &done)
}
