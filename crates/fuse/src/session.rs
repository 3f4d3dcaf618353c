//! The threads of one mount, from its first to its last request.
//!
//! The calling thread starts the workers, usually one for each CPU (`shares`). With io_uring it
//! also starts one thread that reads `/dev/fuse`. Afterwards the calling thread waits for signals,
//! and for the start and the end of the workers. At the end it unmounts the file system.

pub(crate) mod shares;

use self::shares::WorkerPorts;
use crate::checked_files::{CheckedFiles, SharedChecks};
use crate::context::{Context, RequestOptions};
use crate::file_system::FileSystem;
use crate::following::Following;
use crate::init::KernelFeatures;
use crate::invalidation;
use crate::job_reader::JobReader;
use crate::limits;
use crate::mount_point;
use crate::repeated_opens::RepeatedOpens;
use crate::transport::TransportKind;
use crate::transport::control;
use crate::transport::device::{Device, DevicePort};
use crate::transport::kernel::{self, Unmount};
use crate::transport::uring::UringPort;
use crate::waiting::Waiting;
use crate::waits::{Interrupts, Waits};
use crate::worker;
use skep_client::{Forget, RequestLoad};
use skep_env::{Mailbox, MailboxSender, Signals};
use skep_types::{Error, ErrorCode, Result};
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::thread::JoinHandle;

/// Capacity of the mailbox for events of a mount. Each thread sends a few events, and each signal
/// is one event.
const MAX_EVENTS: usize = 100_000;

/// An event of a mount. Workers and helper threads send events to the thread that started the
/// mount.
#[derive(Debug)]
enum Event {
    /// The kernel has registered all ports of a worker.
    Ready,
    /// The kernel refused a port of a worker.
    Refused,
    /// A thread has ended. An error means that the thread could not start, or could not continue.
    Ended(Result<()>),
    /// The process received a signal that ends the mount.
    Signal,
    /// An attempt to unmount has ended with this result.
    Unmounted(Unmount, io::Result<()>),
    /// The grace period in which programs may close their files has ended.
    GraceIsOver,
}

/// How a session ended.
#[derive(Debug)]
pub(crate) enum End {
    /// The mount was unmounted.
    Unmounted,
    /// The kernel refused the transport, and the file system is not mounted.
    Refused,
}

/// A mount that has completed the negotiation with the kernel.
pub(crate) struct Session {
    pub(crate) fd: Arc<OwnedFd>,
    pub(crate) mount_point: PathBuf,
    pub(crate) features: KernelFeatures,
    pub(crate) options: RequestOptions,
    /// The largest number of workers. `None` means one for each CPU.
    pub(crate) workers: Option<usize>,
}

/// Serves a session to its end. Each worker calls `connect` on its own thread to get its access to
/// the file system. Calls `on_ready` when all workers serve requests.
pub(crate) fn run<F, Fut>(
    session: Session,
    connect: impl Fn(usize) -> Fut + Clone + Send + 'static,
    signals: Option<Signals>,
    on_ready: Box<dyn FnOnce(TransportKind)>,
) -> Result<(End, Option<Signals>)>
where
    F: FileSystem,
    Fut: Future<Output = Result<F>> + 'static,
{
    let (events, mailbox) = Mailbox::new(MAX_EVENTS)?;
    let shares = shares::shares(session.features.transport, session.workers);
    let workers = shares.len();
    let checked = Arc::new(SharedChecks::default());
    let invented_times = Arc::new(AtomicU32::new(0));
    let following = Arc::new(Following::default());
    let load = Arc::new(RequestLoad::default());
    let waiting = Arc::new(Waiting::default());
    let repeated_opens = Arc::new(RepeatedOpens::default());
    let jobs = session.options.job_variables.clone().map(|names| Arc::new(JobReader::new(names)));
    let interrupts = Arc::new(Interrupts::default());
    let mut threads = Vec::new();
    for (index, share) in shares.into_iter().enumerate() {
        let start = WorkerStart {
            index,
            share,
            fd: Arc::clone(&session.fd),
            features: session.features,
            options: session.options.clone(),
            checked: Arc::clone(&checked),
            invented_times: Arc::clone(&invented_times),
            following: Arc::clone(&following),
            load: Arc::clone(&load),
            waiting: Arc::clone(&waiting),
            repeated_opens: Arc::clone(&repeated_opens),
            jobs: jobs.clone(),
            interrupts: Arc::clone(&interrupts),
            mount_point: session.mount_point.clone(),
        };
        threads.push(start_worker(start, connect.clone(), events.clone())?);
    }
    if session.features.transport == TransportKind::Uring {
        threads.push(start_control(Arc::clone(&session.fd), interrupts, events.clone())?);
    }
    let supervisor = Supervisor {
        mount_point: session.mount_point.clone(),
        transport: session.features.transport,
        events,
        workers,
        running: threads.len(),
        ready: 0,
        on_ready: Some(on_ready),
        was_refused: false,
        failure: None,
        is_ending: false,
    };
    let (end, left, signals) = skep_env::block_on(supervisor.run(mailbox, signals))?;
    // Do not join threads that still serve open files. These threads end with the process.
    if left == 0 {
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }
    Ok((end?, signals))
}

struct WorkerStart {
    index: usize,
    share: WorkerPorts,
    fd: Arc<OwnedFd>,
    features: KernelFeatures,
    options: RequestOptions,
    checked: Arc<SharedChecks>,
    invented_times: Arc<AtomicU32>,
    following: Arc<Following>,
    load: Arc<RequestLoad>,
    waiting: Arc<Waiting>,
    repeated_opens: Arc<RepeatedOpens>,
    jobs: Option<Arc<JobReader>>,
    interrupts: Arc<Interrupts>,
    mount_point: PathBuf,
}

fn start_worker<F, Fut>(
    start: WorkerStart,
    connect: impl Fn(usize) -> Fut + Send + 'static,
    events: MailboxSender<Event>,
) -> io::Result<JoinHandle<()>>
where
    F: FileSystem,
    Fut: Future<Output = Result<F>> + 'static,
{
    let name = format!("skep-fuse-{}", start.index);
    skep_env::spawn_thread(name, start.share.cpu, move || {
        kernel::become_io_flusher();
        start.load.count_this_thread();
        let started_events = events.clone();
        let connecting = connect(start.index);
        let body = async move {
            let file_system = connecting.await?;
            let device = Arc::clone(&start.fd);
            let forget = move |inode| invalidation::invalidate_attributes(&device, inode);
            file_system.set_forget(Forget(Box::new(forget)));
            let (sender, wait_events) = Mailbox::new(limits::MAX_WAIT_EVENTS)?;
            let interrupts = Arc::clone(&start.interrupts);
            let context = Context {
                file_system,
                options: start.options,
                features: start.features,
                invented_times: start.invented_times,
                following: start.following,
                load: start.load,
                waiting: start.waiting,
                repeated_opens: start.repeated_opens,
                jobs: start.jobs,
                checked: CheckedFiles::new(start.checked),
                waits: Waits::new(
                    Arc::clone(&interrupts),
                    sender,
                    Arc::clone(&start.fd),
                    start.mount_point,
                ),
            };
            let fd = Arc::clone(&start.fd);
            let started = move |ok: bool| {
                // Ports also end if another program has unmounted the file system already. Such an
                // end is no refusal of the transport, since other workers may have served requests
                // before.
                let is_refused = !ok && kernel::is_connected(&fd);
                let _ = started_events.send(match is_refused {
                    true => Event::Refused,
                    false => Event::Ready,
                });
            };
            match start.features.transport {
                TransportKind::Uring => {
                    let ports = start.share.queues.iter().flat_map(|(queue, slots)| {
                        (0..*slots).map(|_| UringPort::new(Arc::clone(&start.fd), *queue))
                    });
                    worker::run(context, ports.collect(), wait_events, started).await;
                }
                TransportKind::Device => {
                    let clone = kernel::clone_device(&start.fd)?;
                    kernel::set_nonblocking(&clone)?;
                    let is_long = start.features.has_long_set_xattr;
                    let device = Device::new(clone, interrupts, is_long);
                    let ports = (0..limits::SLOTS_PER_WORKER)
                        .map(|_| DevicePort::new(std::rc::Rc::clone(&device)));
                    worker::run(context, ports.collect(), wait_events, started).await;
                }
            }
            Ok(())
        };
        let result = skep_env::block_on(body).map_err(Error::from).flatten();
        let _ = events.send(Event::Ended(result));
    })
}

fn start_control(
    fd: Arc<OwnedFd>,
    interrupts: Arc<Interrupts>,
    events: MailboxSender<Event>,
) -> io::Result<JoinHandle<()>> {
    skep_env::spawn_thread("skep-fuse-device".into(), None, move || {
        let result =
            skep_env::block_on(control::run(fd, interrupts)).map_err(Error::from).flatten();
        let _ = events.send(Event::Ended(result));
    })
}

struct Supervisor {
    mount_point: PathBuf,
    transport: TransportKind,
    events: MailboxSender<Event>,
    workers: usize,
    running: usize,
    ready: usize,
    on_ready: Option<Box<dyn FnOnce(TransportKind)>>,
    was_refused: bool,
    failure: Option<Error>,
    is_ending: bool,
}

/// Returns how a session ended. `left` contains the events that the session has received but not
/// applied. If the caller ignored a signal among them, it would start the mount again with the next
/// transport, although the user has ended the mount.
fn end_of(
    failure: Option<Error>,
    was_refused: bool,
    mut left: impl Iterator<Item = Event>,
) -> Result<End> {
    match failure {
        Some(error) => Err(error),
        None if was_refused && !left.any(|event| matches!(event, Event::Signal)) => {
            Ok(End::Refused)
        }
        None => Ok(End::Unmounted),
    }
}

impl Supervisor {
    /// Waits until all threads have ended, or until the grace period of a detached mount has ended.
    /// Returns how the session ended, the number of threads that still run, and the signals.
    async fn run(
        mut self,
        mailbox: Mailbox<Event>,
        signals: Option<Signals>,
    ) -> (Result<End>, usize, Option<Signals>) {
        let signals = signals.map(std::rc::Rc::new);
        let listener = signals.as_ref().map(|signals| {
            let (signals, events) = (std::rc::Rc::clone(signals), self.events.clone());
            skep_env::spawn(async move {
                while signals.next().await.is_ok() && events.send(Event::Signal).is_ok() {}
            })
        });
        while self.running > 0 {
            let goes_on = match mailbox.receive().await {
                Ok(event) => self.apply(event),
                Err(error) => {
                    self.failure.get_or_insert(error.into());
                    false
                }
            };
            if !goes_on {
                break;
            }
        }
        if let Some(listener) = listener {
            listener.cancel().await;
        }
        let left = std::iter::from_fn(|| mailbox.try_receive());
        let end = end_of(self.failure, self.was_refused, left);
        (end, self.running, signals.and_then(std::rc::Rc::into_inner))
    }

    /// Applies an event. Returns false if the session must not wait for further events.
    fn apply(&mut self, event: Event) -> bool {
        match event {
            Event::Ready => {
                self.ready += 1;
                if self.ready == self.workers
                    && let Some(on_ready) = self.on_ready.take()
                {
                    on_ready(self.transport);
                }
            }
            Event::Refused => {
                // If the unmount has begun, a refusal of a port only means that the mount has ended
                // already.
                self.was_refused |= !self.is_ending;
                self.start_unmount(Unmount::Abort);
            }
            Event::Ended(result) => {
                self.running -= 1;
                if let Err(error) = result {
                    self.failure.get_or_insert(error);
                    self.start_unmount(Unmount::Abort);
                }
            }
            Event::Signal if self.is_ending => {
                tracing::warn!(
                    "a second signal arrived: the mount on {} ends immediately, and programs that \
                     use it get errors",
                    self.mount_point.display()
                );
                let _ = mount_point::unmount(&self.mount_point, Unmount::Abort);
                return false;
            }
            Event::Signal => self.start_unmount(Unmount::IfIdle),
            Event::Unmounted(how, result) => self.unmounted(how, result),
            Event::GraceIsOver => {
                tracing::warn!(
                    "the mount on {} ends while programs have files open: these programs get \
                     errors",
                    self.mount_point.display()
                );
                return false;
            }
        }
        true
    }

    /// Unmounts on a separate thread, since the kernel may first wait until the workers have
    /// written dirty pages.
    fn start_unmount(&mut self, how: Unmount) {
        self.is_ending = true;
        let (mount_point, events) = (self.mount_point.clone(), self.events.clone());
        let body = move || {
            let result = mount_point::unmount(&mount_point, how);
            let _ = events.send(Event::Unmounted(how, result));
        };
        if let Err(error) = skep_env::spawn_thread("skep-unmount".into(), None, body) {
            tracing::error!(
                "cannot unmount {0}, since no thread can start: {error}; run `umount {0}`",
                self.mount_point.display()
            );
        }
    }

    fn unmounted(&mut self, how: Unmount, result: io::Result<()>) {
        let mount_point = self.mount_point.display();
        match result {
            Ok(()) if how == Unmount::Detach => {
                let events = self.events.clone();
                skep_env::spawn(async move {
                    skep_env::sleep(limits::DETACH_GRACE).await;
                    let _ = events.send(Event::GraceIsOver);
                })
                .detach();
            }
            Ok(()) => {}
            Err(error) if how == Unmount::IfIdle && is_busy(&error) => {
                tracing::warn!(
                    "{mount_point} is busy: the mount detaches this directory, and programs have \
                     {} seconds to close their files",
                    limits::DETACH_GRACE.as_secs()
                );
                self.start_unmount(Unmount::Detach);
            }
            Err(error) => {
                let what = format!("cannot unmount {mount_point}: {error}");
                self.failure.get_or_insert(Error::new(ErrorCode::Io, what));
            }
        }
    }
}

fn is_busy(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ResourceBusy
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If the mount ignored the signal, it would start again with the `/dev/fuse` transport.
    #[test]
    fn signal_while_the_kernel_refuses_a_transport_ends_the_mount() {
        let end = |was_refused, left: Vec<Event>| end_of(None, was_refused, left.into_iter());
        assert!(matches!(end(true, vec![]), Ok(End::Refused)));
        assert!(matches!(end(true, vec![Event::Ready, Event::Signal]), Ok(End::Unmounted)));
        assert!(matches!(end(false, vec![Event::Signal]), Ok(End::Unmounted)));
    }
}
