//! The latencies of operations: a histogram that each process fills, and the percentiles of all
//! processes together.
//!
//! A histogram has buckets of growing width. Durations in the same bucket differ by at most a
//! sixteenth, so a percentile is too large by at most this share. The size of a histogram does not
//! depend on the number of operations.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Number of bits after the highest one-bit of a duration. Together with the position of the
/// highest one-bit, these bits determine the bucket of the duration.
const PRECISION_BITS: u32 = 4;

/// The durations of operations, as the number of durations in each bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Durations(BTreeMap<u32, u64>);

/// The latencies of all operations of a phase. All times are in microseconds. A percentile is the
/// upper end of its bucket, so it is too large by at most a sixteenth.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Half of the operations took at most this time.
    pub p50_us: f64,
    /// 90 % of the operations took at most this time.
    pub p90_us: f64,
    /// 99 % of the operations took at most this time.
    pub p99_us: f64,
    /// 99.9 % of the operations took at most this time.
    pub p999_us: f64,
    /// No operation took more than this time.
    pub max_us: f64,
    /// The operations in ranges of durations. Each range ends at twice the end of the previous
    /// range. Ranges without operations are left out.
    pub histogram: Vec<DurationRange>,
}

/// The operations whose durations are in one range.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DurationRange {
    /// The longest duration of the range in microseconds.
    pub up_to_us: f64,
    /// Number of operations in the range.
    pub operations: u64,
}

/// Returns the index of the bucket of a duration in nanoseconds.
fn bucket(nanoseconds: u64) -> u32 {
    let bits = u64::BITS - nanoseconds.leading_zeros();
    match bits.checked_sub(PRECISION_BITS + 1) {
        // Each of these small durations has its own bucket.
        None | Some(0) => nanoseconds as u32,
        Some(shift) => (shift << PRECISION_BITS) + (nanoseconds >> shift) as u32,
    }
}

/// Returns the largest duration of a bucket in nanoseconds.
fn largest(bucket: u32) -> u64 {
    let width = 1_u32 << PRECISION_BITS;
    if bucket < 2 * width {
        return u64::from(bucket);
    }
    let shift = (bucket >> PRECISION_BITS) - 1;
    let first = u64::from(bucket - (shift << PRECISION_BITS)) << shift;
    first + ((1_u64 << shift) - 1)
}

impl Durations {
    /// Adds the duration of one operation.
    pub(crate) fn add(&mut self, duration: Duration) {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        *self.0.entry(bucket(nanoseconds)).or_default() += 1;
    }

    /// Adds all durations of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (bucket, count) in &other.0 {
            *self.0.entry(*bucket).or_default() += count;
        }
    }

    /// Whether the histogram has no durations.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the percentiles. `None` if the histogram has no durations.
    pub fn latency(&self) -> Option<Latency> {
        let (last, _) = self.0.last_key_value()?;
        let all: u64 = self.0.values().sum();
        let microseconds = |bucket: u32| largest(bucket) as f64 / 1000.0;
        let percentile = |share: f64| {
            // Rank of the percentile in the ascending order of all durations.
            let rank = (all as f64 * share).ceil() as u64;
            let mut passed = 0;
            let found = self.0.iter().find(|(_, count)| {
                passed += **count;
                passed >= rank
            });
            microseconds(found.map_or(*last, |(bucket, _)| *bucket))
        };
        Some(Latency {
            p50_us: percentile(0.5),
            p90_us: percentile(0.9),
            p99_us: percentile(0.99),
            p999_us: percentile(0.999),
            max_us: microseconds(*last),
            histogram: self.ranges(),
        })
    }

    /// Returns the number of operations by powers of two of their durations.
    fn ranges(&self) -> Vec<DurationRange> {
        let mut ranges: Vec<DurationRange> = Vec::new();
        for (bucket, count) in &self.0 {
            // The largest duration in nanoseconds that has as many bits as the durations of this
            // bucket.
            let end = u64::MAX.checked_shr(largest(*bucket).leading_zeros()).unwrap_or(0);
            let up_to_us = end as f64 / 1000.0;
            match ranges.last_mut() {
                Some(last) if last.up_to_us == up_to_us => last.operations += count,
                _ => ranges.push(DurationRange { up_to_us, operations: *count }),
            }
        }
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn percentiles_come_from_all_operations() {
        let mut durations = Durations::default();
        assert_eq!(durations.latency(), None);
        for number in 1..=1000 {
            durations.add(Duration::from_micros(number));
        }
        let found = durations.latency().unwrap();
        let check = |found: f64, exact: f64| {
            assert!(found >= exact && found <= exact * 17.0 / 16.0, "{found}, not {exact}");
        };
        check(found.p50_us, 500.0);
        check(found.p90_us, 900.0);
        check(found.p99_us, 990.0);
        check(found.p999_us, 999.0);
        check(found.max_us, 1000.0);
        assert_eq!(found.histogram.iter().map(|it| it.operations).sum::<u64>(), 1000);
        // The durations from 1 to 1000 microseconds are 10 to 20 bits long.
        assert_eq!(found.histogram.len(), 11);
    }

    #[test]
    fn merged_histogram_has_all_durations_of_both_histograms() {
        let (mut one, mut other) = (Durations::default(), Durations::default());
        one.add(Duration::from_micros(1));
        other.add(Duration::from_secs(10));
        one.merge(&other);
        let found = one.latency().unwrap();
        assert!(found.p50_us < 1.1 && found.p99_us > 9.9e6, "{found:?}");
        let text = serde_json::to_string(&one).unwrap();
        assert_eq!(serde_json::from_str::<Durations>(&text).unwrap(), one);
    }

    proptest! {
        #[test]
        fn bucket_end_exceeds_each_duration_by_at_most_a_sixteenth(nanoseconds: u64) {
            let end = largest(bucket(nanoseconds));
            prop_assert!(end >= nanoseconds);
            prop_assert!(end - nanoseconds <= nanoseconds / 16);
            prop_assert!(bucket(end) == bucket(nanoseconds));
            if let Some(next) = end.checked_add(1) {
                prop_assert!(bucket(next) == bucket(nanoseconds) + 1);
            }
        }
    }
}
