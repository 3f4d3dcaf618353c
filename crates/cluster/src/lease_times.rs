//! The times of the leases in a metadata group, and the rules that make each lease safe although
//! the members may have different settings and clocks.
//!
//! # Grant and promise
//! A member's reply to its primary grants a lease of [`LeaseTimes::granted_lease`]. With the same
//! reply the member promises to reply to no client as the primary for
//! [`LeaseTimes::take_over_after`]. Both times come from the settings of this member, so each lease
//! ends before the promise that covers it, whatever settings the primary has.
//!
//! # Restarts
//! A promise outlives the process of the member. So the member durably stores a bound of its
//! promises. The bound is a time span, and no promise ends later than this span from now. Only
//! [`raised_bound`], [`lowered_bound`] and [`bound_of_primary`] compute a new bound.

use crate::limits::{CLOCK_DRIFT, LEASE_MARGIN};
use skep_types::map::Policy;
use std::time::Duration;

/// The times of leases, from the settings `metadata-lease` and `metadata-take-over-after`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTimes {
    /// Time for which a primary may reply to clients after it has sent a request that the other
    /// members acknowledge.
    pub lease: Duration,
    /// If a member has received no request of the primary for this time, it asks management to make
    /// it the primary.
    pub take_over_after: Duration,
}

impl LeaseTimes {
    /// Returns the times in the settings of a cluster.
    pub fn of(policy: &Policy) -> Self {
        Self {
            lease: Duration::from_millis(policy.metadata_lease_ms.into()),
            take_over_after: Duration::from_millis(policy.metadata_take_over_after_ms.into()),
        }
    }

    /// Returns the longest lease that a member may grant: it must end before
    /// [`Self::take_over_after`] has passed on the member's clock.
    pub fn granted_lease(&self) -> Duration {
        let without_margin = self.take_over_after.saturating_sub(LEASE_MARGIN);
        without_margin / (CLOCK_DRIFT + 1) * CLOCK_DRIFT
    }
}

/// Returns the bound of a member's promises that must be durable before the member handles a
/// cluster map with the time `take_over_after`. `bound` is the current bound.
pub fn raised_bound(bound: Duration, take_over_after: Duration) -> Duration {
    bound.max(take_over_after)
}

/// Returns the lowest bound that a backup member may store now. `take_over_after` is the time in
/// its cluster map. `promise_left` is the time until the last of its promises ends.
pub fn lowered_bound(
    bound: Duration,
    take_over_after: Duration,
    promise_left: Duration,
) -> Duration {
    if promise_left <= take_over_after { bound.min(take_over_after) } else { bound }
}

/// Returns the lowest bound that a primary may store now. `wait_left` is the time until the leases
/// of all earlier primaries end. From then on, no promise of the member is left, and a primary
/// makes no new promise. So the next process of the member need not wait if it is the primary of
/// the same term, which began in the epoch `Group::primary_since`.
pub fn bound_of_primary(bound: Duration, wait_left: Duration) -> Duration {
    if wait_left.is_zero() { Duration::ZERO } else { bound }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{
        MAX_METADATA_LEASE_MS, MAX_TAKE_OVER_AFTER_MS, MIN_METADATA_LEASE_MS,
        MIN_TAKE_OVER_AFTER_MS,
    };

    fn times(take_over_after_ms: u32) -> LeaseTimes {
        let policy =
            Policy { metadata_take_over_after_ms: take_over_after_ms, ..Policy::default() };
        LeaseTimes::of(&policy)
    }

    #[test]
    fn promise_outlasts_its_granted_lease_despite_clock_drift() {
        for milliseconds in MIN_TAKE_OVER_AFTER_MS..=MAX_TAKE_OVER_AFTER_MS {
            let times = times(milliseconds);
            let lease_end = times.granted_lease().mul_f64(1.0 / 0.99);
            let promise_end = times.take_over_after.mul_f64(1.0 / 1.01);
            let margin = promise_end.saturating_sub(lease_end);
            assert!(margin >= Duration::from_millis(198), "{milliseconds} ms: {margin:?}");
        }
    }

    #[test]
    fn granted_lease_is_at_least_the_lease_in_the_settings() {
        let standard = LeaseTimes::of(&Policy::default());
        assert!(standard.granted_lease() > standard.lease, "{standard:?}");
        let granted_ms = |take_over_after_ms| times(take_over_after_ms).granted_lease().as_millis();
        assert!(granted_ms(MIN_TAKE_OVER_AFTER_MS) >= MIN_METADATA_LEASE_MS.into());
        assert!(granted_ms(MAX_TAKE_OVER_AFTER_MS) >= MAX_METADATA_LEASE_MS.into());
    }

    #[test]
    fn primary_promises_nothing_after_its_wait_for_old_leases() {
        let bound = Duration::from_millis(2500);
        assert_eq!(bound_of_primary(bound, Duration::from_millis(1)), bound);
        assert_eq!(bound_of_primary(bound, Duration::ZERO), Duration::ZERO);
        assert_eq!(raised_bound(Duration::ZERO, bound), bound, "a backup member promises again");
    }

    #[test]
    fn bound_of_promises_never_falls_below_an_unexpired_promise() {
        let [short, long] = [2, 12].map(Duration::from_secs);
        let millisecond = Duration::from_millis(1);
        assert_eq!((raised_bound(short, long), raised_bound(long, short)), (long, long));
        assert_eq!(lowered_bound(long, short, short + millisecond), long);
        assert_eq!(lowered_bound(long, short, short), short);
        assert_eq!(lowered_bound(short, long, Duration::ZERO), short, "only `raised_bound` raises");
    }
}
