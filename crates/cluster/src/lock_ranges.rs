//! The locked ranges of one owner in one file, and their changes by a lock or unlock.
//!
//! Ranges are half-open, in bytes from the start of the file. Each range has a value, such as the
//! mode of the lock. As POSIX demands, a lock or unlock replaces all locks of the owner within its
//! range. The parts of older ranges outside that range remain. Adjacent ranges with equal values
//! are merged, and other ranges are not.
//!
//! # Invariants
//! The ranges are in ascending order of their start, not empty, and do not overlap. Adjacent ranges
//! have different values. [`LockRanges::check_invariants`] asserts these invariants.

use std::ops::Range;

/// The locked ranges of one owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockRanges<T>(Vec<(Range<u64>, T)>);

impl<T> Default for LockRanges<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Copy + Eq> LockRanges<T> {
    /// Returns the locked ranges of an owner that has locked each of `ranges`, one after another.
    pub fn of(ranges: impl IntoIterator<Item = (Range<u64>, T)>) -> Self {
        let mut all = Self::default();
        ranges.into_iter().for_each(|(range, value)| all.set(range, Some(value)));
        all
    }

    /// Sets the value of a range. `None` unlocks the range. An empty range changes nothing.
    pub fn set(&mut self, range: Range<u64>, value: Option<T>) {
        if range.is_empty() {
            return;
        }
        let mut next = Vec::with_capacity(self.0.len() + 2);
        let add = |next: &mut Vec<(Range<u64>, T)>, range: Range<u64>, value: T| {
            if let Some((last, _)) =
                next.last_mut().filter(|(it, of)| it.end == range.start && *of == value)
            {
                last.end = range.end;
            } else if !range.is_empty() {
                next.push((range, value));
            }
        };
        let mut new = value;
        for (held, of) in self.0.drain(..) {
            add(&mut next, held.start..held.end.min(range.start).max(held.start), of);
            // Insert the new range before the first part of an old range that begins after the new
            // range.
            if held.end > range.start
                && let Some(value) = new.take()
            {
                add(&mut next, range.clone(), value);
            }
            add(&mut next, held.start.max(range.end).min(held.end)..held.end, of);
        }
        if let Some(value) = new {
            add(&mut next, range, value);
        }
        self.0 = next;
        if cfg!(debug_assertions) {
            self.check_invariants();
        }
    }

    /// Asserts the invariants of the module.
    ///
    /// # Panics
    /// Panics if an invariant does not hold.
    pub fn check_invariants(&self) {
        assert!(self.0.iter().all(|(range, _)| !range.is_empty()), "locked ranges are not empty");
        for pair in self.0.windows(2) {
            let ((first, value), (second, next)) = (&pair[0], &pair[1]);
            assert!(first.end <= second.start, "locked ranges are sorted and do not overlap");
            assert!(first.end < second.start || value != next, "touching ranges differ");
        }
    }

    /// Returns the ranges in ascending order of their start.
    pub fn iter(&self) -> impl Iterator<Item = (Range<u64>, T)> + '_ {
        self.0.iter().cloned()
    }

    /// Returns the ranges that overlap `range`, in ascending order of their start.
    pub fn overlapping(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, T)> + '_ {
        let first = self.0.partition_point(|(held, _)| held.end <= range.start);
        let those = self.0[first..].iter().take_while(move |(held, _)| held.start < range.end);
        those.cloned()
    }

    /// Returns the number of ranges.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no range is locked.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BYTES: u64 = 24;

    fn bytes(ranges: &LockRanges<u8>) -> Vec<Option<u8>> {
        let value = |at: u64| ranges.overlapping(at..at + 1).map(|(_, value)| value).next();
        (0..BYTES).map(value).collect()
    }

    #[test]
    fn unlock_splits_a_locked_range_and_a_new_lock_merges_the_parts() {
        let mut ranges = LockRanges::of([(0..100, 'x')]);
        ranges.set(40..60, None);
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [(0..40, 'x'), (60..100, 'x')]);
        ranges.set(40..50, Some('s'));
        ranges.set(50..60, Some('x'));
        let now = [(0..40, 'x'), (40..50, 's'), (50..100, 'x')];
        assert_eq!(ranges.iter().collect::<Vec<_>>(), now);
        ranges.set(40..50, Some('x'));
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [(0..100, 'x')]);
        ranges.set(0..1 << 63, None);
        assert!(ranges.is_empty());
    }

    proptest! {
        #[test]
        fn locked_ranges_equal_a_model_with_a_lock_per_byte(
            changes in proptest::collection::vec(
                (0..BYTES, 0..BYTES, proptest::option::of(0_u8..3)), 1..30,
            ),
        ) {
            let mut ranges = LockRanges::default();
            let mut model = vec![None; BYTES as usize];
            for (start, end, value) in changes {
                ranges.set(start..end, value);
                (start..end).for_each(|at| model[at as usize] = value);
                prop_assert_eq!(bytes(&ranges), model.clone());
                // The model has one value for each byte. Each series of bytes with the same value
                // must be one range.
                let mut runs = model.clone();
                runs.dedup();
                let runs = runs.into_iter().flatten().count();
                prop_assert_eq!(ranges.len(), runs);
                let all: Vec<_> = ranges.iter().collect();
                prop_assert!(all.windows(2).all(|it| it[0].0.end <= it[1].0.start));
            }
        }
    }
}
