//! Decides, after an operation has ended, whether it was slow in comparison with other operations
//! of its kind.
//!
//! [`crate::traces`] stores the records, and [`crate::slow`] composes the lines for the log.

use std::cell::Cell;
use std::time::Duration;

/// An operation that takes at least this time is always slow, because programs and users notice it.
const ALWAYS_SLOW: Duration = Duration::from_millis(100);
/// An operation that takes less than this time is never slow.
const NEVER_SLOW: Duration = Duration::from_millis(1);
/// An operation is slow if it takes at least this many times the mean duration of its kind.
const TIMES_THE_MEAN: u64 = 16;
/// After this number of further operations, an operation has little influence on the mean.
const MEAN_OVER: u64 = 1024;

/// The mean duration of one kind of operation, on one thread.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    mean_ns: Cell<u64>,
    count: Cell<u64>,
}

impl Tail {
    /// Returns whether an operation was slow, compared with the mean of the earlier operations.
    /// Adds its duration to the mean.
    pub(crate) fn is_slow(&self, duration: Duration) -> bool {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let (mean, count) = (self.mean_ns.get(), (self.count.get() + 1).min(MEAN_OVER));
        self.count.set(count);
        let change = (ns.abs_diff(mean)) / count;
        self.mean_ns.set(if ns > mean { mean + change } else { mean - change });
        if duration < NEVER_SLOW {
            return false;
        }
        duration >= ALWAYS_SLOW || (count > 1 && ns / TIMES_THE_MEAN >= mean)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_far_above_the_mean_of_their_kind_are_slow() {
        let tail = Tail::default();
        let us = Duration::from_micros;
        assert!(!tail.is_slow(us(1_500)), "no mean is known for the first operation");
        (0..2_000).for_each(|_| assert!(!tail.is_slow(us(100))));
        assert!(!tail.is_slow(us(999)) && !tail.is_slow(us(1_500)));
        assert!(tail.is_slow(us(2_000)));
        // Now all operations take a long time, because the disk is slow. Only few of these
        // operations count as slow, as long as users do not notice their duration.
        let slow = (0..20_000).filter(|_| tail.is_slow(us(20_000))).count();
        assert!((1..1_000).contains(&slow), "{slow}");
        assert!((0..2_000).all(|_| tail.is_slow(us(100_000))));
    }
}
