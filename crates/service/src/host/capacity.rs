//! Free space of a target's file system, as a node reports it to management.

use skep_types::map::Capacity;
use std::path::Path;

/// Capacity of a target's file system, without the bytes that `reserve` keeps free. Returns zeros
/// if the kernel does not report it.
pub(super) fn capacity(path: &Path, reserve: fn(u64) -> u64) -> Capacity {
    skep_env::space(path).map_or_else(
        |_| Capacity::default(),
        |space| Capacity {
            total_bytes: space.total_bytes,
            // A file system that is fuller than the reserve allows has no free space for Skep.
            free_bytes: space.free_bytes.saturating_sub(reserve(space.total_bytes)),
            total_inodes: space.total_inodes,
            free_inodes: space.free_inodes,
            file_system: file_system(path).unwrap_or_default(),
        },
    )
}

/// A number that is equal for all paths on one file system of this host, and for no other file
/// system: devices have different numbers on a running host, and boots have random ids.
/// (Subvolumes of btrfs and datasets of ZFS have numbers of their own; they count as separate file
/// systems.)
fn file_system(path: &Path) -> std::io::Result<u128> {
    Ok(skep_env::boot_id()? ^ u128::from(skep_env::mount_mark(path)?.device))
}
