//! Options that the subcommands of `skep deploy` share, and their output.

use super::monitor_settings;
use crate::output::{is_for_people, print, render, table};
use crate::tree_output::ProgressLine;
use clap::Args;
use skep_deploy::commands::{Ended, Run, program};
use skep_deploy::execute::StepReport;
use skep_deploy::hosts::Deployment;
use skep_deploy::observation::Observation;
use skep_deploy::report::{HostReport, ManagementReport, MemberReport, Outcome};
use skep_deploy::ssh::check_identity;
use skep_types::{Error, ErrorCode, Result};
use std::fmt::Write as _;
use std::fs::{File, TryLockError};
use std::io::Write as _;
use std::path::PathBuf;

/// The hosts file, and the options of all commands that work on its hosts.
#[derive(Debug, Args)]
pub(super) struct DeployArgs {
    /// Hosts file: hosts, roles, disks (docs/operations/deploying.md)
    #[arg(long, value_name = "FILE", default_value = "hosts.toml")]
    hosts: PathBuf,
    /// Program to install on the hosts [default: this program]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Number of hosts to work on at the same time
    #[arg(long, value_name = "COUNT", default_value_t = 32)]
    parallel: usize,
}

impl DeployArgs {
    /// Reads the hosts file, prepares a deployment to its hosts, and runs `command` with this
    /// deployment.
    pub(super) fn run<T>(&self, command: impl FnOnce(&Run<'_>) -> T) -> Result<T> {
        let deployment = Deployment::read(&self.hosts)?;
        check_identity(&deployment)?;
        monitor_settings::check(&deployment)?;
        // The command holds a lock on the hosts file until its end, so that two commands do not
        // change the same hosts.
        let lock = File::open(&self.hosts)?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => Error::new(
                ErrorCode::Busy,
                format!(
                    "cannot use {}: another command of skep deploy uses this hosts file; wait \
                     until that command ends",
                    self.hosts.display()
                ),
            ),
            TryLockError::Error(error) => Error::from(error)
                .within(format_args!("cannot lock the hosts file {}", self.hosts.display())),
        })?;
        let path = match &self.program {
            Some(path) => path.clone(),
            None => std::env::current_exe()?,
        };
        let program = program(&path)?;
        let shown = ProgressLine::new();
        let observed = |observation: &Observation| shown.show(&line(observation));
        let run = Run {
            deployment: &deployment,
            program: &program,
            parallel: self.parallel,
            observed: &observed,
            report: &progress,
        };
        Ok(command(&run))
    }

    /// Runs a command that changes hosts, and prints its result.
    pub(super) fn change(&self, command: impl FnOnce(&Run<'_>) -> Ended, done: &str) -> Result<()> {
        self.change_with(command, |outcome| format!("{done} {}", outcome.cluster))
    }

    /// Like [`Self::change`]. `done` returns the text about a command that has succeeded.
    pub(super) fn change_with(
        &self,
        command: impl FnOnce(&Run<'_>) -> Ended,
        done: impl Fn(&Outcome) -> String,
    ) -> Result<()> {
        let (outcome, error) = self.run(command)?;
        let error = error.or_else(|| refusal(&outcome));
        let text = |outcome: &Outcome| {
            let mut text = warnings(outcome);
            if error.is_none() {
                let _ = write!(
                    text,
                    "{} ({} hosts, {} steps, {:.1} s)",
                    done(outcome),
                    outcome.hosts.len(),
                    outcome.steps.len(),
                    outcome.seconds
                );
            }
            text
        };
        if error.is_none() || !is_for_people() || !outcome.warnings.is_empty() {
            print(&outcome, text)?;
        }
        error.map_or(Ok(()), Err)
    }
}

/// Formats the progress of a check of hosts. Returns an empty text if all hosts are checked.
fn line(observation: &Observation) -> String {
    let Observation { object, ended, total, waiting } = observation;
    if ended == total {
        return String::new();
    }
    let more = if total - ended > waiting.len() { ", ..." } else { "" };
    format!("Checking {object}: {ended} of {total} hosts, waiting for {}{more}", waiting.join(", "))
}

fn progress(number: usize, total: usize, step: &StepReport) {
    if is_for_people() {
        let seconds = step.seconds.unwrap_or_default();
        let failed = if step.error.is_some() { ": failed" } else { "" };
        // If standard error is closed, the deployment continues without this output.
        let _ = writeln!(
            std::io::stderr(),
            "[{number}/{total}] {}: {}{failed} ({seconds:.1} s)",
            step.host,
            step.step
        );
    }
}

/// Returns the error of a command that stopped before its first step because of problems. `None`
/// means that no problem was found.
fn refusal(outcome: &Outcome) -> Option<Error> {
    if outcome.problems.is_empty() {
        return None;
    }
    let mut text = "cannot begin the deployment; no host was changed:".to_owned();
    for it in &outcome.problems {
        let _ = write!(text, "\n  {}: {}", it.host, it.problem);
    }
    Some(Error::new(ErrorCode::Configuration, text))
}

fn warnings(outcome: &Outcome) -> String {
    let mut text = String::new();
    for it in &outcome.warnings {
        let _ = writeln!(text, "warning: {}: {}", it.host, it.problem);
    }
    text
}

/// Formats the state of the hosts and of the cluster, the warnings and the problems.
pub(super) fn hosts_as_text(outcome: &Outcome) -> String {
    let mut shown = table(&["Host", "Address", "Kernel", "Program", "Services", "Mount"]);
    for host in &outcome.hosts {
        shown.add_row([
            host.host.clone(),
            host.address.clone(),
            or_dash(&host.kernel),
            or_dash(host.version.trim_start_matches("skep ")),
            or_dash(&services(host)),
            match (host.is_mounted, host.kernel.is_empty()) {
                (None, _) => "-".into(),
                (Some(true), _) => "mounted".into(),
                // A host without a kernel release has not answered.
                (Some(false), true) => "unknown".into(),
                (Some(false), false) => "missing".into(),
            },
        ]);
    }
    let mut text = render(&shown) + &management(outcome) + &copies(outcome) + &warnings(outcome);
    for it in &outcome.problems {
        let _ = writeln!(text, "problem: {}: {}", it.host, it.problem);
    }
    text
}

/// Returns the line about the management nodes. Empty if the cluster has only one management node.
fn management(outcome: &Outcome) -> String {
    if outcome.management.len() < 2 {
        return String::new();
    }
    let node = |it: &ManagementReport| match (it.role.as_str(), it.is_online, it.lag) {
        ("leader", ..) => format!("{} leads", it.host),
        ("follower", true, Some(0)) => format!("{} follows", it.host),
        ("follower", true, Some(lag)) => format!("{} follows (missing changes: {lag})", it.host),
        ("follower", ..) => format!("{} does not answer", it.host),
        ("learner", ..) => format!("{} receives the log and does not vote yet", it.host),
        ("none", ..) => format!("{} does not belong to management", it.host),
        (role, ..) => format!("{} is {role}", it.host),
    };
    let nodes: Vec<_> = outcome.management.iter().map(node).collect();
    format!("Management: {}\n", nodes.join(", "))
}

/// Returns the lines about the copies of metadata. Empty if the cluster has only one copy.
fn copies(outcome: &Outcome) -> String {
    if outcome.copies < 2 {
        return String::new();
    }
    let mut text = format!("Copies of metadata: {}\n", outcome.copies);
    for group in &outcome.metadata_groups {
        let member =
            |it: &MemberReport| format!("{}:{} {}", it.host, it.path, it.state.to_lowercase());
        let members: Vec<_> = group.members.iter().map(member).collect();
        let is_unknown = group.members.iter().any(|it| it.state == "unknown");
        let name = match group.id {
            Some(id) => format!("group {id}"),
            None if is_unknown => "unknown group".to_owned(),
            None => "new group".to_owned(),
        };
        let _ = writeln!(text, "  {name}: {}", members.join(", "));
    }
    text
}

fn services(host: &HostReport) -> String {
    let service = host.services.iter().map(|it| format!("{} {}", it.role, it.state));
    service.collect::<Vec<_>>().join(", ")
}

fn or_dash(text: &str) -> String {
    if text.is_empty() { "-".into() } else { text.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_of_a_check_names_the_hosts_without_a_result() {
        let of = |ended, waiting: &[&str]| {
            let waiting = waiting.iter().map(|it| (*it).to_owned()).collect();
            line(&Observation { object: "the network", ended, total: 5, waiting })
        };
        let text = "Checking the network: 3 of 5 hosts, waiting for s1, s2";
        assert_eq!(of(3, &["s1", "s2"]), text);
        assert!(of(1, &["a", "b", "c"]).ends_with("waiting for a, b, c, ..."));
        assert_eq!(of(5, &[]), "");
    }
}
