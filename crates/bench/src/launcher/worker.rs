//! A worker: one process of a run.
//!
//! Its main thread works; one thread reads orders, so that giving up and the end of the input are
//! seen at any time; one tells how far it is.

use super::protocol::{Job, Measure, Order, Says, Seat, Step, hear, say};
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

/// What a process does in the phases of a job.
pub(crate) trait Engine {
    /// Gets ready for a phase, outside the measured time.
    fn prepare(&mut self, step: &Step) -> std::result::Result<(), String>;

    /// Carries a phase out, and counts in `measure` what is done. Begin and end are the caller's,
    /// unless they are given here.
    fn perform(
        &mut self,
        step: &Step,
        measure: &mut Measure,
        control: &Arc<Control>,
    ) -> std::result::Result<(), String>;

    /// Takes back what was made; of dead processes too, which had begun to make it.
    fn clean(&mut self, dead: &[u32]);
}

/// What a working engine and the rest of its process tell each other.
#[derive(Debug, Default)]
pub(crate) struct Control {
    is_aborted: AtomicBool,
    has_ended: AtomicBool,
    moved: AtomicU64,
}

impl Control {
    /// Whether the phase is to be given up.
    pub(crate) fn is_aborted(&self) -> bool {
        self.is_aborted.load(Ordering::Relaxed) || self.has_ended.load(Ordering::Relaxed)
    }

    /// Gives the phase up.
    pub(crate) fn abort(&self) {
        self.is_aborted.store(true, Ordering::Relaxed);
    }

    /// Says that more is done.
    pub(crate) fn move_on(&self, amount: u64) {
        self.moved.fetch_add(amount, Ordering::Relaxed);
    }
}

/// Standard output, a line at a time.
type Out = Arc<Mutex<std::io::Stdout>>;

fn tell(out: &Out, says: &Says) -> Result<()> {
    let mut out = out.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    Ok(say(&mut *out, says)?)
}

/// Works on what its agent says, until that ends its input.
///
/// # Errors
/// If the agent says what can't be understood, or can't be told anything.
pub fn worker() -> Result<()> {
    // Stopped processes whose parent ends are hung up on by the kernel: that must not keep this one
    // from taking back what it made.
    let _hang_up = skep_env::Signals::take(&[rustix::process::Signal::HUP.as_raw()])?;
    let mut input = BufReader::new(std::io::stdin());
    let Some(Order::Start { job, ranks, of, host }) = hear(&mut input)? else {
        return Err(Error::new(ErrorCode::Protocol, "a worker is told first what its job is"));
    };
    let Some(rank) = ranks.first().copied() else {
        return Err(Error::new(ErrorCode::Protocol, "a worker has a rank"));
    };
    let seat = Seat { rank, of, host };
    let mut engine: Box<dyn Engine> = match job {
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
    tell(&out, &Says::Ready)?;
    let result = follow(&mut *engine, &orders, &control, &out);
    if !matches!(result, Ok(End::Finished)) {
        // Its agent has ended, or can't be told anything any more.
        engine.clean(&[]);
    }
    result.map(drop)
}

/// Hands orders on, but sees at once what can't wait.
fn listen(mut input: BufReader<std::io::Stdin>, orders: &SyncSender<Order>, control: &Control) {
    while let Ok(Some(order)) = hear(&mut input) {
        if matches!(order, Order::Abort) {
            control.abort();
        } else if orders.send(order).is_err() {
            break;
        }
    }
    control.has_ended.store(true, Ordering::Relaxed);
}

/// How a worker's orders end.
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
                tell(out, &Says::Prepared(engine.prepare(&next)))?;
                step = Some(next);
            }
            Order::Go => {
                let Some(step) = step.take() else { continue };
                let (measure, failure) = perform(engine, &step, control, out)?;
                tell(out, &Says::Done { measure, failure })?;
            }
            Order::Clean { dead } => {
                engine.clean(&dead);
                tell(out, &Says::Cleaned)?;
            }
            Order::Finish => return Ok(End::Finished),
            _ => return Err(Error::new(ErrorCode::Protocol, "this order is not for workers")),
        }
    }
    Ok(End::Lost)
}

/// Carries out a phase, while another thread tells how far it is.
fn perform(
    engine: &mut dyn Engine,
    step: &Step,
    control: &Arc<Control>,
    out: &Out,
) -> Result<(Measure, Option<String>)> {
    control.moved.store(0, Ordering::Relaxed);
    let (finished, waits) = sync_channel::<()>(1);
    let (seen, told) = (Arc::clone(control), Arc::clone(out));
    let beat = move || {
        while waits.recv_timeout(HEARTBEAT) == Err(RecvTimeoutError::Timeout) {
            let _ = tell(&told, &Says::Moved(seen.moved.load(Ordering::Relaxed)));
        }
    };
    let heart = skep_env::spawn_thread("progress".into(), None, beat)?;
    let mut measure = Measure { begin_s: skep_env::now().as_secs_f64(), ..Measure::default() };
    let failure = engine.perform(step, &mut measure, control).err();
    // Who knows better has said it.
    if measure.end_s == 0.0 {
        measure.end_s = skep_env::now().as_secs_f64();
    }
    drop(finished);
    let _ = heart.join();
    Ok((measure, failure))
}
