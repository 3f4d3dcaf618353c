//! The origin of a request of the kernel: the user, the group and the job of the calling process.
//! Services count their load by origin.
//!
//! # Hazard: the environment of a process that waits for this mount
//! The kernel reads `/proc/PID/environ` under a lock of the process's memory. A thread of the
//! process may hold that lock while it waits for a page of a file on this mount. So no worker may
//! wait for the read. A separate thread reads the environment. If the read takes too long, the
//! request continues without a job.

use crate::abi::InHeader;
use crate::job_variables::JobVariables;
use crate::limits::{JOB_PATIENCE, JOB_VALIDITY, MAX_JOB_LOOKUPS, MAX_KNOWN_JOBS};
use skep_client::{Origin, job_number};
use skep_env::Mailbox;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::Duration;

/// Finds the origins of the requests of one worker.
#[derive(Debug)]
pub(crate) struct Origins {
    /// The variables that contain the id of a job. `None` means that the worker looks up no jobs.
    variables: Option<JobVariables>,
    /// Cached job ids by process id, each with the time until which the worker uses the cached id.
    known: RefCell<HashMap<u32, (Duration, u32)>>,
    lookups: Cell<usize>,
}

impl Origins {
    pub(crate) fn new(variables: Option<JobVariables>) -> Self {
        Self { variables, known: RefCell::default(), lookups: Cell::new(0) }
    }

    /// Returns the origin of a request.
    pub(crate) async fn of(&self, header: &InHeader) -> Origin {
        let job = match (header.pid, &self.variables) {
            // Zero means that the kernel itself writes back a mapped page, or that the process is
            // in another container.
            (0, _) | (_, None) => 0,
            (pid, Some(variables)) => self.job(pid, variables).await,
        };
        Origin::of_program(header.uid, header.gid, job)
    }

    async fn job(&self, pid: u32, variables: &JobVariables) -> u32 {
        let now = skep_env::now();
        if let Some((_, job)) = self.known.borrow().get(&pid).filter(|(until, _)| now < *until) {
            return *job;
        }
        if self.lookups.get() >= MAX_JOB_LOOKUPS {
            return 0;
        }
        self.lookups.set(self.lookups.get() + 1);
        let _running = RunningLookup(&self.lookups);
        let job = look_up(pid, variables.clone()).await.unwrap_or(0);
        let mut known = self.known.borrow_mut();
        if known.len() >= MAX_KNOWN_JOBS {
            known.clear();
        }
        known.insert(pid, (now + JOB_VALIDITY, job));
        job
    }
}

/// A running lookup of a job. When this value is dropped, the lookup no longer counts as running.
struct RunningLookup<'a>(&'a Cell<usize>);

impl Drop for RunningLookup<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Reads the job of a process. `None` means that the process belongs to no job, or that the read of
/// its environment failed or timed out.
async fn look_up(pid: u32, variables: JobVariables) -> Option<u32> {
    let (sender, result) = Mailbox::new(1).ok()?;
    let reading = move || {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        // The send cannot fail, because the mailbox has space for one result.
        let _ = sender.send(variables.value_in(&environment).map(job_number));
    };
    skep_env::spawn_thread("skep-job".into(), None, reading).ok()?;
    skep_env::timeout(JOB_PATIENCE, result.receive()).await?.ok()?
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    /// Returns the origin of a request. Asks again while no job is found, because a busy host may
    /// not read an environment within [`JOB_PATIENCE`].
    async fn found(variables: Option<JobVariables>, header: &InHeader) -> Origin {
        let without_job = Origin::of_program(header.uid, header.gid, 0);
        for _ in 0..100 {
            let origin = Origins::new(variables.clone()).of(header).await;
            if origin != without_job {
                return origin;
            }
        }
        without_job
    }

    #[test]
    fn job_of_a_running_process_is_read_from_its_environment() {
        let mut child = Command::new("cat")
            .env("SLURM_JOB_ID", "815")
            .env("LSB_JOBID", "2342")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // The reply of the program shows that the child process has started this program, and so
        // has the new environment.
        use std::io::{Read, Write};
        child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let pid = child.id();
        let header = InHeader {
            len: 0,
            opcode: 1,
            unique: 1,
            nodeid: 1,
            uid: 7,
            gid: 8,
            pid,
            extension_words: 0,
            padding: 0,
        };
        let (found, other, none) = skep_env::block_on(async move {
            let usual = found(Some(JobVariables::default()), &header).await;
            let others = found("MY_JOB:LSB_JOBID".parse().ok(), &header).await;
            (usual, others, Origins::new(None).of(&header).await)
        })
        .unwrap();
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(found, Origin::of_program(7, 8, 815));
        assert_eq!(other, Origin::of_program(7, 8, 2342));
        assert_eq!(none, Origin::of_program(7, 8, 0));
    }
}
