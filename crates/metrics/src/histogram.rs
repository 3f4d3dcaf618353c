//! Histograms of durations with exponential buckets.
//!
//! Each octave (a doubling of the duration) has four buckets, from about one microsecond to about
//! one minute. So a percentile that is computed from the buckets is at most a quarter too high. The
//! upper bound of a bucket belongs to the bucket, as Prometheus requires.

use crate::counter::Counter;
use std::time::Duration;

/// Exponent of the upper bound of the first bucket: 2^10 ns, about one microsecond.
const FIRST_EXPONENT: u32 = 10;
/// Exponent of the upper bound of the last bounded bucket: 2^36 ns, about 69 seconds.
const LAST_EXPONENT: u32 = 36;
/// Number of buckets in an octave, as a power of two.
const SPLIT_BITS: u32 = 2;
const SPLITS: usize = 1 << SPLIT_BITS;
/// Number of buckets: one for all short durations, four for each octave, and one without an upper
/// bound.
pub const BUCKETS: usize = 2 + (LAST_EXPONENT - FIRST_EXPONENT) as usize * SPLITS;

/// Returns the index of the bucket that contains a duration.
#[inline]
fn bucket_of(nanoseconds: u64) -> usize {
    // Subtract one, since the upper bound of a bucket belongs to the bucket.
    let below = nanoseconds.saturating_sub(1);
    if below < 1 << FIRST_EXPONENT {
        return 0;
    }
    let exponent = 63 - below.leading_zeros();
    let split = (below >> (exponent - SPLIT_BITS)) as usize & (SPLITS - 1);
    (1 + (exponent - FIRST_EXPONENT) as usize * SPLITS + split).min(BUCKETS - 1)
}

/// Returns the upper bound of a bucket in nanoseconds. `None` means that the bucket has no upper
/// bound.
pub fn upper_bound_ns(bucket: usize) -> Option<u64> {
    if bucket == 0 {
        return Some(1 << FIRST_EXPONENT);
    }
    if bucket >= BUCKETS - 1 {
        return None;
    }
    let (octave, split) = ((bucket - 1) / SPLITS, (bucket - 1) % SPLITS);
    let start = 1_u64 << (FIRST_EXPONENT as usize + octave);
    Some(start + (split as u64 + 1) * (start >> SPLIT_BITS))
}

/// A histogram of durations. One thread fills the histogram, and any thread can read the histogram.
#[derive(Debug)]
pub struct Histogram {
    buckets: [Counter; BUCKETS],
    sum_ns: Counter,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: std::array::from_fn(|_| Counter::default()), sum_ns: Counter::default() }
    }
}

impl Histogram {
    /// Counts a duration. Only the owning thread may call this function.
    #[inline]
    pub fn record(&self, duration: Duration) {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket_of(nanoseconds)].add(1);
        self.sum_ns.add(nanoseconds);
    }

    /// Returns a copy of the current contents.
    pub fn value(&self) -> HistogramValue {
        HistogramValue {
            buckets: self.buckets.iter().map(Counter::get).collect(),
            sum_ns: self.sum_ns.get(),
        }
    }

    /// Whether no duration was counted.
    pub fn is_empty(&self) -> bool {
        self.buckets.iter().all(|bucket| bucket.get() == 0)
    }
}

/// A copy of a histogram at one moment, or the difference of two copies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistogramValue {
    /// Number of durations in each bucket. Has [`BUCKETS`] items.
    pub buckets: Vec<u64>,
    /// Sum of all durations, in nanoseconds.
    pub sum_ns: u64,
}

impl Default for HistogramValue {
    fn default() -> Self {
        Self { buckets: vec![0; BUCKETS], sum_ns: 0 }
    }
}

impl HistogramValue {
    /// Returns the histogram with the given buckets, in the form in which other programs send or
    /// store buckets: the index of a bucket, and the number of durations in the bucket. A newer
    /// program may have more buckets. The last bucket also counts durations of the additional
    /// buckets.
    pub fn of_buckets(sum_ns: u64, buckets: impl IntoIterator<Item = (usize, u64)>) -> Self {
        let mut value = Self { sum_ns, ..Self::default() };
        for (bucket, count) in buckets {
            let own = &mut value.buckets[bucket.min(BUCKETS - 1)];
            *own = own.saturating_add(count);
        }
        value
    }

    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Counts one duration.
    pub fn record(&mut self, duration: Duration) {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket_of(nanoseconds)] += 1;
        self.sum_ns = self.sum_ns.saturating_add(nanoseconds);
    }

    /// Adds the durations of another histogram.
    pub fn add(&mut self, other: &Self) {
        for (own, other) in self.buckets.iter_mut().zip(&other.buckets) {
            *own += other;
        }
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
    }

    /// Returns the durations that were counted since `before`, an earlier copy of the same
    /// histogram. If the process has restarted since `before`, returns all durations of the new
    /// process.
    pub fn since(&self, before: &Self) -> Self {
        if self.buckets.iter().zip(&before.buckets).any(|(now, before)| now < before) {
            return self.clone();
        }
        let buckets = self.buckets.iter().zip(&before.buckets);
        Self {
            buckets: buckets.map(|(now, before)| now - before).collect(),
            sum_ns: self.sum_ns.wrapping_sub(before.sum_ns),
        }
    }

    /// Returns the mean duration. `None` means that there is no duration.
    pub fn mean(&self) -> Option<Duration> {
        match self.count() {
            0 => None,
            count => Some(Duration::from_nanos(self.sum_ns / count)),
        }
    }

    /// Returns the upper bound of the first bucket such that at least the share `share` of all
    /// durations is not longer than this bound. If `share` is 0.99, at most one in a hundred
    /// durations is longer than the result. `None` means that there is no duration.
    ///
    /// The last bucket has no upper bound, so its lower bound of 69 s takes the place of an upper
    /// bound. The result is then too short, but still shows that operations take more than a
    /// minute.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let wanted = ((count as f64 * share).ceil() as u64).clamp(1, count);
        let mut seen = 0;
        let bucket = self.buckets.iter().position(|in_bucket| {
            seen += in_bucket;
            seen >= wanted
        })?;
        Some(Duration::from_nanos(upper_bound_ns(bucket).unwrap_or(1 << LAST_EXPONENT)))
    }

    /// Returns the upper bounds of every `octaves`-th octave in nanoseconds. Each bound has the
    /// number of durations that are not longer than the bound.
    pub fn cumulative(&self, octaves: usize) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut seen = 0;
        self.buckets.iter().enumerate().filter_map(move |(bucket, count)| {
            seen += count;
            let is_shown = bucket % (SPLITS * octaves) == 0 && bucket < BUCKETS - 1;
            upper_bound_ns(bucket).filter(|_| is_shown).map(|bound| (bound, seen))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_bounds_rise_and_lie_in_their_own_buckets() {
        let mut last = 0;
        for bucket in 0..BUCKETS - 1 {
            let bound = upper_bound_ns(bucket).unwrap();
            assert!(bound > last);
            assert_eq!(bucket_of(bound), bucket, "upper bound {bound}");
            assert_eq!(bucket_of(last + 1), bucket, "shortest duration {}", last + 1);
            last = bound;
        }
        assert_eq!(last, 1 << LAST_EXPONENT);
        assert_eq!(upper_bound_ns(BUCKETS - 1), None);
        assert_eq!((bucket_of(0), bucket_of(u64::MAX)), (0, BUCKETS - 1));
    }

    #[test]
    fn quantiles_are_at_most_a_quarter_too_high() {
        let histogram = Histogram::default();
        (1..=1000).for_each(|ms| histogram.record(Duration::from_millis(ms)));
        let value = histogram.value();
        for (share, exact) in [(0.5, 500), (0.99, 990), (1.0, 1000)] {
            let found = value.quantile(share).unwrap();
            let exact = Duration::from_millis(exact);
            assert!(found >= exact && found <= exact + exact / 4, "{share}: {found:?}");
        }
        assert_eq!(value.mean(), Some(Duration::from_micros(500_500)));
        assert_eq!(HistogramValue::default().quantile(0.5), None);
    }

    #[test]
    fn quantile_beyond_the_last_bound_is_the_last_bound() {
        let mut value = HistogramValue::default();
        (0..99).for_each(|_| value.record(Duration::from_millis(1)));
        value.record(Duration::from_secs(3600));
        let longest = Duration::from_nanos(1 << LAST_EXPONENT);
        assert_eq!(value.quantile(1.0), Some(longest));
        assert!(value.quantile(0.99).is_some_and(|it| it < Duration::from_millis(2)));
    }

    #[test]
    fn difference_of_histograms_has_only_later_durations() {
        let histogram = Histogram::default();
        histogram.record(Duration::from_millis(1));
        let before = histogram.value();
        histogram.record(Duration::from_millis(3));
        let between = histogram.value().since(&before);
        assert_eq!((between.count(), between.sum_ns), (1, 3_000_000));
        // After a restart, the counts are lower than the counts before the restart.
        assert_eq!(before.since(&histogram.value()), before);
    }

    #[test]
    fn unknown_buckets_of_other_programs_count_as_the_last_bucket() {
        let found = HistogramValue::of_buckets(9, [(0, 2), (BUCKETS - 1, 1), (BUCKETS + 7, 3)]);
        assert_eq!((found.count(), found.sum_ns), (6, 9));
        assert_eq!((found.buckets[0], found.buckets[BUCKETS - 1]), (2, 4));
    }

    #[test]
    fn last_cumulative_bucket_counts_all_durations_below_its_bound() {
        let histogram = Histogram::default();
        for ns in [1, 5_000, 70_000_000, 900_000_000_000] {
            histogram.record(Duration::from_nanos(ns));
        }
        let value = histogram.value();
        for octaves in [1, 2] {
            let counts: Vec<_> = value.cumulative(octaves).collect();
            assert_eq!(counts.len(), 26 / octaves + 1);
            assert_eq!((counts[0], *counts.last().unwrap()), ((1024, 1), (1 << 36, 3)));
        }
    }

    proptest::proptest! {
        #[test]
        fn a_duration_lies_within_its_bucket(ns: u64) {
            let bucket = bucket_of(ns);
            proptest::prop_assert!(upper_bound_ns(bucket).is_none_or(|bound| ns <= bound));
            if bucket > 0 {
                proptest::prop_assert!(upper_bound_ns(bucket - 1).is_some_and(|bound| ns > bound));
            }
        }
    }
}
