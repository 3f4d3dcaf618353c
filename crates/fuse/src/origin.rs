//! The origin of a request of the kernel: the user, the group and the job of the calling process.
//! Services count their load by origin.
//!
//! This module caches the jobs of processes for one worker. `job_reader` reads the jobs.

use crate::abi::InHeader;
use crate::job_reader::{JobReader, KnownJob};
use crate::limits::MAX_KNOWN_JOBS;
use skep_client::Origin;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

/// Finds the origins of the requests of one worker.
#[derive(Debug)]
pub(crate) struct Origins {
    /// The reader of jobs of all workers. `None` means that the mount looks up no jobs.
    jobs: Option<Arc<JobReader>>,
    /// Cached jobs by process id. A local program can influence process ids, so the map has the
    /// keyed hash function of `std`.
    known: RefCell<HashMap<u32, KnownJob>>,
}

impl Origins {
    pub(crate) fn new(jobs: Option<Arc<JobReader>>) -> Self {
        Self { jobs, known: RefCell::default() }
    }

    /// Returns the origin of a request.
    pub(crate) async fn of(&self, header: &InHeader) -> Origin {
        let job = match (header.pid, &self.jobs) {
            // Zero means that the kernel itself writes back a mapped page, or that the process is
            // in another container.
            (0, _) | (_, None) => 0,
            (pid, Some(jobs)) => self.job(pid, jobs).await,
        };
        Origin::of_program(header.uid, header.gid, job)
    }

    async fn job(&self, pid: u32, jobs: &JobReader) -> u32 {
        let now = skep_env::now();
        if let Some(known) = self.known.borrow().get(&pid).filter(|known| known.is_valid(now)) {
            return known.job;
        }
        let found = jobs.job(pid).await;
        let mut known = self.known.borrow_mut();
        if known.len() >= MAX_KNOWN_JOBS {
            known.clear();
        }
        known.insert(pid, found);
        found.job
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job_variables::JobVariables;
    use std::process::{Command, Stdio};

    /// Returns the origin of a request. Asks again while no job is found, because a busy host may
    /// not read an environment in time.
    async fn found(variables: Option<JobVariables>, header: &InHeader) -> Origin {
        let without_job = Origin::of_program(header.uid, header.gid, 0);
        for _ in 0..100 {
            let jobs = variables.clone().map(|names| Arc::new(JobReader::new(names)));
            let origin = Origins::new(jobs).of(header).await;
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
