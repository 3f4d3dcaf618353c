//! `skep health check --watch`: checks the cluster again and again, and prints each problem when it
//! begins and when it ends. The output is a history of the outages since the command was started.
//!
//! The module [`super::check`] makes the checks, and [`super::history`] writes the file of the
//! history.

use super::check::{CheckArgs, Checked, problems};
use super::history::OutageHistory;
use super::problem::{Problem, Since};
use super::without_management::management_unreachable;
use crate::access::{Access, is_silence};
use crate::output::{OutputFormat, format, say, sleep_while_read, span, utc};
use serde::Serialize;
use skep_types::{Error, ErrorCode, Result, Timestamp};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::time::Duration;

/// Key of the problem that a check has failed, although management answers.
const FAILED_CHECK: &str = "failed-check";

/// A line of the output: the start or the end of a problem.
#[derive(Debug, Serialize)]
struct Change {
    /// Time of the change in UTC, by the clock of this host.
    time: String,
    /// The kind of the change: `begins` or `ends`.
    change: &'static str,
    /// The text of the problem.
    what: String,
    remedy: String,
    /// Time in UTC at which the problem began, according to management. `None` means that this time
    /// is unknown. A problem with an unknown time began at some time before the check that found
    /// the problem.
    since: Option<Since>,
    /// Whether the problem may have begun earlier than `since`, because `since` is the time at
    /// which the leader of management began to lead.
    may_be_older: bool,
    /// For how long the problem has lasted. Set only if the problem ends.
    lasted_ms: Option<u64>,
}

/// Checks the cluster again and again until Ctrl-C.
pub(super) fn run(args: &CheckArgs) -> Result<ExitCode> {
    args.monitor.refuse_with("--watch")?;
    let (access, interval) = (args.query.access(None)?, args.interval);
    let history = args.history.as_deref().map(OutageHistory::open).transpose()?;
    crate::cmd::block_on(async move { follow(&access, interval, history).await })
}

/// Prints each start and end of a problem between two checks, until standard output has no reader.
///
/// # Errors
/// - `AuthenticationFailed` if management refuses the token in the first check.
/// - Errors of the outputs.
async fn follow(
    access: &Access,
    interval: Duration,
    mut history: Option<OutageHistory>,
) -> Result<ExitCode> {
    let mut outages = Outages::default();
    let mut is_first = true;
    loop {
        let found = match problems(access).await {
            // All later checks would fail too, because this process does not read the token again.
            Err(error) if is_first && error.code() == ErrorCode::AuthenticationFailed => {
                return Err(error);
            }
            found => found,
        };
        let changes = outages.next(found, skep_env::now(), skep_env::wall_time());
        if is_first && outages.open.is_empty() && format() == OutputFormat::Table {
            say("The cluster is healthy.")?;
        }
        is_first = false;
        changes.iter().try_for_each(print)?;
        if let Some(history) = &mut history {
            history.add(&changes)?;
        }
        if !sleep_while_read(interval).await {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

fn print(change: &Change) -> Result<()> {
    match format() {
        OutputFormat::Table => say(&as_text(change)),
        // Each change is printed as a separate JSON value, because output without an end cannot be
        // one value.
        _ => {
            let unwritable =
                |error: serde_json::Error| Error::new(ErrorCode::Io, error.to_string());
            say(&serde_json::to_string(change).map_err(unwritable)?)
        }
    }
}

fn as_text(change: &Change) -> String {
    let Change { time, change: word, what, remedy, since, may_be_older, lasted_ms } = change;
    match (lasted_ms, since) {
        (Some(lasted), _) => format!("{time} ends after {}: {what}", span(*lasted)),
        (None, None) => format!("{time} {word}: {what}\n  {remedy}"),
        (None, Some(since)) => {
            format!("{time} {word}: {what}{}\n  {remedy}", since.as_text(*may_be_older))
        }
    }
}

/// A problem that has begun and has not ended yet.
#[derive(Debug)]
struct Outage {
    /// The problem at the last check.
    problem: Problem,
    /// Start of the problem according to management. If management has not recorded the start, the
    /// time of the first check that found the problem.
    begun: Duration,
}

/// All problems that have begun and have not ended yet.
#[derive(Debug, Default)]
struct Outages {
    /// The open problems, by their keys.
    open: BTreeMap<String, Outage>,
}

impl Outages {
    /// Compares the problems that a check has found with the open problems, and returns the starts
    /// and ends. A problem ends if the check can detect its end and has not found the problem. If
    /// the check has failed, this failure is a problem too, and no other problem ends.
    fn next(&mut self, found: Result<Checked>, now: Duration, wall: Timestamp) -> Vec<Change> {
        let Checked { problems: found, judged } = found.unwrap_or_else(|error| Checked {
            problems: vec![problem_of_failed_check(&error)],
            judged: Some(BTreeSet::new()),
        });
        let is_judged = |key: &String| judged.as_ref().is_none_or(|judged| judged.contains(key));
        let is_over = |key: &String| is_judged(key) && found.iter().all(|it| it.key != *key);
        let ended: Vec<_> = self.open.keys().filter(|key| is_over(key)).cloned().collect();
        let mut changes = Vec::new();
        for key in ended {
            let Some(Outage { problem, begun }) = self.open.remove(&key) else { continue };
            let lasted = now.saturating_sub(begun).as_millis();
            let lasted = u64::try_from(lasted).unwrap_or(u64::MAX);
            changes.push(change(wall, "ends", &problem, Some(lasted)));
        }
        for problem in found {
            let lasted_ms = problem.since.map_or(0, |since| since.lasted_ms());
            let begun = now.saturating_sub(Duration::from_millis(lasted_ms));
            match self.open.entry(problem.key.clone()) {
                Entry::Vacant(place) => {
                    changes.push(change(wall, "begins", &problem, None));
                    place.insert(Outage { problem, begun });
                }
                // Keeps the newest text of the problem, which is printed when the problem ends.
                Entry::Occupied(mut place) => {
                    let begun = begun.min(place.get().begun);
                    place.insert(Outage { problem, begun });
                }
            }
        }
        changes
    }
}

/// Returns the problem that a check has failed with `error`.
fn problem_of_failed_check(error: &Error) -> Problem {
    if is_silence(error) {
        return management_unreachable(error, &[]);
    }
    let remedy = match error.code() {
        ErrorCode::AuthenticationFailed => {
            "this command reads the token only at its start: if the token of the cluster has \
             changed, start the command again with the new token"
        }
        _ => {
            "`skep health check` shows whether the failure continues; the log of `skep management` \
             on the management host may show the cause"
        }
    };
    Problem {
        key: FAILED_CHECK.into(),
        what: format!("cannot check the cluster: {}", error.context()),
        remedy: remedy.into(),
        ..Problem::default()
    }
}

fn change(
    time: Timestamp,
    change: &'static str,
    problem: &Problem,
    lasted_ms: Option<u64>,
) -> Change {
    let Problem { what, remedy, since, may_be_older, .. } = problem.clone();
    Change { time: utc(time), change, what, remedy, since, may_be_older, lasted_ms }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(key: &str, what: &str) -> Problem {
        Problem { key: key.into(), what: what.into(), remedy: "wait".into(), ..Problem::default() }
    }

    fn whole(problems: Vec<Problem>) -> Result<Checked> {
        Ok(Checked { problems, judged: None })
    }

    fn at(outages: &mut Outages, second: u64, found: Result<Checked>) -> Vec<String> {
        let wall = Timestamp { seconds: 0, nanoseconds: 0 };
        let changes = outages.next(found, Duration::from_secs(second), wall);
        let line = |it: Change| match it.lasted_ms {
            Some(lasted) => format!("{} {} {lasted}", it.change, it.what),
            None => format!("{} {}", it.change, it.what),
        };
        changes.into_iter().map(line).collect()
    }

    #[test]
    fn outage_is_printed_once_at_its_start_and_once_at_its_end() {
        let mut outages = Outages::default();
        let down = |text: &str| whole(vec![problem("t3", text)]);
        assert_eq!(at(&mut outages, 0, whole(Vec::new())), Vec::<String>::new());
        assert_eq!(at(&mut outages, 5, down("down for 1 s")), ["begins down for 1 s"]);
        assert_eq!(at(&mut outages, 10, down("down for 6 s")), Vec::<String>::new());
        assert_eq!(at(&mut outages, 65, whole(Vec::new())), ["ends down for 6 s 60000"]);
    }

    #[test]
    fn outage_older_than_the_watch_shows_its_real_start_time() {
        let mut outages = Outages::default();
        let now = Timestamp { seconds: 1_700_000_000, nanoseconds: 0 };
        let since = Some(Since::before(now, 34_000));
        let known = Problem { since, ..problem("t3", "down") };
        let begins = outages.next(whole(vec![known]), Duration::from_secs(100), now);
        let begin = "2023-11-14T22:13:20Z begins: down (since 2023-11-14T22:12:46Z, for 34.0s)";
        assert_eq!(as_text(&begins[0]), format!("{begin}\n  wait"));
        // A check that has no start time of the problem does not shorten the outage.
        at(&mut outages, 105, whole(vec![problem("t3", "down")]));
        assert_eq!(at(&mut outages, 110, whole(Vec::new())), ["ends down 44000"]);
    }

    #[test]
    fn silent_management_does_not_end_other_outages() {
        let mut outages = Outages::default();
        at(&mut outages, 0, whole(vec![problem("t3", "down")]));
        let silent = || Err(Error::new(ErrorCode::Disconnected, "refused"));
        let lines = at(&mut outages, 5, silent());
        assert_eq!(lines, ["begins management does not answer: refused"]);
        assert_eq!(at(&mut outages, 10, silent()), Vec::<String>::new());
        let lines = at(&mut outages, 15, whole(vec![problem("t3", "down")]));
        assert_eq!(lines, ["ends management does not answer: refused 10000"]);
    }

    /// Before the fix, the command reported a refused token as silence of management.
    #[test]
    fn refused_token_is_not_reported_as_silence_of_management() {
        let mut outages = Outages::default();
        let wall = Timestamp { seconds: 0, nanoseconds: 0 };
        let refused = || Err(Error::new(ErrorCode::AuthenticationFailed, "token file a: revoked"));
        let changes = outages.next(refused(), Duration::ZERO, wall);
        assert_eq!(changes.len(), 1, "{changes:?}");
        assert_eq!(changes[0].what, "cannot check the cluster: token file a: revoked");
        assert!(changes[0].remedy.contains("start the command again"), "{changes:?}");
        // The silence of management is a different problem, and does not end the first problem.
        let silent = Err(Error::new(ErrorCode::Disconnected, "no"));
        assert_eq!(at(&mut outages, 5, silent), ["begins management does not answer: no"]);
        let lines = at(&mut outages, 10, whole(Vec::new()));
        assert_eq!(lines.len(), 2, "{lines:?}");
    }

    #[test]
    fn outage_of_a_service_can_end_while_there_is_no_leader() {
        let mut outages = Outages::default();
        let [target, one, other] = ["t3", "service 1", "service 2"].map(|it| problem(it, it));
        let leader = || problem("management", "no leader");
        at(&mut outages, 0, whole(vec![target.clone(), one.clone()]));
        let judged = ["service 1", "service 2"].map(String::from);
        let silent = |problems| Ok(Checked { problems, judged: Some(judged.clone().into()) });
        let lines = at(&mut outages, 5, silent(vec![leader(), one]));
        assert_eq!(lines, ["begins no leader"]);
        // Service 1 runs again, and service 2 is down. The check cannot detect whether the target
        // is back.
        let lines = at(&mut outages, 10, silent(vec![leader(), other.clone()]));
        assert_eq!(lines, ["ends service 1 10000", "begins service 2"]);
        let lines = at(&mut outages, 15, whole(vec![target, other]));
        assert_eq!(lines, ["ends no leader 10000"]);
    }
}
