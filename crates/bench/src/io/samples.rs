//! The progress of one process over time: the number of bytes that the process had transferred at
//! several moments, in bounded memory.

use crate::limits::MAX_SAMPLES;
use std::time::Duration;

/// Takes samples of the number of transferred bytes, at most one in each interval.
#[derive(Debug)]
pub(super) struct Sampler {
    /// Minimum time between two samples.
    interval: Duration,
    /// Time of the next sample. A transfer that ends before this time adds no sample.
    due: Duration,
    samples: Vec<(Duration, u64)>,
}

impl Sampler {
    /// Creates a sampler for one phase. The first transfer always gets a sample.
    pub(super) fn new(interval: Duration) -> Self {
        Self { interval, due: Duration::ZERO, samples: Vec::new() }
    }

    /// Takes a sample if a sample is due. At `now`, a transfer has ended, and the process has
    /// transferred `bytes` in this phase so far.
    pub(super) fn add(&mut self, now: Duration, bytes: u64) {
        if now < self.due {
            return;
        }
        if self.samples.len() == MAX_SAMPLES {
            self.halve();
        }
        self.samples.push((now, bytes));
        self.due = now + self.interval;
    }

    /// Removes every second sample, and doubles the interval. So the samples of a long phase still
    /// cover the whole phase.
    fn halve(&mut self) {
        let mut is_kept = false;
        self.samples.retain(|_| {
            is_kept = !is_kept;
            is_kept
        });
        self.interval *= 2;
    }

    /// Returns the samples as seconds and bytes. The last sample is the end of the last transfer,
    /// at `now` with `bytes` transferred.
    pub(super) fn finish(mut self, now: Duration, bytes: u64) -> Vec<(f64, u64)> {
        if self.samples.last().is_none_or(|(_, last)| *last < bytes) {
            self.due = now;
            self.add(now, bytes);
        }
        self.samples.into_iter().map(|(at, bytes)| (at.as_secs_f64(), bytes)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn samples_are_one_interval_apart_until_the_last_transfer() {
        let mut sampler = Sampler::new(100 * MS);
        for number in 1..=25_u32 {
            sampler.add(1000 * MS + number * 10 * MS, u64::from(number));
        }
        let found = sampler.finish(1250 * MS, 25);
        assert_eq!(found, [(1.01, 1), (1.11, 11), (1.21, 21), (1.25, 25)]);
        assert_eq!(Sampler::new(MS).finish(MS, 0), [(0.001, 0)]);
    }

    #[test]
    fn bounded_number_of_samples_covers_the_whole_phase() {
        let mut sampler = Sampler::new(MS);
        let count = 10 * MAX_SAMPLES as u32;
        for number in 1..=count {
            sampler.add(number * MS, u64::from(number));
        }
        let found = sampler.finish(count * MS, u64::from(count));
        assert!(found.len() <= MAX_SAMPLES && found.len() > MAX_SAMPLES / 4, "{}", found.len());
        assert_eq!(found.first(), Some(&(0.001, 1)));
        assert_eq!(found.last().map(|it| it.1), Some(u64::from(count)));
        assert!(found.is_sorted_by(|one, other| one.0 < other.0 && one.1 < other.1));
    }
}
