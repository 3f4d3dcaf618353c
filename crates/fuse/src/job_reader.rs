//! Reads the jobs of processes for all workers of a mount, on a thread of its own.
//!
//! The thread starts at the first lookup and ends with the mount. So a new process costs neither a
//! thread nor a file descriptor, and a job that was read for one worker is known to all workers.
//!
//! # Hazard: a read that hangs
//! The kernel reads `/proc/PID/environ` under a lock of the process's memory. A thread of the
//! process may hold that lock while it waits for a page of a file on this mount. So no request
//! waits longer than [`JOB_PATIENCE`] for a read, and the worker serves other requests meanwhile. A
//! read that takes longer than [`SLOW_JOB_READ`] occupies its thread, and the next lookup starts a
//! further thread. When slow reads end, all idle threads but one end too.
//!
//! # Invariants
//! - At most [`MAX_JOB_READERS`] threads exist, and each of them runs at most one read.
//! - A process is in the queue at most once, and is not in the queue while its environment is read.

use crate::job_variables::JobVariables;
use crate::limits::{
    JOB_PATIENCE, JOB_VALIDITY, MAX_JOB_READERS, MAX_KNOWN_JOBS, MAX_QUEUED_JOBS, SLOW_JOB_READ,
};
use skep_client::job_number;
use skep_env::SharedNotify;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The job of a process, and the time until which the mount uses this job without a further read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KnownJob {
    pub(crate) until: Duration,
    /// The number of the job. Zero means that the process belongs to no job.
    pub(crate) job: u32,
}

impl KnownJob {
    /// The reply to a lookup that the reader has refused. The reply is never valid, so the next
    /// request of the process looks up the job again.
    const REFUSED: Self = Self { until: Duration::ZERO, job: 0 };

    pub(crate) fn is_valid(&self, now: Duration) -> bool {
        now < self.until
    }
}

/// Reads the jobs of processes for all workers of a mount.
pub(crate) struct JobReader {
    shared: Arc<Shared>,
    /// The CPUs on which the threads run. The workers, which start the threads, may be pinned.
    cpus: Vec<usize>,
}

/// A function that returns the job of a process by process id. The function may block.
type ReadJob = dyn Fn(u32) -> u32 + Send + Sync;

struct Shared {
    read: Box<ReadJob>,
    /// The mutex protects only this state. A thread holds the mutex for a few instructions, and
    /// never during a read, a wake-up or an `.await`. While a thread holds the mutex, the thread
    /// takes no other lock.
    state: Mutex<State>,
    /// Wakes an idle thread when a process is queued, and all threads at the end of the mount.
    queued: Condvar,
    /// Wakes the workers that wait when a read has ended.
    finished: SharedNotify,
}

/// The keys of the maps are process ids, which a local program can influence. So the maps have the
/// keyed hash function of `std`.
#[derive(Debug, Default)]
struct State {
    /// The processes whose environments are read next.
    queue: VecDeque<u32>,
    /// The processes whose environments are being read, each with the time at which the read began.
    running: HashMap<u32, Duration>,
    known: HashMap<u32, KnownJob>,
    /// Number of threads that read or are idle.
    threads: usize,
    /// Whether the mount has ended.
    has_ended: bool,
}

/// The result of a lookup.
#[derive(Debug, PartialEq, Eq)]
enum Lookup {
    Ready(KnownJob),
    /// The process is queued or is being read. The caller must start a thread if `needs_thread`.
    Pending {
        needs_thread: bool,
    },
}

impl State {
    /// Returns the job of a process, or queues the process. If the caller must start a thread, the
    /// thread is already counted in `threads`.
    fn look_up(&mut self, pid: u32, now: Duration) -> Lookup {
        if let Some(known) = self.known.get(&pid).filter(|known| known.is_valid(now)) {
            return Lookup::Ready(*known);
        }
        let age = |since: &Duration| now.saturating_sub(*since);
        if let Some(since) = self.running.get(&pid) {
            return match age(since) < JOB_PATIENCE {
                true => Lookup::Pending { needs_thread: false },
                false => Lookup::Ready(KnownJob::REFUSED),
            };
        }
        let are_all_slow = self.threads == self.running.len()
            && self.running.values().all(|since| age(since) >= SLOW_JOB_READ);
        let is_queued = self.queue.contains(&pid);
        let is_full = !is_queued && self.queue.len() >= MAX_QUEUED_JOBS;
        if is_full || are_all_slow && self.threads >= MAX_JOB_READERS {
            return Lookup::Ready(KnownJob::REFUSED);
        }
        if !is_queued {
            self.queue.push_back(pid);
        }
        self.threads += usize::from(are_all_slow);
        if cfg!(debug_assertions) {
            self.check_invariants();
        }
        Lookup::Pending { needs_thread: are_all_slow }
    }

    /// Ends the read of a process and stores its job, which is valid from the time `begun_at`.
    fn finish(&mut self, pid: u32, begun_at: Duration, job: u32) {
        self.running.remove(&pid);
        if self.known.len() >= MAX_KNOWN_JOBS {
            self.known.clear();
        }
        self.known.insert(pid, KnownJob { until: begun_at + JOB_VALIDITY, job });
    }

    /// Panics if an invariant of the module is violated.
    fn check_invariants(&self) {
        assert!(
            self.running.len() <= self.threads && self.threads <= MAX_JOB_READERS,
            "{} threads run {} reads",
            self.threads,
            self.running.len()
        );
        assert!(
            self.queue.iter().all(|pid| !self.running.contains_key(pid)),
            "no process is queued while its environment is read"
        );
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the jobs of queued processes until the mount ends, or until another thread is idle.
    fn run_thread(&self) {
        let mut state = self.state();
        while !state.has_ended {
            let Some(pid) = state.queue.pop_front() else {
                let idle = state.threads - state.running.len();
                if idle > 1 {
                    break;
                }
                state = self.queued.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let begun_at = skep_env::now();
            state.running.insert(pid, begun_at);
            drop(state);
            let job = (self.read)(pid);
            self.state().finish(pid, begun_at, job);
            self.finished.notify();
            state = self.state();
        }
        state.threads -= 1;
    }
}

impl JobReader {
    /// Creates the reader of a mount. `variables` are the variables that contain the id of a job.
    /// The threads of the reader may run on all CPUs of the calling thread.
    pub(crate) fn new(variables: JobVariables) -> Self {
        Self::with(move |pid| {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            variables.value_in(&environment).map_or(0, job_number)
        })
    }

    fn with(read: impl Fn(u32) -> u32 + Send + Sync + 'static) -> Self {
        let shared = Shared {
            read: Box::new(read),
            state: Mutex::default(),
            queued: Condvar::new(),
            finished: SharedNotify::default(),
        };
        Self { shared: Arc::new(shared), cpus: skep_env::available_cpus() }
    }

    /// Returns the job of a process. The job is zero if the process belongs to no job, or if its
    /// environment cannot be read, or not within [`JOB_PATIENCE`]. Cancel-safe: if the future is
    /// dropped, the read continues.
    pub(crate) async fn job(&self, pid: u32) -> KnownJob {
        // The second wait begins with a further lookup, which starts a thread if the other threads
        // have become slow since the first lookup.
        for patience in [SLOW_JOB_READ, JOB_PATIENCE.saturating_sub(SLOW_JOB_READ)] {
            let found = self.shared.finished.wait_until(|| self.look_up(pid));
            if let Some(found) = skep_env::timeout(patience, found).await {
                return found;
            }
        }
        KnownJob { until: skep_env::now() + JOB_VALIDITY, job: 0 }
    }

    /// Returns the job of a process. `None` means that a read of the job is queued or runs.
    fn look_up(&self, pid: u32) -> Option<KnownJob> {
        let lookup = self.shared.state().look_up(pid, skep_env::now());
        match lookup {
            Lookup::Ready(known) => return Some(known),
            Lookup::Pending { needs_thread: false } => self.shared.queued.notify_one(),
            Lookup::Pending { needs_thread: true } => {
                let shared = Arc::clone(&self.shared);
                let body = move || shared.run_thread();
                let cpus = self.cpus.clone();
                if skep_env::spawn_thread_on("skep-job".into(), cpus, body).is_err() {
                    // The process may start no more threads now. A later lookup tries again.
                    self.shared.state().threads -= 1;
                }
            }
        }
        None
    }
}

impl Drop for JobReader {
    /// Ends the threads, without a wait for them. A thread whose read hangs ends after the read.
    fn drop(&mut self) {
        self.shared.state().has_ended = true;
        self.shared.queued.notify_all();
    }
}

impl std::fmt::Debug for JobReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JobReader")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::time::Instant;

    /// Time limit of a wait. The limit is far longer than the time that any of these tests takes on
    /// a busy machine.
    const PATIENCE: Duration = Duration::from_secs(60);
    const NOW: Duration = Duration::from_secs(1000);

    /// Returns the job of a process that has one. Asks again while no job is found, because a
    /// thread on a busy host may not run within [`JOB_PATIENCE`].
    fn job_of(reader: &Arc<JobReader>, pid: u32) -> u32 {
        let reader = Arc::clone(reader);
        let begun = Instant::now();
        let found = skep_env::block_on(async move {
            loop {
                let found = reader.job(pid).await.job;
                if found != 0 || begun.elapsed() > PATIENCE {
                    return found;
                }
                std::thread::yield_now();
            }
        });
        found.unwrap()
    }

    #[test]
    fn job_is_read_once_for_all_workers() {
        let reads = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&reads);
        let reader = Arc::new(JobReader::with(move |pid| {
            counted.fetch_add(1, Ordering::Relaxed);
            pid + 100
        }));
        for _ in 0..3 {
            let reader = Arc::clone(&reader);
            let worker = std::thread::spawn(move || job_of(&reader, 7));
            assert_eq!(worker.join().unwrap(), 107);
        }
        assert_eq!(reads.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn hanging_read_delays_only_its_own_process() {
        let (release, released) = channel::<()>();
        let released = Mutex::new(released);
        let reader = Arc::new(JobReader::with(move |pid| {
            if pid == 7 {
                // This read ends when the test drops the sender.
                let _ = released.lock().unwrap().recv();
            }
            pid + 100
        }));
        let hanging = Arc::clone(&reader);
        let found = skep_env::block_on(async move { hanging.job(7).await }).unwrap();
        assert_eq!(found.job, 0);
        assert_eq!(job_of(&reader, 8), 108);
        assert_eq!(job_of(&reader, 9), 109);
        drop(release);
        assert_eq!(job_of(&reader, 7), 107);
    }

    #[test]
    fn threads_of_a_reader_end_with_the_mount() {
        let (sender, ended) = channel::<()>();
        let reader = Arc::new(JobReader::with(move |pid| {
            let _held = &sender;
            pid + 100
        }));
        assert_eq!(job_of(&reader, 7), 107);
        drop(reader);
        // The last thread drops the function, and the function drops the sender.
        assert_eq!(ended.recv_timeout(PATIENCE), Err(RecvTimeoutError::Disconnected));
    }

    #[test]
    fn lookup_starts_a_thread_only_if_all_are_slow() {
        let pending = |needs_thread| Lookup::Pending { needs_thread };
        let mut state = State::default();
        assert_eq!(state.look_up(1, NOW), pending(true));
        assert_eq!(state.look_up(1, NOW), pending(false));
        assert_eq!(state.look_up(2, NOW), pending(false));
        assert_eq!(state.queue, [1, 2]);
        // The thread begins the read of process 1.
        state.queue.pop_front();
        state.running.insert(1, NOW);
        assert_eq!(state.look_up(3, NOW), pending(false));
        assert_eq!(state.look_up(2, NOW + SLOW_JOB_READ), pending(true));
        assert_eq!(state.look_up(3, NOW + SLOW_JOB_READ), pending(false));
        assert_eq!(state.queue, [2, 3]);
    }

    #[test]
    fn lookup_is_refused_while_all_threads_hang() {
        let threads = MAX_JOB_READERS as u32;
        let running = (0..threads).map(|pid| (pid, NOW)).collect();
        let mut state = State { running, threads: MAX_JOB_READERS, ..State::default() };
        let refused = Lookup::Ready(KnownJob::REFUSED);
        assert_eq!(state.look_up(threads, NOW), Lookup::Pending { needs_thread: false });
        assert_eq!(state.look_up(threads, NOW + SLOW_JOB_READ), refused);
        assert_eq!(state.look_up(0, NOW + JOB_PATIENCE), refused);
        state.finish(0, NOW, 815);
        let known = KnownJob { until: NOW + JOB_VALIDITY, job: 815 };
        assert_eq!(state.look_up(0, NOW + JOB_PATIENCE), Lookup::Ready(known));
        let later = NOW + JOB_VALIDITY;
        assert_eq!(state.look_up(0, later), Lookup::Pending { needs_thread: false });
    }

    #[test]
    fn number_of_queued_and_known_jobs_is_limited() {
        let mut state = State::default();
        for pid in 0..MAX_QUEUED_JOBS as u32 {
            assert_ne!(state.look_up(pid, NOW), Lookup::Ready(KnownJob::REFUSED));
        }
        let next = state.look_up(MAX_QUEUED_JOBS as u32, NOW);
        assert_eq!(next, Lookup::Ready(KnownJob::REFUSED));
        for pid in 0..3 * MAX_KNOWN_JOBS as u32 {
            state.finish(pid, NOW, 0);
            assert!(state.known.len() <= MAX_KNOWN_JOBS);
        }
    }
}
