//! `skep deploy plan`: checks the hosts, and lists the steps that `skep deploy apply` would do.

use super::args::{DeployArgs, hosts_as_text};
use crate::help::{Example, examples};
use crate::output::{print, render, table};
use skep_deploy::report::Outcome;
use skep_types::Result;
use std::process::ExitCode;

const EXAMPLES: &[Example] = &[(
    "check the hosts, and list the steps of a deployment",
    "skep deploy plan --hosts hosts.toml",
)];

/// Check the hosts, and list the steps of `skep deploy apply`. Changes nothing. Exit code 1 means
/// that a problem prevents the deployment
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    deploy: DeployArgs,
}

pub(crate) fn run(args: &PlanArgs) -> Result<ExitCode> {
    let (outcome, error) = args.deploy.run(|run| run.plan())?;
    if let Some(error) = error {
        return Err(error);
    }
    print(&outcome, as_text)?;
    Ok(if outcome.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn as_text(outcome: &Outcome) -> String {
    let mut shown = table(&["Phase", "Host", "Step"]);
    for step in &outcome.steps {
        shown.add_row([step.phase, &step.host, &step.step]);
    }
    let end = match outcome.problems.len() {
        0 => "No problem found; nothing was changed.".to_owned(),
        count => format!(
            "Problems: {count}. `skep deploy apply` fails without a change until these problems \
             are solved."
        ),
    };
    format!("{}\n{}\n{end}", hosts_as_text(outcome), render(&shown))
}
