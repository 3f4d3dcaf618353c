//! The median of values of targets, links or hosts.

/// Returns the median. If there are two middle values, returns the upper one. `None` means that the
/// list is empty.
pub(super) fn median<T: Ord + Copy>(mut values: Vec<T>) -> Option<T> {
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}
