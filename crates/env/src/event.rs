//! An eventfd: a counter in the kernel. Any thread may raise the counter, and one thread waits for
//! a raised counter.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A counter in the kernel that any thread may raise. Its descriptor is readable while the counter
/// is not zero.
#[derive(Debug)]
pub(crate) struct Event(OwnedFd);

impl Event {
    /// Creates a counter with the value zero. A read waits until a thread has raised the counter.
    ///
    /// # Errors
    /// Returns an error if the process is out of file descriptors.
    pub(crate) fn new() -> io::Result<Self> {
        Self::with_flags(0)
    }

    /// Creates a counter with the value zero. A read never waits ([`Self::reset`]).
    ///
    /// # Errors
    /// Returns an error if the process is out of file descriptors.
    pub(crate) fn new_nonblocking() -> io::Result<Self> {
        Self::with_flags(libc::EFD_NONBLOCK)
    }

    fn with_flags(flags: i32) -> io::Result<Self> {
        // SAFETY: the call takes no pointers, and its result is checked.
        let raw = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | flags) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and nothing else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(raw) }))
    }

    /// Returns the descriptor of the eventfd.
    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.0
    }

    /// Adds one to the counter. Never waits.
    pub(crate) fn raise(&self) {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: `one` has the eight bytes that a write to an eventfd reads. The write could block
        // only at a counter of 2^64 - 2.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Sets the counter to zero. The event must come from [`Self::new_nonblocking`], because the
    /// reset of any other event would block while its counter is zero.
    pub(crate) fn reset(&self) {
        let mut count = [0_u8; 8];
        // SAFETY: the buffer has the eight bytes that an eventfd fills. If the counter is zero
        // already, the call returns EAGAIN and changes nothing.
        unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}
