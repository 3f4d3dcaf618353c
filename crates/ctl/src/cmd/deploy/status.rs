//! `skep deploy status`: shows the state of all hosts of a hosts file.

use super::args::{DeployArgs, hosts_as_text};
use crate::help::{Example, examples};
use crate::output::print;
use skep_types::Result;
use std::process::ExitCode;

const EXAMPLES: &[Example] =
    &[("show the state of all hosts", "skep deploy status --hosts hosts.toml")];

/// Show services, versions and mounts of all hosts, the leader of management and the copies of
/// metadata. Exit code 1 means that the cluster is not complete
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    deploy: DeployArgs,
}

pub(crate) fn run(args: &StatusArgs) -> Result<ExitCode> {
    let (outcome, error) = args.deploy.run(|run| run.status())?;
    if let Some(error) = error {
        return Err(error);
    }
    let is_complete = outcome.is_complete == Some(true);
    print(&outcome, |outcome| {
        let end = match is_complete {
            true => "The cluster is complete.",
            false => "The cluster is not complete; `skep deploy plan` lists the missing steps.",
        };
        hosts_as_text(outcome) + end
    })?;
    Ok(if is_complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
