//! `skep ondemand stop`: unmounts a file system on demand on all hosts, and removes it.

use super::args::{OndemandArgs, failure, problems};
use super::report::{ReportArgs, Reported, report};
use super::{job_output, staging};
use crate::cmd::copy::store::StoreArgs;
use crate::failure::PARTIAL;
use crate::help::{Example, examples};
use crate::output::print;
use crate::slurm_job::allow_tasks;
use skep_deploy::ondemand::{Command, OnDemand, OnDemandOutcome, Reach, Removal};
use skep_types::{Error, ErrorCode, Result};
use std::process::ExitCode;

const EXAMPLES: &[Example] = &[
    (
        "remove the file system over ssh from the hosts that a file lists",
        "skep ondemand stop --hosts nodes --mount /scratch",
    ),
    (
        "copy the results out before the removal",
        "skep ondemand stop --hosts nodes --stage-out output:/home/ada/output",
    ),
    (
        "report what the file system has delivered, and its cost with a price from the catalogue",
        "skep ondemand stop --hosts nodes --server i3en.6xlarge",
    ),
    (
        "remove the file system in the epilog of a Slurm job",
        "skep ondemand stop --job --directory /local",
    ),
];

/// Unmount the file system and remove it with all its data. Also removes the remains of an
/// interrupted start, and of a crash of a host. Without --discard, the command fails while data
/// must still be staged out, or while the top directory has a file `.skep-hold`. Exit code 6 means
/// that some hosts failed; run the same command again later to remove their parts
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct StopArgs {
    /// Data to copy out before the removal, by all hosts. SRC is below the mount point [default:
    /// the whole file system]. DST is a path or s3://bucket/key. If the copy fails, the command
    /// removes nothing. Can be repeated
    #[arg(long, value_name = "[SRC:]DST", conflicts_with_all = ["job", "discard"])]
    stage_out: Vec<String>,
    /// Remove the data even if its stage-out has not succeeded, or if `.skep-hold` exists
    #[arg(long)]
    discard: bool,
    #[command(flatten)]
    ondemand: OndemandArgs,
    #[command(flatten)]
    report: ReportArgs,
    #[command(flatten)]
    store: StoreArgs,
}

pub(crate) fn run(args: &StopArgs) -> Result<ExitCode> {
    let request = args.report.request()?;
    let (mut system, reach) = args.ondemand.existing()?;
    match (args.discard, &reach) {
        (true, _) => system.removal = Removal::All,
        (false, Reach::Ssh) => save(&mut system, args, &reach)?,
        (false, Reach::Here(_)) => job_output::save(&mut system, &reach)?,
    }
    if matches!(reach, Reach::Here(_)) {
        allow_tasks()?;
    }
    // Make the report now. The counts already include the stage-out copies, and the services lose
    // their counts at their end.
    let report = match request {
        Some(request) => {
            let status = system.run(Command::Status, None, &reach)?;
            Some(report(&system, &status, &request))
        }
        None => None,
    };
    let outcome = system.run(Command::Stop, None, &reach)?;
    if outcome.hosts.is_empty()
        && let Some(error) = failure("remove the file system", &outcome)
    {
        return Err(error);
    }
    print(&Reported { outcome: &outcome, report }, |it| {
        let report = it.report.as_ref().map(|it| it.as_text());
        as_text(it.outcome) + &report.unwrap_or_default()
    })?;
    Ok(if outcome.problems.is_empty() { ExitCode::SUCCESS } else { PARTIAL.into() })
}

/// Runs the stage-out copies that the start or this command has requested. Returns an error, so
/// that nothing is removed, if a copy fails or if `.skep-hold` protects the data.
fn save(system: &mut OnDemand, args: &StopArgs, reach: &Reach) -> Result<()> {
    let new = args.stage_out.iter().map(|it| staging::stage_out(&system.mount, it));
    let new = new.collect::<Result<Vec<_>>>()?;
    let status = system.run(Command::Status, None, reach)?;
    if let Some(hold) = status.hosts.iter().find_map(|it| it.hold.as_ref()) {
        let what = format!(
            "cannot remove {}: the file {}/.skep-hold protects its data ({hold}); copy the data \
             and remove this file, or delete the data with --discard",
            system.name, system.mount
        );
        return Err(Error::new(ErrorCode::Busy, what));
    }
    let copies = staging::pending(&status, &new);
    if copies.is_empty() {
        return Ok(());
    }
    let stores = staging::stores(&args.store, &[], &copies)?;
    if !new.is_empty() {
        // Records the new copies on the hosts before the first copy begins. Then a later `stop`
        // also refuses to remove the data if one of these copies was interrupted.
        system.stage_out = new;
        system.check()?;
        let noted = system.run(Command::Keep, None, reach)?;
        if let Some(error) = failure("record the stage-out of", &noted) {
            return Err(error);
        }
    }
    staging::run_out(system, &status, &copies, stores.as_ref())?;
    system.removal = Removal::Saved;
    Ok(())
}

fn as_text(outcome: &OnDemandOutcome) -> String {
    let (hosts, seconds) = (outcome.hosts.len(), outcome.seconds);
    if outcome.problems.is_empty() {
        return format!("Removed {} from all hosts (hosts: {hosts}, {seconds:.1} s)", outcome.name);
    }
    format!(
        "Removed {} from {hosts} of {} hosts ({seconds:.1} s). Repair these hosts, and run the \
         command again:{}",
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
        let state = |host: &str| HostState { host: host.into(), ..HostState::default() };
        let mut outcome = OnDemandOutcome {
            name: "x".into(),
            mount: "/mnt/x".into(),
            hosts: vec![state("n1"), state("n3")],
            problems: Vec::new(),
            seconds: 1.25,
        };
        assert_eq!(as_text(&outcome), "Removed x from all hosts (hosts: 2, 1.2 s)");
        outcome.problems.push(HostProblem { host: "n2".into(), problem: "no route".into() });
        let text = as_text(&outcome);
        assert!(
            text.starts_with("Removed x from 2 of 3 hosts") && text.ends_with("\n  n2: no route"),
            "{text}"
        );
    }
}
