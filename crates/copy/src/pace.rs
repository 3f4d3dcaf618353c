//! The limit for the rate at which all threads together copy bytes or remove files.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Delays each thread, so that all threads together copy or remove no more per second than
/// permitted.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Number of bytes or files per second that is permitted. `None` means no limit.
    per_second: Option<u64>,
    /// At the permitted rate, all bytes or removals that were granted so far are done at this time.
    /// A thread holds the lock only for one computation.
    granted_until: Mutex<Instant>,
}

impl Pace {
    /// Creates a rate limit. `None` means no limit.
    pub(crate) fn new(per_second: Option<u64>) -> Self {
        Self { per_second, granted_until: Mutex::new(Instant::now()) }
    }

    /// Waits until the rate limit allows the thread to copy `amount` bytes, or to remove `amount`
    /// files.
    pub(crate) fn take(&self, amount: u64) {
        if let Some(rate) = self.per_second {
            let delay = self.reserve(amount, rate, Instant::now());
            std::thread::sleep(delay);
        }
    }

    /// Reserves the time that `amount` takes at the permitted rate, and returns the delay until
    /// this time begins.
    fn reserve(&self, amount: u64, rate: u64, now: Instant) -> Duration {
        let mut until = self.granted_until.lock().expect("no thread panics while it has the lock");
        let start = (*until).max(now);
        *until = start + Duration::from_secs_f64(amount as f64 / rate.max(1) as f64);
        start - now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_above_the_rate_limit_are_delayed() {
        let pace = Pace::new(Some(100));
        let now = Instant::now() + Duration::from_secs(1);
        assert_eq!(pace.reserve(50, 100, now), Duration::ZERO);
        assert_eq!(pace.reserve(100, 100, now), Duration::from_millis(500));
        assert_eq!(pace.reserve(1, 100, now), Duration::from_millis(1500));
        // A pause of the threads does not permit a higher rate later.
        let later = now + Duration::from_secs(60);
        assert_eq!(pace.reserve(1, 100, later), Duration::ZERO);
    }
}
