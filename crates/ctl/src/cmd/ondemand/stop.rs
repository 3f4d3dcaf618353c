//! `skep ondemand stop`: unmounts and removes a file system of the hosts of a job.

use super::args::{OndemandArgs, failure, problems};
use crate::failure::PARTIAL;
use crate::help::{Example, examples};
use crate::output::print;
use skep_deploy::ondemand::{Command, OnDemandOutcome};
use skep_types::Result;
use std::process::ExitCode;

const EXAMPLES: &[Example] = &[
    ("on the hosts in a file, by ssh", "skep ondemand stop --hosts nodes --mount /scratch"),
    ("in the epilog of a Slurm job", "skep ondemand stop --job --directory /local"),
];

/// Unmount the file system and remove it with all its data. Also removes the remains of an
/// interrupted start, and of a crash of a host. Exit code 6 means that some hosts failed; run the
/// same command again later to remove their parts
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct StopArgs {
    #[command(flatten)]
    ondemand: OndemandArgs,
}

pub(crate) fn run(args: &StopArgs) -> Result<ExitCode> {
    let (system, reach) = args.ondemand.existing()?;
    let outcome = system.run(Command::Stop, None, &reach)?;
    if outcome.hosts.is_empty()
        && let Some(error) = failure("remove the file system", &outcome)
    {
        return Err(error);
    }
    print(&outcome, as_text)?;
    Ok(if outcome.problems.is_empty() { ExitCode::SUCCESS } else { PARTIAL.into() })
}

fn as_text(outcome: &OnDemandOutcome) -> String {
    let (hosts, seconds) = (outcome.hosts.len(), outcome.seconds);
    if outcome.problems.is_empty() {
        return format!("Removed {} from {hosts} hosts ({seconds:.1} s)", outcome.name);
    }
    format!(
        "Removed {} from {hosts} of {} hosts ({seconds:.1} s). Run the command again when these \
         are repaired:{}",
        outcome.name,
        hosts + outcome.problems.len(),
        problems(outcome)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_deploy::ondemand::HostState;
    use skep_deploy::ssh::HostProblem;

    #[test]
    fn partial_removal_names_the_hosts_that_failed() {
        let state = |host: &str| HostState {
            host: host.into(),
            running: Vec::new(),
            is_mounted: false,
            since: None,
        };
        let mut outcome = OnDemandOutcome {
            name: "x".into(),
            mount: "/mnt/x".into(),
            hosts: vec![state("n1"), state("n3")],
            problems: Vec::new(),
            seconds: 1.25,
        };
        assert_eq!(as_text(&outcome), "Removed x from 2 hosts (1.2 s)");
        outcome.problems.push(HostProblem { host: "n2".into(), problem: "no route".into() });
        let text = as_text(&outcome);
        assert!(
            text.starts_with("Removed x from 2 of 3 hosts") && text.ends_with("\n  n2: no route"),
            "{text}"
        );
    }
}
