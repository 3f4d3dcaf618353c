//! One worker: its slots, each with a port of the transport and at most one request under way, and
//! what becomes of requests whose callers are killed.
//!
//! # Interrupts
//! The kernel tells of a signal to a waiting caller once (`INTERRUPT`), whatever the signal, and if
//! the caller is being killed it still waits for the answer. As on other file systems, signals that
//! don't kill interrupt nothing: an operation that meets a dead server waits and goes on. So an
//! interrupted request is looked at until it is answered: once a SIGKILL is pending for its caller
//! (which Ctrl-C becomes, too), it is answered with EINTR.
//!
//! What the operation itself does then: one that only looks, a read or a write is dropped, and its
//! memory serves again when nobody holds it any more. Any other runs to its end without its slot, so
//! that no half-done change is left to a session; what it would have handed over is given back.
//!
//! # Hazard: memory
//! A reply is written, and memory given back to the kernel, only when no handle to it is left: a
//! cancelled receive may still be filling it.

use crate::file_system::FileSystem;
use crate::limits;
use crate::protocol::{self, Context};
use crate::reply::{self, Encoded, Failure};
use crate::request::Request;
use skep_env::local::Notify;
use skep_env::{Buf, Mailbox, MailboxSender, Task};
use skep_types::InodeId;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

/// The reply to a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reply {
    /// Number of the request.
    pub(crate) unique: u64,
    /// An error number, or how much of the reply's memory counts.
    pub(crate) outcome: Encoded,
}

/// Carries one request at a time.
pub(crate) trait Port: 'static {
    /// Sends the reply to the last request (none before the first) and waits for the next; `None` at
    /// the end of the mount.
    fn exchange(&self, reply: Option<Reply>) -> impl Future<Output = Option<Request>>;
    /// Where the body of a reply goes.
    fn reply_memory(&self) -> Buf;
    /// Whether somebody else holds memory of the port.
    fn is_memory_shared(&self) -> bool;
}

/// Leads to the interrupts of all workers.
#[derive(Clone, Debug)]
pub(crate) struct InterruptSenders(pub(crate) std::sync::Arc<[MailboxSender<u64>]>);

impl InterruptSenders {
    /// Tells all workers that the caller of a request was interrupted.
    pub(crate) fn send(&self, unique: u64) {
        for sender in &*self.0 {
            // A full queue only means that the caller waits for its answer.
            let _ = sender.send(unique);
        }
    }
}

/// The request that a slot is busy with.
#[derive(Clone, Copy, Debug)]
struct Current {
    unique: u64,
    pid: u32,
    may_be_dropped: bool,
}

struct Slot<P> {
    port: P,
    current: Cell<Option<Current>>,
    /// Raised when the slot is taken from an operation that goes on without it.
    run: Cell<u64>,
    task: RefCell<Option<Task<()>>>,
}

struct Worker<F, P> {
    context: Context<F>,
    slots: Vec<Rc<Slot<P>>>,
    ended: Cell<usize>,
    end: Notify,
}

/// Serves the ports until the mount ends. `started` is called when all of them are known to the
/// kernel, with false if it refused one.
pub(crate) async fn run<F: FileSystem, P: Port>(
    context: Context<F>,
    ports: Vec<P>,
    interrupts: Mailbox<u64>,
    started: impl FnOnce(bool),
) {
    let slots = ports
        .into_iter()
        .map(|port| {
            let (current, run, task) = (Cell::new(None), Cell::new(0), RefCell::new(None));
            Rc::new(Slot { port, current, run, task })
        })
        .collect();
    let worker = Rc::new(Worker { context, slots, ended: Cell::new(0), end: Notify::default() });
    for slot in &worker.slots {
        let task = skep_env::spawn(serve(Rc::clone(&worker), Rc::clone(slot), None));
        slot.task.replace(Some(task));
    }
    // A timer fires only after what was asked of the ring was submitted, and a refusal is known then.
    skep_env::sleep(Duration::from_millis(1)).await;
    started(worker.ended.get() == 0);
    let watch = skep_env::spawn(watch_interrupts(Rc::clone(&worker), interrupts));
    while worker.ended.get() < worker.slots.len() {
        worker.end.wait().await;
    }
    drop(watch);
}

async fn serve<F: FileSystem, P: Port>(
    worker: Rc<Worker<F, P>>,
    slot: Rc<Slot<P>>,
    mut reply: Option<Reply>,
) {
    let run = slot.run.get();
    while let Some(request) = slot.port.exchange(reply).await {
        let unique = request.header.unique;
        let (opcode, node) = (request.header.opcode, InodeId::new(request.header.nodeid));
        let outcome = match request.parse() {
            Ok(call) => {
                let may_be_dropped = call.may_be_dropped();
                let pid = request.header.pid;
                drop(request);
                slot.current.set(Some(Current { unique, pid, may_be_dropped }));
                let outcome = protocol::perform(&worker.context, call).await;
                if slot.run.get() != run {
                    protocol::abandon(&worker.context, outcome).await;
                    return;
                }
                slot.current.set(None);
                outcome
            }
            Err(errno) => {
                drop(request);
                Err(Failure::Errno(errno))
            }
        };
        memory_is_free(&slot.port).await;
        let outcome = match outcome {
            Ok(answer) => reply::encode(answer, &slot.port.reply_memory()),
            Err(failure) => Err(failure.errno(opcode, node)),
        };
        reply = Some(Reply { unique, outcome });
    }
    worker.ended.set(worker.ended.get() + 1);
    worker.end.notify();
}

async fn memory_is_free<P: Port>(port: &P) {
    while port.is_memory_shared() {
        skep_env::sleep(Duration::from_millis(1)).await;
    }
}

/// Takes a slot from the operation that it is busy with, and answers the caller with EINTR.
fn answer_killed<F: FileSystem, P: Port>(
    worker: &Rc<Worker<F, P>>,
    slot: &Rc<Slot<P>>,
    current: Current,
) {
    slot.run.set(slot.run.get() + 1);
    slot.current.set(None);
    match slot.task.take() {
        Some(task) if current.may_be_dropped => drop(task),
        Some(task) => task.detach(),
        None => {}
    }
    let reply = Reply { unique: current.unique, outcome: Err(libc::EINTR) };
    let (worker, next) = (Rc::clone(worker), Rc::clone(slot));
    let task = skep_env::spawn(async move {
        memory_is_free(&next.port).await;
        serve(worker, next, Some(reply)).await;
    });
    slot.task.replace(Some(task));
}

/// An interrupted request that wasn't answered yet.
struct Interrupted {
    unique: u64,
    /// Checks at which no slot had it: it may still be on its way, or answered already.
    misses: u32,
}

async fn watch_interrupts<F: FileSystem, P: Port>(
    worker: Rc<Worker<F, P>>,
    interrupts: Mailbox<u64>,
) {
    let mut pending: Vec<Interrupted> = Vec::new();
    loop {
        if pending.is_empty() {
            match interrupts.receive().await {
                Ok(unique) => pending.push(Interrupted { unique, misses: 0 }),
                Err(error) => {
                    tracing::error!("interrupts are no longer heard: {error}");
                    return;
                }
            }
        } else {
            skep_env::sleep(limits::INTERRUPT_CHECK).await;
        }
        while let Some(unique) = interrupts.try_receive() {
            pending.push(Interrupted { unique, misses: 0 });
        }
        pending.retain_mut(|it| check_interrupted(&worker, it));
    }
}

/// Looks at an interrupted request; false when nothing is left to do about it.
fn check_interrupted<F: FileSystem, P: Port>(
    worker: &Rc<Worker<F, P>>,
    it: &mut Interrupted,
) -> bool {
    let busy = worker.slots.iter().find_map(|slot| {
        let current = slot.current.get()?;
        (current.unique == it.unique).then_some((slot, current))
    });
    match busy {
        Some((slot, current)) if is_being_killed(current.pid) => {
            answer_killed(worker, slot, current);
            false
        }
        Some(_) => true,
        None => {
            it.misses += 1;
            it.misses < 2
        }
    }
}

/// Whether a SIGKILL is pending for a thread, or it has gone. Process 0 is one of another container,
/// of which nothing is known.
fn is_being_killed(pid: u32) -> bool {
    if pid == 0 {
        return false;
    }
    std::fs::read_to_string(format!("/proc/{pid}/status"))
        .map_or(true, |status| has_pending_kill(&status))
}

fn has_pending_kill(status: &str) -> bool {
    const KILL: u64 = 1 << (libc::SIGKILL - 1);
    status
        .lines()
        .filter_map(|line| line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:")))
        .filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .any(|mask| mask & KILL != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_pending_kill_counts() {
        assert!(has_pending_kill("Name:\tcat\nSigPnd:\t0000000000000100\nShdPnd:\t0\n"));
        assert!(has_pending_kill("SigPnd:\t0000000000000000\nShdPnd:\t0000000000000102\n"));
        assert!(!has_pending_kill("SigPnd:\t0000000000000002\nShdPnd:\t0000000000004000\n"));
        assert!(!has_pending_kill(""));
    }

    #[test]
    fn a_process_that_has_gone_counts_as_killed() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        assert!(is_being_killed(pid));
        assert!(!is_being_killed(std::process::id()));
    }
}
