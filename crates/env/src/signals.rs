//! Signals as futures.

use crate::file::File;
use std::future::Future;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::task::Poll;

/// A set of signals that are blocked for the process, so that these signals do not end the process.
/// A future receives the signals instead.
#[derive(Debug)]
pub struct Signals(File);

/// How [`Signals::until_signal`] ended.
#[derive(Debug)]
pub enum UntilSignal<T> {
    /// The future was ready first, with this value.
    Ready(T),
    /// A signal with this number arrived first.
    Signal(i32),
}

impl Signals {
    /// Blocks the signals `numbers` for this thread and the threads that this thread starts, and
    /// opens a descriptor that receives these signals.
    ///
    /// # Hazard: threads that already run
    /// A new thread inherits the blocked signals of the thread that starts it. So the process must
    /// call this function before it starts any other thread. If an earlier thread exists, the
    /// kernel may deliver a signal to that thread, and the signal then ends the process.
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
            libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and nothing else owns it.
        Ok(Self(File::from(unsafe { OwnedFd::from_raw_fd(raw) })))
    }

    /// Waits for the next signal and returns its number. Cancel-safe: only a call that returns
    /// takes the signal from the kernel.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the read. No reason for such a refusal is known.
    pub async fn next(&self) -> io::Result<i32> {
        loop {
            self.0.wait_readable().await?;
            if let Some(number) = self.take_pending()? {
                return Ok(number);
            }
            // Another thread has received the signal, so wait for the next signal.
        }
    }

    /// Takes a pending signal from the kernel, and returns the number of the signal. Returns `None`
    /// if no signal is pending. The call does not wait, and needs no event loop.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the read. No reason for such a refusal is known.
    pub fn take_pending(&self) -> io::Result<Option<i32>> {
        let mut info = [0_u8; size_of::<libc::signalfd_siginfo>()];
        // SAFETY: the kernel writes at most `info.len()` bytes to `info`.
        let read = unsafe { libc::read(self.0.as_raw_fd(), info.as_mut_ptr().cast(), info.len()) };
        if read < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock => Ok(None),
                _ => Err(error),
            };
        }
        Ok(Some(i32::from_ne_bytes([info[0], info[1], info[2], info[3]])))
    }

    /// Waits for `future` or for the next signal. If the signal arrives first, the future is
    /// dropped.
    ///
    /// # Hazard: lost signals
    /// The kernel delivers a signal only once. If the future is ready and a signal has arrived too,
    /// the caller gets either the value of the future or the signal. A signal that the caller does
    /// not get stays pending in the kernel, and the next call returns this signal.
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

    /// Unblocks all signals in a child process before the child executes a program. For use in
    /// `pre_exec`.
    pub fn unblock_all() {
        // SAFETY: the set is initialised by `sigemptyset`. The two calls in the handler are
        // async-signal-safe.
        unsafe {
            let mut set = std::mem::zeroed::<libc::sigset_t>();
            libc::sigemptyset(&raw mut set);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
        }
    }

    /// Whether this process ignores the signal `number`, for example SIGHUP because of `nohup`. A
    /// process that blocks an ignored signal still receives this signal as a value.
    pub fn is_ignored(number: i32) -> bool {
        // SAFETY: an action of zeros is valid, and the call only writes the current action to it.
        unsafe {
            let mut action = std::mem::zeroed::<libc::sigaction>();
            let result = libc::sigaction(number, std::ptr::null(), &raw mut action);
            result == 0 && action.sa_sigaction == libc::SIG_IGN
        }
    }

    /// Returns the signals of `numbers` that this process does not ignore. A command that handles
    /// only these signals continues after a signal that its parent made it ignore. An example is
    /// SIGINT in a background command of a shell without job control.
    pub fn not_ignored(numbers: &[i32]) -> Vec<i32> {
        numbers.iter().copied().filter(|number| !Self::is_ignored(*number)).collect()
    }

    /// Ends this process by the signal `number`, which the process has received as a value. The
    /// parent then gets the same wait status as from a program that does not handle signals.
    ///
    /// The signal also ends a process that ignored this signal from its start. A shell without job
    /// control makes its background commands ignore SIGINT and SIGQUIT, and `nohup` makes a command
    /// ignore SIGHUP. The kernel still delivers such a signal to a process that blocks the signal.
    ///
    /// The function drops no values of the program. Other signals that the process blocks stay
    /// blocked.
    pub fn end_process(number: i32) -> ! {
        // SAFETY: `SIG_DFL` is no function of this process, and `raise` takes no pointers. The set
        // is initialised by `sigemptyset` before it is used.
        unsafe {
            libc::signal(number, libc::SIG_DFL);
            let mut set = std::mem::zeroed::<libc::sigset_t>();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, number);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
            libc::raise(number);
        }
        // The default action of this signal does not end a process.
        std::process::exit(128 + number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn ignored_signals_are_recognized() {
        // The runtime of Rust ignores SIGPIPE, and no process can ignore SIGKILL. The parent of the
        // test run may ignore any other signal.
        assert!(Signals::is_ignored(libc::SIGPIPE));
        assert!(!Signals::is_ignored(libc::SIGKILL));
        assert_eq!(Signals::not_ignored(&[libc::SIGPIPE, libc::SIGKILL]), [libc::SIGKILL]);
    }

    /// Regression test: `skep stats` sent itself the signal without a change of its action. After
    /// Ctrl-C, a process that ignored SIGINT from its start ended with the exit code of a success.
    #[test]
    fn ignored_signal_ends_a_process_that_received_it() {
        // SAFETY: until its end, the child makes only calls that are async-signal-safe.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: `SIG_IGN` is no function of this process.
            unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
            Signals::end_process(libc::SIGINT);
        }
        assert!(child > 0, "{}", io::Error::last_os_error());
        let mut status = 0;
        // SAFETY: `status` is valid for writes during the call.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFSIGNALED(status), "{status}");
        assert_eq!(libc::WTERMSIG(status), libc::SIGINT);
    }

    /// Before the fix, dropping the wait could drop a signal that the kernel had already handed
    /// over.
    #[test]
    fn signal_during_a_poll_is_not_lost() {
        let signals = Signals::take(&[libc::SIGUSR2]).unwrap();
        crate::block_on(async move {
            for round in 0..200 {
                let raising = async {
                    crate::yield_now().await;
                    // SAFETY: the call takes no pointers, and the signal is blocked for this
                    // thread.
                    assert_eq!(unsafe { libc::raise(libc::SIGUSR2) }, 0);
                    if round % 2 == 0 {
                        crate::yield_now().await;
                    }
                };
                if let UntilSignal::Signal(number) = signals.until_signal(raising).await.unwrap() {
                    assert_eq!(number, libc::SIGUSR2);
                    continue;
                }
                let next = crate::timeout(Duration::from_secs(5), signals.next()).await;
                assert_eq!(next.expect("the signal is pending").unwrap(), libc::SIGUSR2);
            }
        })
        .unwrap();
    }
}
