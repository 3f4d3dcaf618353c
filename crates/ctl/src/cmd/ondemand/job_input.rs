//! Copies the input of a Slurm job into the file system of the job, in the prolog. Lines of the
//! job's script ask for these copies (`skep_deploy::job_lines`).
//!
//! The first node of the job copies for all nodes. Slurm starts the script on this node only after
//! its prolog has ended.
//!
//! # Invariants
//! - A process with the rights of the user copies. Root opens no path from the script.
//! - An error of the user never fails a prolog, because Slurm would drain the node. The job is held
//!   with the reason, and its epilog removes the file system.
//! - A task of a job whose input is not there never begins, even if Slurm gets the hold late.

use super::staging::{StageIn, stage_in};
use crate::account::Account;
use crate::cmd::copy::several::Transport;
use crate::cmd::copy::{failure, hosts_as_text};
use crate::output::warn;
use crate::slurm_job::Job;
use skep_copy::context::Options;
use skep_copy::hosts::HostsOutcome;
use skep_copy::outcome::Progress;
use skep_deploy::job_lines;
use skep_deploy::ondemand::OnDemand;
use skep_types::{Error, ErrorCode, Result};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// Time between two questions to Slurm whether the job has ended.
const QUESTION: Duration = Duration::from_secs(10);
/// Time without progress after which a copy has failed. A file server takes less time than this to
/// restart.
const STALL: Duration = Duration::from_secs(600);
/// Maximum number of reports that wait for this module. Later ones are dropped.
const MOST_REPORTS: usize = 16;

/// A report of the thread that copies.
enum Report {
    Progress(Progress),
    Ended(Result<HostsOutcome>),
}

/// Copies the input that the script of the job asks for. If a copy fails, holds the job. `here` is
/// the name of this node.
///
/// # Errors
/// `NotFound` if Slurm does not send the script, and `Io` if the tasks of the job cannot be
/// refused.
pub(super) fn copy_all(system: &OnDemand, here: &str) -> Result<()> {
    let job = Job::of_prolog()?;
    let script = job.script()?;
    let inputs = job_lines::parse(&script, job.id()).and_then(|lines| {
        let inputs = lines.iter().map(|it| stage_in(&system.mount, it));
        inputs.collect::<Result<Vec<_>>>()
    });
    let result = inputs.and_then(|inputs| {
        for it in &inputs {
            let outcome = copy(&job, here, it)
                .map_err(|error| error.within(format!("cannot stage in {}", it.source)))?;
            warn(&format!("staged in {}: {}", it.source, hosts_as_text(&outcome)));
        }
        Ok(())
    });
    if let Err(error) = result {
        warn(&format!("job {} does not begin: {}", job.id(), error.context()));
        job.refuse()?;
        job.hold(error.context());
    }
    Ok(())
}

/// Copies with the rights of the user. Ends when the copy ends, when it makes no progress, or when
/// the job has ended.
fn copy(job: &Job, here: &str, input: &StageIn) -> Result<HostsOutcome> {
    let account = Account::of(job.user())?;
    let (sender, receiver) = sync_channel(MOST_REPORTS);
    let transport = Transport::User { host: here.to_owned(), account };
    let (source, destination) = (PathBuf::from(&input.source), input.destination.clone());
    // If this function returns early, the thread ends with this process. The process that copies
    // then ends too, because its input ends.
    std::thread::spawn(move || {
        let report = |progress: &Progress| {
            let _ = sender.try_send(Report::Progress(progress.clone()));
        };
        // The file system has no redundancy, so a power loss of a host loses the data anyway. So
        // sync nothing.
        let options = Options { resume: true, verify: true, sync: false, ..Options::default() };
        let destination = Path::new(&destination);
        let result = transport.copy_with(&[source], destination, &options, None, &report);
        let _ = sender.send(Report::Ended(result));
    });
    let (mut last, mut changed, mut asked) = ((0, 0, 0), Instant::now(), Instant::now());
    loop {
        match receiver.recv_timeout(QUESTION) {
            Ok(Report::Ended(result)) => {
                let outcome = result?;
                return match failure(&outcome.outcome) {
                    Some(error) => Err(error),
                    None => Ok(outcome),
                };
            }
            Ok(Report::Progress(it)) if last != (it.found, it.done, it.bytes) => {
                (last, changed) = ((it.found, it.done, it.bytes), Instant::now());
            }
            Ok(Report::Progress(_)) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::new(ErrorCode::Io, "the copy ended without a result"));
            }
        }
        if changed.elapsed() >= STALL {
            let what = format!("no progress for {} s", STALL.as_secs());
            return Err(Error::new(ErrorCode::Io, what));
        }
        if asked.elapsed() >= QUESTION {
            asked = Instant::now();
            if job.has_ended() {
                return Err(Error::new(ErrorCode::Interrupted, "the job has ended"));
            }
        }
    }
}
