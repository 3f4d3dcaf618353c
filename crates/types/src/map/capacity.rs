//! Sums of capacities, and the rule that decides whether a target counts as full.

use super::Capacity;
use std::collections::BTreeMap;

impl Capacity {
    /// Free space below which a target counts as full, because several writes of up to 1 MiB each
    /// may be under way.
    const FULL_BYTES: u64 = 4 << 20;

    /// Whether a target with this capacity refuses writes that need space.
    pub fn is_full(&self) -> bool {
        self.total_bytes > 0 && self.free_bytes < Self::FULL_BYTES
    }

    /// Sums the capacities of several targets. Several targets on one file system count as one
    /// target, with the smallest free space that any of these targets reports.
    pub fn sum(of: impl IntoIterator<Item = Self>) -> Self {
        let mut found: BTreeMap<u128, Self> = BTreeMap::new();
        let mut sum = Self::default();
        for one in of {
            match one.file_system {
                0 => sum = sum.and(one),
                id => {
                    let least = found.entry(id).or_insert(one);
                    least.free_bytes = least.free_bytes.min(one.free_bytes);
                    least.free_inodes = least.free_inodes.min(one.free_inodes);
                }
            }
        }
        let sum = found.into_values().fold(sum, Self::and);
        Self { file_system: 0, ..sum }
    }

    /// Adds two capacities. The addition saturates, because targets may report arbitrary numbers,
    /// which must not cause an overflow.
    fn and(self, other: Self) -> Self {
        Self {
            total_bytes: self.total_bytes.saturating_add(other.total_bytes),
            free_bytes: self.free_bytes.saturating_add(other.free_bytes),
            total_inodes: self.total_inodes.saturating_add(other.total_inodes),
            free_inodes: self.free_inodes.saturating_add(other.free_inodes),
            file_system: 0,
        }
    }
}
