//! `skep ondemand stop`: unmounts and removes a file system of the hosts of a job.

use super::args::{OndemandArgs, failure, problems};
use super::staging;
use crate::failure::PARTIAL;
use crate::help::{Example, examples};
use crate::output::print;
use skep_deploy::ondemand::{Command, OnDemand, OnDemandOutcome, Reach, Removal};
use skep_types::{Error, ErrorCode, Result};
use std::process::ExitCode;

const EXAMPLES: &[Example] = &[
    ("on the hosts in a file, by ssh", "skep ondemand stop --hosts nodes --mount /scratch"),
    (
        "save the results before",
        "skep ondemand stop --hosts nodes --stage-out output:/home/ada/output",
    ),
    ("in the epilog of a Slurm job", "skep ondemand stop --job --directory /local"),
];

/// Unmount the file system and remove it with all its data. Also removes the remains of an
/// interrupted start, and of a crash of a host. Without --discard, the command fails while data
/// must still be staged out, or while the top directory has a file `.skep-hold`. Exit code 6 means
/// that some hosts failed; run the same command again later to remove their parts
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct StopArgs {
    /// Data to copy out before the removal, by all hosts. SRC is below the mount point [default:
    /// the whole file system]. If the copy fails, the command removes nothing. Can be repeated
    #[arg(long, value_name = "[SRC:]DST", conflicts_with_all = ["job", "discard"])]
    stage_out: Vec<String>,
    /// Also remove data of a stage-out that has not succeeded, and data that `.skep-hold` holds
    #[arg(long)]
    discard: bool,
    #[command(flatten)]
    ondemand: OndemandArgs,
}

pub(crate) fn run(args: &StopArgs) -> Result<ExitCode> {
    let (mut system, reach) = args.ondemand.existing()?;
    match (args.discard, &reach) {
        (true, _) => system.removal = Removal::All,
        (false, Reach::Ssh) => save(&mut system, &args.stage_out, &reach)?,
        (false, Reach::Here(_)) => {}
    }
    let outcome = system.run(Command::Stop, None, &reach)?;
    if outcome.hosts.is_empty()
        && let Some(error) = failure("remove the file system", &outcome)
    {
        return Err(error);
    }
    print(&outcome, as_text)?;
    Ok(if outcome.problems.is_empty() { ExitCode::SUCCESS } else { PARTIAL.into() })
}

/// Copies out what the start or this command has named. Fails if data must stay.
fn save(system: &mut OnDemand, new: &[String], reach: &Reach) -> Result<()> {
    let new = new.iter().map(|it| staging::stage_out(&system.mount, it));
    let new = new.collect::<Result<Vec<_>>>()?;
    let status = system.run(Command::Status, None, reach)?;
    if let Some(hold) = status.hosts.iter().find_map(|it| it.hold.as_ref()) {
        let what = format!(
            "cannot remove {}: {}/.skep-hold holds its data ({hold}); copy them and remove this \
             file, or give them up with --discard",
            system.name, system.mount
        );
        return Err(Error::new(ErrorCode::Busy, what));
    }
    let copies = staging::pending(&status, &new);
    if copies.is_empty() {
        return Ok(());
    }
    if !new.is_empty() {
        // An interrupted copy must keep the data, too.
        system.stage_out = new;
        system.check()?;
        let noted = system.run(Command::Keep, None, reach)?;
        if let Some(error) = failure("note the copies out of", &noted) {
            return Err(error);
        }
    }
    staging::run_out(system, &status, &copies)?;
    system.removal = Removal::Saved;
    Ok(())
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
            stage_out: Vec::new(),
            hold: None,
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
