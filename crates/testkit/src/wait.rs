//! Waits for conditions, always with a deadline, and ends the load of a test.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Maximum time that a test waits for a condition or a command, even on a busy machine. The limit
/// is far longer than any condition or command takes. If a test uses a different limit, a comment
/// gives the reason.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Shortest pause between two evaluations of a condition.
const INTERVAL: Duration = Duration::from_millis(10);
/// Longest pause between two evaluations of a condition.
const LONGEST_INTERVAL: Duration = Duration::from_millis(50);

/// Sleeps before the next evaluation of a condition, for about the duration of the last evaluation.
/// Many conditions start a program, and without the pause these programs would take processor time
/// from the services.
fn pause_after(evaluation: Duration) {
    std::thread::sleep(evaluation.clamp(INTERVAL, LONGEST_INTERVAL));
}

/// Polls `condition` until the condition returns a value. Returns that value with the elapsed time,
/// or `None` if the condition returned no value within `patience`.
pub fn eventually<T>(
    patience: Duration,
    mut condition: impl FnMut() -> Option<T>,
) -> Option<(T, Duration)> {
    let start = Instant::now();
    loop {
        let began = start.elapsed();
        if let Some(value) = condition() {
            return Some((value, start.elapsed()));
        }
        if start.elapsed() > patience {
            return None;
        }
        pause_after(start.elapsed() - began);
    }
}

/// Polls `condition` until the condition returns a value, and then returns that value.
///
/// # Panics
/// Panics if the condition returns no value within `patience`. The message begins with `what`.
#[track_caller]
pub fn wait_for<T>(what: &str, patience: Duration, condition: impl FnMut() -> Option<T>) -> T {
    match eventually(patience, condition) {
        Some((value, _)) => value,
        None => panic!("{what}: not within {patience:?}"),
    }
}

/// Polls `is_seen` until this function returns true. A single poll may take any time.
///
/// # Panics
/// Panics if a poll that started more than `within` after the call still returns false. The message
/// begins with `what`.
#[track_caller]
pub fn seen_within(what: &str, within: Duration, is_seen: impl Fn() -> bool) {
    let start = Instant::now();
    loop {
        let began = start.elapsed();
        if is_seen() {
            return;
        }
        assert!(began <= within, "{what}: still not visible to a poll started after {began:?}");
        std::thread::sleep(INTERVAL);
    }
}

/// A flag that ends threads of a test. Dropping this value sets the flag, so these threads end even
/// if an assertion of the test fails.
#[derive(Debug)]
pub struct EndGuard<'a>(pub &'a AtomicBool);

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
