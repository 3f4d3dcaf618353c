//! Tests that create the stores of a small cluster, damage them, and compare the findings.

mod members;
mod transactions;

use super::{MAX_FINDINGS, Report, check};
use skep_format::cached_map::CachedMap;
use skep_format::identity::{DirectoryKind, Identity};
use skep_format::log::LogOwner;
use skep_format::metadata::{
    Batch, DentryRecord, FileLocksRecord, InlineRecord, InodeRecord, Key, LockOwner, LockedRange,
    Mutation, OpenCounts, PreparedRecord, SessionRecord, name_cursor,
};
use skep_metadata::engine::fjall_engine::FjallEngine;
use skep_metadata::engine::{Engine, Mutations};
use skep_store::identity::Directory;
use skep_store::log::Log;
use skep_types::codec::{Bytes, Codec};
use skep_types::map::ShardRange;
use skep_types::{
    Attributes, Chooser, ChunkFileKey, ChunkFileSet, ClusterId, ClusterMap, Component, Epoch,
    ErrorCode, FileKind, Group, GroupId, InodeId, Lsn, MapVersion, NodeId, PatternOrigin,
    Redundancy, SessionId, ShardId, StripePattern, TargetId, TargetKind, Timestamp,
};
use skep_wire::file_locks::{LockKind, LockMode};
use skep_wire::metadata::{Step, TransactionId};
use std::path::{Path, PathBuf};

const CLUSTER: ClusterId = ClusterId::new([7; 16]);
const METADATA: TargetId = TargetId::new(1);
const STORAGE: TargetId = TargetId::new(2);
const SESSION: SessionId = SessionId::new(9);
/// The shard of all inodes except the root.
const SHARD: ShardId = ShardId::new(3);
const FIRST_FREE: u64 = 100;

fn inode(number: u64) -> InodeId {
    InodeId::from_parts(SHARD, number)
}

fn chunk_file(number: u64, index: u16) -> ChunkFileKey {
    ChunkFileKey { inode: inode(number), generation: 1, component: 0, index }
}

fn put(records: &mut Mutations, key: &Key<'_>, value: &impl Codec) {
    records.insert(key.to_bytes(), Some(value.to_bytes()));
}

fn remove(records: &mut Mutations, key: &Key<'_>) {
    let removed = records.remove(&key.to_bytes());
    assert!(removed.is_some(), "the damage removes a record that exists");
}

fn record(id: InodeId, kind: FileKind, links: u32, size: u64) -> InodeRecord {
    let mut attributes = Attributes::new(id, kind, 0o644, Timestamp::default());
    (attributes.links, attributes.size) = (links, size);
    let component = Component {
        start: 0,
        chunk_bytes: 1 << 20,
        wanted: 2,
        redundancy: Redundancy::Stripe,
        chooser: Chooser::Balanced,
        groups: vec![GroupId::new(2), GroupId::new(2)],
    };
    let pattern = StripePattern {
        generation: 1,
        origin: PatternOrigin::Cluster,
        components: vec![component],
    };
    let mut synced_chunk_files = ChunkFileSet::default();
    if kind == FileKind::Regular {
        synced_chunk_files.insert(0);
    }
    InodeRecord {
        attributes,
        parent: InodeId::ROOT,
        pattern: (kind == FileKind::Regular).then_some(pattern),
        link_target: Bytes::default(),
        has_xattrs: false,
        high_water: size,
        may_be_named: false,
        synced_chunk_files,
    }
}

fn change(records: &mut Mutations, id: InodeId, change: impl FnOnce(&mut InodeRecord)) {
    let key = Key::Inode(id).to_bytes();
    let bytes = records[&key].clone().expect("the inode exists");
    let mut record = InodeRecord::from_bytes(&bytes).unwrap();
    change(&mut record);
    records.insert(key, Some(record.to_bytes()));
}

fn entry(directory: InodeId, name: &str) -> Key<'static> {
    Key::Dentry(directory, name_cursor(CLUSTER, directory, name.as_bytes()))
}

fn put_entry(records: &mut Mutations, directory: InodeId, name: &str, to: InodeId, kind: FileKind) {
    let dentry = DentryRecord { name: name.as_bytes().into(), inode: to, kind };
    put(records, &entry(directory, name), &dentry);
}

/// Returns the records of an undamaged namespace: the file `/a` (inode 5, open), the directories
/// `/d` (inode 6) and `/d/e` (inode 7), and an open file without a name (inode 8).
fn healthy() -> Mutations {
    let mut records = Mutations::new();
    let all = &mut records;
    let directory = FileKind::Directory;
    put(all, &Key::NumbersReserved, &FIRST_FREE);
    put(all, &Key::Inode(InodeId::ROOT), &record(InodeId::ROOT, directory, 3, 2));
    put(all, &Key::Inode(inode(5)), &record(inode(5), FileKind::Regular, 1, 4096));
    put(all, &Key::Inode(inode(6)), &record(inode(6), directory, 3, 1));
    put(all, &Key::Inode(inode(7)), &record(inode(7), directory, 2, 0));
    change(all, inode(7), |it| it.parent = inode(6));
    put(all, &Key::Inode(inode(8)), &record(inode(8), FileKind::Regular, 0, 4096));
    put_entry(all, InodeId::ROOT, "a", inode(5), FileKind::Regular);
    put_entry(all, InodeId::ROOT, "d", inode(6), directory);
    put_entry(all, inode(6), "e", inode(7), directory);
    put(all, &Key::Session(SESSION), &SessionRecord { client: NodeId::new(3), slots: 1 });
    for open in [inode(5), inode(8)] {
        let counts = OpenCounts { readers: 1, writers: 2 };
        put(all, &Key::SessionOpen(SESSION, open), &counts);
        put(all, &Key::Opens(open), &counts);
    }
    put_lock(all, inode(5), SESSION);
    // The inode of this chunk file was removed, but its storage target has not removed the chunk
    // file yet.
    all.insert(Key::Removal(GroupId::new(2), chunk_file(9, 1)).to_bytes(), Some(Vec::new()));
    records
}

fn put_lock(records: &mut Mutations, inode: InodeId, session: SessionId) {
    let owner = LockOwner { inode, kind: LockKind::Flock, session, owner: 1 };
    let ranges = vec![LockedRange { start: 0, end: 9, mode: LockMode::Exclusive }];
    put(records, &Key::FileLocks(owner), &FileLocksRecord { pid: 1, ranges });
}

fn map() -> ClusterMap {
    let mut map = ClusterMap::empty(CLUSTER);
    map.version = MapVersion::new(5);
    map.formatted = true;
    map.groups = vec![
        Group::of_one(GroupId::new(1), TargetKind::Metadata, METADATA),
        Group::of_one(GroupId::new(2), TargetKind::Storage, STORAGE),
    ];
    let (first, last) = (ShardId::new(0), ShardId::new(u16::MAX));
    map.shards = vec![ShardRange { first, last, group: GroupId::new(1) }];
    map
}

fn identity(kind: DirectoryKind, target: TargetId) -> Identity {
    let (node_uuid, target_uuid) = (1, u128::from(target.raw()));
    Identity { kind, cluster: CLUSTER, node_uuid, node: NodeId::new(1), target_uuid, target }
}

/// Writes the log of a metadata target. Its first log record has the LSN `first`, and is already
/// in the store.
fn write_log(directory: &Path, target: TargetId, first: Lsn, logged: &[Mutations]) {
    let owner = LogOwner { cluster: CLUSTER, target };
    let mut log = Log::open(&directory.join("log"), owner, first).unwrap().log;
    let stale = Mutations::from([(Key::Inode(InodeId::ROOT).to_bytes(), None)]);
    for (lsn, changes) in (first.raw()..).zip([&stale].into_iter().chain(logged)) {
        let pairs = changes.iter();
        let mutations = pairs.map(|(key, value)| Mutation {
            key: Bytes(key.clone()),
            value: value.clone().map(Bytes),
        });
        let batch = Batch { mutations: mutations.collect() };
        log.append(Epoch::new(1), Lsn::new(lsn), Lsn::default(), &batch.to_bytes()).unwrap();
    }
}

/// The directories of a stopped cluster.
struct Stopped(tempfile::TempDir);

impl Stopped {
    /// Creates the directories. The store of the metadata target contains the records `stored`. The
    /// changes `logged` are only in its log.
    fn new(stored: &Mutations, logged: &[Mutations]) -> Self {
        let root = tempfile::tempdir().unwrap();
        let stopped = Self(root);
        let service = stopped.path("metadata-1");
        let node = identity(DirectoryKind::MetadataNode, TargetId::default());
        drop(Directory::initialise(&service, node).unwrap());
        let cached = CachedMap { node_uuid: 1, map: map() };
        std::fs::write(service.join("kept-map"), cached.to_file()).unwrap();
        let target = identity(DirectoryKind::MetadataTarget, METADATA);
        drop(Directory::initialise(&stopped.metadata(), target).unwrap());
        let mut engine = FjallEngine::open(&stopped.metadata().join("store"), 1 << 20).unwrap();
        engine.apply(stored, Lsn::new(4)).unwrap();
        engine.checkpoint().unwrap();
        stopped.log(Lsn::new(4), logged);
        let target = identity(DirectoryKind::StorageTarget, STORAGE);
        drop(Directory::initialise(&stopped.storage(), target).unwrap());
        for key in [chunk_file(5, 0), chunk_file(5, 1), chunk_file(8, 0), chunk_file(9, 1)] {
            stopped.put_chunk_file(&key);
        }
        stopped
    }

    /// Writes the log of the metadata target.
    fn log(&self, first: Lsn, logged: &[Mutations]) {
        write_log(&self.metadata(), METADATA, first, logged);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn metadata(&self) -> PathBuf {
        self.path("metadata-1/target-1")
    }

    fn storage(&self) -> PathBuf {
        self.path("storage-1")
    }

    fn chunk_file_path(&self, key: &ChunkFileKey) -> PathBuf {
        self.storage().join("chunks/12/34").join(key.to_string())
    }

    fn put_chunk_file(&self, key: &ChunkFileKey) {
        let path = self.chunk_file_path(key);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, b"").unwrap();
    }

    fn check(&self) -> Report {
        check(&[self.0.path().to_owned()]).unwrap()
    }

    fn words(&self) -> Vec<&'static str> {
        self.check().findings.list().iter().map(super::Finding::word).collect()
    }
}

#[test]
fn healthy_stores_have_no_findings() {
    let stopped = Stopped::new(&healthy(), &[]);
    let report = stopped.check();
    assert_eq!(report.findings.list(), []);
    assert_eq!(report.skipped, Vec::<String>::new());
    let counts = report.counts;
    assert_eq!((counts.inodes, counts.entries, counts.opens), (5, 3, 2));
    assert_eq!((counts.chunk_files, counts.removals, counts.log_records), (4, 1, 0));
}

#[test]
fn each_planted_damage_is_reported() {
    type Damage = fn(&mut Mutations);
    #[rustfmt::skip]
    let cases: &[(Damage, &[&str])] = &[
        (|all| { all.insert(Key::Inode(inode(5)).to_bytes(), Some(vec![1])); },
            &["damaged", "no-inode", "no-owner", "orphan", "orphan"]),
        (|all| { all.insert(Key::Inline(inode(5), 0).to_bytes(), Some(vec![9; 8])); }, &["damaged"]),
        (|all| put(all, &Key::Inline(inode(5), 0), &InlineRecord::new(vec![1]).unwrap()),
            &["no-owner"]),
        (|all| remove(all, &Key::Inode(InodeId::ROOT)), &["no-root", "no-owner"]),
        (|all| remove(all, &Key::Inode(inode(5))), &["no-inode", "no-owner", "orphan", "orphan"]),
        (|all| put_entry(all, InodeId::ROOT, "a", inode(5), FileKind::Symlink), &["wrong-kind"]),
        (|all| put_entry(all, InodeId::ROOT, "b", inode(5), FileKind::Regular),
            &["wrong-size", "wrong-links"]),
        (|all| remove(all, &entry(InodeId::ROOT, "a")), &["wrong-size", "wrong-links"]),
        (|all| {
            remove(all, &entry(InodeId::ROOT, "a"));
            let name = b"a"[..].into();
            let moved = DentryRecord { name, inode: inode(5), kind: FileKind::Regular };
            put(all, &Key::Dentry(InodeId::ROOT, 512), &moved);
        }, &["wrong-cursor"]),
        (|all| {
            let name = b"a"[..].into();
            let again = DentryRecord { name, inode: inode(5), kind: FileKind::Regular };
            let cursor = name_cursor(CLUSTER, InodeId::ROOT, b"a");
            put(all, &Key::Dentry(InodeId::ROOT, cursor + 1), &again);
            change(all, inode(5), |it| it.attributes.links = 2);
            change(all, InodeId::ROOT, |it| it.attributes.size = 3);
        }, &["same-name"]),
        (|all| change(all, inode(6), |it| it.attributes.links = 2), &["wrong-links"]),
        (|all| change(all, inode(7), |it| it.parent = InodeId::ROOT), &["wrong-parent"]),
        (|all| {
            // The directory `/d` is moved below its own subdirectory `/d/e`, which makes a loop.
            remove(all, &entry(InodeId::ROOT, "d"));
            put_entry(all, inode(7), "d", inode(6), FileKind::Directory);
            change(all, inode(6), |it| it.parent = inode(7));
            change(all, inode(7), |it| (it.attributes.links, it.attributes.size) = (3, 1));
            change(all, InodeId::ROOT, |it| (it.attributes.links, it.attributes.size) = (2, 1));
        }, &["loop", "loop"]),
        (|all| put(all, &Key::NumbersReserved, &8_u64), &["number-not-reserved"]),
        (|all| {
            remove(all, &Key::SessionOpen(SESSION, inode(8)));
            remove(all, &Key::Opens(inode(8)));
        }, &["neither-named-nor-open"]),
        (|all| remove(all, &Key::SessionOpen(SESSION, inode(8))), &["wrong-opens"]),
        (|all| put(all, &Key::Opens(inode(5)), &OpenCounts { readers: 2, writers: 2 }),
            &["wrong-opens"]),
        (|all| put(all, &Key::SessionOpen(SESSION, inode(6)), &OpenCounts::default()), &[]),
        (|all| remove(all, &Key::Session(SESSION)), &["no-session", "no-session"]),
        (|all| put(all, &Key::Slot(SessionId::new(10), 1), &0_u64), &["no-session"]),
        (|all| {
            put(all, &Key::Slot(SessionId::new(10), 1), &0_u64);
            put(all, &Key::SessionEnd(SessionId::new(10)), &Timestamp::default());
        }, &[]),
        (|all| put_lock(all, inode(7), SESSION), &["lock-without-open"]),
        (|all| put(all, &Key::Xattr(inode(5), b"user.a"), &0_u8), &["no-owner"]),
        (|all| {
            put(all, &Key::Xattr(inode(5), b"user.a"), &0_u8);
            change(all, inode(5), |it| it.has_xattrs = true);
        }, &[]),
        (|all| put(all, &Key::SizeRecovery(inode(70)), &0_u64), &["no-owner"]),
        (|all| {
            let transaction = TransactionId { coordinator: GroupId::new(8), number: 1 };
            put(all, &Key::Prepared(transaction), &prepared(vec![Step::LockRename]));
        }, &["no-coordinator"]),
        (|all| change(all, inode(5), |it| {
            let pattern = it.pattern.as_mut().unwrap();
            pattern.components[0].groups[1] = GroupId::new(77);
        }), &["no-group", "orphan"]),
        (|all| change(all, inode(5), |it| it.pattern.as_mut().unwrap().generation = 2),
            &["no-chunk-file", "orphan", "orphan"]),
        (|all| remove(all, &Key::Removal(GroupId::new(2), chunk_file(9, 1))), &["orphan"]),
    ];
    for (number, (damage, expected)) in cases.iter().enumerate() {
        let mut records = healthy();
        damage(&mut records);
        let stopped = Stopped::new(&records, &[]);
        assert_eq!(stopped.words(), *expected, "{number}: {:?}", stopped.check().findings);
    }
}

fn prepared(steps: Vec<Step>) -> PreparedRecord {
    PreparedRecord { steps, attributes: Vec::new(), since: Timestamp::default() }
}

#[test]
fn records_of_a_shard_of_another_group_are_reported() {
    let stopped = Stopped::new(&healthy(), &[]);
    let mut map = map();
    map.shards[0].last = ShardId::new(2);
    let cached = CachedMap { node_uuid: 1, map };
    std::fs::write(stopped.path("metadata-1/kept-map"), cached.to_file()).unwrap();
    assert!(stopped.words().contains(&"wrong-target"));
}

#[test]
fn log_records_are_applied_before_the_check() {
    let mut records = healthy();
    remove(&mut records, &entry(InodeId::ROOT, "a"));
    let mut logged = Mutations::new();
    put_entry(&mut logged, InodeId::ROOT, "a", inode(5), FileKind::Regular);
    let stopped = Stopped::new(&records, &[logged]);
    assert_eq!(stopped.words(), Vec::<&str>::new());
    assert_eq!(stopped.check().counts.log_records, 1);
}

#[test]
fn log_that_does_not_continue_the_store_is_reported() {
    let stopped = Stopped::new(&healthy(), &[]);
    std::fs::remove_dir_all(stopped.metadata().join("log")).unwrap();
    stopped.log(Lsn::new(6), &[]);
    let found = stopped.check();
    assert!(found.findings.list()[0].to_string().contains("begins with record"), "{found:?}");
}

#[test]
fn damaged_log_is_reported() {
    let many = [healthy(), healthy(), healthy()];
    let stopped = Stopped::new(&healthy(), &many);
    let path = stopped.metadata().join("log/0000000000000004.log");
    let owner = LogOwner { cluster: CLUSTER, target: METADATA };
    let mut log = Log::open(&stopped.metadata().join("log"), owner, Lsn::new(4)).unwrap().log;
    // This record marks all earlier records as synced.
    log.append(Epoch::new(1), Lsn::new(8), Lsn::new(7), &Batch { mutations: vec![] }.to_bytes())
        .unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    // The log has zeros after its last record.
    let last = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    let middle = last / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    assert_eq!(stopped.words(), ["damaged"]);
}

#[test]
fn missing_synced_chunk_file_is_reported() {
    let stopped = Stopped::new(&healthy(), &[]);
    std::fs::remove_file(stopped.chunk_file_path(&chunk_file(5, 1))).unwrap();
    assert_eq!(stopped.words(), Vec::<&str>::new(), "chunk file 1 was never synced");
    std::fs::remove_file(stopped.chunk_file_path(&chunk_file(5, 0))).unwrap();
    assert_eq!(stopped.words(), ["no-chunk-file"]);
}

#[test]
fn chunk_file_without_inode_is_reported() {
    let stopped = Stopped::new(&healthy(), &[]);
    stopped.put_chunk_file(&chunk_file(40, 0));
    assert_eq!(stopped.words(), ["orphan"]);
    std::fs::write(stopped.chunk_file_path(&chunk_file(40, 0)).with_file_name("notes"), "")
        .unwrap();
    assert_eq!(stopped.words(), ["orphan"], "a file with another name gives no finding");
}

#[test]
fn many_orphans_do_not_hide_a_lost_chunk_file() {
    let stopped = Stopped::new(&healthy(), &[]);
    let more = 5;
    for number in 0..MAX_FINDINGS as u64 + more {
        stopped.put_chunk_file(&chunk_file(1000 + number, 0));
    }
    std::fs::remove_file(stopped.chunk_file_path(&chunk_file(5, 0))).unwrap();
    let findings = stopped.check().findings;
    let words: Vec<_> = findings.list().iter().map(super::Finding::word).collect();
    assert_eq!(
        (words[0], words.len(), findings.omitted()),
        ("no-chunk-file", MAX_FINDINGS + 1, more)
    );
}

/// A service writes its cached map at most once a second. So after a stop, the cached map may be
/// older than the group of a new storage target.
#[test]
fn chunk_files_of_an_unknown_group_are_no_orphans() {
    let stopped = Stopped::new(&healthy(), &[]);
    let cache = |map: ClusterMap| {
        let cached = CachedMap { node_uuid: 1, map };
        std::fs::write(stopped.path("metadata-1/kept-map"), cached.to_file()).unwrap();
    };
    let mut older = map();
    older.groups.truncate(1);
    cache(older.clone());
    let report = stopped.check();
    assert_eq!(report.findings.list(), []);
    let [line] = &report.skipped[..] else { panic!("{:?}", report.skipped) };
    assert!(line.contains("whose group is not in the cached cluster map"), "{line}");
    // The map has a group with a higher id than group 2. So group 2 is not newer than the map, but
    // its target was removed.
    older.groups.push(Group::of_one(GroupId::new(3), TargetKind::Storage, TargetId::new(9)));
    cache(older);
    assert_eq!(stopped.words(), ["no-group", "no-group"]);
}

fn refusal(roots: &[&Path]) -> String {
    let roots: Vec<_> = roots.iter().map(|it| (*it).to_owned()).collect();
    let error = check(&roots).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Configuration, "{error}");
    error.to_string()
}

#[test]
fn directories_in_use_and_incomplete_clusters_are_refused() {
    let stopped = Stopped::new(&healthy(), &[]);
    let kind = DirectoryKind::MetadataTarget;
    let in_use = Directory::open(&stopped.metadata(), kind, None).unwrap();
    assert!(refusal(&[stopped.0.path()]).contains("another process uses"));
    drop(in_use);
    assert!(refusal(&[&stopped.storage()]).contains("no service"));
    let missing = check(&[stopped.path("missing")]).unwrap_err();
    assert_eq!(missing.code(), ErrorCode::NotFound, "{missing}");
    assert!(missing.to_string().contains("no such directory"), "{missing}");
    std::fs::remove_dir_all(stopped.metadata()).unwrap();
    assert!(refusal(&[stopped.0.path()]).contains("primary of group"));
}

#[test]
fn target_with_a_failed_device_is_refused() {
    let stopped = Stopped::new(&healthy(), &[]);
    skep_store::failed_sync::mark(&stopped.metadata()).unwrap();
    assert!(refusal(&[stopped.0.path()]).contains("device of target"));
}
