//! The event loops of a storage service, and the assignment of targets to loops. All targets of a
//! loop share its thread.
//!
//! The host starts a thread for each target ([`skep_service::host`]). But if a device has more
//! targets than the machine has processors, a thread and a loop for each target would only cost CPU
//! time. Each piece of a stream would wake a sleeping thread, and the buffers of all threads would
//! not fit into the processor's caches. So the targets of a device share as many loops as there are
//! processors. The thread that the host started for a target then only waits for the target's end.
//! The measurements are in docs/design/0001-threads-and-store.md.
//!
//! Targets on different devices never share a loop, since a device that hangs would stop the
//! targets of the other devices.
//!
//! If a loop fails, its targets cannot continue, so the service aborts. The failure of a loop
//! without targets harms no target: the service continues, and the next target of the device gets a
//! new loop.
//!
//! The module contains the loops and the choice of the loop for a target. The module
//! `target_thread` does the work of a target.

use crate::limits::{MAX_WAITING_TARGETS, WAIT_AGAIN, WORKERS_PER_PROCESSOR};
use skep_env::{Mailbox, MailboxSender};
use skep_types::{Error, ErrorCode, Result};
use std::cell::Cell;
use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

/// A function that starts the future of a target on the thread of the loop.
type Job = Box<dyn FnOnce() + Send>;

/// A message to the thread of a loop.
enum Message {
    Start {
        job: Job,
        /// Number of targets in the loop, including this target.
        targets: usize,
    },
    End,
}

/// The event loops of a storage service.
#[derive(Debug)]
pub(crate) struct EventLoops {
    /// Maximum number of loops for the targets of one device.
    limit: usize,
    /// The loops of each device, by device number. A thread holds the lock while a loop starts or
    /// receives a target, but never while a target runs. A thread that holds this lock takes no
    /// other lock.
    devices: Mutex<HashMap<u64, Vec<EventLoop>>>,
}

/// A thread with an event loop. The thread ends when this value is dropped, at the end of the
/// service. The thread stays even if its loop has no target, since a device has few loops, and a
/// target of the device may restart.
#[derive(Debug)]
struct EventLoop {
    messages: MailboxSender<Message>,
    state: Arc<LoopState>,
}

/// The state of a loop that its thread and [`EventLoops`] share.
#[derive(Debug, Default)]
struct LoopState {
    /// Number of targets that the loop runs. The number changes only under the lock of
    /// [`EventLoops`].
    targets: AtomicUsize,
    /// Whether the thread has ended: at the end of the service, or because its loop has failed.
    has_ended: AtomicBool,
}

impl LoopState {
    fn targets(&self) -> usize {
        self.targets.load(Ordering::SeqCst)
    }

    fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }
}

/// Marks the end of a loop's thread, also if the thread panics. Then drops the jobs that the loop
/// has not started, so that the threads that wait for their results are notified.
struct EndOfLoop {
    state: Arc<LoopState>,
    mailbox: Rc<Mailbox<Message>>,
}

impl Drop for EndOfLoop {
    fn drop(&mut self) {
        // `EventLoops::place` sends a job before it checks this flag. So if `place` finds the flag
        // unset, the job is already in the mailbox, and the `while` loop after the next line drops
        // the job.
        self.state.has_ended.store(true, Ordering::SeqCst);
        while self.mailbox.try_receive().is_some() {}
    }
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        // If the mailbox is full, the message is lost, and the thread runs until the process ends.
        let _ = self.messages.send(Message::End);
    }
}

/// The assignment of a target to a loop. The assignment ends when this value is dropped.
struct Place<'a> {
    loops: &'a EventLoops,
    device: u64,
    index: usize,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut devices = self.loops.lock();
        let own = devices.get_mut(&self.device).and_then(|loops| loops.get_mut(self.index));
        let own = own.expect("loops are never removed");
        own.state.targets.fetch_sub(1, Ordering::SeqCst);
    }
}

impl EventLoops {
    /// Creates the event loops of a service. A loop starts with its first target. Each device gets
    /// one loop per target, up to the number of processors.
    pub(crate) fn new() -> Self {
        Self::with_limit(skep_env::available_cpus().len())
    }

    pub(crate) fn with_limit(limit: usize) -> Self {
        Self { limit: limit.max(1), devices: Mutex::default() }
    }

    /// Runs a future on a loop of the device with the number `device`, and waits for the result.
    /// `directory` is a directory of the device, for the log. `serve` returns the future. The
    /// calling thread must not run an event loop.
    ///
    /// # Errors
    /// Returns the error that prevents the start of a loop.
    ///
    /// # Panics
    /// Panics if a target of the same loop panics or the loop fails, so that the host ends the
    /// process.
    pub(crate) fn run<F>(
        &self,
        (device, directory): (u64, PathBuf),
        serve: impl FnOnce() -> F + Send + 'static,
    ) -> Result<F::Output>
    where
        F: Future + 'static,
        F::Output: Send,
    {
        let (report, result) = mpsc::channel();
        let job: Job = Box::new(move || {
            skep_env::spawn(async move {
                // The send cannot fail, because the thread that receives the result waits until
                // this target ends.
                let _ = report.send(serve().await);
            })
            .detach();
        });
        let _place = self.place(device, directory, job)?;
        Ok(result.recv().expect("a loop runs until its targets have ended"))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Vec<EventLoop>>> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes a job to the loop of the device with the fewest targets. Starts another loop if each
    /// loop has a target and the device may have more loops. Replaces loops that failed while they
    /// had no target.
    fn place(&self, device: u64, directory: PathBuf, job: Job) -> Result<Place<'_>> {
        let mut devices = self.lock();
        let loops = devices.entry(device).or_default();
        for (number, ended) in loops.iter_mut().enumerate() {
            if ended.state.has_ended() && ended.state.targets() == 0 {
                *ended = EventLoop::start(directory.clone(), number)?;
            }
        }
        let fewest = (0..loops.len()).min_by_key(|index| loops[*index].state.targets());
        let index = match fewest {
            Some(index) if loops[index].state.targets() == 0 || loops.len() >= self.limit => index,
            _ => {
                loops.push(EventLoop::start(directory, loops.len())?);
                loops.len() - 1
            }
        };
        let chosen = &loops[index];
        let targets = chosen.state.targets() + 1;
        if chosen.messages.send(Message::Start { job, targets }).is_err() {
            let text = "cannot start a target: too many other targets wait for the same event \
                        loop; restart the service";
            return Err(Error::new(ErrorCode::LimitReached, text));
        }
        if chosen.state.has_ended() {
            let text = "cannot start a target: the event loop of this target has just failed; the \
                        log names the cause; restart the service";
            return Err(Error::new(ErrorCode::Io, text));
        }
        chosen.state.targets.store(targets, Ordering::SeqCst);
        Ok(Place { loops: self, device, index })
    }
}

impl EventLoop {
    /// Starts a thread with a loop for the targets on the disk of `directory`, and waits until the
    /// loop runs.
    fn start(directory: PathBuf, number: usize) -> Result<Self> {
        let (messages, mailbox) = Mailbox::new(MAX_WAITING_TARGETS)?;
        let (report, started) = mpsc::channel();
        let failed = report.clone();
        let state = Arc::<LoopState>::default();
        let of_thread = Arc::clone(&state);
        let body = move || {
            let mailbox = Rc::new(mailbox);
            let end = EndOfLoop { state: of_thread, mailbox: Rc::clone(&mailbox) };
            let has_started = Rc::new(Cell::new(false));
            let (starts, path) = (Rc::clone(&has_started), directory.clone());
            let running = async move {
                starts.set(true);
                let _ = report.send(Ok(()));
                start_targets(&mailbox, &path).await
            };
            match skep_env::block_on(running).flatten() {
                Ok(()) => {}
                Err(error) if has_started.get() && end.state.targets() == 0 => tracing::warn!(
                    "an event loop without targets on the disk of {} has failed: {error}; the \
                     service continues, and the next target on this disk gets a new event loop",
                    directory.display()
                ),
                // The threads that wait for the targets of the loop panic, see [`EventLoops::run`].
                Err(error) if has_started.get() => tracing::error!(
                    "the service aborts, since the event loop of its targets on the disk of {} has \
                     failed: {error}; restart the service, unless systemd restarts it",
                    directory.display()
                ),
                Err(error) => drop(failed.send(Err(error))),
            }
        };
        skep_env::spawn_thread(format!("storage-{number}"), None, body)?;
        let result: io::Result<()> = started.recv().expect("the thread reports its start");
        result.map_err(|error| {
            Error::new(
                ErrorCode::Io,
                format!("cannot start the event loop of thread storage-{number}: {error}"),
            )
        })?;
        Ok(Self { messages, state })
    }
}

/// Starts each target that is assigned to this loop, until the service ends. `directory` is a
/// directory on the disk of the targets.
async fn start_targets(mailbox: &Mailbox<Message>, directory: &Path) -> io::Result<()> {
    let workers = skep_env::available_cpus().len() * WORKERS_PER_PROCESSOR;
    loop {
        let (job, targets) = match mailbox.receive().await {
            Ok(Message::Start { job, targets }) => (job, targets),
            Ok(Message::End) => return Ok(()),
            // The targets of this loop must not end because another target cannot start.
            Err(error) => {
                tracing::warn!(
                    "cannot start further targets on the disk of {}, and retries: {error}; the \
                     targets that have started continue",
                    directory.display()
                );
                skep_env::sleep(WAIT_AGAIN).await;
                continue;
            }
        };
        // The loop gets as many io_uring workers as its targets would have in separate loops. With
        // fewer workers, the syncs of one target would wait for the syncs of the other targets.
        let count = u32::try_from(workers * targets).unwrap_or(u32::MAX);
        if let Err(error) = skep_env::limit_kernel_workers(count) {
            tracing::debug!("cannot set the number of kernel workers to {count}: {error:#}");
        }
        job();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::{JoinHandle, ThreadId};

    /// A target that runs until the test ends it.
    struct Target {
        /// The thread of the target's loop.
        thread: ThreadId,
        end: MailboxSender<Result<()>>,
        waiting: JoinHandle<Result<()>>,
    }

    impl Target {
        fn start(loops: &Arc<EventLoops>, device: u64) -> Self {
            let (end, ends) = Mailbox::new(1).unwrap();
            let (report, started) = mpsc::channel();
            let loops = Arc::clone(loops);
            let serve = move || async move {
                report.send(std::thread::current().id()).unwrap();
                ends.receive().await.unwrap()
            };
            let place = (device, PathBuf::from("/device"));
            let waiting = std::thread::spawn(move || loops.run(place, serve)?);
            Self { thread: started.recv().unwrap(), end, waiting }
        }

        fn end_with(self, result: Result<()>) -> Result<()> {
            self.end.send(result).unwrap();
            self.waiting.join().unwrap()
        }
    }

    #[test]
    fn targets_of_a_device_share_a_limited_number_of_loops() {
        let loops = Arc::new(EventLoops::with_limit(2));
        let targets: Vec<_> = (0..5).map(|_| Target::start(&loops, 7)).collect();
        let on = |thread| targets.iter().filter(|target| target.thread == thread).count();
        let (first, second) = (targets[0].thread, targets[1].thread);
        assert_ne!(first, second, "the second target gets a loop of its own");
        assert_eq!((on(first), on(second)), (3, 2));
        targets.into_iter().for_each(|target| target.end_with(Ok(())).unwrap());
    }

    #[test]
    fn targets_of_different_devices_never_share_a_loop() {
        let loops = Arc::new(EventLoops::with_limit(1));
        let (one, other) = (Target::start(&loops, 7), Target::start(&loops, 8));
        assert_ne!(one.thread, other.thread);
        one.end_with(Ok(())).unwrap();
        other.end_with(Ok(())).unwrap();
    }

    #[test]
    fn targets_of_a_loop_continue_when_one_of_them_ends() {
        let loops = Arc::new(EventLoops::with_limit(1));
        let (failing, other) = (Target::start(&loops, 7), Target::start(&loops, 7));
        let error = failing.end_with(Err(Error::new(ErrorCode::Io, "no disk"))).unwrap_err();
        assert_eq!(error.context(), "no disk");
        assert!(!other.waiting.is_finished());
        let again = Target::start(&loops, 7);
        assert_eq!(again.thread, other.thread);
        again.end_with(Ok(())).unwrap();
        other.end_with(Ok(())).unwrap();
    }

    #[test]
    fn event_loop_that_failed_without_targets_is_replaced() {
        let loops = Arc::new(EventLoops::with_limit(1));
        let (fail, fails) = mpsc::channel();
        let job = move || {
            if fails.recv() == Ok(()) {
                panic!("planted failure");
            }
        };
        let failing = loops.place(7, "/device".into(), Box::new(job)).unwrap();
        fail.send(()).unwrap();
        let ended = Arc::clone(&loops.lock()[&7][0].state);
        while !ended.has_ended() {
            std::thread::yield_now();
        }
        // The service does not replace a loop with a target, because the service aborts.
        let serve = || async {};
        loops.run((7, "/device".into()), serve).unwrap_err();
        drop(failing);
        loops.run((7, "/device".into()), serve).unwrap();
        let target = Target::start(&loops, 7);
        target.end_with(Ok(())).unwrap();
        assert_eq!(loops.lock()[&7].len(), 1);
    }

    #[test]
    fn new_target_reuses_the_loop_of_an_ended_target() {
        let loops = Arc::new(EventLoops::with_limit(3));
        let (one, other) = (Target::start(&loops, 7), Target::start(&loops, 7));
        let thread = one.thread;
        one.end_with(Ok(())).unwrap();
        let again = Target::start(&loops, 7);
        assert_eq!(again.thread, thread);
        again.end_with(Ok(())).unwrap();
        other.end_with(Ok(())).unwrap();
    }
}
