//! `skep ondemand status`: shows the processes and mounts of a file system on demand on each host.

use super::args::{OndemandArgs, problems};
use super::job_results::Record;
use super::report::{ReportArgs, Reported, report};
use super::staging;
use crate::help::{Example, examples};
use crate::output::{print, render, table};
use skep_deploy::ondemand::{Command, OnDemand, OnDemandOutcome, Reach};
use skep_types::Result;
use std::fmt::Write;
use std::process::ExitCode;

const EXAMPLES: &[Example] = &[
    (
        "show over ssh the state of the hosts that a file lists",
        "skep ondemand status --hosts nodes",
    ),
    (
        "also show what the file system has delivered, and its cost at 1.9 USD per host and hour",
        "skep ondemand status --hosts nodes --price 1.9",
    ),
];

/// Show the processes of each host, and whether the file system is mounted. Exit code 1 means that
/// it is not mounted on all hosts
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    ondemand: OndemandArgs,
    #[command(flatten)]
    report: ReportArgs,
}

pub(crate) fn run(args: &StatusArgs) -> Result<ExitCode> {
    let request = args.report.request()?;
    let (system, reach) = args.ondemand.existing()?;
    let outcome = system.run(Command::Status, None, &reach)?;
    let report = request.map(|request| report(&system, &outcome, &request));
    let copies = match reach {
        Reach::Here(_) => copies_of_job(&system, &outcome),
        Reach::Ssh => None,
    };
    print(&Reported { outcome: &outcome, report }, |it| {
        let copies = copies.as_ref().map(|it| format!("\nCopies of the job: {it}"));
        let report = it.report.as_ref().map(|it| it.as_text());
        as_text(it.outcome) + &report.unwrap_or_default() + &copies.unwrap_or_default()
    })?;
    let is_complete = outcome.problems.is_empty() && outcome.hosts.iter().all(|it| it.is_mounted);
    Ok(if is_complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the state of the copies that lines of the job's script ask for. `None` if there is no
/// such copy, or if the file system is not mounted here.
fn copies_of_job(system: &OnDemand, outcome: &OnDemandOutcome) -> Option<String> {
    if !outcome.hosts.iter().any(|it| it.is_mounted) {
        return None;
    }
    match Record::at(&system.mount).read() {
        Ok(results) => results.map(|it| it.to_string()),
        // Only a job with copies has a record, so the error matters to no other job.
        Err(_) if outcome.hosts.iter().all(|it| it.stage_out.is_empty()) => None,
        Err(error) => Some(format!("their state is not known: {}", error.context())),
    }
}

fn as_text(outcome: &OnDemandOutcome) -> String {
    let mut shown = table(&["Host", "Running", "Mount", "Since"]);
    for host in &outcome.hosts {
        let running = host.running.join(", ");
        let running = if running.is_empty() { "-" } else { running.as_str() };
        let mount = if host.is_mounted { outcome.mount.as_str() } else { "-" };
        let since = host.since.as_deref().unwrap_or("-");
        shown.add_row([host.host.as_str(), running, mount, since]);
    }
    let text = render(&shown);
    let mut text = text.trim_end().to_owned();
    for it in staging::pending(outcome, &[]) {
        let _ = write!(text, "\nTo stage out before the removal: {}", it.shown());
    }
    if let Some(lost) = staging::lost_servers(&outcome.hosts) {
        let _ = write!(text, "\nNot staged out: {lost}");
    }
    if let Some(hold) = outcome.hosts.iter().find_map(|it| it.hold.as_ref()) {
        let _ = write!(text, "\nNot removed while {}/.skep-hold exists: {hold}", outcome.mount);
    }
    if outcome.problems.is_empty() {
        return text;
    }
    format!("{text}\nHosts that did not answer:{}", problems(outcome))
}
