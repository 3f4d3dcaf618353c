//! Waiting for conditions, always with a deadline.

use std::time::{Duration, Instant};

/// How long a test waits for a condition or a command, also on a machine that runs much else. It is
/// far longer than each takes: a test with another limit gives the reason.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Pause between two evaluations of a condition.
const INTERVAL: Duration = Duration::from_millis(10);

/// Waits until `condition` returns a value, and returns that with the time that passed. `None`
/// means that the condition returned none within `patience`.
pub fn eventually<T>(
    patience: Duration,
    mut condition: impl FnMut() -> Option<T>,
) -> Option<(T, Duration)> {
    let start = Instant::now();
    loop {
        if let Some(value) = condition() {
            return Some((value, start.elapsed()));
        }
        if start.elapsed() > patience {
            return None;
        }
        std::thread::sleep(INTERVAL);
    }
}

/// Waits until `condition` returns a value.
///
/// # Panics
/// If the condition returns none within `patience`; the message begins with `what`.
#[track_caller]
pub fn wait_for<T>(what: &str, patience: Duration, condition: impl FnMut() -> Option<T>) -> T {
    match eventually(patience, condition) {
        Some((value, _)) => value,
        None => panic!("{what}: not within {patience:?}"),
    }
}

/// Polls until `is_seen`, however long one poll takes.
///
/// # Panics
/// If a poll that started later than `within` still does not see it; the message begins with
/// `what`.
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
