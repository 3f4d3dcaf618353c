//! The decoders of on-disk records, with valid inputs.

use super::Decoder;
use skep_format::cached_map::CachedMap;
use skep_format::chunk::{self, DirtyLogHeader, DirtyRegion, FoundPage, GRANULES, PAGE_BYTES};
use skep_format::chunk::{HostMark, RegionHeader, RegionIdentity, TargetState};
use skep_format::consensus::{LogPosition, MembersRecord, RaftLogHead, RaftSnapshot};
use skep_format::identity::{DirectoryKind, Identity};
use skep_format::log;
use skep_format::management::{LogHead, Snapshot};
use skep_format::member_mark::{CountedMembers, MemberContents, MemberMark};
use skep_format::metadata::{Batch, DecisionRecord, DentryRecord, InodeRecord, PreparedRecord};
use skep_format::metadata::{FileLocksRecord, InlineRecord, LockedRange, Mutation, OpenCounts};
use skep_format::metadata::{SessionRecord, SlotRecord, StagedEntry, StagedRecord};
use skep_format::page_cache_mark::PageCacheMark;
use skep_types::codec::{Bytes, Codec, crc32c};
use skep_types::{
    Attributes, ChunkFileKey, ChunkFileSet, ClusterId, ClusterMap, Component, Epoch, FileKind,
    GroupId, GroupRecord, TargetId,
};
use skep_types::{Chooser, PatternOrigin, Result, StripePattern, Timestamp};
use skep_types::{HostIncarnation, InodeId, Lsn, MapVersion, NodeId, Redundancy, SessionId};
use skep_wire::file_locks::LockMode;
use skep_wire::metadata::{Step, TransactionId};

/// All decoders of on-disk records.
pub(super) const RECORDS: &[Decoder] = &[
    Decoder { name: "sealed", check: check_sealed, seeds: sealed_seeds },
    Decoder { name: "log", check: check_log, seeds: log_seeds },
    Decoder { name: "metadata", check: check_metadata, seeds: metadata_seeds },
    Decoder { name: "region_page", check: check_region_page, seeds: region_page_seeds },
    Decoder { name: "dirty_log", check: check_dirty_log, seeds: dirty_log_seeds },
];

const CLUSTER: ClusterId = ClusterId::new([7; 16]);
const TARGET: TargetId = TargetId::new(3);
const LOG_OWNER: log::LogOwner = log::LogOwner { cluster: CLUSTER, target: TARGET };

fn check_round_trip<T>(decoded: Result<T>, bytes: &[u8], encode: impl Fn(&T) -> Vec<u8>) {
    if let Ok(value) = decoded {
        assert_eq!(encode(&value), bytes, "the record differs when encoded again");
    }
}

/// Returns `bytes` with the correct checksum at their end.
fn with_checksum(bytes: &[u8]) -> Vec<u8> {
    let covered = &bytes[..bytes.len().saturating_sub(4)];
    [covered, &crc32c(covered).to_le_bytes()].concat()
}

/// Checks the decoders of all files that consist of a single record with a checksum, both with the
/// unchanged bytes and with a corrected checksum.
fn check_sealed(bytes: &[u8]) {
    for bytes in [bytes.to_vec(), with_checksum(bytes)] {
        check_round_trip(Identity::from_file(&bytes), &bytes, Identity::to_file);
        check_round_trip(CachedMap::from_file(&bytes), &bytes, CachedMap::to_file);
        check_round_trip(LogHead::from_file(&bytes), &bytes, LogHead::to_file);
        check_round_trip(Snapshot::from_file(&bytes), &bytes, Snapshot::to_file);
        check_round_trip(RaftLogHead::from_file(&bytes), &bytes, RaftLogHead::to_file);
        check_round_trip(RaftSnapshot::from_file(&bytes), &bytes, RaftSnapshot::to_file);
        check_round_trip(TargetState::from_file(&bytes), &bytes, TargetState::to_file);
        // The decoder also reads marks of version 4, but the encoder writes only the newest
        // version. So the encoding of a mark of version 4 has other bytes.
        let mark = MemberMark::from_file(&bytes);
        if bytes.get(8..10) != Some(&4_u16.to_le_bytes()[..]) {
            check_round_trip(mark, &bytes, MemberMark::to_file);
        }
        check_round_trip(PageCacheMark::from_file(&bytes), &bytes, PageCacheMark::to_file);
    }
}

fn sealed_seeds() -> Vec<Vec<u8>> {
    let identity = Identity {
        kind: DirectoryKind::StorageTarget,
        cluster: CLUSTER,
        node_uuid: 1,
        node: NodeId::new(2),
        target_uuid: 3,
        target: TARGET,
    };
    let state = Bytes::from(vec![1, 2, 3]);
    let raft_snapshot = RaftSnapshot {
        cluster: CLUSTER,
        last: Some(LogPosition { term: 1, leader: 2, index: 3 }),
        members_at: None,
        members: MembersRecord { voters: vec![vec![2]], members: Vec::new() },
        name: "1-3".into(),
        state: state.clone(),
    };
    let host = HostMark { boot_id: 1, device: 2, mount: 3, directory: 4 };
    let incarnation = HostIncarnation::new(6);
    let counted = CountedMembers {
        epoch: Epoch::new(3),
        version: MapVersion::new(9),
        members: vec![TargetId::new(2)],
    };
    let (group, contents) = (GroupId::new(7), MemberContents::Whole);
    let record = GroupRecord { epoch: Epoch::new(3), members: vec![TargetId::new(1)] };
    let mark = MemberMark {
        host,
        clean: true,
        group,
        contents,
        counted,
        record,
        promise_bound_ms: 2500,
        copied: Lsn::new(8),
        copied_epoch: Epoch::new(2),
    };
    vec![
        identity.to_file(),
        CachedMap { node_uuid: 1, map: ClusterMap::empty(CLUSTER) }.to_file(),
        LogHead { cluster: CLUSTER, first: Lsn::new(9) }.to_file(),
        RaftLogHead { cluster: CLUSTER, member: 2, first: Lsn::new(9) }.to_file(),
        raft_snapshot.to_file(),
        Snapshot { cluster: CLUSTER, applied: Lsn::new(9), state }.to_file(),
        TargetState { start: 5, incarnation, clean: true, failed: false, kept_since: 4, host }
            .to_file(),
        mark.to_file(),
        PageCacheMark { host, clean: true }.to_file(),
    ]
}

/// Checks the scan of a log. The encoding of the returned records must have the same bytes, up to
/// the end that the scan has found.
fn check_log(bytes: &[u8]) {
    if let Ok(scan) = log::scan(LOG_OWNER, Lsn::new(1), bytes) {
        let encode = |record: &log::Record| {
            log::encode_record(LOG_OWNER, record.epoch, record.lsn, record.synced, &record.payload)
                .expect("a record that the scan has read can be encoded")
        };
        let again: Vec<u8> = scan.records.iter().flat_map(encode).collect();
        assert_eq!(again, bytes[..scan.end], "the log differs when encoded again");
    }
}

fn log_seeds() -> Vec<Vec<u8>> {
    let record = |epoch, lsn, payload: &[u8]| {
        let epoch = Epoch::new(epoch);
        log::encode_record(LOG_OWNER, epoch, Lsn::new(lsn), Lsn::new(lsn - 1), payload)
            .expect("a few bytes can be written")
    };
    vec![
        record(0, 1, b"one"),
        [record(1, 1, b"one"), record(1, 2, b""), record(2, 3, b"three")].concat(),
    ]
}

/// Checks the decoders of all values in the metadata store, and the decoder of the payload of log
/// records.
fn check_metadata(bytes: &[u8]) {
    fn check<T: Codec>(bytes: &[u8]) {
        check_round_trip(T::from_bytes(bytes), bytes, T::to_bytes);
    }
    check::<InodeRecord>(bytes);
    check::<InlineRecord>(bytes);
    check::<DentryRecord>(bytes);
    check::<OpenCounts>(bytes);
    check::<SessionRecord>(bytes);
    check::<SlotRecord>(bytes);
    check::<FileLocksRecord>(bytes);
    check::<PreparedRecord>(bytes);
    check::<DecisionRecord>(bytes);
    check::<StagedRecord>(bytes);
    check::<Batch>(bytes);
}

fn attributes() -> Attributes {
    Attributes {
        inode: InodeId::new(9),
        kind: FileKind::Regular,
        permissions: 0o644,
        links: 1,
        uid: 1,
        gid: 2,
        project: 0,
        device: 0,
        size: 1 << 30,
        accessed: Timestamp::default(),
        modified: Timestamp::default(),
        changed: Timestamp::default(),
        created: Timestamp::default(),
        change_counter: 3,
        truncate_generation: 0,
        is_sparse: false,
        has_capability: false,
        has_acl: false,
        hands_down_project: false,
    }
}

fn metadata_seeds() -> Vec<Vec<u8>> {
    let component = Component {
        start: 0,
        chunk_bytes: 1 << 20,
        wanted: 4,
        redundancy: Redundancy::Stripe,
        chooser: Chooser::Balanced,
        groups: vec![GroupId::new(3), GroupId::new(4)],
    };
    let inode = InodeRecord {
        attributes: attributes(),
        parent: InodeId::ROOT,
        pattern: Some(StripePattern {
            generation: 0,
            origin: PatternOrigin::Cluster,
            components: vec![component],
        }),
        link_target: Bytes::default(),
        high_water: 1 << 30,
        may_be_named: true,
        synced_chunk_files: ChunkFileSet { bits: Bytes(vec![0b11]) },
        has_xattrs: true,
    };
    let name = Bytes::from(&b"name"[..]);
    let dentry =
        DentryRecord { name: name.clone(), inode: InodeId::new(9), kind: FileKind::Regular };
    let record = PreparedRecord {
        steps: vec![Step::AddLink { inode: InodeId::new(9) }, Step::LockRename],
        attributes: vec![attributes()],
        since: Timestamp::default(),
    };
    let entry = StagedEntry {
        directory: InodeId::ROOT,
        name: name.clone(),
        inode: InodeId::new(9),
        kind: FileKind::Directory,
        is_added: true,
    };
    let staged = StagedRecord {
        participant: GroupId::new(2),
        since: Timestamp::default(),
        entry,
        session: SessionId::new(7),
        slot: 3,
        sequence: 1,
    };
    let locked = LockedRange { start: 0, end: 1 << 63, mode: LockMode::Exclusive };
    let mutations = vec![
        Mutation { key: name.clone(), value: Some(inode.to_bytes().into()) },
        Mutation { key: name.clone(), value: None },
    ];
    vec![
        inode.to_bytes(),
        InlineRecord { checksum: crc32c(b"first"), bytes: Bytes::from(&b"first"[..]) }.to_bytes(),
        dentry.to_bytes(),
        OpenCounts { readers: 1, writers: 2 }.to_bytes(),
        SessionRecord { client: NodeId::new(1), slots: 64 }.to_bytes(),
        SlotRecord { sequence: 1, lsn: Lsn::new(2), reply: name }.to_bytes(),
        FileLocksRecord { pid: 7, ranges: vec![locked] }.to_bytes(),
        record.to_bytes(),
        DecisionRecord { participants: vec![GroupId::new(1)] }.to_bytes(),
        staged.to_bytes(),
        Batch { mutations }.to_bytes(),
        TransactionId { coordinator: GroupId::new(1), number: 2 }.to_bytes(),
    ]
}

/// Checks the decoder of region pages. The encoding of the header and checksums of an accepted page
/// must be the same page.
fn check_region_page(bytes: &[u8]) {
    let mut page = bytes.to_vec();
    page.resize(PAGE_BYTES as usize, 0);
    if let FoundPage::Whole(header, checksums) = chunk::read_page(&page) {
        assert_eq!(header.to_page(&checksums)[..], page[..], "the page differs when encoded again");
    }
}

fn region_page_seeds() -> Vec<Vec<u8>> {
    let key = ChunkFileKey { inode: InodeId::new(9), generation: 0, component: 0, index: 1 };
    let identity = RegionIdentity {
        cluster: CLUSTER,
        target: TARGET,
        key,
        region: 2,
        chunk_bytes: 1 << 20,
        width: 4,
        component_start: 0,
    };
    let header = |synced| RegionHeader {
        identity,
        synced,
        start: 4,
        epoch: Epoch::new(0),
        lsn: Lsn::new(0),
    };
    [true, false].map(|synced| header(synced).to_page(&[5; GRANULES]).to_vec()).into()
}

const DIRTY_LOG: DirtyLogHeader = DirtyLogHeader { cluster: CLUSTER, target: TARGET };

/// Checks the decoder of the dirty log. The encoding of the returned regions must have the same
/// bytes, up to the end of the valid part of the log.
fn check_dirty_log(bytes: &[u8]) {
    if let Ok(regions) = chunk::read_dirty_log(bytes, &DIRTY_LOG) {
        let again = DIRTY_LOG.to_file(regions.iter());
        let head = again.len() - regions.len() * chunk::DIRTY_ENTRY_BYTES;
        assert_eq!(again[head..], bytes[head..again.len()], "entries differ when encoded again");
    }
}

fn dirty_log_seeds() -> Vec<Vec<u8>> {
    let key = ChunkFileKey { inode: InodeId::new(9), generation: 0, component: 0, index: 1 };
    let regions = [DirtyRegion { key, region: 0 }, DirtyRegion { key, region: 9 }];
    vec![DIRTY_LOG.to_file([].iter()), DIRTY_LOG.to_file(regions.iter())]
}
