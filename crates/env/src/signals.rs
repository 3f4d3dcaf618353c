//! Signals that a future can wait for.

use crate::buffer::Buf;
use crate::file::File;
use std::future::Future;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::task::Poll;

/// Signals that no longer end the process: a future waits for them.
#[derive(Debug)]
pub struct Signals(File);

/// How [`Signals::until_signal`] ended.
#[derive(Debug)]
pub enum UntilSignal<T> {
    /// The future was ready first, with this value.
    Ready(T),
    /// A signal with this number came first.
    Signal(i32),
}

impl Signals {
    /// Takes over signals for the whole process.
    ///
    /// # Hazard: threads that already run
    /// A thread inherits the blocked signals of the thread that starts it. A signal still ends the
    /// process if any thread was started before this call.
    ///
    /// # Errors
    /// When the process is out of file descriptors.
    pub fn take(numbers: &[i32]) -> io::Result<Self> {
        // SAFETY: the set is initialised by `sigemptyset` before it is used; results are checked.
        let raw = unsafe {
            let mut set = std::mem::zeroed::<libc::sigset_t>();
            libc::sigemptyset(&raw mut set);
            for number in numbers {
                libc::sigaddset(&raw mut set, *number);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC)
        };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and ours.
        Ok(Self(File::from(unsafe { OwnedFd::from_raw_fd(raw) })))
    }

    /// Waits for the next signal and returns its number.
    ///
    /// # Errors
    /// When the kernel refuses the read, which it has no reason to.
    pub async fn next(&self) -> io::Result<i32> {
        let buf = Buf::new(size_of::<libc::signalfd_siginfo>());
        self.0.read_at(buf.clone(), 0).await?;
        let number = &buf.bytes()[..4];
        Ok(i32::from_ne_bytes([number[0], number[1], number[2], number[3]]))
    }

    /// Waits for `future` or for the next signal, and drops the future if the signal comes first.
    ///
    /// # Hazard: lost signals
    /// The kernel delivers a signal once. If both are there at the same time, the signal counts: a
    /// caller that gets the future's value instead would never learn of it.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub async fn until_signal<T>(
        &self,
        future: impl Future<Output = T>,
    ) -> io::Result<UntilSignal<T>> {
        let mut future = std::pin::pin!(future);
        let mut signal = std::pin::pin!(self.next());
        std::future::poll_fn(|context| {
            if let Poll::Ready(number) = signal.as_mut().poll(context) {
                return Poll::Ready(number.map(UntilSignal::Signal));
            }
            future.as_mut().poll(context).map(|value| Ok(UntilSignal::Ready(value)))
        })
        .await
    }

    /// Unblocks all signals in a child process before it executes a program. For `pre_exec`.
    pub fn unblock_all() {
        // SAFETY: the set is initialised by `sigemptyset`; both calls are async-signal-safe.
        unsafe {
            let mut set = std::mem::zeroed::<libc::sigset_t>();
            libc::sigemptyset(&raw mut set);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
        }
    }
}
