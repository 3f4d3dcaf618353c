//! One copy into or out of the file system of a Slurm job, by a process on this node with the
//! rights of the job's user.

use crate::account::Account;
use crate::cmd::copy::failure;
use crate::cmd::copy::several::Transport;
use crate::slurm_job::Job;
use skep_copy::context::Options;
use skep_copy::hosts::HostsOutcome;
use skep_copy::outcome::Progress;
use skep_types::{Error, ErrorCode, Result};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// Time between two calls of `check` during a copy.
const INTERVAL: Duration = Duration::from_secs(10);
/// Time without progress after which a copy has failed. The restart of a file server takes less
/// time.
pub(super) const STALL: Duration = Duration::from_secs(600);
/// Maximum number of progress reports that wait for this module. The copy drops further reports.
const MOST_REPORTS: usize = 16;

/// A report of the thread that copies.
enum Report {
    Progress(Progress),
    Ended(Result<HostsOutcome>),
}

/// A copy for a job.
pub(super) struct JobCopy<'a> {
    pub(super) job: &'a Job,
    /// The name of this node.
    pub(super) host: &'a str,
    pub(super) source: &'a str,
    pub(super) destination: &'a str,
    /// Whether the process syncs each copied file.
    pub(super) sync: bool,
}

impl JobCopy<'_> {
    /// Copies the files, and compares all bytes. Calls `check` every 10 s. Returns when the copy
    /// ends, when the copy makes no progress for [`STALL`], or when `check` fails.
    pub(super) fn run(
        &self,
        check: &mut dyn FnMut(&Progress) -> Result<()>,
    ) -> Result<HostsOutcome> {
        let account = Account::of(self.job.user())?;
        let (sender, receiver) = sync_channel(MOST_REPORTS);
        let transport = Transport::User { host: self.host.to_owned(), account };
        let (source, destination) = (PathBuf::from(self.source), self.destination.to_owned());
        let options = Options { resume: true, verify: true, sync: self.sync, ..Options::default() };
        // If this function returns early, the thread ends with this process. The process that
        // copies then ends too, because it receives the end of its input.
        std::thread::spawn(move || {
            let report = |progress: &Progress| {
                let _ = sender.try_send(Report::Progress(progress.clone()));
            };
            let destination = Path::new(&destination);
            let result = transport.copy_with(&[source], destination, &options, None, &report);
            let _ = sender.send(Report::Ended(result));
        });
        let mut last = Progress::default();
        let (mut changed, mut checked) = (Instant::now(), Instant::now());
        loop {
            match receiver.recv_timeout(INTERVAL) {
                Ok(Report::Ended(result)) => {
                    let outcome = result?;
                    return match failure(&outcome.outcome) {
                        Some(error) => Err(error),
                        None => Ok(outcome),
                    };
                }
                Ok(Report::Progress(it)) => {
                    let counts = |it: &Progress| (it.found, it.done, it.bytes);
                    if counts(&last) != counts(&it) {
                        changed = Instant::now();
                    }
                    last = it;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::new(
                        ErrorCode::Io,
                        "the thread of the copy ended without a result",
                    ));
                }
            }
            if changed.elapsed() >= STALL {
                let what = format!(
                    "the copy made no progress for {} s; check the file system of the source and \
                     of the destination",
                    STALL.as_secs()
                );
                return Err(Error::new(ErrorCode::Io, what));
            }
            if checked.elapsed() >= INTERVAL {
                checked = Instant::now();
                check(&last)?;
            }
        }
    }
}
