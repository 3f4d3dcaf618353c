//! The capacity pool of a target: `Normal`, `Low` or `Emergency`, by its free bytes and inodes.
//!
//! A target is `Low` if both of these hold for its bytes or for its inodes:
//! - The free share is below the percentage in the setting `low-percent`.
//! - The free amount is below the setting `low-free` (bytes) or [`LOW_FREE_INODES`] (inodes).
//!
//! The second condition keeps a large target `Normal` if its free percentage is low but its free
//! space is still large. For `Emergency`, the rule is the same, but with `emergency-percent`,
//! `emergency-free` and [`EMERGENCY_FREE_INODES`]. A percentage of zero switches a rule off. A
//! value of zero in `low-free` or `emergency-free` switches the rule off only for bytes.

use crate::limits::{EMERGENCY_FREE_INODES, LOW_FREE_INODES};
use skep_types::map::{Capacity, CapacityPool, Policy};

/// The limits of one capacity pool.
#[derive(Debug, Clone, Copy)]
struct Limit {
    percent: u8,
    free_bytes: u64,
    free_inodes: u64,
}

impl Limit {
    /// Whether a target with this capacity is below the limit, by its bytes or by its inodes.
    fn is_above(self, capacity: &Capacity) -> bool {
        let is_scarce = |free: u64, total: u64, most: u64| {
            let percent = u128::from(self.percent);
            total > 0 && free < most && u128::from(free) * 100 < u128::from(total) * percent
        };
        is_scarce(capacity.free_bytes, capacity.total_bytes, self.free_bytes)
            || is_scarce(capacity.free_inodes, capacity.total_inodes, self.free_inodes)
    }
}

/// The limits of all capacity pools.
#[derive(Debug, Clone, Copy)]
pub struct PoolLimits {
    low: Limit,
    emergency: Limit,
}

impl PoolLimits {
    /// Returns the limits that the settings of a cluster define.
    pub fn of(policy: &Policy) -> Self {
        Self {
            low: Limit {
                percent: policy.low_percent,
                free_bytes: policy.low_free_bytes,
                free_inodes: LOW_FREE_INODES,
            },
            emergency: Limit {
                percent: policy.emergency_percent,
                free_bytes: policy.emergency_free_bytes,
                free_inodes: EMERGENCY_FREE_INODES,
            },
        }
    }

    /// Returns the capacity pool of a target with this capacity. A target that has not reported its
    /// capacity yet is `Normal`.
    pub fn pool(&self, capacity: &Capacity) -> CapacityPool {
        if self.emergency.is_above(capacity) {
            CapacityPool::Emergency
        } else if self.low.is_above(capacity) {
            CapacityPool::Low
        } else {
            CapacityPool::Normal
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(policy: &Policy, (total_bytes, free_bytes): (u64, u64)) -> CapacityPool {
        let capacity = Capacity { total_bytes, free_bytes, ..Capacity::default() };
        PoolLimits::of(policy).pool(&capacity)
    }

    #[test]
    fn capacity_pool_follows_from_free_bytes_and_inodes() {
        let check = |total_bytes, free_bytes, total_inodes, free_inodes, expected| {
            let bytes = Capacity { total_bytes, free_bytes, ..Capacity::default() };
            let capacity = Capacity { total_inodes, free_inodes, ..bytes };
            let limits = PoolLimits::of(&Policy::default());
            assert_eq!(limits.pool(&capacity), expected, "{capacity:?}");
        };
        check(0, 0, 0, 0, CapacityPool::Normal);
        check(1_000, 100, 0, 0, CapacityPool::Normal);
        check(1_000, 99, 0, 0, CapacityPool::Low);
        check(1_000, 19, 0, 0, CapacityPool::Emergency);
        check(1_000, 900, 1_000, 50, CapacityPool::Low);
        check(1_000, 900, 1_000, 0, CapacityPool::Emergency);
        check(1 << 50, 512 << 30, 0, 0, CapacityPool::Normal);
        check(1 << 50, (512 << 30) - 1, 0, 0, CapacityPool::Low);
        check(1 << 50, 20 << 30, 0, 0, CapacityPool::Low);
        check(1 << 50, (20 << 30) - 1, 0, 0, CapacityPool::Emergency);
    }

    #[test]
    fn settings_change_and_switch_off_the_free_space_limits() {
        let wide = Policy {
            low_percent: 30,
            low_free_bytes: 1 << 50,
            emergency_percent: 20,
            emergency_free_bytes: 1 << 50,
            ..Policy::default()
        };
        assert_eq!(pool(&wide, (1 << 50, 1 << 48)), CapacityPool::Low);
        assert_eq!(pool(&wide, (1_000, 199)), CapacityPool::Emergency);
        assert_eq!(pool(&wide, (1_000, 300)), CapacityPool::Normal);
        let off = Policy { low_percent: 0, emergency_free_bytes: 0, ..Policy::default() };
        assert_eq!(pool(&off, (1_000, 0)), CapacityPool::Normal);
    }
}
