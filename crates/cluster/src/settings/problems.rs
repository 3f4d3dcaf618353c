//! The check of all settings together: values out of range, and values that contradict each other.

use super::{Field, SETTINGS};
use crate::lease_times::LeaseTimes;
use skep_types::map::Policy;
use skep_types::pattern::INLINE_UNIT;

/// Returns a description of each invalid setting. The list is empty if all settings are valid.
pub(crate) fn problems(policy: &Policy) -> Vec<String> {
    let mut problems: Vec<String> = SETTINGS
        .iter()
        .filter_map(|setting| match setting.field {
            Field::Policy { get, .. } => setting.check(get(policy)).err(),
            Field::FeatureLevel => None,
        })
        .collect();
    let Policy { lease_ms, heartbeat_ms, .. } = *policy;
    if problems.is_empty() && heartbeat_ms > lease_ms / 2 {
        problems.push(format!(
            "a heartbeat of {heartbeat_ms} ms is longer than half a lease of {lease_ms} ms; \
             change the other of the two settings first"
        ));
    }
    let times = LeaseTimes::of(policy);
    if problems.is_empty() && times.granted_lease() < times.lease {
        problems.push(format!(
            "a metadata-take-over-after of {} ms permits a metadata-lease of at most {} ms, and \
             not of {} ms; change the other of the two settings first",
            times.take_over_after.as_millis(),
            times.granted_lease().as_millis(),
            times.lease.as_millis()
        ));
    }
    let inline = policy.inline_bytes;
    if problems.is_empty() && !inline.is_multiple_of(INLINE_UNIT) {
        let (below, above) =
            (inline / INLINE_UNIT * INLINE_UNIT, inline.next_multiple_of(INLINE_UNIT));
        problems.push(format!(
            "inline-bytes: {inline} bytes is not a multiple of {INLINE_UNIT}; the nearest ones \
             are {below} and {above}"
        ));
    }
    let Policy { low_percent, emergency_percent, low_free_bytes, emergency_free_bytes, .. } =
        *policy;
    if problems.is_empty() && emergency_percent > low_percent {
        problems.push(format!(
            "an emergency-percent of {emergency_percent} % is more than a low-percent of \
             {low_percent} %; change the other of the two settings first"
        ));
    }
    if problems.is_empty() && emergency_free_bytes > low_free_bytes {
        problems.push(format!(
            "an emergency-free of {emergency_free_bytes} bytes is more than a low-free of \
             {low_free_bytes} bytes; raise low-free or lower emergency-free first"
        ));
    }
    let (least, most) = (policy.user_min_chunk_bytes, policy.user_max_chunk_bytes);
    if problems.is_empty() && least > most {
        problems.push(format!(
            "user-chunk-size-min of {least} bytes is more than user-chunk-size-max of {most} \
             bytes; raise user-chunk-size-max or lower user-chunk-size-min first"
        ));
    }
    problems
}
