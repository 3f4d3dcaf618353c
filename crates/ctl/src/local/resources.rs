//! Checks whether this host has enough memory, free space, processors and free ports for a cluster,
//! before `skep up` starts its processes.
//!
//! The checks use only rough lower limits. A cluster that passes the checks may still run out of
//! memory or space during its use.

use super::shape::Shape;
use skep_types::{Error, ErrorCode, Result};
use std::collections::BTreeSet;
use std::path::Path;

/// Bytes that a new metadata target allocates at its first start: its log and its store.
const DISK_OF_METADATA_TARGET: u64 = 72 << 20;
/// Bytes that a new storage target needs for its own files.
const DISK_OF_STORAGE_TARGET: u64 = 4 << 20;
/// Minimum memory of a service, in bytes.
const MEMORY_OF_SERVICE: u64 = 24 << 20;
/// Maximum number of services for each processor. An idle service wakes up several times a second
/// for its heartbeats. With many more services, heartbeats may be late, and management then
/// considers running services offline.
const SERVICES_OF_PROCESSOR: u64 = 100;
/// Ports of a service: one for requests, and one for statistics.
const PORTS_OF_SERVICE: u64 = 2;

/// The resources that a cluster needs: numbers of services and ports, and bytes of disk and memory.
#[derive(Debug, Clone, Copy)]
struct Needs {
    services: u64,
    disk: u64,
    memory: u64,
    ports: u64,
}

/// The free resources of this host: bytes of disk and memory, and numbers of processors and ports.
/// `None` means that the check ignores the resource, because its amount is unknown or not needed.
#[derive(Debug, Clone, Copy, Default)]
struct Resources {
    disk: Option<u64>,
    memory: Option<u64>,
    processors: Option<u64>,
    ports: Option<u64>,
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
            ports: services * PORTS_OF_SERVICE,
        }
    }
}

/// Returns an error if a cluster does not fit on this host. `data` is its data directory.
/// `needs_disk` means that the targets of the cluster have not allocated their files in `data` yet.
///
/// # Errors
/// - `NoSpace` if the file system of the data directory has too little free space for a new
///   cluster.
/// - `Configuration` if this host has too little memory, too few processors, or too few free ports.
pub(super) fn check(data: &Path, shape: &Shape, needs_disk: bool) -> Result<()> {
    let resources = Resources {
        disk: if needs_disk { free_space(data) } else { None },
        memory: available_memory(),
        processors: std::thread::available_parallelism().ok().map(|it| it.get() as u64),
        ports: free_ports(),
    };
    check_against(Needs::of(shape), resources, data)
}

fn check_against(needs: Needs, resources: Resources, data: &Path) -> Result<()> {
    let size = crate::output::size;
    let fewer = "start fewer services with --metadata-targets and --storage-services";
    let Resources { disk, memory, processors, ports } = resources;
    if let Some(free) = disk.filter(|free| *free < needs.disk) {
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
    let most = |count: &u64| count.saturating_mul(SERVICES_OF_PROCESSOR) < needs.services;
    if let Some(processors) = processors.filter(most) {
        let what = format!(
            "cannot start {} services on this host: the host has {} for the services, and each \
             processor is enough for at most {SERVICES_OF_PROCESSOR} services; {fewer}",
            needs.services,
            crate::output::counted(processors, "processor", "processors")
        );
        return Err(Error::new(ErrorCode::Configuration, what));
    }
    if let Some(ports) = ports.filter(|ports| *ports < needs.ports) {
        let what = format!(
            "cannot start {} services on this host: these services listen on {} ports, and {} of \
             {PORT_RANGE} are free; {fewer}, or widen this range (sysctl \
             net.ipv4.ip_local_port_range)",
            needs.services, needs.ports, ports
        );
        return Err(Error::new(ErrorCode::Configuration, what));
    }
    Ok(())
}

/// The file with the first and the last port that the kernel assigns to sockets without a port. The
/// services of `skep up` listen on such ports.
const PORT_RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";

/// Returns the number of ports that the kernel can assign and on which no socket listens.
fn free_ports() -> Option<u64> {
    let range = std::fs::read_to_string(PORT_RANGE).ok()?;
    // A host without IPv6 lacks the second file.
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    let tables = tables.map(|path| std::fs::read_to_string(path).unwrap_or_default());
    count_free_ports(&range, &tables)
}

/// Returns the number of ports in `range` on which no socket in `tables` listens. The formats are
/// in ip(7) and proc_net(5).
fn count_free_ports(range: &str, tables: &[String]) -> Option<u64> {
    let mut bounds = range.split_whitespace().map(|bound| bound.parse::<u16>().ok());
    let range = bounds.next()??..=bounds.next()??;
    let lines = tables.iter().flat_map(|table| table.lines());
    let taken: BTreeSet<u16> =
        lines.filter_map(listening_port).filter(|port| range.contains(port)).collect();
    Some((range.count() - taken.len()) as u64)
}

/// Returns the port of a socket in a line of `/proc/net/tcp`. `None` means that the socket does not
/// listen, or that the line is the heading.
fn listening_port(line: &str) -> Option<u16> {
    const LISTENS: &str = "0A";
    let mut fields = line.split_whitespace().skip(1);
    let (local, _remote, state) = (fields.next()?, fields.next()?, fields.next()?);
    let (_, port) = local.rsplit_once(':').filter(|_| state == LISTENS)?;
    u16::from_str_radix(port, 16).ok()
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
            let (disk, memory) = (Some(free), Some(memory));
            check_against(shape(metadata), Resources { disk, memory, ..Resources::default() }, data)
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

    #[test]
    fn cluster_that_exceeds_processors_or_ports_is_refused() {
        let check = |metadata_targets, processors, ports| {
            let needs = Needs::of(&Shape { metadata_targets, ..Shape::default() });
            let (processors, ports) = (Some(processors), Some(ports));
            let resources = Resources { processors, ports, ..Resources::default() };
            check_against(needs, resources, Path::new("/data"))
        };
        check(97, 1, 200).unwrap();
        let processors = check(98, 1, 1000).unwrap_err();
        assert!(
            processors.context().contains("the host has 1 processor for the services"),
            "{processors}"
        );
        let ports = check(97, 1, 199).unwrap_err();
        for words in ["100 services", "listen on 200 ports, and 199 of", "ip_local_port_range"] {
            assert!(ports.context().contains(words), "{ports}");
        }
    }

    #[test]
    fn ports_on_which_sockets_listen_are_not_free() {
        let heading = "  sl  local_address rem_address   st tx_queue rx_queue";
        let socket =
            |port: u16, state| format!("   0: 0100007F:{port:04X} 00000000:0000 {state} 0");
        let tables = [
            [heading, &socket(40_000, "0A"), &socket(40_001, "01"), &socket(7400, "0A")].join("\n"),
            [heading, &socket(40_000, "0A"), &socket(40_009, "0A")].join("\n"),
        ];
        assert_eq!(count_free_ports("40000\t40009\n", &tables), Some(8));
        assert_eq!(count_free_ports("40000", &tables), None);
        assert!(free_ports().is_some_and(|count| count > 0));
    }
}
