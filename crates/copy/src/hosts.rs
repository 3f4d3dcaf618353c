//! A copy by several hosts: starts a process for each part of the copy, and merges the results of
//! the processes.
//!
//! The process that the user starts is called the coordinator here, and copies nothing itself. The
//! coordinator first starts a process that creates the directories, and begins an incomplete copy
//! of each large file. Then each host copies a share of the entries ([`crate::shares`]). A last
//! process checks every entry, and copies the missing entries. If the last process succeeds, the
//! result is the same as that of a copy by one host.
//!
//! A process prints its progress and its result as [`Message`]s, with one JSON value per line.
//! Every [`HEARTBEAT`], the coordinator sends a line to the standard input of each process. A
//! process ends itself if it gets no line for [`LEASE`], or if its input ends.
//!
//! # Invariants
//! - The coordinator assigns a share to a second host only when the process on the first host
//!   cannot write any more: the ssh session or job step has shown that this process has ended, or
//!   the lease of the process has run out.
//! - The last part begins only when all shares have ended, and no share has ended early.
//!
//! The invariants concern several processes over time, so no function here can check them.
//!
//! Held by the tests `share_of_a_lost_host_is_copied_by_another_host`,
//! `hosts_copy_their_shares_after_prepare_and_before_finish` and
//! `copy_by_hosts_to_a_full_destination_skips_the_finish_part`. No test waits for the end of a
//! lease.
//!
//! # Hazard: a host that is frozen
//! When a frozen host runs again after the lease, the process on this host ends itself. Before the
//! watch thread of the process runs, the other threads of the process may write for a moment. These
//! threads write either to their own temporary files, or bytes of the same version of the source to
//! an incomplete copy. These writes do harm only if the copy was completed and then changed in the
//! meantime.

use crate::outcome::{Outcome, Progress};
use crate::shares::{Part, Share};
use serde::{Deserialize, Serialize};
use skep_types::{Error, ErrorCode, Result};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

/// Time between two lines from the coordinator to a process.
pub const HEARTBEAT: Duration = Duration::from_secs(2);
/// Time without a line from the coordinator after which a process ends itself.
pub const LEASE: Duration = Duration::from_secs(20);
/// Time that the coordinator waits if it cannot observe the end of a process. After this time the
/// process has ended itself, because the time covers [`LEASE`] and the delay of the last line to
/// the process.
const LEASE_WAIT: Duration = Duration::from_secs(25);
/// Time between two reports of the progress.
const REPORT: Duration = Duration::from_secs(1);
/// Maximum length of a message in bytes. The longest one is a result that lists many problems.
const MOST_BYTES: u64 = 64 << 20;
/// Maximum number of bytes of a process's error output that are kept for messages.
const MOST_ERRORS: u64 = 64 << 10;
/// Maximum length of the queue of progress messages, which the coordinator has received from all
/// hosts and has not reported yet.
const MOST_WAITING: usize = 1024;

/// A message of a process to the coordinator.
#[derive(Debug, Serialize, Deserialize)]
pub enum Message {
    /// The progress of the process so far.
    Progress(Progress),
    /// The process has ended its part of the copy. Some entries may have problems.
    Ended(Outcome),
    /// The process could not begin its part.
    Failed {
        /// The error code as a number.
        code: u16,
        /// The text of the error.
        context: String,
    },
}

/// The hosts of a copy, and how to run processes on them.
pub struct Hosts<'a> {
    /// The names of the hosts.
    pub names: &'a [String],
    /// Returns the command that runs a part of the copy on a host.
    pub command: &'a (dyn Fn(&str, Part) -> Command + Sync),
    /// Explains why a process ended without a result. Gets the host, the exit status and the error
    /// output of the process.
    pub explain: &'a (dyn Fn(&str, ExitStatus, &str) -> Lost + Sync),
    /// Returns the next line for the standard input of a process, without the line feed. The line
    /// may be empty. The line may also contain credentials, which must not appear in a command line
    /// or a log.
    pub line: &'a (dyn Fn() -> String + Sync),
}

impl std::fmt::Debug for Hosts<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hosts").field("names", &self.names).finish_non_exhaustive()
    }
}

/// The facts about a process that ended without a result.
#[derive(Debug)]
pub struct Lost {
    /// The reason why the process ended or its connection was lost, as text for people.
    pub problem: String,
    /// Whether the process has certainly ended.
    pub has_ended: bool,
}

/// The results of one host.
#[derive(Debug, Clone, Default, Serialize)]
pub struct HostOutcome {
    /// Name of the host.
    pub host: String,
    /// Number of shares that the host has copied.
    pub shares: u64,
    /// Number of regular files that the host has copied alone. Pieces of large files are counted
    /// only in `bytes`.
    pub files: u64,
    /// Number of bytes that the host has copied.
    pub bytes: u64,
    /// The reason why the host has failed. Other hosts then copy the host's share.
    pub problem: Option<String>,
}

/// The result of a copy by several hosts.
#[derive(Debug, Serialize)]
pub struct HostsOutcome {
    /// The result of all hosts together.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// The results of each host.
    pub hosts: Vec<HostOutcome>,
}

/// How a process has ended.
enum End {
    Done(Outcome),
    Refused(Error),
    Lost(Lost),
}

/// A running copy by several hosts.
struct Run<'a> {
    hosts: &'a Hosts<'a>,
    results: Vec<HostOutcome>,
    /// The sum of the progress of all parts that have ended. Its field `found` is the number of all
    /// entries of the source.
    ended: Progress,
    begin: Instant,
    report: &'a dyn Fn(&Progress),
}

/// Copies with all hosts. Calls `report` about once per second.
///
/// # Errors
/// The error of the first part if it cannot begin, for example because a source is missing.
/// `Disconnected` if all hosts have failed.
///
/// Problems of single entries are in the outcome, as in a copy by one host.
pub fn copy(hosts: &Hosts<'_>, report: &dyn Fn(&Progress)) -> Result<HostsOutcome> {
    let result = |host: &String| HostOutcome { host: host.clone(), ..HostOutcome::default() };
    let results = hosts.names.iter().map(result).collect();
    let begin = Instant::now();
    let mut run = Run { hosts, results, ended: Progress::default(), begin, report };
    let prepared = run.alone(Part::Prepare)?;
    let mut outcomes = Vec::new();
    if !prepared.has_ended_early {
        outcomes = run.shares()?;
    }
    let has_ended_early = prepared.has_ended_early || outcomes.iter().any(|it| it.has_ended_early);
    let last = match has_ended_early {
        true => prepared,
        false => run.alone(Part::Finish)?,
    };
    let mut outcome = merged(&outcomes, last);
    outcome.seconds = begin.elapsed().as_secs_f64();
    Ok(HostsOutcome { outcome, hosts: run.results })
}

/// Adds up the results of all shares and of the last part. The last part counts the entries that
/// the shares have copied as skipped, so this function subtracts them from the skipped entries.
fn merged(shares: &[Outcome], last: Outcome) -> Outcome {
    let mut all = Outcome { problems: Vec::new(), problem_count: 0, skipped: 0, ..last.clone() };
    let mut named = BTreeSet::new();
    for it in shares.iter().chain([&last]) {
        let new: Vec<_> =
            it.problems.iter().filter(|it| named.insert(it.path.clone())).cloned().collect();
        let repeated = it.problems.len() - new.len();
        all.problem_count += it.problem_count - (repeated as u64).min(it.problem_count);
        all.problems.extend(new);
    }
    for it in shares {
        all.files += it.files;
        all.others += it.others;
        all.bytes += it.bytes;
        all.verified_bytes += it.verified_bytes;
        all.is_full |= it.is_full;
        all.has_ended_early |= it.has_ended_early;
    }
    let by_shares: u64 = shares.iter().map(|it| it.files + it.others).sum();
    all.skipped = match all.has_ended_early {
        true => shares.iter().map(|it| it.skipped).sum(),
        false => last.skipped.saturating_sub(by_shares),
    };
    all.problems.sort_by(|a, b| a.path.cmp(&b.path));
    all
}

impl Run<'_> {
    /// Returns the indices of the hosts that have not failed.
    fn alive(&self) -> Vec<usize> {
        (0..self.results.len()).filter(|it| self.results[*it].problem.is_none()).collect()
    }

    fn no_host_left(&self) -> Error {
        let lines = self.results.iter().filter_map(|it| {
            it.problem.as_ref().map(|problem| format!("\n  {}: {problem}", it.host))
        });
        let what = format!(
            "cannot copy: every host has failed; repair one of these hosts, then continue with the \
             same command and --resume:{}",
            lines.collect::<String>()
        );
        Error::new(ErrorCode::Disconnected, what)
    }

    /// Runs a part on the first host that has not failed. If this host fails too, tries the next
    /// host.
    fn alone(&mut self, part: Part) -> Result<Outcome> {
        while let Some(host) = self.alive().first().copied() {
            let end = self.round(&[(host, part)]).pop();
            match end {
                Some((_, End::Done(outcome))) => return Ok(outcome),
                Some((_, End::Refused(error))) => {
                    return Err(error.within(format!("host {}", self.results[host].host)));
                }
                Some((_, End::Lost(lost))) => self.lose(vec![(host, lost)]),
                None => break,
            }
        }
        Err(self.no_host_left())
    }

    /// Copies all shares, with at most one share on each host at a time. If a host fails, another
    /// host copies its share. The number of rounds is bounded, because in each round a share ends
    /// or a host fails.
    fn shares(&mut self) -> Result<Vec<Outcome>> {
        let has_large = self.ended.large > 0;
        let count = u32::try_from(self.alive().len()).unwrap_or(u32::MAX);
        let mut left: Vec<u32> = (0..count).collect();
        let mut outcomes: Vec<Outcome> = Vec::new();
        while !left.is_empty() && !outcomes.iter().any(|it| it.has_ended_early) {
            let alive = self.alive();
            if alive.is_empty() {
                return Err(self.no_host_left());
            }
            let later = left.split_off(left.len().min(alive.len()));
            let mut parts = Vec::new();
            for (host, index) in alive.into_iter().zip(&left) {
                parts.push((host, Part::Share(Share::new(*index, count, has_large)?)));
            }
            let (mut failed, mut lost) = (later, Vec::new());
            for ((host, end), index) in self.round(&parts).into_iter().zip(&left) {
                match end {
                    End::Done(outcome) => {
                        let result = &mut self.results[host];
                        result.shares += 1;
                        result.files += outcome.files;
                        result.bytes += outcome.bytes;
                        outcomes.push(outcome);
                        continue;
                    }
                    End::Refused(error) => {
                        let problem = error.context().to_owned();
                        lost.push((host, Lost { problem, has_ended: true }));
                    }
                    End::Lost(it) => lost.push((host, it)),
                }
                failed.push(*index);
            }
            self.lose(lost);
            left = failed;
        }
        Ok(outcomes)
    }

    /// Marks hosts as failed, and waits until their processes have ended.
    fn lose(&mut self, lost: Vec<(usize, Lost)>) {
        let must_wait = lost.iter().any(|(_, it)| !it.has_ended);
        for (host, it) in lost {
            self.results[host].problem = Some(it.problem);
        }
        if must_wait && !self.alive().is_empty() {
            std::thread::sleep(LEASE_WAIT);
        }
    }

    /// Runs parts of the copy on different hosts at the same time, until all of them have ended.
    fn round(&mut self, parts: &[(usize, Part)]) -> Vec<(usize, End)> {
        let mut present = vec![Progress::default(); parts.len()];
        let hosts = self.hosts;
        let ends = std::thread::scope(|scope| {
            let (sender, receiver) = sync_channel(MOST_WAITING);
            let threads: Vec<_> = parts
                .iter()
                .enumerate()
                .map(|(number, (host, part))| {
                    let (sender, name) = (sender.clone(), &hosts.names[*host]);
                    scope.spawn(move || process(hosts, name, *part, &(number, sender)))
                })
                .collect();
            drop(sender);
            self.observe(&receiver, &mut present);
            threads
                .into_iter()
                .map(|it| it.join().expect("the thread of a process does not panic"))
                .collect::<Vec<_>>()
        });
        for ((_, part), progress) in parts.iter().zip(&present) {
            match part {
                Part::Prepare => {
                    self.ended.found = progress.found;
                    self.ended.large = progress.large;
                }
                _ => self.ended.add(progress),
            }
        }
        parts.iter().map(|(host, _)| *host).zip(ends).collect()
    }

    /// Reports the progress of all hosts together, until all processes have ended.
    fn observe(&self, receiver: &Receiver<(usize, Progress)>, present: &mut [Progress]) {
        let mut reported = Instant::now();
        loop {
            match receiver.recv_timeout(REPORT) {
                Ok((number, progress)) => present[number] = progress,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if reported.elapsed() < REPORT {
                continue;
            }
            let mut sum = self.ended.clone();
            for it in present.iter() {
                sum.add(it);
            }
            sum.is_walking = self.ended.found == 0;
            sum.found = sum.found.max(present.iter().map(|it| it.found).max().unwrap_or(0));
            sum.elapsed = self.begin.elapsed();
            (self.report)(&sum);
            reported = Instant::now();
        }
    }
}

/// Runs one process until it ends.
fn process(
    hosts: &Hosts<'_>,
    host: &str,
    part: Part,
    progress: &(usize, SyncSender<(usize, Progress)>),
) -> End {
    let mut command = (hosts.command)(host, part);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            let program = command.get_program().to_string_lossy().into_owned();
            let problem =
                format!("cannot run {program}: {error}; install this program on this host");
            return End::Lost(Lost { problem, has_ended: true });
        }
    };
    let errors = child.stderr.take().expect("standard error is a pipe");
    let mut input = child.stdin.take().expect("standard input is a pipe");
    let (result, errors) = std::thread::scope(|scope| {
        let (ended, end) = channel::<()>();
        // If the ssh session ends early, the write fails. The exit code of the session shows the
        // reason.
        scope.spawn(move || {
            let mut send = || {
                let line = format!("{}\n", (hosts.line)());
                input.write_all(line.as_bytes()).and_then(|()| input.flush())
            };
            while send().is_ok() {
                if end.recv_timeout(HEARTBEAT) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
        });
        let errors = scope.spawn(move || first_bytes(errors));
        let result = listen(&mut child, progress);
        drop(ended);
        (result, errors.join().unwrap_or_default())
    });
    let status = match child.wait() {
        Ok(status) => status,
        Err(error) => {
            return End::Lost(Lost { problem: error.to_string(), has_ended: false });
        }
    };
    match result {
        Some(Message::Ended(outcome)) => End::Done(outcome),
        Some(Message::Failed { code, context }) => {
            let code = ErrorCode::from_number(code).unwrap_or(ErrorCode::Io);
            End::Refused(Error::new(code, context))
        }
        _ => End::Lost((hosts.explain)(host, status, &errors)),
    }
}

/// Reads a stream until it ends, and returns its first [`MOST_ERRORS`] bytes as text.
fn first_bytes(mut stream: impl Read) -> String {
    let mut bytes = Vec::new();
    let _ = (&mut stream).take(MOST_ERRORS).read_to_end(&mut bytes);
    let _ = std::io::copy(&mut stream, &mut std::io::sink());
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Forwards the progress of a process to the coordinator's report, and returns the process's
/// result. `None` means that the process has printed no result.
fn listen(
    child: &mut Child,
    (number, sender): &(usize, SyncSender<(usize, Progress)>),
) -> Option<Message> {
    let mut output = BufReader::new(child.stdout.take().expect("standard output is a pipe"));
    let mut result = None;
    loop {
        let mut line = Vec::new();
        match (&mut output).take(MOST_BYTES).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return result,
            Ok(_) => {}
        }
        // A login shell may print other lines, which are ignored.
        match serde_json::from_slice(&line) {
            Ok(Message::Progress(progress)) => {
                // `send` cannot fail, because the receiver exists until all processes have ended.
                let _ = sender.send((*number, progress));
            }
            Ok(message) => result = Some(message),
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests;
