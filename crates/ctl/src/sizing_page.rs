//! Compares the page docs/operations/sizing.md with the formats and limits of this program, and
//! checks the reference designs of the page.

use crate::output::size as bytes;
use skep_cluster::limits as cluster;
use skep_cluster::patterns::resolve;
use skep_deploy::hosts::{Deployment, Role};
use skep_format::chunk;
use skep_format::metadata::{DentryRecord, InlineRecord, InodeRecord, Key};
use skep_plan::sizing;
use skep_types::codec::{Bytes, Codec};
use skep_types::map::Policy;
use skep_types::pattern::{MAX_COMPONENTS, MAX_INLINE_BYTES, MAX_STRIPE_WIDTH};
use skep_types::{
    Attributes, ChunkFileSet, Component, FileKind, GroupId, InodeId, MAX_FILE_BYTES,
    MAX_NAME_BYTES, PatternOrigin, PatternRequest, SHARD_COUNT, StripePattern, Timestamp,
};
use skep_wire::limits as wire;
use std::collections::BTreeSet;

const PAGE: &str = include_str!("../../../docs/operations/sizing.md");
const STORAGE_UNIT: &str = include_str!("../../../packaging/systemd/skep-storage@.service");

fn check(text: &str) {
    assert!(PAGE.contains(text), "docs/operations/sizing.md lacks: {text}");
}

/// Writes a number as on the page, with a comma before each three digits.
fn with_commas(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns the components of a new file on a cluster whose setting `inline-bytes` has this value.
/// The file has `targets` targets in its wide component.
fn components(inline_bytes: u64, targets: u32) -> Vec<Component> {
    let policy = Policy { inline_bytes, ..Policy::default() };
    let mut components = resolve(&PatternRequest::unset(), &policy).components;
    let [.., narrow, wide] = &mut components[..] else { panic!("a narrow and a wide component") };
    narrow.groups = vec![GroupId::new(1)];
    wide.groups = (1..=targets).map(GroupId::new).collect();
    components
}

/// Returns the length in bytes of an inode record whose pattern has these components.
fn inode_bytes(kind: FileKind, components: Vec<Component>) -> usize {
    let attributes = Attributes::new(InodeId::ROOT, kind, 0o644, Timestamp::default());
    let mut synced_chunk_files = ChunkFileSet::default();
    if kind == FileKind::Regular {
        synced_chunk_files.insert(0);
    }
    let pattern = StripePattern { generation: 1, origin: PatternOrigin::Cluster, components };
    let record = InodeRecord {
        attributes,
        parent: InodeId::ROOT,
        pattern: (kind == FileKind::Regular).then_some(pattern),
        link_target: Bytes(Vec::new()),
        has_xattrs: false,
        high_water: 0,
        may_be_named: false,
        synced_chunk_files,
    };
    record.to_bytes().len()
}

/// Returns the length in bytes of the inode record of a file on a cluster with default settings.
fn file_bytes(targets: u32) -> usize {
    inode_bytes(FileKind::Regular, components(Policy::default().inline_bytes, targets))
}

fn name_bytes(name: &str) -> usize {
    let name = Bytes(name.as_bytes().to_vec());
    DentryRecord { name, inode: InodeId::ROOT, kind: FileKind::Regular }.to_bytes().len()
}

#[test]
fn sizing_page_has_the_sizes_of_records() {
    let root = InodeId::ROOT;
    let key = Key::Inode(root).to_bytes().len();
    let file = file_bytes(0);
    assert_eq!(file_bytes(32), file + 4 * 32);
    check(&format!(
        "| inode of a file of the default pattern | {key} | {file}, and 4 for each target of its \
         wide part |"
    ));
    let without_inline = inode_bytes(FileKind::Regular, components(0, 0));
    check(&format!("{} bytes less in the inode of each file", file - without_inline));
    let directory = inode_bytes(FileKind::Directory, Vec::new());
    check(&format!("| inode of a directory | {key} | {directory} |"));
    let name_key = Key::Dentry(root, 256).to_bytes().len();
    let name = name_bytes("");
    check(&format!("| a name in a directory | {name_key} | {name}, and the name |"));
    let inline = InlineRecord { checksum: 0, bytes: Bytes(Vec::new()) }.to_bytes().len();
    let [first_key, key_of_part] = [0, 1].map(|part| Key::Inline(root, part).to_bytes().len());
    check(&format!(
        "| inline bytes of a file, for each part of 1 KiB | {key_of_part} (the first: {first_key}) \
         | {inline}, and the bytes |"
    ));
    let xattr_key = Key::Xattr(root, b"").to_bytes().len();
    check(&format!("| an extended attribute | {xattr_key}, and its name | the value |"));

    let name = name_key + name_bytes("a-name-of-20-letters");
    check(&format!("1.1 x ({} + 4 x targets + 24)", key + file + name));
    for targets in [8, 32] {
        let records = key + file_bytes(targets) + name;
        let each = (records + 2 * 12) * 11 / 10;
        assert_eq!(sized(20, targets as u64, Some(0)), each as u64);
        let gigabytes = |files: usize| (each * files) as f64 / 1e9;
        check(&format!(
            "| {targets} | {each} | {:.2} GB | {:.1} GB |",
            gigabytes(10_000_000),
            gigabytes(100_000_000)
        ));
    }
}

/// Returns the metadata of a file of 1 MiB in the result of `skep plan size`.
fn sized(name_bytes: u64, stripe_width: u64, inline_bytes: Option<u64>) -> u64 {
    let hosts = sizing::Hosts { hosts: 1, targets: 32 };
    let needs = sizing::Needs {
        files: 1,
        mean_bytes: 1 << 20,
        files_in_use: 1,
        name_bytes,
        stripe_width,
        inline_bytes,
        copies: 1,
        metadata: hosts,
        storage: hosts,
        clients: 1,
        client_cpus: 1,
    };
    sizing::size(&needs).unwrap().metadata_bytes_of_file
}

#[test]
fn sizing_command_uses_the_sizes_and_limits_of_the_program() {
    let key = |key: Key<'_>| key.to_bytes().len() as u64;
    let value =
        |bytes| InlineRecord { checksum: 0, bytes: Bytes(vec![0; bytes]) }.to_bytes().len() as u64;
    // The first part of the inline bytes of a file has a shorter key than all other parts. The
    // command uses the longer key for all parts.
    let part = key(Key::Inline(InodeId::ROOT, 1)) + value(1 << 10);
    let records = (key(Key::Inode(InodeId::ROOT)) + file_bytes(1) as u64)
        + (key(Key::Dentry(InodeId::ROOT, 256)) + name_bytes("name") as u64);
    assert_eq!(sized(4, 1, Some(4 << 10)), (records + 2 * 12 + 4 * (part + 12)) * 11 / 10);
    let [page, region] = [chunk::PAGE_BYTES, chunk::REGION_BYTES].map(skep_service::ByteSize);
    check(&format!("Checksums take {page} for each {region} of data"));
    assert_eq!(sizing::MAX_HOSTS, cluster::MAX_SERVERS as u64);
    assert_eq!(sizing::MAX_TARGETS, cluster::MAX_TARGETS_PER_NODE as u64);
    assert_eq!(sizing::MAX_CLIENTS, cluster::MAX_CLIENTS as u64);
    assert_eq!(sizing::MAX_COPIES, u64::from(cluster::MAX_METADATA_COPIES));
    check("half of `LimitNOFILE=`");
    assert!(STORAGE_UNIT.contains(&format!("LimitNOFILE={}\n", 2 * sizing::MAX_CONNECTIONS)));
}

#[test]
fn sizing_page_has_the_output_of_its_example() {
    let example = "skep plan size --files 100M --mean-size 1MiB --metadata 2x2 --storage 2x16 \
                   --clients 100";
    check(example);
    let needs = sizing::Needs {
        files: 100_000_000,
        mean_bytes: 1 << 20,
        files_in_use: 10_000_000,
        name_bytes: 20,
        stripe_width: 32,
        inline_bytes: Some(0),
        copies: 1,
        metadata: sizing::Hosts { hosts: 2, targets: 2 },
        storage: sizing::Hosts { hosts: 2, targets: 16 },
        clients: 100,
        client_cpus: 64,
    };
    let size = sizing::size(&needs).unwrap();
    let share = size.metadata_share.unwrap() * 100.0;
    check(&format!(
        "{} bytes of metadata each, {} together, {share:.3} % of the data",
        size.metadata_bytes_of_file,
        bytes(size.metadata_bytes)
    ));
    check(&format!("Data, including its checksums: {}; chunk files", bytes(size.data_bytes)));
    check(&format!("metadata.cache = \"{} MiB\"", size.cache_bytes_of_target.div_ceil(1 << 20)));
    for (role, host) in [("metadata", size.metadata), ("storage", size.storage)] {
        let is_row = |line: &&str| line.starts_with(role) && line.contains("iB  ");
        let row = PAGE.lines().find(is_row).unwrap();
        let cells: Vec<&str> = row.split_whitespace().skip(3).collect();
        let (disk, memory) = (bytes(host.disk_bytes_of_target), bytes(host.memory_bytes));
        let (cores, connections) = (host.cores.to_string(), host.connections.to_string());
        assert_eq!(cells, [disk, memory, cores, connections], "{row}");
    }
}

#[test]
fn sizing_page_has_the_limits_of_the_system() {
    for (what, limit) in [
        ("nodes with services", cluster::MAX_SERVERS as u64),
        ("clients (mounts) at a time", cluster::MAX_CLIENTS as u64),
        ("targets of one node", cluster::MAX_TARGETS_PER_NODE as u64),
        ("copies of metadata", u64::from(cluster::MAX_METADATA_COPIES)),
        ("shards of the namespace", u64::from(SHARD_COUNT)),
        ("inodes of one shard, ever", InodeId::MAX_NUMBER),
        ("targets of one part of a file", MAX_STRIPE_WIDTH as u64),
        ("parts of a pattern", MAX_COMPONENTS as u64),
        ("hard links of a file", u64::from(wire::MAX_LINKS)),
        ("locked ranges on a metadata target", skep_metadata::limits::MAX_FILE_LOCKS as u64),
    ] {
        check(&format!("| {what} | {} |", with_commas(limit)));
    }
    for (what, limit) in [
        ("size of a file", MAX_FILE_BYTES),
        ("length of a name", MAX_NAME_BYTES as u64),
        ("length of the target of a symbolic link", wire::MAX_SYMLINK_BYTES as u64),
        ("value of an extended attribute", wire::MAX_XATTR_VALUE_BYTES as u64),
        ("names of all extended attributes of an inode", wire::MAX_XATTR_LIST_BYTES as u64),
    ] {
        check(&format!("| {what} | {} bytes |", with_commas(limit)));
    }
    let map = skep_service::ByteSize(cluster::MAX_MAP_BYTES as u64);
    check(&format!("| size of the cluster map | {map} |"));
    check(&format!("| inline bytes of a file | {} |", skep_service::ByteSize(MAX_INLINE_BYTES)));
    let [least, most] =
        [skep_types::pattern::MIN_CHUNK_BYTES, skep_types::pattern::MAX_CHUNK_BYTES]
            .map(skep_service::ByteSize);
    check(&format!("| chunk size | {least} to {most} |"));
}

/// A reference design in `deploy/examples`.
struct Design {
    /// Name of the directory with the files of the design.
    name: &'static str,
    hosts: &'static str,
    parts: &'static str,
    /// Numbers of management nodes, metadata targets and storage targets.
    shape: [usize; 3],
}

const DESIGNS: [Design; 2] = [
    Design {
        name: "capacity",
        hosts: include_str!("../../../deploy/examples/capacity/hosts.toml"),
        parts: include_str!("../../../deploy/examples/capacity/parts.csv"),
        shape: [1, 4, 32],
    },
    Design {
        name: "nvme",
        hosts: include_str!("../../../deploy/examples/nvme/hosts.toml"),
        parts: include_str!("../../../deploy/examples/nvme/parts.csv"),
        shape: [1, 4, 44],
    },
];

/// `skep deploy` accepts the hosts files of the reference designs. `parts.csv` lists parts for
/// exactly the hosts that run services.
#[test]
fn reference_designs_have_valid_hosts_files_and_part_lists() {
    for Design { name, hosts, parts, shape } in DESIGNS {
        check(&format!("(../../deploy/examples/{name}/)"));
        let read = Deployment::parse(hosts).unwrap();
        let targets =
            |role| -> usize { read.hosts.iter().map(|host| host.targets(role).len()).sum() };
        let found = [read.managers().count(), targets(Role::Metadata), targets(Role::Storage)];
        assert_eq!(found, shape, "{name}");
        assert!(read.hosts.iter().all(|host| host.tune), "{name}");
        let servers = read.hosts.iter().filter(|host| host.services().next().is_some());
        let servers: BTreeSet<&str> = servers.map(|host| host.name.as_str()).collect();
        let with_parts = parts.lines().skip(1).filter_map(|line| line.split(',').next());
        assert_eq!(with_parts.collect::<BTreeSet<_>>(), servers, "{name}");
    }
}
