//! A worker thread of a mount: its slots, and how it ends the requests of killed callers. Each slot
//! has a port of the transport and at most one request in flight.
//!
//! Other modules perform the operations (`ops`), register the waits for locks and interrupt them
//! (`waits`), check whether a caller is being killed (`callers`), and exchange messages with the
//! kernel (`transport`).
//!
//! # Callers that are killed
//! If a signal does not kill the caller, it interrupts a request only if the request waits for a
//! lock (`waits`), as on other file systems. An operation on a dead server waits, and continues
//! when the server is back. But a killed process must be able to exit (SIGKILL, or SIGTERM and
//! Ctrl-C without a handler). The kernel lets the process exit only after its request has a reply.
//! So the worker checks all requests that take long. If a signal that ends the process of a caller
//! is pending (`callers`), the worker replies EINTR.
//!
//! `INTERRUPT` cannot replace this check (Linux 6.18). The kernel sends it at any signal, and never
//! sends a second `INTERRUPT` for the same request. With io_uring, the kernel sends no `INTERRUPT`
//! if the signal arrived before the daemon took the request.
//!
//! After the reply, the operation itself ends in one of two ways (`Request::may_be_dropped`):
//! - The worker drops the future of a lookup, a read or a write. The slot's buffers serve the next
//!   request when the last handle to them has been dropped. A write continues for a moment and
//!   holds the buffers meanwhile, and its caller cannot exit before that. An append, and a write to
//!   a locked file, continue until the servers have replied, and do not need the buffers.
//! - All other operations run to completion without the slot, so that no change stays incomplete.
//!   If the operation opened a file, the worker then closes the file.
//!
//! # Hazard: reuse of a buffer
//! A cancelled receive may still fill its buffer. So the worker writes a reply to a buffer, or
//! returns a buffer to the kernel, only after all other handles to the buffer have been dropped.

mod long_waits;

use crate::abi::operation_name;
use crate::callers::Sender;
use crate::context::Context;
use crate::file_system::FileSystem;
use crate::following::EntryNames;
use crate::limits;
use crate::meter::Meter;
use crate::ops;
use crate::origin::Origins;
use crate::reply::{self, EncodedReply, Failure, Validity};
use crate::request::RawRequest;
use crate::waiting::Waiter;
use crate::waits::{Caller, WaitEvent};
use long_waits::{Causes, Line, LongWaits, SILENT_AFTER, UnansweredRequest, absent_storage};
use skep_client::{Origin, with_origin};
use skep_env::local::Notify;
use skep_env::{Buf, Mailbox, Task};
use skep_types::InodeId;
use std::cell::{Cell, LazyCell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The reply to a request, in the buffers of its port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reply {
    /// Id of the request.
    pub(crate) unique: u64,
    /// Number of bytes in the reply buffer, or an error number.
    pub(crate) outcome: EncodedReply,
}

/// A port of a transport, which carries one request at a time.
pub(crate) trait Port: 'static {
    /// Sends the reply to the last request (`None` before the first request), and waits for the
    /// next request. Returns `None` at the end of the mount.
    fn exchange(&self, reply: Option<Reply>) -> impl Future<Output = Option<RawRequest>>;
    /// Returns the buffer for the body of a reply.
    fn reply_memory(&self) -> Buf;
    /// Whether an operation still has a handle to the port's buffers.
    fn is_memory_shared(&self) -> bool;
    /// Returns the index of the kernel's queue from which the port takes requests.
    fn queue(&self) -> u16;
    /// Creates another port of the same queue. The first exchange of the new port registers it with
    /// the kernel.
    fn another(&self) -> Self;
    /// Whether queued requests stay in the queue until another port of the queue has replied, even
    /// if a new port is free ([`kick_queues`]).
    const NEEDS_KICKS: bool;
}

/// The request that a slot currently processes.
#[derive(Clone, Copy, Debug)]
struct RequestUnderWay {
    unique: u64,
    opcode: u32,
    node: InodeId,
    pid: u32,
    uid: u32,
    may_be_dropped: bool,
    /// Whether a program may wait for the reply although the thread that sent the request has
    /// ended.
    may_be_asynchronous: bool,
}

struct Slot<P> {
    port: P,
    current: Cell<Option<RequestUnderWay>>,
    /// The names in the last request with valid arguments.
    names: RefCell<EntryNames>,
    /// The worker increments this number when it takes the slot from a running operation. The
    /// operation then continues without the slot.
    turn: Cell<u64>,
    task: RefCell<Option<Task<()>>>,
    /// Whether the slot has ever received a request.
    has_served: Cell<bool>,
}

struct Worker<F, P> {
    context: Context<F>,
    slots: RefCell<Vec<Rc<Slot<P>>>>,
    /// Number of slots whose port has reported the end of the mount.
    ended: Cell<usize>,
    end: Notify,
    /// Whether [`watch_callers`] runs its checks. If `watch_callers` sleeps, the next request wakes
    /// it through `begun`.
    is_watched: Cell<bool>,
    begun: Notify,
    meter: Meter,
    origins: Origins,
}

/// Serves the ports until the mount ends. Calls `started` when the kernel has accepted or refused
/// the registrations of the ports. The argument is true if the kernel has accepted all of them.
pub(crate) async fn run<F: FileSystem, P: Port>(
    context: Context<F>,
    ports: Vec<P>,
    events: Mailbox<WaitEvent>,
    started: impl FnOnce(bool),
) {
    let worker = Rc::new(Worker {
        meter: Meter::new(&context.options.metrics, Arc::clone(&context.following)),
        origins: Origins::new(context.jobs.clone()),
        context,
        slots: RefCell::default(),
        ended: Cell::new(0),
        end: Notify::default(),
        is_watched: Cell::new(false),
        begun: Notify::default(),
    });
    skep_env::set_spin(limits::SPIN);
    ports.into_iter().for_each(|port| add_slot(&worker, port));
    // The timer fires after the loop has submitted all registrations. By then the kernel has
    // refused invalid registrations, since it refuses them immediately.
    skep_env::sleep(Duration::from_millis(1)).await;
    started(worker.ended.get() == 0);
    let watch = skep_env::spawn(watch_callers(Rc::clone(&worker)));
    let waits = Rc::clone(&worker.context.waits);
    let receive = skep_env::spawn(async move {
        while let Ok(event) = events.receive().await {
            waits.apply(event);
        }
    });
    let grow = skep_env::spawn(replace_waiting(Rc::clone(&worker)));
    let kick = P::NEEDS_KICKS.then(|| skep_env::spawn(kick_queues(Rc::clone(&worker))));
    while worker.ended.get() == 0 {
        worker.end.wait().await;
    }
    // The kernel has ended the mount. No caller waits for the requests in flight, and servers of a
    // dead cluster would never reply to them.
    let all_end = async {
        while worker.ended.get() < worker.slots.borrow().len() {
            worker.end.wait().await;
        }
    };
    if skep_env::timeout(limits::END_GRACE, all_end).await.is_none() {
        let under_way = worker.slots.borrow().len() - worker.ended.get();
        tracing::warn!(
            "the mount has ended with {under_way} unfinished requests; the programs that wait for \
             them get errors"
        );
        let slots = worker.slots.take();
        slots.iter().for_each(|slot| drop(slot.task.take()));
    }
    drop((watch, receive, grow, kick));
}

fn add_slot<F: FileSystem, P: Port>(worker: &Rc<Worker<F, P>>, port: P) {
    let (current, turn, task) = (Cell::new(None), Cell::new(0), RefCell::new(None));
    let (names, has_served) = (RefCell::default(), Cell::new(false));
    let slot = Rc::new(Slot { port, current, names, turn, task, has_served });
    worker.slots.borrow_mut().push(Rc::clone(&slot));
    let task = skep_env::spawn(serve(Rc::clone(worker), Rc::clone(&slot), None));
    slot.task.replace(Some(task));
}

/// Wakes ("kicks") queues in which a request may be stuck behind requests that wait for locks.
///
/// # Hazard: queued requests that a new entry does not get
/// A new entry of an io_uring queue gets requests that arrive later, but no request that is already
/// queued (Linux 6.18). The kernel passes on a queued request only when an entry of the queue
/// replies. If all other entries wait for locks, none of them replies, and the unlock may be among
/// the queued requests. So the worker sends requests of its own through the queue (kicks). The
/// worker stops the kicks when an entry has replied and is idle, since no request is queued then.
async fn kick_queues<F: FileSystem, P: Port>(worker: Rc<Worker<F, P>>) {
    loop {
        worker.context.waits.next().await;
        // After this pause the kernel has registered the new entry of the queue.
        let mut pause = limits::FIRST_KICK_PAUSE;
        loop {
            skep_env::sleep(pause).await;
            let queues = stuck_queues(&worker);
            if queues.is_empty() {
                break;
            }
            queues.into_iter().for_each(|queue| worker.context.waits.kick_queue(queue));
            pause = (pause * 2).min(limits::LONGEST_KICK_PAUSE);
        }
    }
}

/// Returns each queue in which a request waits for a lock, unless the queue has an idle slot that
/// has served a request.
fn stuck_queues<F: FileSystem, P: Port>(worker: &Worker<F, P>) -> BTreeSet<u16> {
    let waiting = worker.context.waits.requests();
    let slots = worker.slots.borrow();
    let queues_of = |is_such: &dyn Fn(&Slot<P>) -> bool| -> BTreeSet<u16> {
        slots.iter().filter(|slot| is_such(slot)).map(|slot| slot.port.queue()).collect()
    };
    let idle = queues_of(&|slot| slot.has_served.get() && slot.current.get().is_none());
    let waits = |current: RequestUnderWay| waiting.contains(&current.unique);
    let with_waits = queues_of(&|slot| slot.current.get().is_some_and(waits));
    with_waits.difference(&idle).copied().collect()
}

/// Adds a slot to a queue for each request of the queue that waits for a lock. Without these slots,
/// the waiting requests would occupy all slots, and the request for the unlock could not arrive.
async fn replace_waiting<F: FileSystem, P: Port>(worker: Rc<Worker<F, P>>) {
    let mut added: HashMap<u16, usize> = HashMap::new();
    loop {
        worker.context.waits.next().await;
        let waiting = worker.context.waits.requests();
        let slots = worker.slots.borrow().clone();
        let mut waiting_by_queue: HashMap<u16, (usize, &Rc<Slot<P>>)> = HashMap::new();
        for slot in &slots {
            if slot.current.get().is_some_and(|current| waiting.contains(&current.unique)) {
                waiting_by_queue.entry(slot.port.queue()).or_insert((0, slot)).0 += 1;
            }
        }
        for (queue, (count, slot)) in waiting_by_queue {
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
    let turn = slot.turn.get();
    while let Some(request) = slot.port.exchange(reply).await {
        slot.has_served.set(true);
        let unique = request.header.unique;
        let header = request.header;
        let (opcode, node) = (request.header.opcode, InodeId::new(request.header.nodeid));
        let outcome = match request.parse() {
            Ok(parsed) => {
                let (pid, uid) = (request.header.pid, request.header.uid);
                slot.current.set(Some(RequestUnderWay {
                    unique,
                    opcode,
                    node,
                    pid,
                    uid,
                    may_be_dropped: parsed.may_be_dropped(),
                    may_be_asynchronous: parsed.may_be_asynchronous(),
                }));
                drop(request);
                if !worker.is_watched.replace(true) {
                    worker.begun.notify();
                }
                let caller = Caller { unique, pid };
                let names = parsed.names();
                let followed = match worker.context.following.is_active_now() {
                    true => names.clone(),
                    false => EntryNames::default(),
                };
                slot.names.replace(names);
                let cause = Cell::new(Origin::default());
                // The future of an operation takes several KiB, so it is pinned here. Without the
                // pin, the surrounding futures would move the future of the operation, and would
                // contain its memory twice.
                let performing = pin!(async {
                    let origin = worker.origins.of(&header).await.of_next_operation();
                    cause.set(origin);
                    let load = &worker.context.load;
                    let _uncounted = load.leave_out_own(pid, origin, skep_env::now);
                    let operation = pin!(ops::perform(&worker.context, parsed, caller));
                    with_origin(origin, operation).await
                });
                let (outcome, begun) = if skep_metrics::is_off() {
                    let begun = skep_env::now();
                    (performing.await, begun)
                } else {
                    let busy = worker.meter.begin();
                    let (outcome, spent) = skep_env::timed(performing).await;
                    drop(busy);
                    worker.meter.count(&header, (cause.get(), followed), &outcome, &spent);
                    (outcome, spent.begun_at)
                };
                if slot.turn.get() != turn {
                    ops::abandon(&worker.context, &header, outcome).await;
                    return;
                }
                slot.current.set(None);
                outcome.map(|body| (body, begun))
            }
            Err(errno) => {
                drop(request);
                Err(Failure::Errno(errno))
            }
        };
        wait_for_memory(&slot.port).await;
        let outcome = match outcome {
            Ok((body, begun)) => {
                let context = &worker.context;
                let fs = &context.file_system;
                // A reply without names and attributes, such as the reply to a read, does not need
                // the present time.
                let usual = LazyCell::new(|| context.validity_since(begun));
                let validity = Validity {
                    usual: &|| *usual,
                    is_shared: &|inode| fs.is_shared(inode),
                    note_shown: &|attributes| fs.note_shown(attributes),
                    note_shown_with_name: &|attributes| fs.note_shown_with_name(attributes),
                };
                reply::encode(body, &slot.port.reply_memory(), &validity)
            }
            Err(failure) => Err(failure.errno(&header, &slot.names.borrow())),
        };
        reply = Some(Reply { unique, outcome });
    }
    worker.ended.set(worker.ended.get() + 1);
    worker.end.notify();
}

/// Waits until no operation has a handle to the port's buffers. An operation that continues without
/// its slot may still use them.
async fn wait_for_memory<P: Port>(port: &P) {
    let mut pause = Duration::from_micros(100);
    while port.is_memory_shared() {
        skep_env::sleep(pause).await;
        pause = (pause * 2).min(limits::LONGEST_MEMORY_PAUSE);
    }
}

/// Takes a slot from the operation of a killed caller, and replies EINTR to this caller.
fn release_killed<F: FileSystem, P: Port>(
    worker: &Rc<Worker<F, P>>,
    slot: &Rc<Slot<P>>,
    current: RequestUnderWay,
) {
    slot.turn.set(slot.turn.get() + 1);
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
        wait_for_memory(&next.port).await;
        serve(worker, next, Some(reply)).await;
    });
    slot.task.replace(Some(task));
}

/// A request that was in flight at an earlier check of the callers.
#[derive(Clone, Copy, Debug)]
struct SeenRequest {
    unique: u64,
    sender: Sender,
    /// Time of the first check that found the request.
    since: Duration,
}

/// Checks the callers of requests that were already in flight at the previous check, and logs
/// requests that have waited for a long time. Sleeps while no request is in flight.
async fn watch_callers<F: FileSystem, P: Port>(worker: Rc<Worker<F, P>>) {
    let mut seen: Vec<SeenRequest> = Vec::new();
    let mut long_waits = LongWaits::default();
    let mut report = skep_client::UnansweredReport::new();
    let own_number = worker.context.waiting.new_worker();
    loop {
        if worker.slots.borrow().iter().all(|slot| slot.current.get().is_none()) {
            log_waits(&mut long_waits, &[], Causes::default());
            report.set(None);
            worker.context.waiting.set(own_number, Vec::new(), Vec::new());
            worker.is_watched.set(false);
            worker.begun.wait().await;
        }
        skep_env::sleep(limits::CALLER_CHECK).await;
        let before = std::mem::take(&mut seen);
        let slots = worker.slots.borrow().clone();
        let lock_waits = worker.context.waits.requests();
        let (mut unanswered, mut waiters) = (Vec::new(), Vec::new());
        for slot in &slots {
            let Some(current) = slot.current.get() else { continue };
            match before.iter().find(|known| known.unique == current.unique) {
                Some(known) if known.sender.is_being_killed(current.may_be_asynchronous) => {
                    release_killed(&worker, slot, current);
                }
                Some(known) => {
                    seen.push(*known);
                    let is_for_lock = lock_waits.contains(&current.unique);
                    if !is_for_lock {
                        let names = slot.names.borrow().clone();
                        unanswered.push(unanswered_request(&current, names, known.since));
                    }
                    waiters.push(waiter(&current, known.since, is_for_lock));
                }
                None => {
                    let (unique, sender) = (current.unique, Sender::of(current.pid));
                    seen.push(SeenRequest { unique, sender, since: skep_env::now() });
                }
            }
        }
        let silent = skep_client::silent_targets(SILENT_AFTER);
        let failing = skep_client::failing_groups(skep_env::now());
        let absent = absent_storage(&worker.context.file_system.cluster_map(), &silent);
        let causes = Causes { silent: &silent, failing: &failing, absent: &absent };
        log_waits(&mut long_waits, &unanswered, causes);
        report.set(LongWaits::summary(&unanswered, causes, skep_env::now()));
        let silent = silent.into_iter().map(|it| it.target).collect();
        worker.context.waiting.set(own_number, waiters, silent);
    }
}

fn unanswered_request(
    current: &RequestUnderWay,
    names: EntryNames,
    since: Duration,
) -> UnansweredRequest {
    UnansweredRequest {
        operation: operation_name(current.opcode).unwrap_or_default(),
        inode: current.node,
        names,
        pid: current.pid,
        age: skep_env::now().saturating_sub(since),
    }
}

fn waiter(current: &RequestUnderWay, since: Duration, is_for_lock: bool) -> Waiter {
    Waiter {
        operation: operation_name(current.opcode).unwrap_or_default(),
        inode: current.node,
        pid: current.pid,
        uid: current.uid,
        since,
        is_for_lock,
    }
}

fn log_waits(long_waits: &mut LongWaits, unanswered: &[UnansweredRequest], causes: Causes<'_>) {
    match long_waits.line(unanswered, causes, skep_env::now()) {
        Some(Line::Wait(text)) => tracing::warn!("{text}"),
        Some(Line::End(text)) => tracing::info!("{text}"),
        None => {}
    }
}
