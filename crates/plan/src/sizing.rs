//! Sizes the parts of a cluster that the model of rates leaves out: disks, memory and processors of
//! metadata and storage hosts.
//!
//! docs/operations/sizing.md explains each number. The module `records` has the sizes of the
//! records of a file.

mod records;

use crate::invalid;
use records::StoredFile;
use serde::Serialize;
use skep_format::chunk;
use skep_types::map::Policy;
use skep_types::pattern::{MAX_INLINE_BYTES, MAX_STRIPE_WIDTH};
use skep_types::{MAX_NAME_BYTES, Result};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Space for the log of a metadata target, which does not grow with the number of files.
const LOG_BYTES: u64 = 2 * GIB;
/// Smallest cache of a metadata target: the default of the setting `metadata.cache`.
const LEAST_CACHE_BYTES: u64 = 256 * MIB;
/// Memory of a metadata target besides its cache: tables in memory and recent records of the log.
const METADATA_TARGET_BYTES: u64 = (128 + 32) * MIB;
/// Additional memory of a metadata target whose group has several members.
const COPIES_BYTES: u64 = 64 * MIB;
/// Memory of a connection.
const CONNECTION_BYTES: u64 = 64 * KIB;
/// Memory of a storage host, and of each of its targets.
const STORAGE_HOST_BYTES: u64 = 16 * GIB;
const STORAGE_TARGET_BYTES: u64 = GIB;
/// Maximum number of connections of one service: half of `LimitNOFILE=` of its unit.
pub const MAX_CONNECTIONS: u64 = 524_288;

/// Maximum number of files. A computed size that does not fit into 64 bits is replaced by the
/// largest 64-bit number.
const MAX_FILES: u64 = 1_000_000_000_000;
/// Maximum mean size of a file, in bytes.
const MAX_MEAN_BYTES: u64 = 1 << 50;
/// Maximum number of processors of a client.
const MAX_CLIENT_CPUS: u64 = 1 << 16;
/// Maximum number of hosts of a role, which is the maximum number of servers in a cluster.
pub const MAX_HOSTS: u64 = 4096;
/// Maximum number of targets of a host.
pub const MAX_TARGETS: u64 = 256;
/// Maximum number of clients of a cluster.
pub const MAX_CLIENTS: u64 = 100_000;
/// Maximum number of copies of metadata.
pub const MAX_COPIES: u64 = 3;

/// The hosts of one role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Hosts {
    /// Number of hosts of the role.
    pub hosts: u64,
    /// Number of targets of each host, in one service.
    pub targets: u64,
}

/// The files and clients for which a cluster is sized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Needs {
    /// Number of files.
    pub files: u64,
    /// Mean size of a file, in bytes.
    pub mean_bytes: u64,
    /// Number of files that are in use at a time. The metadata of these files should be in memory.
    pub files_in_use: u64,
    /// Mean length of a name, in bytes.
    pub name_bytes: u64,
    /// Number of targets over which a file is striped, except for its first bytes.
    pub stripe_width: u64,
    /// Maximum number of bytes of a file that metadata stores. `Some(0)` means that the file has
    /// an inline component without bytes. `None` means that the pattern of the file has no inline
    /// component, because the setting `inline-bytes` is 0.
    pub inline_bytes: Option<u64>,
    /// Number of copies of metadata.
    pub copies: u64,
    /// The hosts of the metadata targets.
    pub metadata: Hosts,
    /// The hosts of the storage targets.
    pub storage: Hosts,
    /// Number of clients.
    pub clients: u64,
    /// Number of processors of each client.
    pub client_cpus: u64,
}

/// The size of each host of a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct HostSize {
    /// Number of hosts of the role.
    pub hosts: u64,
    /// Number of targets of each host.
    pub targets: u64,
    /// Space for each target, in bytes.
    pub disk_bytes_of_target: u64,
    /// Memory of each host, in bytes.
    pub memory_bytes: u64,
    /// Number of processor cores of each host.
    pub cores: u64,
    /// Number of connections of the service of each host.
    pub connections: u64,
}

/// The size of a cluster.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClusterSize {
    /// Bytes of one file in the store of metadata.
    pub metadata_bytes_of_file: u64,
    /// Bytes of all files in the stores of metadata, with all copies.
    pub metadata_bytes: u64,
    /// Setting `metadata.cache` of each metadata service, in bytes for each target.
    pub cache_bytes_of_target: u64,
    /// Number of chunk files of one file. Each needs an inode on a target.
    pub chunk_files_of_file: u64,
    /// Bytes of all files on storage targets, with checksums.
    pub data_bytes: u64,
    /// `metadata_bytes` as a share of `data_bytes`. `None` if storage has no data.
    pub metadata_share: Option<f64>,
    /// The metadata hosts.
    pub metadata: HostSize,
    /// The storage hosts.
    pub storage: HostSize,
    /// Limits that the cluster would exceed, each with a way out.
    pub problems: Vec<String>,
}

/// Sizes a cluster.
///
/// # Errors
/// `InvalidArgument` if a number is zero or too large.
pub fn size(needs: &Needs) -> Result<ClusterSize> {
    check(needs)?;
    let chunk_files_of_file = chunk_files(needs);
    let each = metadata_bytes_of_file(needs, chunk_files_of_file);
    let data_bytes = needs.files.saturating_mul(data_bytes_of_file(needs, chunk_files_of_file));
    // Each group of targets has the files of its shards, and each copy in the group has all these
    // files.
    let metadata_bytes = needs.files.saturating_mul(each).saturating_mul(needs.copies);
    let metadata_targets = needs.metadata.hosts * needs.metadata.targets;
    let cached = needs.files_in_use.saturating_mul(each).saturating_mul(needs.copies);
    let cache = (cached / metadata_targets).max(LEAST_CACHE_BYTES);
    let metadata = metadata_host(needs, metadata_bytes / metadata_targets, cache);
    let storage = storage_host(needs, data_bytes / (needs.storage.hosts * needs.storage.targets));
    let problems = [("metadata", &metadata), ("storage", &storage)];
    Ok(ClusterSize {
        metadata_bytes_of_file: each,
        metadata_bytes,
        cache_bytes_of_target: cache,
        chunk_files_of_file,
        data_bytes,
        metadata_share: (data_bytes > 0).then(|| metadata_bytes as f64 / data_bytes as f64),
        problems: problems.into_iter().filter_map(|(role, host)| too_many(role, host)).collect(),
        metadata,
        storage,
    })
}

fn check(needs: &Needs) -> Result<()> {
    let between = |what: &str, number: u64, least: u64, most: u64| {
        if (least..=most).contains(&number) {
            return Ok(());
        }
        Err(invalid(format!("invalid {what} {number}: expected {least} to {most}")))
    };
    between("number of files", needs.files, 1, MAX_FILES)?;
    between("number of files in use", needs.files_in_use, 0, needs.files)?;
    between("mean size of a file", needs.mean_bytes, 0, MAX_MEAN_BYTES)?;
    between("length of a name", needs.name_bytes, 1, MAX_NAME_BYTES as u64)?;
    between("stripe width", needs.stripe_width, 1, MAX_STRIPE_WIDTH as u64)?;
    between("number of inline bytes", needs.inline_bytes.unwrap_or(0), 0, MAX_INLINE_BYTES)?;
    for (role, it) in [("metadata", needs.metadata), ("storage", needs.storage)] {
        between(&format!("number of {role} hosts"), it.hosts, 1, MAX_HOSTS)?;
        between(&format!("number of targets of a {role} host"), it.targets, 1, MAX_TARGETS)?;
    }
    between("number of clients", needs.clients, 1, MAX_CLIENTS)?;
    between("number of processors of a client", needs.client_cpus, 1, MAX_CLIENT_CPUS)?;
    between("number of copies", needs.copies, 1, MAX_COPIES)?;
    if needs.copies > needs.metadata.hosts {
        return Err(invalid(format!(
            "cannot place {} copies of metadata on {} hosts: copies are on different hosts; use \
             more metadata hosts or fewer copies",
            needs.copies, needs.metadata.hosts
        )));
    }
    Ok(())
}

/// Returns the bytes of a file in the store of metadata: its inode, one name and its inline bytes.
fn metadata_bytes_of_file(needs: &Needs, chunk_files: u64) -> u64 {
    let file = StoredFile {
        name_bytes: needs.name_bytes,
        has_inline_component: needs.inline_bytes.is_some(),
        inline_bytes: needs.mean_bytes.min(needs.inline_bytes.unwrap_or(0)),
        stripe_width: needs.stripe_width,
        chunk_files,
    };
    file.bytes()
}

/// Returns the number of chunk files of a file with the default pattern. In this pattern, the first
/// bytes are on one target, and the other bytes are on many targets.
fn chunk_files(needs: &Needs) -> u64 {
    if needs.mean_bytes <= needs.inline_bytes.unwrap_or(0) {
        return 0;
    }
    let Policy { stripe_from, default_chunk_bytes, .. } = Policy::default();
    let rest = needs.mean_bytes.saturating_sub(stripe_from);
    1 + rest.div_ceil(default_chunk_bytes).min(needs.stripe_width)
}

/// Returns the bytes of a file on storage targets: its data, and for each chunk file at least one
/// page of checksums.
fn data_bytes_of_file(needs: &Needs, chunk_files: u64) -> u64 {
    if chunk_files == 0 {
        return 0;
    }
    let pages = needs.mean_bytes.div_ceil(chunk::REGION_BYTES) + chunk_files - 1;
    needs.mean_bytes + pages.max(1) * chunk::PAGE_BYTES
}

fn metadata_host(needs: &Needs, store_bytes_of_target: u64, cache: u64) -> HostSize {
    let Hosts { hosts, targets } = needs.metadata;
    let copies = if needs.copies > 1 { COPIES_BYTES } else { 0 };
    let connections = connections(needs, targets);
    let of_target = cache.saturating_add(METADATA_TARGET_BYTES + copies);
    let used = targets.saturating_mul(of_target).saturating_add(connections * CONNECTION_BYTES);
    HostSize {
        hosts,
        targets,
        disk_bytes_of_target: store_bytes_of_target.saturating_add(LOG_BYTES),
        // Half of the memory is for the caches. The kernel uses the rest as page cache.
        memory_bytes: used.max(targets.saturating_mul(cache).saturating_mul(2)),
        cores: cores(targets),
        connections,
    }
}

fn storage_host(needs: &Needs, data_bytes_of_target: u64) -> HostSize {
    let Hosts { hosts, targets } = needs.storage;
    let connections = connections(needs, targets);
    HostSize {
        hosts,
        targets,
        disk_bytes_of_target: data_bytes_of_target,
        memory_bytes: STORAGE_HOST_BYTES
            + targets * STORAGE_TARGET_BYTES
            + connections * CONNECTION_BYTES,
        cores: cores(targets),
        connections,
    }
}

/// Returns the number of connections of a service: one from each processor of each client to each
/// target.
fn connections(needs: &Needs, targets: u64) -> u64 {
    needs.clients * needs.client_cpus * targets
}

/// Returns the number of cores of a service: one for each target, and for the kernel half the
/// number of targets.
fn cores(targets: u64) -> u64 {
    targets + targets.div_ceil(2)
}

/// Returns the problem of a host whose service would have too many connections.
fn too_many(role: &str, host: &HostSize) -> Option<String> {
    (host.connections > MAX_CONNECTIONS).then(|| {
        format!(
            "a {role} service with {} targets would have {} connections, and the limit of a \
             service is {MAX_CONNECTIONS}: use fewer targets for each service, or give mounts the \
             option `workers`",
            host.targets, host.connections
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::Component;
    use skep_types::codec::Codec;

    const NEEDS: Needs = Needs {
        files: 100_000_000,
        mean_bytes: 1_000_000,
        files_in_use: 10_000_000,
        name_bytes: 20,
        stripe_width: 32,
        inline_bytes: Some(0),
        copies: 1,
        metadata: Hosts { hosts: 2, targets: 2 },
        storage: Hosts { hosts: 2, targets: 16 },
        clients: 100,
        client_cpus: 64,
    };

    fn sized(needs: Needs) -> ClusterSize {
        size(&needs).expect("valid needs")
    }

    #[test]
    fn metadata_is_sized_by_files_and_names() {
        let found = sized(NEEDS);
        assert_eq!((found.metadata_bytes_of_file, found.metadata_bytes), (487, 48_700_000_000));
        assert_eq!(found.metadata.disk_bytes_of_target, 12_175_000_000 + LOG_BYTES);
        assert_eq!(found.cache_bytes_of_target, 1_217_500_000);
        assert!(found.metadata.memory_bytes >= 2 * 2 * 1_217_500_000);
        assert_eq!((found.metadata.cores, found.storage.cores), (3, 24));
        let share = found.metadata_share.expect("data");
        assert!((0.0004..0.0005).contains(&share), "{share}");
        let narrow = sized(Needs { stripe_width: 8, ..NEEDS });
        assert_eq!(narrow.metadata_bytes_of_file, 381);
        // If no files are in use, the default cache is enough.
        let idle = sized(Needs { files_in_use: 0, ..NEEDS });
        assert_eq!(idle.cache_bytes_of_target, LEAST_CACHE_BYTES);
    }

    #[test]
    fn inode_of_a_large_file_has_an_inline_component() {
        let bytes = |inline_bytes| sized(Needs { inline_bytes, ..NEEDS }).metadata_bytes_of_file;
        // Bytes of the records of the inode and the name, for a file with 32 targets and a name of
        // 20 bytes.
        let records = 419;
        assert_eq!(bytes(Some(0)), (records + 2 * 12) * 11 / 10);
        let component = Component::inline().to_bytes().len() as u64;
        assert_eq!(bytes(None), (records - component + 2 * 12) * 11 / 10);
    }

    #[test]
    fn copies_multiply_the_space_of_metadata() {
        let (one, two) = (sized(NEEDS), sized(Needs { copies: 2, ..NEEDS }));
        assert_eq!(two.metadata_bytes, 2 * one.metadata_bytes);
        assert_eq!(two.cache_bytes_of_target, 2 * one.cache_bytes_of_target);
        assert_eq!(two.data_bytes, one.data_bytes);
        let error = size(&Needs { copies: 3, ..NEEDS }).expect_err("two hosts");
        assert!(error.context().contains("different hosts"), "{error}");
    }

    #[test]
    fn data_size_includes_checksums_and_excludes_inline_files() {
        let one = |mean_bytes, inline_bytes| {
            let inline_bytes = Some(inline_bytes);
            let found =
                sized(Needs { files: 1, files_in_use: 0, mean_bytes, inline_bytes, ..NEEDS });
            (found.chunk_files_of_file, found.data_bytes)
        };
        assert_eq!(one(1, 0), (1, 1 + 4096));
        assert_eq!(one(4 * MIB, 0), (1, 4 * MIB + 2 * 4096));
        assert_eq!(one(5 * MIB, 0), (3, 5 * MIB + 5 * 4096));
        assert_eq!(one(GIB, 0).0, 33);
        assert_eq!(one(1000, 4096), (0, 0));
        let inline = sized(Needs { mean_bytes: 1500, inline_bytes: Some(4096), ..NEEDS });
        // Bytes of the records of two parts of inline bytes, and of an inode whose set of synced
        // chunk files is empty.
        let records = 418 + 1500 + 2 * 22;
        assert_eq!(inline.metadata_bytes_of_file, (records + 4 * 12) * 11 / 10);
        assert_eq!(inline.metadata_share, None);
    }

    #[test]
    fn size_reports_a_service_with_too_many_connections() {
        assert_eq!(sized(NEEDS).problems, Vec::<String>::new());
        let found = sized(Needs { clients: 1000, ..NEEDS });
        assert_eq!(found.storage.connections, 1000 * 64 * 16);
        let [problem] = &found.problems[..] else { panic!("one problem: {:?}", found.problems) };
        assert!(problem.contains("storage") && problem.contains("`workers`"), "{problem}");
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        for (needs, words) in [
            (Needs { files: 0, ..NEEDS }, "number of files 0"),
            (Needs { files_in_use: NEEDS.files + 1, ..NEEDS }, "files in use"),
            (Needs { stripe_width: 257, ..NEEDS }, "stripe width 257: expected 1 to 256"),
            (Needs { storage: Hosts { hosts: 0, targets: 1 }, ..NEEDS }, "storage hosts 0"),
            (Needs { clients: 0, ..NEEDS }, "clients 0"),
        ] {
            let error = size(&needs).expect_err("refused");
            assert!(error.context().contains(words), "{error}");
        }
        // The sizes for the largest needs do not overflow.
        let most = Needs { files: MAX_FILES, mean_bytes: MAX_MEAN_BYTES, ..NEEDS };
        assert_eq!(sized(most).data_bytes, u64::MAX);
    }
}
