//! Examples of messages to metadata targets about sessions, open files and transactions between
//! targets.

use super::{a_directory, a_file, a_name, attributes, time};
use crate::vectors::{Example, example};
use skep_types::codec::{Bytes, crc32c};
use skep_types::{
    Chooser, ChunkFileKey, ChunkFileSet, Component, ComponentRequest, FileKind, GroupId,
    HostIncarnation, InodeId, MapVersion, NodeId, PatternOrigin, PatternRequest, Redundancy,
    SessionId, StripePattern, Timestamp,
};
use skep_wire::inline::InlineContents;
use skep_wire::management::EmptyReply;
use skep_wire::metadata::{
    ApplyPrepared, AskDecision, AskOutcome, AttributesReply, AwaitTruncation, AwaitTruncationReply,
    BeginPrepare, BeginPrepareReply, Close, CloseMany, CloseSession, ClosedFile, ClosingReport,
    CompareOpens, CompareOpensReply, CompareSlots, CompareSlotsReply, ConfirmPrepared,
    ConfirmPreparedReply, CoordinatedEntry, CoordinatedList, Create, CreateUnnamed, Decide,
    Decision, DecisionReply, EndReplay, EntryInfo, GetEntryInfo, GroupFile, GroupFiles, KeepAlive,
    KeepAliveReply, ListCoordinated, ListGroupFiles, ListSessions, ListTransactions, NewInode,
    Open, OpenMode, OpenReply, OpenSession, OpenSessionReply, OpenedFile, Outcome, OutcomeReply,
    Prepare, PrepareReply, Replay, ReplayReply, ReportWritten, ResolveTransaction, SessionEntry,
    SessionList, SetAttributes, SetAttributesReply, SetPattern, SetTime, SlotSequence, Step,
    SyncAll, SyncedChunkFiles, TransactionEntry, TransactionId, TransactionList, TrimFile,
    TruncatedChunk, WrittenExtent,
};

/// Returns the pattern of a large file: first inline bytes, then a component with few groups, and
/// from 8 MiB on a component with many groups.
fn pattern() -> StripePattern {
    let component = |start: u64, chunk_bytes: u64, wanted: u16, groups: &[u32]| Component {
        start,
        chunk_bytes,
        wanted,
        redundancy: Redundancy::Stripe,
        chooser: Chooser::Balanced,
        groups: groups.iter().copied().map(GroupId::new).collect(),
    };
    StripePattern {
        generation: 1,
        origin: PatternOrigin::Asked,
        components: vec![
            Component::inline(),
            component(4 << 10, 512 << 10, 1, &[5]),
            component(8 << 20, 1 << 20, 4, &[6, 3, 7, 4]),
            component(1 << 40, 4 << 20, 256, &[]),
        ],
    }
}

/// Returns a pattern request for four targets. All other fields are unset.
fn requested_pattern() -> PatternRequest {
    let component = ComponentRequest { width: Some(4), ..ComponentRequest::default() };
    let (origin, components) = (PatternOrigin::Directory, vec![component]);
    PatternRequest { origin, inline_bytes: None, components }
}

fn new_inode() -> NewInode {
    NewInode { permissions: 0o640, umask: 0o22, uid: 1000, gid: 1001 }
}

fn sessions() -> Vec<Example> {
    let entry = SessionEntry {
        session: SessionId::new(9 << 32 | 1),
        client: NodeId::new(9),
        slots: 32,
        lease_ms: 5_000,
        silent_ms: 1_200,
        open_files: 17,
    };
    let list = SessionList { sessions: vec![entry], next: Some(SessionId::new(9 << 32 | 1)) };
    let transaction = TransactionId { coordinator: GroupId::new(3), number: 77 };
    let entry = TransactionEntry {
        transaction,
        since: Timestamp { seconds: 1_700_000_000, nanoseconds: 5 },
        steps: 2,
        silent_ms: 12_000,
        problem: String::new(),
    };
    let prepared = TransactionList { transactions: vec![entry], next: None };
    let open = OpenSession { client: NodeId::new(9), slots: 64 };
    let asked = AskOutcome { session: SessionId::new(9 << 32 | 1), slot: 3, sequence: 77 };
    let outcome = |outcome| OutcomeReply { outcome };
    let opened = OpenedFile { inode: a_file(), open: OpenMode::Write };
    let of_group = GroupFiles {
        files: vec![
            GroupFile {
                inode: a_file(),
                kind: FileKind::Regular,
                bytes: 3 << 20,
                is_written: true,
            },
            GroupFile {
                inode: InodeId::ROOT,
                kind: FileKind::Directory,
                bytes: 0,
                is_written: false,
            },
        ],
        removals: 7,
        prepared: 1,
        map: MapVersion::new(21),
        next: Some(a_file()),
    };
    vec![
        example(&open, &OpenSessionReply { slots: 32, lease_ms: 5_000, start: 3 }),
        example(&KeepAlive { lease_ms: 8_000 }, &KeepAliveReply { lease_ms: 5_000, start: 3 }),
        example(&CompareOpens { files: vec![opened] }, &CompareOpensReply { counts: vec![2] }),
        example(
            &CompareSlots {},
            &CompareSlotsReply { start: 4, slots: vec![SlotSequence { slot: 5, sequence: 77 }] },
        ),
        example(
            &Replay {
                start: 3,
                change: 70_000,
                message: 43,
                request: b"body"[..].into(),
                inode: a_file(),
                created: true,
                pattern: Some(pattern()),
                truncate_generation: 6,
            },
            &ReplayReply { reply: b"reply"[..].into() },
        ),
        example(&EndReplay {}, &EmptyReply {}),
        example(&CloseSession {}, &EmptyReply {}),
        example(&asked, &outcome(Outcome::Executed { reply: b"reply"[..].into() }))
            .reply::<AskOutcome>(&outcome(Outcome::NotExecuted))
            .reply::<AskOutcome>(&outcome(Outcome::Unknown)),
        example(&ListSessions { after: SessionId::new(8 << 32) }, &list),
        example(&SyncAll {}, &EmptyReply {}),
        example(&ListTransactions { after: TransactionId::default() }, &prepared),
        example(&ListGroupFiles { group: GroupId::new(5), after: InodeId::ROOT }, &of_group),
        example(&ResolveTransaction { transaction, commit: true }, &EmptyReply {}),
    ]
}

#[expect(clippy::too_many_lines, reason = "one table")]
fn files() -> Vec<Example> {
    let file = attributes(a_file(), FileKind::Regular);
    let reply = AttributesReply { attributes: file.clone() };
    let truncated = TruncatedChunk {
        key: ChunkFileKey { inode: a_file(), generation: 1, component: 0, index: 3 },
        group: GroupId::new(5),
        incarnation: HostIncarnation::new(0x1234_5678_9abc_def0),
    };
    let changed = SetAttributesReply { attributes: file.clone(), truncated: vec![truncated] };
    let everything = SetAttributes {
        inode: a_file(),
        permissions: Some(0o600),
        cleared_permissions: 0o6000,
        uid: Some(0),
        gid: Some(u32::MAX - 1),
        project: Some(1),
        hands_down_project: Some(true),
        size: Some(1 << 62),
        accessed: Some(SetTime { now: true, at: time(0) }),
        modified: Some(SetTime { now: false, at: time(-62_135_596_800) }),
    };
    let nothing = SetAttributes {
        permissions: None,
        cleared_permissions: 0,
        uid: None,
        gid: None,
        project: None,
        hands_down_project: None,
        size: None,
        accessed: None,
        modified: None,
        ..everything.clone()
    };
    let create = Create {
        directory: a_directory(),
        name: a_name(),
        kind: FileKind::Regular,
        new: new_inode(),
        device: 0,
        exclusive: true,
        open: OpenMode::Write,
        pattern: None,
    };
    let device = Create {
        kind: FileKind::CharDevice,
        device: 1 << 32 | 3,
        open: OpenMode::No,
        ..create.clone()
    };
    let unnamed = CreateUnnamed {
        directory: a_directory(),
        new: new_inode(),
        open: OpenMode::Write,
        pattern: None,
    };
    let inline_bytes = Bytes(b"small".to_vec());
    let inline = InlineContents { checksum: crc32c(&inline_bytes), bytes: inline_bytes };
    let opened = OpenReply {
        created: true,
        attributes: file.clone(),
        pattern: Some(pattern()),
        is_shared: true,
        truncated: vec![truncated],
        synced: ChunkFileSet { bits: Bytes(vec![0b101]) },
        inline: None,
        directory: Some(attributes(a_directory(), FileKind::Directory)),
    };
    let made_device = OpenReply {
        attributes: attributes(a_file(), FileKind::CharDevice),
        pattern: None,
        truncated: Vec::new(),
        synced: ChunkFileSet::default(),
        directory: None,
        ..opened.clone()
    };
    let written = WrittenExtent {
        end: 5_000_000_000,
        truncate_generation: 2,
        may_leave_holes: true,
        reach: 0,
        ends_inline: Some(1),
    };
    let closing = ClosingReport { extent: written, pattern_generation: Some(1) };
    let close = Close { inode: a_file(), open: OpenMode::Write, written: Some(closing) };
    let close_unwritten = Close { open: OpenMode::Read, written: None, ..close.clone() };
    let closed = ClosedFile { inode: a_file(), open: OpenMode::Read, ends_inline: None };
    let close_many = CloseMany {
        files: vec![closed, ClosedFile { open: OpenMode::Write, ends_inline: Some(1), ..closed }],
    };
    let open = Open {
        inode: a_file(),
        open: OpenMode::Read,
        truncate: false,
        must_have_name: false,
        inline_limit: 16 << 10,
    };
    let reopened =
        OpenReply { created: false, inline: Some(inline), directory: None, ..opened.clone() };
    let info = EntryInfo {
        attributes: file.clone(),
        parent: a_directory(),
        pattern: Some(pattern()),
        open_sessions: 2,
    };
    let inherited =
        SetPattern { inode: a_directory(), pattern: Some(requested_pattern()), uid: 1000 };
    let chunk_files = ChunkFileSet { bits: Bytes(vec![0b101]) };
    let synced = Some(SyncedChunkFiles { pattern_generation: 1, chunk_files: chunk_files.clone() });
    let awaited = AwaitTruncationReply { attributes: file, synced: chunk_files };
    vec![
        example(&everything, &changed).request(&nothing),
        example(&create, &opened).request(&device).reply::<Create>(&made_device),
        example(&unnamed, &OpenReply { pattern: None, directory: None, ..opened.clone() }),
        example(&open, &reopened),
        example(&close, &reply).request(&close_unwritten),
        example(&close_many, &EmptyReply {}),
        example(&ReportWritten { inode: a_file(), written: Some(written), synced }, &reply)
            .request(&ReportWritten { inode: a_file(), written: None, synced: None }),
        example(&AwaitTruncation { inode: a_file() }, &awaited),
        example(&TrimFile { inode: a_file() }, &reply),
        example(&inherited, &EmptyReply {}),
        example(&GetEntryInfo { inode: a_file() }, &info),
    ]
}

/// Returns examples of transactions. One example has a step of every kind, which no real
/// transaction has.
fn transactions() -> Vec<Example> {
    let transaction = TransactionId { coordinator: GroupId::new(1), number: 1 << 33 };
    let steps = vec![
        Step::MakeDirectoryInode {
            parent: a_directory(),
            new: new_inode(),
            pattern: Some(requested_pattern().to_record()),
            project: 77,
            hands_down_project: true,
            access_acl: Bytes::default(),
            default_acl: Bytes::from(&b"\x02\0\0\0"[..]),
        },
        Step::AddLink { inode: a_file() },
        Step::DropLink { inode: a_file() },
        Step::RemoveDirectoryInode { inode: a_directory() },
        Step::SetParent { inode: a_file(), parent: a_directory(), project: Some(77) },
        Step::RemoveEntry {
            directory: a_directory(),
            name: a_name(),
            inode: a_file(),
            kind: FileKind::Fifo,
        },
        Step::LockRename,
        Step::ReplaceEntry {
            directory: a_directory(),
            name: a_name(),
            inode: a_file(),
            new_inode: a_directory(),
            new_kind: FileKind::Directory,
        },
    ];
    let made = attributes(a_directory(), FileKind::Directory);
    let prepared = PrepareReply { busy: false, attributes: vec![made] };
    let busy = PrepareReply { busy: true, attributes: Vec::new() };
    let decision = |decision| DecisionReply { decision };
    let since = time(1_700_000_000);
    vec![
        example(&Prepare { transaction, steps: steps.clone() }, &prepared).reply::<Prepare>(&busy),
        example(&Decide { transaction, commit: true }, &EmptyReply {}),
        example(&AskDecision { transaction }, &decision(Decision::Pending))
            .reply::<AskDecision>(&decision(Decision::Aborted))
            .reply::<AskDecision>(&decision(Decision::Committed)),
        example(
            &BeginPrepare { transaction, steps },
            &BeginPrepareReply { busy: false, attributes: prepared.attributes.clone(), since },
        ),
        example(
            &ConfirmPrepared { transaction, since },
            &ConfirmPreparedReply { is_prepared: true },
        )
        .reply::<ConfirmPrepared>(&ConfirmPreparedReply { is_prepared: false }),
        example(&ApplyPrepared { transaction }, &EmptyReply {}),
        example(&ListCoordinated { after: 5 }, &coordinated(transaction)),
    ]
}

/// Returns a list of a staged transaction and a committed transaction.
fn coordinated(transaction: TransactionId) -> CoordinatedList {
    let staged = CoordinatedEntry {
        transaction,
        participants: vec![GroupId::new(5)],
        waits_ms: 61_000,
        directory: Some(a_directory()),
        name: a_name(),
    };
    let committed = CoordinatedEntry {
        transaction: TransactionId { number: transaction.number + 1, ..transaction },
        participants: vec![GroupId::new(5), GroupId::new(6)],
        waits_ms: 900,
        directory: None,
        name: Bytes::default(),
    };
    let next = Some(committed.transaction.number);
    CoordinatedList { transactions: vec![staged, committed], next }
}

pub(super) fn examples() -> Vec<Example> {
    let mut all = sessions();
    all.extend(files());
    all.extend(transactions());
    all
}
