//! `skep health check --watch`: checks the cluster again and again, and prints each problem when it
//! begins and when it ends. So the output is a history of the outages since the start.
//!
//! Does not own the checks ([`super::check`]), nor the file of the history ([`super::history`]).

use super::check::{CheckArgs, management_unreachable, problems};
use super::history::OutageHistory;
use super::problem::Problem;
use crate::access::Access;
use crate::output::{OutputFormat, format, say, span, utc};
use serde::Serialize;
use skep_types::{Error, ErrorCode, Result, Timestamp};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::process::ExitCode;
use std::time::Duration;

/// A line of the output.
#[derive(Debug, Serialize, PartialEq, Eq)]
struct Change {
    /// Time of the change in UTC, by the clock of this host.
    time: String,
    /// `begins` or `ends`.
    change: &'static str,
    /// The problem.
    what: String,
    remedy: String,
    /// For an end: how long the problem has lasted.
    lasted_ms: Option<u64>,
}

/// Checks until Ctrl-C.
pub(super) fn run(args: &CheckArgs) -> Result<ExitCode> {
    let (access, interval) = (args.query.access(None)?, args.interval.0);
    let history = args.history.as_deref().map(OutageHistory::open).transpose()?;
    crate::cmd::block_on(async move { follow(&access, interval, history).await })
}

async fn follow(
    access: &Access,
    interval: Duration,
    mut history: Option<OutageHistory>,
) -> Result<ExitCode> {
    let mut outages = Outages::default();
    let mut is_first = true;
    loop {
        let found = problems(access).await;
        let changes = outages.next(found, skep_env::now(), skep_env::wall_time());
        if is_first && outages.open.is_empty() && format() == OutputFormat::Table {
            say("The cluster is healthy.")?;
        }
        is_first = false;
        changes.iter().try_for_each(print)?;
        if let Some(history) = &mut history {
            history.add(&changes)?;
        }
        skep_env::sleep(interval).await;
    }
}

fn print(change: &Change) -> Result<()> {
    let Change { time, change: word, what, remedy, lasted_ms } = change;
    match (format(), lasted_ms) {
        (OutputFormat::Table, Some(lasted)) => {
            say(&format!("{time} ends after {}: {what}", span(*lasted)))
        }
        (OutputFormat::Table, None) => say(&format!("{time} {word}: {what}\n  {remedy}")),
        // Each change is printed as a separate JSON value, because the endless output cannot be one
        // value.
        _ => {
            let unwritable =
                |error: serde_json::Error| Error::new(ErrorCode::Io, error.to_string());
            say(&serde_json::to_string(change).map_err(unwritable)?)
        }
    }
}

/// The problems that have begun and not ended.
#[derive(Debug, Default)]
struct Outages {
    /// By the key of the problem: the problem and the time of its first check.
    open: BTreeMap<String, (Problem, Duration)>,
}

impl Outages {
    /// Compares the problems of a check with the problems of the last one. If management does not
    /// answer, this is a problem too, and all other problems count as unchanged.
    fn next(&mut self, found: Result<Vec<Problem>>, now: Duration, wall: Timestamp) -> Vec<Change> {
        let (found, is_complete) = match found {
            Ok(found) => (found, true),
            Err(error) => (vec![management_unreachable(&error)], false),
        };
        let is_over = |key: &String| is_complete && found.iter().all(|it| it.key != *key);
        let ended: Vec<_> = self.open.keys().filter(|key| is_over(key)).cloned().collect();
        let mut changes = Vec::new();
        for key in ended {
            let Some((problem, since)) = self.open.remove(&key) else { continue };
            let lasted = now.saturating_sub(since).as_millis();
            let lasted = u64::try_from(lasted).unwrap_or(u64::MAX);
            changes.push(change(wall, "ends", &problem, Some(lasted)));
        }
        for problem in found {
            match self.open.entry(problem.key.clone()) {
                Entry::Vacant(place) => {
                    changes.push(change(wall, "begins", &problem, None));
                    place.insert((problem, now));
                }
                // The line of the end shows the last state.
                Entry::Occupied(mut place) => place.get_mut().0 = problem,
            }
        }
        changes
    }
}

fn change(
    time: Timestamp,
    change: &'static str,
    problem: &Problem,
    lasted_ms: Option<u64>,
) -> Change {
    let Problem { what, remedy, .. } = problem.clone();
    Change { time: utc(time), change, what, remedy, lasted_ms }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(key: &str, what: &str) -> Problem {
        Problem { key: key.into(), what: what.into(), remedy: "wait".into(), ..Problem::default() }
    }

    fn at(outages: &mut Outages, second: u64, found: Result<Vec<Problem>>) -> Vec<String> {
        let wall = Timestamp { seconds: 0, nanoseconds: 0 };
        let changes = outages.next(found, Duration::from_secs(second), wall);
        let line = |it: Change| match it.lasted_ms {
            Some(lasted) => format!("{} {} {lasted}", it.change, it.what),
            None => format!("{} {}", it.change, it.what),
        };
        changes.into_iter().map(line).collect()
    }

    #[test]
    fn each_outage_has_one_beginning_and_one_end() {
        let mut outages = Outages::default();
        let down = |text: &str| Ok(vec![problem("t3", text)]);
        assert_eq!(at(&mut outages, 0, Ok(Vec::new())), Vec::<String>::new());
        assert_eq!(at(&mut outages, 5, down("down for 1 s")), ["begins down for 1 s"]);
        assert_eq!(at(&mut outages, 10, down("down for 6 s")), Vec::<String>::new());
        assert_eq!(at(&mut outages, 65, Ok(Vec::new())), ["ends down for 6 s 60000"]);
    }

    #[test]
    fn silence_of_management_ends_no_other_outage() {
        let mut outages = Outages::default();
        at(&mut outages, 0, Ok(vec![problem("t3", "down")]));
        let silent = || Err(Error::new(ErrorCode::Disconnected, "refused"));
        let lines = at(&mut outages, 5, silent());
        assert_eq!(lines, ["begins management does not answer: refused"]);
        assert_eq!(at(&mut outages, 10, silent()), Vec::<String>::new());
        let lines = at(&mut outages, 15, Ok(vec![problem("t3", "down")]));
        assert_eq!(lines, ["ends management does not answer: refused 10000"]);
    }
}
