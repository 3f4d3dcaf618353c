//! The agent, which is the process that the controller starts on each host.
//!
//! The agent starts the workers of its host, and forwards their messages to the controller. The
//! agent has one thread for each worker, which reads the messages of this worker. The main thread
//! reads the orders of the controller. If the controller exits, the agent and its workers also
//! exit.

use super::protocol::{Answer, Order, WorkerMessage, read_line, write_line};
use crate::environment::{Environment, ProgramReport, cpu_ticks};
use crate::limits::{END_PATIENCE, MAX_PROCESSES_PER_HOST};
use skep_types::{Error, ErrorCode, Result};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Arguments that make `skep` run as a worker.
const WORKER_ARGUMENTS: [&str; 2] = ["bench", "worker"];

/// The state that all threads of an agent share: the output to the controller, and the progress of
/// the current phase. A thread locks this connection to send one line.
struct Up {
    out: std::io::Stdout,
    working: usize,
    /// CPU ticks at the start of the phase: first the busy ticks, and then all ticks.
    ticks: (u64, u64),
}

type Shared = Arc<Mutex<Up>>;

impl Up {
    fn send(&mut self, answer: &Answer) -> Result<()> {
        Ok(write_line(&mut self.out, answer)?)
    }

    /// Counts a worker that has ended the phase. When all workers have ended the phase, reports the
    /// CPU use to the controller.
    fn one_is_done(&mut self) -> Result<()> {
        self.working = self.working.saturating_sub(1);
        if self.working > 0 {
            return Ok(());
        }
        let (busy, all) = cpu_ticks();
        let passed = all.saturating_sub(self.ticks.1);
        if passed == 0 {
            return Ok(());
        }
        let share = busy.saturating_sub(self.ticks.0) as f64 / passed as f64;
        self.send(&Answer::CpuBusy(share))
    }
}

fn lock(shared: &Shared) -> std::sync::MutexGuard<'_, Up> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Worker {
    input: Option<ChildStdin>,
    reader: JoinHandle<()>,
}

/// Carries out the orders that arrive on the agent's standard input, until the input ends.
/// `program` becomes part of the description of the host.
///
/// # Errors
/// Fails if an order is malformed, or if an answer cannot be written.
pub fn agent(program: &ProgramReport) -> Result<()> {
    let mut input = BufReader::new(std::io::stdin());
    let up = Up { out: std::io::stdout(), working: 0, ticks: (0, 0) };
    let shared: Shared = Arc::new(Mutex::new(up));
    let mut workers = Vec::new();
    let result = follow(&mut input, &shared, &mut workers, program);
    // Closes the input of the workers. The workers then remove their files and exit.
    workers.iter_mut().for_each(|worker| worker.input = None);
    let deadline = skep_env::now() + END_PATIENCE;
    for worker in workers {
        // A worker that hangs in a system call may never exit, so the wait has a deadline.
        while !worker.reader.is_finished() && skep_env::now() < deadline {
            std::thread::park_timeout(std::time::Duration::from_millis(20));
        }
    }
    result
}

fn follow(
    input: &mut impl BufRead,
    shared: &Shared,
    workers: &mut Vec<Worker>,
    program: &ProgramReport,
) -> Result<()> {
    let mut path = None;
    while let Some(order) = read_line::<Order>(input)? {
        match order {
            Order::Hello { path: named } => {
                path = named;
                let here = Environment::of_this_host(path.as_deref().map(Path::new), program);
                lock(shared).send(&Answer::Hello(Box::new(here)))?;
            }
            Order::Clock => {
                let now = skep_env::now().as_secs_f64();
                lock(shared).send(&Answer::Clock(now))?;
            }
            Order::Start { job, ranks, of, host } => {
                for rank in ranks.into_iter().take(MAX_PROCESSES_PER_HOST as usize) {
                    let job = job.clone();
                    let first = Order::Start { job, ranks: vec![rank], of, host: host.clone() };
                    match start(rank, &first, shared) {
                        Ok(worker) => workers.push(worker),
                        Err(error) => {
                            let what = format!("cannot start process {rank}: {error}");
                            lock(shared).send(&Answer::Failed(what))?;
                        }
                    }
                }
            }
            Order::DropCaches => {
                let problem = drop_caches(path.as_deref()).err();
                lock(shared).send(&Answer::CachesDropped(problem))?;
            }
            Order::Run(command) => {
                let problem = run(&command).err();
                lock(shared).send(&Answer::Ran(problem))?;
            }
            order => hand_on(order, shared, workers),
        }
    }
    Ok(())
}

/// Sends an order to all workers. If a worker has died, the thread that reads its messages reports
/// the death to the controller.
fn hand_on(order: Order, shared: &Shared, workers: &mut [Worker]) {
    if matches!(order, Order::Go) {
        let mut up = lock(shared);
        up.working = workers.len();
        up.ticks = cpu_ticks();
    }
    let mut rest = order.clone();
    // Only the first worker gets the list of the dead workers, and removes the files of all dead
    // workers.
    if let Order::Clean { dead } = &mut rest {
        dead.clear();
    }
    let mut next = &order;
    for worker in workers.iter_mut().filter(|worker| !worker.reader.is_finished()) {
        let input = worker.input.as_mut();
        if input.is_none_or(|input| write_line(input, next).is_err()) {
            worker.input = None;
        } else {
            next = &rest;
        }
    }
}

fn start(rank: u32, first: &Order, shared: &Shared) -> Result<Worker> {
    let program = std::env::current_exe()?;
    let mut command = Command::new(program);
    command.args(WORKER_ARGUMENTS).stdin(Stdio::piped()).stdout(Stdio::piped());
    // Do not ask the kernel (`PR_SET_PDEATHSIG`) to kill the worker at the death of this process.
    // At the end of its input, the worker has to remove its files.
    let mut child = command.stderr(Stdio::inherit()).spawn()?;
    let piped =
        || Error::new(ErrorCode::Io, "cannot start a worker process: the new process has no pipes");
    let mut input = child.stdin.take().ok_or_else(piped)?;
    let output = child.stdout.take().ok_or_else(piped)?;
    write_line(&mut input, first)?;
    let shared = Arc::clone(shared);
    let read = move || read_worker(rank, child, output, &shared);
    let reader = skep_env::spawn_thread(format!("worker-{rank}"), None, read)?;
    Ok(Worker { input: Some(input), reader })
}

/// Forwards the messages of a worker to the controller until the worker exits.
fn read_worker(rank: u32, mut child: Child, output: ChildStdout, shared: &Shared) {
    let mut output = BufReader::new(output);
    let mut is_working = false;
    let how = loop {
        match read_line::<WorkerMessage>(&mut output) {
            Ok(Some(message)) => {
                is_working = matches!(message, WorkerMessage::Moved(_))
                    || (is_working && !is_done(&message));
                let mut up = lock(shared);
                let is_done = is_done(&message);
                let told = up.send(&Answer::Worker { rank, message });
                if told.and_then(|()| if is_done { up.one_is_done() } else { Ok(()) }).is_err() {
                    break "the connection to the command that started the benchmark has ended"
                        .into();
                }
            }
            Ok(None) => break ending(&mut child),
            Err(error) => break error.to_string(),
        }
    };
    let mut up = lock(shared);
    if is_working {
        let _ = up.one_is_done();
    }
    let _ = up.send(&Answer::Died { rank, how });
}

fn is_done(message: &WorkerMessage) -> bool {
    matches!(message, WorkerMessage::Done { .. })
}

fn ending(child: &mut Child) -> String {
    match child.wait() {
        Ok(status) => match status.signal() {
            Some(signal) => format!("killed by signal {signal}"),
            None => format!("{status}"),
        },
        Err(error) => format!("{error}"),
    }
}

/// Runs a command in a shell. The output of the command goes to a file and not to a pipe. Processes
/// that still run after the command could keep a pipe open. If the command fails, the returned text
/// contains the last line of the output.
fn run(command: &str) -> std::result::Result<(), String> {
    let name = format!("skep-bench-{:016x}", skep_env::random_u64());
    let path = std::env::temp_dir().join(name);
    let result = run_into(command, &path);
    // If the file was never created, this removal fails, and the caller gets the error of the
    // command.
    let _ = fs::remove_file(&path);
    result
}

fn run_into(command: &str, path: &Path) -> std::result::Result<(), String> {
    let failed = |error: std::io::Error| {
        format!("cannot use the file {} for the output of a command: {error}", path.display())
    };
    let output = fs::File::create(path).map_err(failed)?;
    let errors = output.try_clone().map_err(failed)?;
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).stdin(Stdio::null()).stdout(output).stderr(errors);
    let status = shell.status().map_err(|error| format!("cannot run sh: {error}"))?;
    if status.success() {
        return Ok(());
    }
    let said = fs::read(path).map_err(failed)?;
    let said = String::from_utf8_lossy(&said);
    let last = said.trim_end().lines().next_back().unwrap_or_default();
    Err(format!("command '{command}' ended with {status}: {last}"))
}

/// Writes back the dirty pages of this host, and drops the caches of its kernel.
fn drop_caches(path: Option<&str>) -> std::result::Result<(), String> {
    const FILE: &str = "/proc/sys/vm/drop_caches";
    // Sync the measured file system first. If the measured file system stores its data in files of
    // another file system, its write-back makes pages of the other file system dirty.
    let directory = path.and_then(|path| Path::new(path).parent());
    if let Some(file) = directory.and_then(|directory| fs::File::open(directory).ok()) {
        rustix::fs::syncfs(&file)
            .map_err(|error| format!("cannot sync the measured file system: {error}"))?;
    }
    if !rustix::process::geteuid().is_root() {
        return Err("cannot drop the caches of the kernel: only root has this permission".into());
    }
    rustix::fs::sync();
    // The value 3 drops the page cache, dentries and inodes.
    fs::write(FILE, "3").map_err(|error| format!("cannot write to {FILE}: {error}"))
}
