//! One copy by several hosts: starts one process for each part, and merges their results.
//!
//! The process that the user starts copies nothing itself. A first process creates the directories
//! and begins the large files. Then each host copies a share ([`crate::shares`]). A last process
//! checks every entry, and copies the rest. So the success of a copy by several hosts means what
//! the success of the last process means: that of a copy by one host.
//!
//! A process prints its progress and its result as [`Message`]s, one JSON value per line. It gets a
//! line each [`HEARTBEAT`] on its standard input. It ends itself if no line arrives for [`LEASE`],
//! or if the input ends.
//!
//! # Invariants
//! - No share is given to a second host while a process may still copy it: its session has shown
//!   the end of the process, or the lease of the process has run out.
//! - The last part begins only when each share has ended without an early end.
//!
//! # Hazard: a host that is frozen
//! A process on a frozen host wakes up after its lease, and ends itself. Until its watch runs, its
//! other threads can write for a moment. They write bytes of the same version of the source to the
//! incomplete copy, or to temporary files of their own. This does harm only if the copy was
//! completed and changed meanwhile.

use crate::outcome::{Outcome, Progress};
use crate::shares::{Part, Share};
use serde::{Deserialize, Serialize};
use skep_types::{Error, ErrorCode, Result};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

/// Time between two lines to a process.
pub const HEARTBEAT: Duration = Duration::from_secs(2);
/// Time after which a process without a line ends itself.
pub const LEASE: Duration = Duration::from_secs(20);
/// Wait for the end of a process that cannot be observed: its lease, and a delay of the last line
/// to it.
const LEASE_WAIT: Duration = Duration::from_secs(25);
/// Time between two reports of the progress.
const REPORT: Duration = Duration::from_secs(1);
/// Maximum length of a message: a result with all its problems.
const MOST_BYTES: u64 = 64 << 20;
/// Maximum length of the error output of a process that is kept.
const MOST_ERRORS: u64 = 64 << 10;
/// Messages of all hosts that wait for the report.
const MOST_WAITING: usize = 1024;

/// A message of a process that does a part of a copy.
#[derive(Debug, Serialize, Deserialize)]
pub enum Message {
    /// The present state.
    Progress(Progress),
    /// The part has ended, perhaps with problems of entries.
    Ended(Outcome),
    /// The part could not begin.
    Failed {
        /// Number of the error code.
        code: u16,
        /// The error.
        context: String,
    },
}

/// The hosts of a copy, and the way to run a process on one.
pub struct Hosts<'a> {
    /// Their names.
    pub names: &'a [String],
    /// Returns the command that does a part on a host.
    pub command: &'a (dyn Fn(&str, Part) -> Command + Sync),
    /// Explains the end of a process without a result. Gets the host, the exit code and the error
    /// output.
    pub explain: &'a (dyn Fn(&str, ExitStatus, &str) -> Lost + Sync),
}

impl std::fmt::Debug for Hosts<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hosts").field("names", &self.names).finish_non_exhaustive()
    }
}

/// The end of a process without a result.
#[derive(Debug)]
pub struct Lost {
    /// The reason, for people.
    pub problem: String,
    /// Whether the process has certainly ended.
    pub has_ended: bool,
}

/// The result of one host.
#[derive(Debug, Clone, Default, Serialize)]
pub struct HostOutcome {
    /// Its name.
    pub host: String,
    /// Shares that it has copied.
    pub shares: u64,
    /// Regular files that it has copied alone. The pieces of large files count as bytes only.
    pub files: u64,
    /// Bytes that it has copied.
    pub bytes: u64,
    /// Why the host has failed. Other hosts have copied its share.
    pub problem: Option<String>,
}

/// The result of a copy by several hosts.
#[derive(Debug, Serialize)]
pub struct HostsOutcome {
    /// The result of all hosts together.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// The results of single hosts.
    pub hosts: Vec<HostOutcome>,
}

/// The end of a process.
enum End {
    Done(Outcome),
    Refused(Error),
    Lost(Lost),
}

/// A running copy.
struct Run<'a> {
    hosts: &'a Hosts<'a>,
    results: Vec<HostOutcome>,
    /// The state of the shares that have ended, with the number of all entries.
    ended: Progress,
    begin: Instant,
    report: &'a dyn Fn(&Progress),
}

/// Copies with all hosts, and calls `report` about each second.
///
/// # Errors
/// - The error of the first part, if it cannot begin: for example a source that is missing.
/// - `Disconnected` if no host is left.
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

/// Returns the result of all shares and of the last part, which counts the entries of the shares as
/// complete.
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
    /// Returns the numbers of the hosts that have not failed.
    fn alive(&self) -> Vec<usize> {
        (0..self.results.len()).filter(|it| self.results[*it].problem.is_none()).collect()
    }

    fn no_host_left(&self) -> Error {
        let lines = self.results.iter().filter_map(|it| {
            it.problem.as_ref().map(|problem| format!("\n  {}: {problem}", it.host))
        });
        let what = format!(
            "cannot copy: every host has failed; repair one of them, then continue with the same \
             command and --resume:{}",
            lines.collect::<String>()
        );
        Error::new(ErrorCode::Disconnected, what)
    }

    /// Runs a part on one host. If a host is lost, on the next one.
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

    /// Copies all shares, at most one on each host at a time. The share of a host that fails is
    /// given to another one. Each round ends shares or loses hosts, so their number is bounded.
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

    /// Notes hosts that have failed, and waits until their processes have ended.
    fn lose(&mut self, lost: Vec<(usize, Lost)>) {
        let must_wait = lost.iter().any(|(_, it)| !it.has_ended);
        for (host, it) in lost {
            self.results[host].problem = Some(it.problem);
        }
        if must_wait && !self.alive().is_empty() {
            std::thread::sleep(LEASE_WAIT);
        }
    }

    /// Runs parts on hosts at the same time, until all have ended.
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

    /// Reports the sum of the progress of all hosts, until all processes have ended.
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

/// Runs one process to its end.
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
            let problem = format!("cannot run {program}: {error}; install it on this host");
            return End::Lost(Lost { problem, has_ended: true });
        }
    };
    let errors = child.stderr.take().expect("standard error is a pipe");
    let mut input = child.stdin.take().expect("standard input is a pipe");
    let (result, errors) = std::thread::scope(|scope| {
        let (ended, end) = channel::<()>();
        // A session that ends early closes the pipe. Its exit code has the reason.
        scope.spawn(move || {
            while input.write_all(b"\n").and_then(|()| input.flush()).is_ok() {
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

/// Reads to the end, and returns the first bytes.
fn first_bytes(mut stream: impl Read) -> String {
    let mut bytes = Vec::new();
    let _ = (&mut stream).take(MOST_ERRORS).read_to_end(&mut bytes);
    let _ = std::io::copy(&mut stream, &mut std::io::sink());
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Passes on the progress of a process, and returns its result. `None` means that it has none.
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
        // A login shell may print lines of its own.
        match serde_json::from_slice(&line) {
            Ok(Message::Progress(progress)) => {
                // The receiver lives until all processes have ended.
                let _ = sender.send((*number, progress));
            }
            Ok(message) => result = Some(message),
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests;
