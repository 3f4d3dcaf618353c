//! Serves `/dev/fuse` with several threads. Each thread has its own descriptor (a clone), reads
//! requests when the descriptor is readable, and writes replies to it.
//!
//! A blocking read of the device through io_uring would occupy a kernel thread. So the descriptor
//! is non-blocking. io_uring waits until the descriptor is readable, and the read is an ordinary
//! system call. Only one port of a worker reads at a time. Each other port processes a request, or
//! waits for its turn to read. The port that began to wait last gets the next turn, since its
//! buffers are most likely still in the CPU's cache.

use super::kernel;
use crate::abi::{self, InHeader, InterruptIn, Opcode, OutHeader, operation_name};
use crate::limits;
use crate::request::RawRequest;
use crate::waits::Interrupts;
use crate::worker::{Port, Reply};
use io_uring::{opcode, types};
use skep_env::Buf;
use skep_types::InodeId;
use skep_types::codec::{Codec, Reader};
use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

/// Offset of a message's body in a port's buffer. The body starts at a page boundary, with space
/// for the headers before it. So the data of a write has the same alignment as in the program's
/// memory.
const BODY_AT: usize = 4096;
/// Offset of a request in a port's buffer. With this offset, the data of a write starts at
/// [`BODY_AT`].
const REQUEST_AT: usize = BODY_AT - abi::IN_HEADER_BYTES - 40;
const MEMORY_BYTES: usize = BODY_AT + limits::MAX_IO_BYTES;

/// The descriptor of one thread. Only one port of the thread reads from the descriptor at a time.
/// The other ports wait for their turn.
pub(crate) struct Device {
    fd: OwnedFd,
    interrupts: Arc<Interrupts>,
    has_long_set_xattr: bool,
    /// Whether a port reads, or has been granted the turn to read but its task has not run yet.
    is_taken: Cell<bool>,
    waiting: RefCell<Vec<Rc<Waiter>>>,
}

/// A port that waits for its turn to read.
#[derive(Default)]
struct Waiter {
    is_granted: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Device {
    /// Creates the device of a thread. `fd` must be non-blocking. `has_long_set_xattr` states
    /// whether the kernel sends the long form of `SETXATTR`.
    pub(crate) fn new(
        fd: OwnedFd,
        interrupts: Arc<Interrupts>,
        has_long_set_xattr: bool,
    ) -> Rc<Self> {
        let (is_taken, waiting) = (Cell::new(false), RefCell::default());
        Rc::new(Self { fd, interrupts, has_long_set_xattr, is_taken, waiting })
    }

    async fn turn(&self) -> Turn<'_> {
        if !self.is_taken.replace(true) {
            return Turn(self);
        }
        let queued = QueuedWaiter { device: self, waiter: Rc::default() };
        self.waiting.borrow_mut().push(Rc::clone(&queued.waiter));
        std::future::poll_fn(|context| {
            if queued.waiter.is_granted.take() {
                return Poll::Ready(Turn(self));
            }
            queued.waiter.waker.replace(Some(context.waker().clone()));
            Poll::Pending
        })
        .await
    }

    /// Grants the turn to the port that began to wait last, if any port waits.
    fn pass_on(&self) {
        let Some(next) = self.waiting.borrow_mut().pop() else {
            self.is_taken.set(false);
            return;
        };
        next.is_granted.set(true);
        if let Some(waker) = next.waker.take() {
            waker.wake();
        }
    }

    async fn wait_until_readable(&self) {
        // The poll is exclusive, so that a request wakes only one of the threads that wait.
        let events = (libc::EPOLLIN | libc::EPOLLEXCLUSIVE) as u32;
        let entry = opcode::PollAdd::new(types::Fd(self.fd.as_raw_fd()), events).build();
        // SAFETY: the entry points to no memory, and the descriptor lives as long as the worker.
        unsafe { skep_env::submit(entry.into(), Box::new(())) }.await;
    }
}

/// The exclusive right of a port to read from the descriptor. When this value is dropped, the next
/// port gets the right.
struct Turn<'a>(&'a Device);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.pass_on();
    }
}

/// The entry of a port in the list of waiting ports. If the port's future is dropped after the port
/// was granted the turn, the next waiting port gets the turn.
struct QueuedWaiter<'a> {
    device: &'a Device,
    waiter: Rc<Waiter>,
}

impl Drop for QueuedWaiter<'_> {
    fn drop(&mut self) {
        match self.waiter.is_granted.get() {
            true => self.device.pass_on(),
            false => {
                let mut waiting = self.device.waiting.borrow_mut();
                waiting.retain(|waiter| !Rc::ptr_eq(waiter, &self.waiter));
            }
        }
    }
}

/// A port of `/dev/fuse`: the buffers for one request at a time and its reply.
pub(crate) struct DevicePort {
    device: Rc<Device>,
    request: Buf,
    reply: Buf,
}

impl DevicePort {
    /// Creates a port that uses the descriptor of `device`.
    pub(crate) fn new(device: Rc<Device>) -> Self {
        Self { device, request: Buf::new(MEMORY_BYTES), reply: Buf::new(MEMORY_BYTES) }
    }

    fn send(&self, reply: &Reply) {
        let (error, len) = match reply.outcome {
            Ok(len) => (0, len),
            Err(errno) => (-errno, 0),
        };
        let len = abi::OUT_HEADER_BYTES + len;
        let start = BODY_AT - abi::OUT_HEADER_BYTES;
        let header = OutHeader { len: len as u32, error: error as u32, unique: reply.unique };
        self.reply.write(start, &header.to_bytes());
        if let Err(error) = kernel::write(&self.device.fd, &self.reply.slice(start..start + len))
            // ENOENT means that the caller no longer waits for the reply. ENODEV means that the
            // mount has ended.
            && !matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV))
        {
            self.log_refused_reply(&error);
        }
    }

    /// Logs that the kernel has refused the reply to the request in the port's request buffer.
    fn log_refused_reply(&self, error: &io::Error) {
        let request = self.request.slice(REQUEST_AT..MEMORY_BYTES);
        let Ok(header) = InHeader::decode(&mut Reader::new(&request.bytes())) else { return };
        tracing::warn!(
            "{} of inode {} by process {}: the kernel refused the reply of this mount: {error}; \
             the process gets EIO, or waits until it is killed",
            operation_name(header.opcode).unwrap_or_default(),
            InodeId::new(header.nodeid),
            header.pid
        );
    }

    /// Parses the message of `len` bytes in the port's request buffer.
    fn received(&self, len: usize) -> DeviceMessage {
        let bytes = self.request.slice(REQUEST_AT..REQUEST_AT + len);
        let is_long = self.device.has_long_set_xattr;
        let Some(request) = RawRequest::from_bytes(&bytes, self.reply_memory(), is_long) else {
            return DeviceMessage::Nothing;
        };
        match Opcode::from_number(request.header.opcode) {
            Some(Opcode::Interrupt) => {
                let arguments = InterruptIn::decode(&mut Reader::new(&request.arguments.bytes()));
                if let Ok(InterruptIn { unique }) = arguments {
                    self.device.interrupts.interrupt(unique);
                }
                DeviceMessage::Nothing
            }
            // The daemon has no state for inodes that the kernel caches, so it needs no reference
            // counts.
            Some(Opcode::Forget | Opcode::BatchForget | Opcode::NotifyReply) => {
                DeviceMessage::Nothing
            }
            _ => DeviceMessage::Request(request),
        }
    }
}

/// A message that a port has read.
enum DeviceMessage {
    /// The message needs no reply.
    Nothing,
    Request(RawRequest),
}

impl Port for DevicePort {
    async fn exchange(&self, reply: Option<Reply>) -> Option<RawRequest> {
        if let Some(reply) = reply {
            self.send(&reply);
        }
        let _turn = self.device.turn().await;
        let buffer = self.request.slice(REQUEST_AT..MEMORY_BYTES);
        loop {
            match kernel::read(&self.device.fd, &buffer) {
                Ok(len) => {
                    if let DeviceMessage::Request(request) = self.received(len) {
                        return Some(request);
                    }
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => self.device.wait_until_readable().await,
                    // ENOENT means that a signal interrupted the request before this thread read
                    // it.
                    Some(libc::EINTR | libc::ENOENT) => {}
                    Some(libc::ENODEV | libc::ECONNABORTED) => return None,
                    _ => {
                        tracing::error!(
                            "a worker of this mount ends, since it cannot read from /dev/fuse: \
                             {error}; the other workers continue; if programs wait, unmount, and \
                             mount again"
                        );
                        return None;
                    }
                },
            }
        }
    }

    fn reply_memory(&self) -> Buf {
        self.reply.slice(BODY_AT..MEMORY_BYTES)
    }

    fn is_memory_shared(&self) -> bool {
        self.request.handles() > 1 || self.reply.handles() > 1
    }

    const NEEDS_KICKS: bool = false;

    fn queue(&self) -> u16 {
        0
    }

    fn another(&self) -> Self {
        Self::new(Rc::clone(&self.device))
    }
}
