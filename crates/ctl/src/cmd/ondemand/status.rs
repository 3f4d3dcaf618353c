//! `skep ondemand status`: shows the processes and mounts of a file system on demand on each host.

use super::args::{OndemandArgs, problems};
use super::job_results::{Record, Results};
use super::report::{ReportArgs, Reported, report};
use super::staging;
use crate::help::{Example, examples};
use crate::output::{print, render, table};
use serde::Serialize;
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
/// the file system is not mounted on all hosts
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    ondemand: OndemandArgs,
    #[command(flatten)]
    report: ReportArgs,
}

/// The state of a file system on demand.
#[derive(Debug, Serialize)]
struct StatusReport<'a> {
    #[serde(flatten)]
    reported: Reported<'a>,
    /// The state of the copies of the job. `None` if the script of the job asks for no copies, or
    /// if the file system is not mounted here.
    copies: Option<Copies>,
}

/// The state of the copies that lines of the job's script ask for.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Copies {
    state: CopyState,
    /// The state for people: the progress, or the reason of a failure.
    text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum CopyState {
    /// The results are not copied yet.
    Pending,
    /// All results are copied.
    Saved,
    /// The job did not begin, so it has no results.
    NeverBegun,
    /// The results could not be copied.
    Failed,
    /// The state cannot be read.
    Unknown,
}

impl Copies {
    fn of(results: &Results) -> Self {
        let state = match results {
            Results::Pending(_) => CopyState::Pending,
            Results::Saved => CopyState::Saved,
            Results::NeverBegun => CopyState::NeverBegun,
            Results::Failed(_) => CopyState::Failed,
        };
        Self { state, text: results.to_string() }
    }
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
    let is_complete = outcome.problems.is_empty() && outcome.hosts.iter().all(|it| it.is_mounted);
    let reported = Reported { outcome: &outcome, report };
    print(&StatusReport { reported, copies }, |it| {
        let copies = it.copies.as_ref();
        let copies = copies.map(|it| format!("\nCopies of the job: {}", it.text));
        let report = it.reported.report.as_ref().map(|it| it.as_text());
        as_text(&outcome) + &report.unwrap_or_default() + &copies.unwrap_or_default()
    })?;
    Ok(if is_complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the state of the copies that lines of the job's script ask for. `None` if the script
/// asks for no copy, or if the file system is not mounted here.
fn copies_of_job(system: &OnDemand, outcome: &OnDemandOutcome) -> Option<Copies> {
    if !outcome.hosts.iter().any(|it| it.is_mounted) {
        return None;
    }
    match Record::at(&system.mount).read() {
        Ok(results) => results.as_ref().map(Copies::of),
        // Only a job with copies has a record, so the error has no meaning for a job without
        // copies.
        Err(_) if outcome.hosts.iter().all(|it| it.stage_out.is_empty()) => None,
        Err(error) => Some(Copies {
            state: CopyState::Unknown,
            text: format!("the state of these copies is not known: {}", error.context()),
        }),
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
    text += &staging::kept_data(&outcome.hosts);
    if outcome.problems.is_empty() {
        return text;
    }
    format!("{text}\nHosts that did not answer:{}", problems(outcome))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn json_of_the_status_has_the_copies_of_the_job() {
        let outcome = OnDemandOutcome {
            name: "job-31".into(),
            mount: "/mnt/ondemand".into(),
            hosts: Vec::new(),
            problems: Vec::new(),
            seconds: 0.1,
        };
        let json_of = |copies| {
            let reported = Reported { outcome: &outcome, report: None };
            serde_json::to_value(StatusReport { reported, copies }).expect("JSON")
        };
        for (results, state, text) in [
            (Results::Pending("copies a".into()), "pending", "copies a"),
            (Results::Saved, "saved", "all results are copied"),
            (Results::NeverBegun, "never-begun", "the job did not begin, so it has no results"),
            (Results::Failed("cannot stage out a".into()), "failed", "cannot stage out a"),
        ] {
            let report = json_of(Some(Copies::of(&results)));
            assert_eq!(report["copies"], json!({ "state": state, "text": text }));
            assert_eq!(report["name"], "job-31");
        }
        assert_eq!(json_of(None)["copies"], json!(null));
    }
}
