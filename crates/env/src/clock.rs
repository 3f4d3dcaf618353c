//! The clocks and the source of randomness.

use skep_types::Timestamp;
use std::time::Duration;

fn read_clock(clock: libc::clockid_t) -> libc::timespec {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writes; both clocks exist on every Linux that has io_uring.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time
}

/// Returns the time since boot, including the time in which the machine was suspended. Leases and
/// deadlines use this clock.
pub fn now() -> Duration {
    let time = read_clock(libc::CLOCK_BOOTTIME);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns the processor time that the calling thread has used.
pub fn thread_time() -> Duration {
    let time = read_clock(libc::CLOCK_THREAD_CPUTIME_ID);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns the date and time of this host, for values that users see. Only two functions compare
/// wall times of different hosts: the finding about wrong clocks, and `skep purge` if a file system
/// does not show its own clock.
pub fn wall_time() -> Timestamp {
    let time = read_clock(libc::CLOCK_REALTIME);
    Timestamp { seconds: time.tv_sec, nanoseconds: time.tv_nsec as u32 }
}

/// Whether the kernel considers the clock of this host as synchronised. The clock counts as
/// synchronised while a time service such as `chronyd` adjusts the clock. `None` means that the
/// system call failed.
pub fn is_clock_synchronised() -> Option<bool> {
    // SAFETY: the structure consists of integers, for which zeros are valid values.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // The field `modes` is zero, so the call changes nothing.
    // SAFETY: `state` is valid for writes.
    let result = unsafe { libc::adjtimex(&raw mut state) };
    (result >= 0).then_some(state.status & libc::STA_UNSYNC == 0)
}

/// Returns `N` random bytes from the kernel.
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0_u8; N];
    let mut filled = 0;
    while filled < N {
        // SAFETY: the range lies within `bytes`.
        let got = unsafe { libc::getrandom(bytes[filled..].as_mut_ptr().cast(), N - filled, 0) };
        // The only possible error is EINTR, and the loop repeats the call after this error.
        filled += usize::try_from(got).unwrap_or(0);
    }
    bytes
}

/// Returns a random 64-bit number from the kernel.
pub fn random_u64() -> u64 {
    u64::from_le_bytes(random_bytes())
}

/// Returns a random 128-bit number from the kernel.
pub fn random_u128() -> u128 {
    u128::from_le_bytes(random_bytes())
}
