//! An agent: what the controller has on a host.
//!
//! Starts the host's workers and hands on what is said. One thread for each worker reads it; the
//! main thread reads the controller. It ends, and with it its workers, when the controller does.

use super::protocol::{Answer, Order, Says, hear, say};
use crate::environment::{Environment, cpu_ticks};
use crate::limits::{END_PATIENCE, MAX_PROCESSES_PER_HOST};
use skep_types::{Error, ErrorCode, Result};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Arguments of `skep` that make it a worker.
const WORKER_ARGUMENTS: [&str; 2] = ["bench", "worker"];

/// What all threads of an agent share: the way to the controller, and what is known of a phase.
/// Locked for a line at a time.
struct Up {
    out: std::io::Stdout,
    working: usize,
    /// Ticks of the CPUs when the phase began: busy ones, and all.
    ticks: (u64, u64),
}

type Shared = Arc<Mutex<Up>>;

impl Up {
    fn tell(&mut self, answer: &Answer) -> Result<()> {
        Ok(say(&mut self.out, answer)?)
    }

    /// A worker is done with its phase; after the last the controller hears of the CPUs.
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
        self.tell(&Answer::CpuBusy(share))
    }
}

fn lock(shared: &Shared) -> std::sync::MutexGuard<'_, Up> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Worker {
    input: Option<ChildStdin>,
    reader: JoinHandle<()>,
}

/// Follows the controller at the other end of standard input and output, until that ends.
///
/// # Errors
/// If the controller says what can't be understood, or can't be told anything.
pub fn agent() -> Result<()> {
    let mut input = BufReader::new(std::io::stdin());
    let up = Up { out: std::io::stdout(), working: 0, ticks: (0, 0) };
    let shared: Shared = Arc::new(Mutex::new(up));
    let mut workers = Vec::new();
    let result = follow(&mut input, &shared, &mut workers);
    // The end of their input ends them, and they take back what they made.
    workers.iter_mut().for_each(|worker| worker.input = None);
    let deadline = skep_env::now() + END_PATIENCE;
    for worker in workers {
        // One that hangs in the kernel can't be waited for.
        while !worker.reader.is_finished() && skep_env::now() < deadline {
            std::thread::park_timeout(std::time::Duration::from_millis(20));
        }
    }
    result
}

fn follow(input: &mut impl BufRead, shared: &Shared, workers: &mut Vec<Worker>) -> Result<()> {
    let mut path = None;
    while let Some(order) = hear::<Order>(input)? {
        match order {
            Order::Hello { path: named } => {
                path = named;
                let here = Environment::of_this_host(path.as_deref().map(Path::new));
                lock(shared).tell(&Answer::Hello(here))?;
            }
            Order::Clock => {
                let now = skep_env::now().as_secs_f64();
                lock(shared).tell(&Answer::Clock(now))?;
            }
            Order::Start { job, ranks, of, host } => {
                for rank in ranks.into_iter().take(MAX_PROCESSES_PER_HOST as usize) {
                    let job = job.clone();
                    let first = Order::Start { job, ranks: vec![rank], of, host: host.clone() };
                    match start(rank, &first, shared) {
                        Ok(worker) => workers.push(worker),
                        Err(error) => {
                            let what = format!("process {rank} can't be started: {error}");
                            lock(shared).tell(&Answer::Failed(what))?;
                        }
                    }
                }
            }
            Order::DropCaches => {
                let problem = drop_caches(path.as_deref()).err();
                lock(shared).tell(&Answer::CachesDropped(problem))?;
            }
            Order::Run(command) => {
                let problem = run(&command).err();
                lock(shared).tell(&Answer::Ran(problem))?;
            }
            order => hand_on(order, shared, workers),
        }
    }
    Ok(())
}

/// Gives an order to all workers. One that is dead is reported by who reads it.
fn hand_on(order: Order, shared: &Shared, workers: &mut [Worker]) {
    if matches!(order, Order::Go) {
        let mut up = lock(shared);
        up.working = workers.len();
        up.ticks = cpu_ticks();
    }
    let mut rest = order.clone();
    // What the dead have made is taken back once.
    if let Order::Clean { dead } = &mut rest {
        dead.clear();
    }
    let mut next = &order;
    for worker in workers.iter_mut().filter(|worker| !worker.reader.is_finished()) {
        let input = worker.input.as_mut();
        if input.is_none_or(|input| say(input, next).is_err()) {
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
    // Not bound to this process's life by a signal: at the end of its input it clears up first.
    let mut child = command.stderr(Stdio::inherit()).spawn()?;
    let piped = || Error::new(ErrorCode::Io, "a child without pipes");
    let mut input = child.stdin.take().ok_or_else(piped)?;
    let output = child.stdout.take().ok_or_else(piped)?;
    say(&mut input, first)?;
    let shared = Arc::clone(shared);
    let read = move || read_worker(rank, child, output, &shared);
    let reader = skep_env::spawn_thread(format!("worker-{rank}"), None, read)?;
    Ok(Worker { input: Some(input), reader })
}

/// Hands on what a worker says, until it ends.
fn read_worker(rank: u32, mut child: Child, output: ChildStdout, shared: &Shared) {
    let mut output = BufReader::new(output);
    let mut is_working = false;
    let how = loop {
        match hear::<Says>(&mut output) {
            Ok(Some(says)) => {
                is_working = matches!(says, Says::Moved(_)) || (is_working && !is_done(&says));
                let mut up = lock(shared);
                let is_done = is_done(&says);
                let told = up.tell(&Answer::Worker { rank, says });
                if told.and_then(|()| if is_done { up.one_is_done() } else { Ok(()) }).is_err() {
                    break "the controller has gone".into();
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
    let _ = up.tell(&Answer::Died { rank, how });
}

fn is_done(says: &Says) -> bool {
    matches!(says, Says::Done { .. })
}

fn ending(child: &mut Child) -> String {
    match child.wait() {
        Ok(status) => match status.signal() {
            Some(signal) => format!("it was ended by signal {signal}"),
            None => format!("it ended with {status}"),
        },
        Err(error) => format!("it ended: {error}"),
    }
}

/// Lets a shell do something; what it prints is not for the controller, unless it fails. That goes
/// to a file: what is left running may keep a pipe open.
fn run(command: &str) -> std::result::Result<(), String> {
    let name = format!("skep-bench-{:016x}", skep_env::random_u64());
    let path = std::env::temp_dir().join(name);
    let result = run_into(command, &path);
    // If it was never made, that is the error.
    let _ = fs::remove_file(&path);
    result
}

fn run_into(command: &str, path: &Path) -> std::result::Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let output = fs::File::create(path).map_err(failed)?;
    let errors = output.try_clone().map_err(failed)?;
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).stdin(Stdio::null()).stdout(output).stderr(errors);
    let status = shell.status().map_err(|error| format!("sh: {error}"))?;
    if status.success() {
        return Ok(());
    }
    let said = fs::read(path).map_err(failed)?;
    let said = String::from_utf8_lossy(&said);
    let last = said.trim_end().lines().next_back().unwrap_or_default();
    Err(format!("'{command}' ended with {status}: {last}"))
}

/// Writes back what is dirty, and empties the kernel's caches of this host.
fn drop_caches(path: Option<&str>) -> std::result::Result<(), String> {
    const FILE: &str = "/proc/sys/vm/drop_caches";
    // The file system that is measured first: what it writes back makes others dirty.
    let directory = path.and_then(|path| Path::new(path).parent());
    if let Some(file) = directory.and_then(|directory| fs::File::open(directory).ok()) {
        rustix::fs::syncfs(&file).map_err(|error| format!("syncfs: {error}"))?;
    }
    if !rustix::process::geteuid().is_root() {
        return Err("not root: caches of the kernel were not dropped".into());
    }
    rustix::fs::sync();
    // 3: pages, and names with attributes.
    fs::write(FILE, "3").map_err(|error| format!("{FILE}: {error}"))
}
