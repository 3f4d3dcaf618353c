//! Free space of a target's file system, as the node reports it to management.

use skep_metrics::catalog::{TARGET_FREE, TARGET_FREE_INODES, TARGET_INODES, TARGET_SIZE};
use skep_metrics::{Snapshot, Source};
use skep_types::TargetId;
use skep_types::map::Capacity;
use std::path::{Path, PathBuf};

/// Measures the capacity of a target whenever a snapshot of the metrics is taken.
pub(super) struct CapacityFigures {
    pub(super) target: TargetId,
    pub(super) path: PathBuf,
    pub(super) reserve: fn(u64) -> u64,
}

impl Source for CapacityFigures {
    fn collect(&self, snapshot: &mut Snapshot) {
        let capacity = capacity(&self.path, self.reserve);
        let figures = [
            (&TARGET_SIZE, capacity.total_bytes),
            (&TARGET_FREE, capacity.free_bytes),
            (&TARGET_INODES, capacity.total_inodes),
            (&TARGET_FREE_INODES, capacity.free_inodes),
        ];
        for (definition, figure) in figures {
            snapshot.count(definition, vec![("target", self.target.raw().to_string())], figure);
        }
    }
}

/// Returns the capacity of a target's file system, minus the bytes that `reserve` keeps free.
/// Returns zeros if the kernel does not report the capacity.
pub(super) fn capacity(path: &Path, reserve: fn(u64) -> u64) -> Capacity {
    skep_env::space(path).map_or_else(
        |_| Capacity::default(),
        |space| Capacity {
            total_bytes: space.total_bytes,
            // If the free space is smaller than the reserve, Skep reports no free space.
            free_bytes: space.free_bytes.saturating_sub(reserve(space.total_bytes)),
            total_inodes: space.total_inodes,
            free_inodes: space.free_inodes,
            file_system: file_system(path).unwrap_or_default(),
        },
    )
}

/// Returns a number that identifies the file system of `path` across all hosts. The number combines
/// the device number, which is unique on a running host, with the random id of the host's boot.
/// Each btrfs subvolume and each ZFS dataset has its own device number, so each counts as a
/// separate file system.
fn file_system(path: &Path) -> std::io::Result<u128> {
    Ok(skep_env::boot_id()? ^ u128::from(skep_env::mount_mark(path)?.device))
}
