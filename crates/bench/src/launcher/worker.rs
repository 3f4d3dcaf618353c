//! The worker, which is one process of a run.
//!
//! The main thread does the work. A second thread reads orders, so that the worker notices an
//! abort, or the end of its input, at any time. A third thread reports the progress.

use super::protocol::{Job, Measure, Order, Seat, Step, WorkerMessage, read_line, write_line};
use crate::io::IoEngine;
use crate::limits::{HEARTBEAT, MAX_WAITING};
use crate::metadata::MetadataEngine;
use crate::net::NetEngine;
use crate::tool::ToolEngine;
use skep_types::{Error, ErrorCode, Result};
use std::io::BufReader;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

/// The work of a process in the phases of a job.
pub(crate) trait Engine {
    /// Prepares a phase. The preparation is not part of the measured time.
    fn prepare(&mut self, step: &Step) -> std::result::Result<(), String>;

    /// Runs a phase, and stores its results in `measure`. The caller sets the times of the start
    /// and the end, unless the engine has set these times.
    fn perform(
        &mut self,
        step: &Step,
        measure: &mut Measure,
        control: &Arc<Control>,
    ) -> std::result::Result<(), String>;

    /// Removes the files of this process, and the files of the processes with the ranks in `dead`.
    fn clean(&mut self, dead: &[u32]);
}

/// The error of an engine that stops its work in a phase because [`Control::is_aborted`] is true.
pub(crate) const STOPPED: &str = "stopped, because another process of the benchmark has failed";

/// The state that the thread of a running engine shares with the other threads of its process.
#[derive(Debug, Default)]
pub(crate) struct Control {
    is_aborted: AtomicBool,
    has_ended: AtomicBool,
    moved: AtomicU64,
}

impl Control {
    /// Whether the engine must stop its work in the phase.
    pub(crate) fn is_aborted(&self) -> bool {
        self.is_aborted.load(Ordering::Relaxed) || self.has_ended.load(Ordering::Relaxed)
    }

    /// Makes the engine stop its work in the phase.
    pub(crate) fn abort(&self) {
        self.is_aborted.store(true, Ordering::Relaxed);
    }

    /// Adds `amount` bytes or operations to the progress of this process.
    pub(crate) fn move_on(&self, amount: u64) {
        self.moved.fetch_add(amount, Ordering::Relaxed);
    }
}

/// The standard output. A thread locks the output to write one line.
type Out = Arc<Mutex<std::io::Stdout>>;

fn send(out: &Out, message: &WorkerMessage) -> Result<()> {
    let mut out = out.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    Ok(write_line(&mut *out, message)?)
}

/// Carries out the orders of the agent until the input ends.
///
/// # Errors
/// Fails if an order is malformed, or if an answer cannot be written.
pub fn worker() -> Result<()> {
    // When an agent exits, the kernel may send SIGHUP to the stopped workers of this agent. This
    // signal must not prevent a worker from removing its files.
    let _hang_up = skep_env::Signals::take(&[rustix::process::Signal::HUP.as_raw()])?;
    let mut input = BufReader::new(std::io::stdin());
    let Some(Order::Start { job, ranks, of, host }) = read_line(&mut input)? else {
        return Err(Error::new(
            ErrorCode::Protocol,
            "a worker process of a benchmark received no job as its first message",
        ));
    };
    let Some(rank) = ranks.first().copied() else {
        return Err(Error::new(
            ErrorCode::Protocol,
            "the job of a worker process of a benchmark has no process number (rank)",
        ));
    };
    let seat = Seat { rank, of, host };
    let mut engine: Box<dyn Engine> = match *job {
        Job::Io(plan) => Box::new(IoEngine::new(plan, seat)),
        Job::Metadata(plan) => Box::new(MetadataEngine::new(plan, seat)),
        Job::Net(assignment) => Box::new(NetEngine::new(assignment, seat)),
        Job::Tool(assignment) => Box::new(ToolEngine::new(*assignment, seat)),
    };
    let (sender, orders) = sync_channel(MAX_WAITING);
    let control = Arc::new(Control::default());
    let seen = Arc::clone(&control);
    let listen = move || listen(input, &sender, &seen);
    let out: Out = Arc::new(Mutex::new(std::io::stdout()));
    let spawned = skep_env::spawn_thread("orders".into(), None, listen);
    drop(spawned?);
    send(&out, &WorkerMessage::Ready)?;
    let result = follow(&mut *engine, &orders, &control, &out);
    if !matches!(result, Ok(End::Finished)) {
        // Without the order `Finish`, the agent has exited, or this worker could not write an
        // answer. In both cases the run has failed, so remove the files.
        engine.clean(&[]);
    }
    result.map(drop)
}

/// Forwards orders to the main thread. An abort takes effect immediately, because this thread
/// itself sets the flag that stops the engine.
fn listen(mut input: BufReader<std::io::Stdin>, orders: &SyncSender<Order>, control: &Control) {
    while let Ok(Some(order)) = read_line(&mut input) {
        if matches!(order, Order::Abort) {
            control.abort();
        } else if orders.send(order).is_err() {
            break;
        }
    }
    control.has_ended.store(true, Ordering::Relaxed);
}

/// How the orders to a worker have ended: with `Finish`, or without `Finish`.
enum End {
    Finished,
    Lost,
}

fn follow(
    engine: &mut dyn Engine,
    orders: &Receiver<Order>,
    control: &Arc<Control>,
    out: &Out,
) -> Result<End> {
    let mut step = None;
    for order in orders {
        match order {
            Order::Prepare(next) => {
                control.is_aborted.store(false, Ordering::Relaxed);
                send(out, &WorkerMessage::Prepared(engine.prepare(&next)))?;
                step = Some(next);
            }
            Order::Go => {
                let Some(step) = step.take() else { continue };
                let (measure, failure) = perform(engine, &step, control, out)?;
                let measure = Box::new(measure);
                send(out, &WorkerMessage::Done { measure, failure })?;
            }
            Order::Clean { dead } => {
                engine.clean(&dead);
                send(out, &WorkerMessage::Cleaned)?;
            }
            Order::Finish => return Ok(End::Finished),
            _ => {
                return Err(Error::new(
                    ErrorCode::Protocol,
                    "a worker process of a benchmark received a message for another kind of \
                     process",
                ));
            }
        }
    }
    Ok(End::Lost)
}

/// Runs a phase while another thread reports its progress.
fn perform(
    engine: &mut dyn Engine,
    step: &Step,
    control: &Arc<Control>,
    out: &Out,
) -> Result<(Measure, Option<String>)> {
    control.moved.store(0, Ordering::Relaxed);
    let (finished, waits) = sync_channel::<()>(1);
    let (seen, shared_out) = (Arc::clone(control), Arc::clone(out));
    let beat = move || {
        while waits.recv_timeout(HEARTBEAT) == Err(RecvTimeoutError::Timeout) {
            let _ = send(&shared_out, &WorkerMessage::Moved(seen.moved.load(Ordering::Relaxed)));
        }
    };
    let heart = skep_env::spawn_thread("progress".into(), None, beat)?;
    let mut measure = Measure { begin_s: skep_env::now().as_secs_f64(), ..Measure::default() };
    let failure = engine.perform(step, &mut measure, control).err();
    // Some engines measure the times more precisely, and have already set these times.
    if measure.end_s == 0.0 {
        measure.end_s = skep_env::now().as_secs_f64();
    }
    drop(finished);
    let _ = heart.join();
    Ok((measure, failure))
}
