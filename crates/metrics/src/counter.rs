//! Counters and gauges that one thread changes and any thread reads.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// A number that only grows.
///
/// # Hazard: two writers
/// Only one thread may call [`Counter::add`], which consists of a load and a store. A load and a
/// store together are several times faster than an atomic addition. But if a second thread added at
/// the same moment, the counter could lose one of the two additions.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `count`. Only the owning thread may call this function.
    #[inline]
    pub fn add(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    /// Returns the current number.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that rises and falls. Only one thread may change a gauge, as for [`Counter`].
#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    /// Adds `change`, which may be negative. Only the owning thread may call this function.
    #[inline]
    pub fn add(&self, change: i64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(change), Ordering::Relaxed);
    }

    /// Sets the number. Only the owning thread may call this function.
    #[inline]
    pub fn set(&self, number: i64) {
        self.0.store(number, Ordering::Relaxed);
    }

    /// Returns the current number.
    #[inline]
    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_can_read_counters_of_other_threads() {
        let counter = std::sync::Arc::new(Counter::default());
        let reader = std::sync::Arc::clone(&counter);
        let reading = std::thread::spawn(move || {
            let mut last = 0;
            while last < 100_000 {
                let now = reader.get();
                assert!(now >= last, "a counter never falls: {last}, then {now}");
                last = now;
                std::hint::spin_loop();
            }
        });
        (0..100_000).for_each(|_| counter.add(1));
        reading.join().unwrap();
    }

    #[test]
    fn gauge_can_rise_and_fall() {
        let gauge = Gauge::default();
        gauge.add(5);
        gauge.add(-7);
        assert_eq!(gauge.get(), -2);
        gauge.set(3);
        assert_eq!(gauge.get(), 3);
    }
}
