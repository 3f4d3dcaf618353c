//! Detects whether the host has more runnable threads than processors.
//!
//! `/proc/loadavg` contains the number of threads that run or wait for a processor. The process
//! reads it at most once in [`SAMPLE_INTERVAL`], and only while a loop considers polling.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Minimum time between two samples. A sample costs some microseconds.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(2);
/// Number of consecutive busy samples after which a host counts as busy. A single sample may have
/// counted a kernel thread that ran only for a moment.
const BUSY_SAMPLES: u32 = 2;

/// The time in nanoseconds from which on a thread may take the next sample.
static NEXT_SAMPLE: AtomicU64 = AtomicU64::new(0);
/// Number of consecutive samples with more runnable threads than processors.
static SAMPLES_IN_A_ROW: AtomicU32 = AtomicU32::new(0);

/// Whether the host has no processor to spare. A host without a readable load counts as idle, and a
/// host with a single processor counts as busy.
pub(crate) fn is_busy(now: Duration) -> bool {
    let nanoseconds = now.as_nanos() as u64;
    let due = NEXT_SAMPLE.load(Ordering::Relaxed);
    let next = nanoseconds + SAMPLE_INTERVAL.as_nanos() as u64;
    let is_due = nanoseconds >= due;
    let (order, failure) = (Ordering::Relaxed, Ordering::Relaxed);
    if is_due && NEXT_SAMPLE.compare_exchange(due, next, order, failure).is_ok() {
        let samples = match running_threads() {
            Some(running) if running > processors() => {
                SAMPLES_IN_A_ROW.load(Ordering::Relaxed).saturating_add(1)
            }
            _ => 0,
        };
        SAMPLES_IN_A_ROW.store(samples, Ordering::Relaxed);
    }
    processors() < 2 || SAMPLES_IN_A_ROW.load(Ordering::Relaxed) >= BUSY_SAMPLES
}

/// Returns the number of threads of the host that run or wait for a processor.
fn running_threads() -> Option<u64> {
    static LOAD: OnceLock<Option<File>> = OnceLock::new();
    let file = LOAD.get_or_init(|| File::open("/proc/loadavg").ok()).as_ref()?;
    let mut text = [0; 128];
    let length = file.read_at(&mut text, 0).ok()?;
    parse_running(std::str::from_utf8(text.get(..length)?).ok()?)
}

/// Returns the first number of the fourth word of `load`. For `0.20 0.18 0.12 1/80 11206`, this
/// number is 1.
fn parse_running(load: &str) -> Option<u64> {
    load.split(' ').nth(3)?.split_once('/')?.0.parse().ok()
}

/// Returns the number of the host's processors, including processors on which the thread may not
/// run.
fn processors() -> u64 {
    static COUNT: OnceLock<u64> = OnceLock::new();
    *COUNT.get_or_init(|| {
        // SAFETY: the call takes no pointers.
        let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        u64::try_from(count).unwrap_or(1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_running_threads_is_read_from_loadavg() {
        assert_eq!(parse_running("0.20 0.18 0.12 17/80 11206\n"), Some(17));
        assert_eq!(parse_running("0.20 0.18"), None);
        assert!(running_threads().unwrap() >= 1, "this thread runs");
        assert!(processors() >= 1);
    }

    #[test]
    fn a_host_with_more_threads_than_processors_is_busy() {
        let end = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 * processors() {
                scope.spawn(|| {
                    while !end.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let start = std::time::Instant::now();
            let mut is_found = false;
            while !is_found && start.elapsed() < Duration::from_secs(20) {
                is_found = is_busy(crate::clock::now());
            }
            end.store(true, Ordering::Relaxed);
            assert!(is_found);
        });
    }
}
