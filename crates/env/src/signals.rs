//! Signals as futures.

use crate::buffer::Buf;
use crate::file::File;
use std::future::Future;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::task::Poll;

/// A set of signals that are blocked for the process, so that they don't end it. A future receives
/// them instead.
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
    /// Blocks the signals `numbers` for this thread and the threads that it starts, and opens a
    /// descriptor that receives them.
    ///
    /// # Hazard: threads that already run
    /// A new thread inherits the blocked signals of the thread that starts it. So this function
    /// must be called before any other thread is started. Otherwise the kernel may deliver a signal
    /// to an earlier thread, and the signal ends the process.
    ///
    /// # Errors
    /// Returns an error if the process is out of file descriptors.
    pub fn take(numbers: &[i32]) -> io::Result<Self> {
        // SAFETY: the set is initialised by `sigemptyset` before it is used; results are checked.
        let raw = unsafe {
            let mut set = std::mem::zeroed::<libc::sigset_t>();
            libc::sigemptyset(&raw mut set);
            for number in numbers {
                libc::sigaddset(&raw mut set, *number);
            }
            let problem =
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            if problem != 0 {
                return Err(io::Error::from_raw_os_error(problem));
            }
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
    /// Returns an error if the kernel refuses the read. No reason for such a refusal is known.
    pub async fn next(&self) -> io::Result<i32> {
        let buf = Buf::new(size_of::<libc::signalfd_siginfo>());
        self.0.read_at(buf.clone(), 0).await?;
        let number = &buf.bytes()[..4];
        Ok(i32::from_ne_bytes([number[0], number[1], number[2], number[3]]))
    }

    /// Waits for `future` or for the next signal. If the signal arrives first, the future is
    /// dropped.
    ///
    /// # Hazard: lost signals
    /// The kernel delivers a signal only once. If the future is ready and a signal has arrived too,
    /// the signal is returned. A caller that got the future's value instead would never see the
    /// signal.
    ///
    /// # Errors
    /// Returns the errors of [`Self::next`].
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

    /// Unblocks all signals in a child process before it executes a program. For use in `pre_exec`.
    pub fn unblock_all() {
        // SAFETY: the set is initialised by `sigemptyset`. Both calls are async-signal-safe.
        unsafe {
            let mut set = std::mem::zeroed::<libc::sigset_t>();
            libc::sigemptyset(&raw mut set);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
        }
    }
}
