//! A series of reports: one report after each interval until the command is interrupted, or only
//! one report.
//!
//! A series continues while the cluster does not answer, because a reader needs the load before and
//! after an outage. A series ends if its output has no reader any more.

use crate::access::is_silence;
use crate::failure::{describe, without_errno};
use crate::output::{is_for_people, sleep_while_read, warn};
use skep_types::Result;
use std::io::IsTerminal;
use std::time::Duration;

/// A series of reports.
#[derive(Debug)]
pub(crate) struct Series {
    interval: Duration,
    /// Whether the series ends with its first report.
    is_once: bool,
    /// The problems of the last report. The series has already printed a warning about each of
    /// these problems.
    problems: Vec<String>,
}

impl Series {
    /// Begins a series. If the output is not a terminal, prints that the command runs until a
    /// signal. Without this line, a script that calls the command would hang without an
    /// explanation.
    pub(crate) fn begin(interval: Duration, is_once: bool) -> Self {
        if !is_once && !std::io::stdout().is_terminal() {
            warn(&format!(
                "the load of each {interval:?} follows until the command is interrupted; --once \
                 prints one interval"
            ));
        }
        Self { interval, is_once, problems: Vec::new() }
    }

    /// Whether the series ends with its first report.
    pub(crate) fn is_once(&self) -> bool {
        self.is_once
    }

    /// Waits for the end of the interval. Returns `false` if standard output has no reader any
    /// more.
    pub(crate) async fn wait(&self) -> bool {
        sleep_while_read(self.interval).await
    }

    /// Returns the reply of the cluster. `None` means that the cluster did not answer, and that the
    /// series continues.
    ///
    /// # Errors
    /// Errors after which the series cannot continue.
    pub(crate) fn accept<T>(&mut self, reply: Result<T>) -> Result<Option<T>> {
        match reply {
            Err(error) if !self.is_once && is_silence(&error) => {
                self.note(&[without_errno(&describe(&error))]);
                Ok(None)
            }
            reply => reply.map(Some),
        }
    }

    /// Prints warnings about the services that did not reply, unless the report is for people. A
    /// report for people itself lists these services.
    pub(crate) fn warn_of_unreachable(&mut self, services: &[String]) {
        if is_for_people() {
            // The outage of the whole cluster has ended.
            self.problems.clear();
            return;
        }
        let what = |service: &String| format!("cannot get statistics from {service}");
        let problems: Vec<_> = services.iter().map(what).collect();
        self.note(&problems);
    }

    /// Prints the problems that the last report did not have.
    fn note(&mut self, problems: &[String]) {
        self.new_problems(problems).iter().for_each(|problem| warn(problem));
    }

    /// Replaces the problems of the last report. Returns the problems that the last report did
    /// not have.
    fn new_problems(&mut self, problems: &[String]) -> Vec<String> {
        let before = std::mem::replace(&mut self.problems, problems.to_vec());
        problems.iter().filter(|problem| !before.contains(problem)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{Error, ErrorCode};

    fn series(is_once: bool) -> Series {
        Series { interval: Duration::ZERO, is_once, problems: Vec::new() }
    }

    #[test]
    fn series_of_reports_survives_outages_but_no_other_errors() {
        let reply = |code| Err::<(), _>(Error::new(code, "no"));
        assert_eq!(series(false).accept(Ok(5)), Ok(Some(5)));
        assert_eq!(series(false).accept(reply(ErrorCode::Disconnected)), Ok(None));
        assert!(series(false).accept(reply(ErrorCode::AuthenticationFailed)).is_err());
        assert!(series(true).accept(reply(ErrorCode::Disconnected)).is_err());
    }

    #[test]
    fn problem_is_printed_again_only_after_its_end() {
        let mut series = series(false);
        let mut new = |problems: &[&str]| {
            let problems: Vec<_> = problems.iter().map(|it| (*it).to_owned()).collect();
            series.new_problems(&problems)
        };
        assert_eq!(new(&["one"]), ["one"]);
        assert_eq!(new(&["one", "other"]), ["other"]);
        assert!(new(&["other"]).is_empty());
        assert_eq!(new(&["one"]), ["one"]);
    }
}
