//! Checks whether this host has enough memory and free space for a cluster, before `skep up` starts
//! its processes.
//!
//! The checks use only rough lower limits. A cluster that passes the checks may still run out of
//! memory or space later.

use super::shape::Shape;
use skep_types::{Error, ErrorCode, Result};
use std::path::Path;

/// Bytes that a new metadata target allocates at its first start: its log and its store.
const DISK_OF_METADATA_TARGET: u64 = 72 << 20;
/// Bytes that a new storage target needs for its own files.
const DISK_OF_STORAGE_TARGET: u64 = 4 << 20;
/// Minimum memory of a service, in bytes.
const MEMORY_OF_SERVICE: u64 = 24 << 20;

/// The needs of a cluster, and the resources of this host, in bytes.
#[derive(Debug, Clone, Copy)]
struct Needs {
    services: u64,
    disk: u64,
    memory: u64,
}

impl Needs {
    fn of(shape: &Shape) -> Self {
        let Shape {
            management_nodes,
            metadata_targets,
            metadata_copies,
            storage_services,
            targets_per_service,
        } = *shape;
        let metadata_target_count = u64::from(metadata_targets) * u64::from(metadata_copies);
        let (metadata, storage) = (u64::from(metadata_targets), u64::from(storage_services));
        let storage_targets = storage * u64::from(targets_per_service);
        let services = u64::from(management_nodes) + metadata + storage;
        Self {
            services,
            disk: metadata_target_count * DISK_OF_METADATA_TARGET
                + storage_targets * DISK_OF_STORAGE_TARGET,
            memory: services * MEMORY_OF_SERVICE,
        }
    }
}

/// Returns an error if a cluster does not fit on this host. `data` is its data directory.
/// `needs_disk` means that the targets of the cluster have not allocated their files in `data` yet.
///
/// # Errors
/// - `NoSpace` if the file system of the data directory has too little free space for a new
///   cluster.
/// - `Configuration` if this host has too little memory.
pub(super) fn check(data: &Path, shape: &Shape, needs_disk: bool) -> Result<()> {
    let needs = Needs::of(shape);
    let free = if needs_disk { free_space(data) } else { None };
    check_against(needs, free, available_memory(), data)
}

fn check_against(needs: Needs, free: Option<u64>, memory: Option<u64>, data: &Path) -> Result<()> {
    let size = crate::output::size;
    let fewer = "start fewer services with --metadata-targets and --storage-services";
    if let Some(free) = free.filter(|free| *free < needs.disk) {
        let what = format!(
            "cannot start {} services in {}: these services need at least {}, and {} are free on \
             this file system; {fewer}, or choose another --data-dir",
            needs.services,
            data.display(),
            size(needs.disk),
            size(free)
        );
        return Err(Error::new(ErrorCode::NoSpace, what));
    }
    if let Some(memory) = memory.filter(|memory| *memory < needs.memory) {
        let what = format!(
            "cannot start {} services on this host: these services need at least {} of memory, and \
             {} are available; {fewer}",
            needs.services,
            size(needs.memory),
            size(memory)
        );
        return Err(Error::new(ErrorCode::Configuration, what));
    }
    Ok(())
}

/// Returns the free bytes of the file system in which a directory exists or will be created.
fn free_space(path: &Path) -> Option<u64> {
    let found = path.ancestors().find_map(|path| rustix::fs::statvfs(path).ok())?;
    Some(found.f_bavail * found.f_frsize)
}

/// Returns the amount of memory that programs can use without swapping, in bytes.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_that_exceeds_memory_or_disk_is_refused_at_its_start() {
        let shape = |metadata_targets| Needs::of(&Shape { metadata_targets, ..Shape::default() });
        let data = Path::new("/data");
        let check = |metadata, free: u64, memory: u64| {
            check_against(shape(metadata), Some(free), Some(memory), data)
        };
        check(2, 1 << 30, 1 << 30).unwrap();
        let disk = check(1000, 60 << 30, 64 << 30).unwrap_err();
        for words in ["1003 services", "/data", "--metadata-targets"] {
            assert!(disk.context().contains(words), "{disk}");
        }
        let memory = check(1000, 100 << 30, 8 << 30).unwrap_err();
        assert!(memory.context().contains("of memory"), "{memory}");
        assert!(available_memory().is_some_and(|bytes| bytes > 0));
        assert!(free_space(Path::new("/none/at/all")).is_some());
    }
}
