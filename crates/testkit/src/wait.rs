//! Waiting for conditions, always with a deadline.

use std::time::{Duration, Instant};

/// How often a condition is looked at.
const INTERVAL: Duration = Duration::from_millis(10);

/// Waits until `condition` gives a value, and returns it with the time that passed; `None` when it
/// hasn't within `patience`.
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

/// Waits until `condition` gives a value.
///
/// # Panics
/// When it hasn't within `patience`; `what` is named.
pub fn wait_for<T>(what: &str, patience: Duration, condition: impl FnMut() -> Option<T>) -> T {
    match eventually(patience, condition) {
        Some((value, _)) => value,
        None => panic!("{what}: not so within {patience:?}"),
    }
}

/// Looks until `is_seen`, and checks that who begins to look `within` so long sees it, however long
/// looking takes.
///
/// # Panics
/// When a look that began later doesn't; `what` is named.
#[track_caller]
pub fn seen_within(what: &str, within: Duration, is_seen: impl Fn() -> bool) {
    let start = Instant::now();
    loop {
        let began = start.elapsed();
        if is_seen() {
            return;
        }
        assert!(began <= within, "{what}: not seen by who began to look after {began:?}");
        std::thread::sleep(INTERVAL);
    }
}
