//! Percentiles, computed from stored buckets of durations.

use skep_metrics::HistogramValue;

/// Number of groups of buckets in a heat map. The groups are one for durations up to 1 us, one for
/// each doubling of the duration, and one for longer durations.
pub(crate) const HEAT_ROWS: usize = 28;

/// Returns the histogram for stored buckets. Each stored bucket consists of its index and of the
/// number of durations in it.
pub(crate) fn histogram(buckets: &[(u16, u64)]) -> HistogramValue {
    let buckets = buckets.iter().map(|(bucket, count)| (usize::from(*bucket), *count));
    HistogramValue::of_buckets(0, buckets)
}

/// Returns a duration in nanoseconds such that the share `share` of all operations takes at most
/// this long. `None` means that there is no operation.
pub(crate) fn quantile_ns(buckets: &[(u16, u64)], share: f64) -> Option<u64> {
    let found = histogram(buckets).quantile(share)?;
    u64::try_from(found.as_nanos()).ok()
}

/// Returns the number of operations in each group of buckets.
pub(crate) fn heat(buckets: &[(u16, u64)]) -> [u64; HEAT_ROWS] {
    let mut rows = [0; HEAT_ROWS];
    for (bucket, count) in buckets {
        rows[usize::from(*bucket).div_ceil(4).min(HEAT_ROWS - 1)] += count;
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_metrics::BUCKETS;
    use skep_metrics::upper_bound_ns;

    #[test]
    fn each_row_of_the_heat_map_doubles_the_duration() {
        for bucket in 0..BUCKETS - 1 {
            let row = heat(&[(bucket as u16, 1)]).iter().position(|count| *count == 1).unwrap();
            let bound = upper_bound_ns(bucket).unwrap();
            assert!(bound <= 1024 << row && (row == 0 || bound > 512 << row), "{bucket}: {row}");
        }
        assert_eq!(heat(&[(9999, 1)])[HEAT_ROWS - 1], 1);
        assert_eq!(quantile_ns(&[], 0.5), None);
        assert_eq!(quantile_ns(&[(0, 99), (40, 1)], 0.5), Some(1024));
        let last = (BUCKETS - 1) as u16;
        assert_eq!(quantile_ns(&[(last, 1)], 0.5), Some(1 << 36), "the last bucket counts");
    }
}
