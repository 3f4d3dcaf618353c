//! One worker: its slots, each with a port of the transport and at most one request under way, and
//! what becomes of requests whose callers are killed.
//!
//! # Callers that are killed
//! As on other file systems, signals that don't kill interrupt nothing but waiting for a lock (see
//! `waits`): an operation that meets a
//! dead server waits and goes on. But whoever is killed (by SIGKILL, which Ctrl-C becomes too) must
//! be able to go, and the kernel lets a caller go only when its request is answered. So a worker
//! looks at requests that take long: once a SIGKILL is pending for a caller, it is answered with
//! EINTR. (The kernel's own word for it, `INTERRUPT`, comes at any signal, never a second time, and
//! with io_uring not at all if the signal came before the daemon took the request: Linux 6.18.)
//!
//! What the operation itself does then: one that only looks, a read or a write is dropped, and its
//! memory serves again when nobody holds it any more (a write that can't be taken back holds it to
//! its end; until then its caller stays). Any other runs to its end without its slot, so that no
//! half-done change is left to a session; what it would have handed over is given back.
//!
//! # Hazard: memory
//! A reply is written, and memory given back to the kernel, only when no handle to it is left: a
//! cancelled receive may still be filling it.

use crate::context::Context;
use crate::file_system::FileSystem;
use crate::limits;
use crate::ops;
use crate::reply::{self, Encoded, Failure, Validity};
use crate::request::RawRequest;
use crate::waits::{Caller, News};
use skep_env::local::Notify;
use skep_env::{Buf, Mailbox, Task};
use skep_types::InodeId;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
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
    /// Sends the reply to the last request (none before the first) and waits for the next; `None`
    /// at the end of the mount.
    fn exchange(&self, reply: Option<Reply>) -> impl Future<Output = Option<RawRequest>>;
    /// Where the body of a reply goes.
    fn reply_memory(&self) -> Buf;
    /// Whether somebody else holds memory of the port.
    fn is_memory_shared(&self) -> bool;
    /// Which of the kernel's queues it takes requests from.
    fn queue(&self) -> u16;
    /// Another one of the same queue, which the kernel doesn't know yet.
    fn another(&self) -> Self;
    /// Whether a request that waits in the kernel is handed to a new port only after another was
    /// answered.
    const IS_SLUGGISH: bool;
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
    /// Whether it ever had a request.
    has_served: Cell<bool>,
}

struct Worker<F, P> {
    context: Context<F>,
    slots: RefCell<Vec<Rc<Slot<P>>>>,
    ended: Cell<usize>,
    end: Notify,
    /// Whether somebody looks at the requests under way; if not, the next one has to say so.
    is_watched: Cell<bool>,
    begun: Notify,
}

/// Serves the ports until the mount ends. `started` is called when all of them are known to the
/// kernel, with false if it refused one.
pub(crate) async fn run<F: FileSystem, P: Port>(
    context: Context<F>,
    ports: Vec<P>,
    news: Mailbox<News>,
    started: impl FnOnce(bool),
) {
    let worker = Rc::new(Worker {
        context,
        slots: RefCell::default(),
        ended: Cell::new(0),
        end: Notify::default(),
        is_watched: Cell::new(false),
        begun: Notify::default(),
    });
    skep_env::set_spin(limits::SPIN);
    ports.into_iter().for_each(|port| add_slot(&worker, port));
    // A timer fires only after what was asked of the ring was submitted, and a refusal is known
    // then.
    skep_env::sleep(Duration::from_millis(1)).await;
    started(worker.ended.get() == 0);
    let watch = skep_env::spawn(watch_callers(Rc::clone(&worker)));
    let waits = Rc::clone(&worker.context.waits);
    let hear = skep_env::spawn(async move {
        while let Ok(told) = news.receive().await {
            waits.take(told);
        }
    });
    let grow = skep_env::spawn(replace_waiting(Rc::clone(&worker)));
    let stir = P::IS_SLUGGISH.then(|| skep_env::spawn(stir_queues(Rc::clone(&worker))));
    while worker.ended.get() == 0 {
        worker.end.wait().await;
    }
    // The kernel has ended the mount: nobody waits for what is still under way, and a dead cluster
    // would never answer it.
    let all_end = async {
        while worker.ended.get() < worker.slots.borrow().len() {
            worker.end.wait().await;
        }
    };
    if skep_env::timeout(limits::END_GRACE, all_end).await.is_none() {
        let under_way = worker.slots.borrow().len() - worker.ended.get();
        tracing::warn!("the mount has ended; {under_way} requests under way are given up");
        let slots = worker.slots.take();
        slots.iter().for_each(|slot| drop(slot.task.take()));
    }
    drop((watch, hear, grow, stir));
}

fn add_slot<F: FileSystem, P: Port>(worker: &Rc<Worker<F, P>>, port: P) {
    let (current, run, task) = (Cell::new(None), Cell::new(0), RefCell::new(None));
    let slot = Rc::new(Slot { port, current, run, task, has_served: Cell::new(false) });
    worker.slots.borrow_mut().push(Rc::clone(&slot));
    let task = skep_env::spawn(serve(Rc::clone(worker), Rc::clone(&slot), None));
    slot.task.replace(Some(task));
}

/// Sees to it that no request is left in a queue of which some wait for locks.
///
/// # Hazard: requests that the kernel forgets
/// An entry that is new to io_uring's queue gets requests that come later, but none that is in the
/// queue already (Linux 6.18): these are handed over only when an entry was answered. If all others
/// wait for locks, that is never, and the unlock may be among them. So the queue is stirred by
/// requests of our own until an entry was answered and got nothing new: then nothing is left.
async fn stir_queues<F: FileSystem, P: Port>(worker: Rc<Worker<F, P>>) {
    loop {
        worker.context.waits.next().await;
        // The new entry is known to the kernel by then.
        let mut pause = limits::FIRST_STIR;
        loop {
            skep_env::sleep(pause).await;
            let queues = stuck_queues(&worker);
            if queues.is_empty() {
                break;
            }
            queues.into_iter().for_each(|queue| worker.context.waits.stir(queue));
            pause = (pause * 2).min(limits::LONGEST_STIR_PAUSE);
        }
    }
}

/// Queues of which requests wait for locks, and no slot was answered and is idle.
fn stuck_queues<F: FileSystem, P: Port>(worker: &Worker<F, P>) -> BTreeSet<u16> {
    let waiting = worker.context.waits.requests();
    let slots = worker.slots.borrow();
    let queues_of = |is_such: &dyn Fn(&Slot<P>) -> bool| -> BTreeSet<u16> {
        slots.iter().filter(|slot| is_such(slot)).map(|slot| slot.port.queue()).collect()
    };
    let idle = queues_of(&|slot| slot.has_served.get() && slot.current.get().is_none());
    let waits = |current: Current| waiting.contains(&current.unique);
    let with_waits = queues_of(&|slot| slot.current.get().is_some_and(waits));
    with_waits.difference(&idle).copied().collect()
}

/// Gives each queue as many more slots as requests of it wait for locks: otherwise those who wait
/// would keep out the request that ends their waiting.
async fn replace_waiting<F: FileSystem, P: Port>(worker: Rc<Worker<F, P>>) {
    let mut added: HashMap<u16, usize> = HashMap::new();
    loop {
        worker.context.waits.next().await;
        let waiting = worker.context.waits.requests();
        let slots = worker.slots.borrow().clone();
        let mut taken: HashMap<u16, (usize, &Rc<Slot<P>>)> = HashMap::new();
        for slot in &slots {
            if slot.current.get().is_some_and(|current| waiting.contains(&current.unique)) {
                taken.entry(slot.port.queue()).or_insert((0, slot)).0 += 1;
            }
        }
        for (queue, (count, slot)) in taken {
            let added = added.entry(queue).or_default();
            for _ in *added..count {
                *added += 1;
                add_slot(&worker, slot.port.another());
            }
        }
    }
}

async fn serve<F: FileSystem, P: Port>(
    worker: Rc<Worker<F, P>>,
    slot: Rc<Slot<P>>,
    mut reply: Option<Reply>,
) {
    let run = slot.run.get();
    while let Some(request) = slot.port.exchange(reply).await {
        slot.has_served.set(true);
        let unique = request.header.unique;
        let (opcode, node) = (request.header.opcode, InodeId::new(request.header.nodeid));
        let outcome = match request.parse() {
            Ok(call) => {
                let may_be_dropped = call.may_be_dropped();
                let pid = request.header.pid;
                drop(request);
                slot.current.set(Some(Current { unique, pid, may_be_dropped }));
                if !worker.is_watched.replace(true) {
                    worker.begun.notify();
                }
                let caller = Caller { unique, pid };
                let outcome = ops::perform(&worker.context, call, caller).await;
                if slot.run.get() != run {
                    ops::abandon(&worker.context, outcome).await;
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
            Ok(answer) => {
                let context = &worker.context;
                let fs = &context.file_system;
                let validity = Validity {
                    usual: context.validity,
                    is_shared: &|inode| fs.is_shared(inode),
                    note_shown: &|it| fs.note_shown(it),
                };
                reply::encode(answer, &slot.port.reply_memory(), &validity)
            }
            Err(failure) => Err(failure.errno(opcode, node)),
        };
        reply = Some(Reply { unique, outcome });
    }
    worker.ended.set(worker.ended.get() + 1);
    worker.end.notify();
}

async fn memory_is_free<P: Port>(port: &P) {
    let mut pause = Duration::from_micros(100);
    while port.is_memory_shared() {
        skep_env::sleep(pause).await;
        pause = (pause * 2).min(limits::LONGEST_MEMORY_PAUSE);
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
    worker.context.waits.interrupt(current.unique);
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

/// Looks, while requests are under way, at those that were under way at the last look already.
async fn watch_callers<F: FileSystem, P: Port>(worker: Rc<Worker<F, P>>) {
    let mut seen: Vec<u64> = Vec::new();
    loop {
        if worker.slots.borrow().iter().all(|slot| slot.current.get().is_none()) {
            worker.is_watched.set(false);
            worker.begun.wait().await;
        }
        skep_env::sleep(limits::CALLER_CHECK).await;
        let before = std::mem::take(&mut seen);
        let slots = worker.slots.borrow().clone();
        for slot in &slots {
            let Some(current) = slot.current.get() else { continue };
            if before.contains(&current.unique) && is_being_killed(current.pid) {
                answer_killed(&worker, slot, current);
            } else {
                seen.push(current.unique);
            }
        }
    }
}

/// Whether a SIGKILL is pending for a thread, or it has gone. Process 0 is one of another
/// container, of which nothing is known.
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
