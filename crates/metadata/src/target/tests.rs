//! Regression tests for bugs that the simulator or a review has found, each as the shortest
//! sequence of events that shows the bug. The tests run one target. The tests simulate the clients,
//! one storage group and the disk.

mod background_calls;
mod closes;
mod compare_slots;
mod file_locks;
mod free_space;
mod gates;
mod group_commit;
mod inline;
mod large_directory;
mod names;
mod operation_limit;
mod patterns;
mod permissions;
mod records;
mod refused_opens;
mod repeated_requests;
mod replay;
mod restored;
mod sessions;
mod sharing;
mod sizes;
mod slow_disks;
mod staged;
mod terms;
mod transactions;
mod truncations;

use super::*;
use crate::engine::memory::MemoryEngine;
use crate::limits::{Limits, RemovalLimits};
use crate::tx::operation::{CallId, ConnectionId, OutgoingCall};
use skep_format::log::{LogOwner, Record};
use skep_types::codec::Codec;
use skep_types::map::{Capacity, CapacityPool, Consistency, Reachability, ShardRange};
use skep_types::{
    ClusterId, Epoch, Error, ErrorCode, FileKind, Group, GroupId, HostIncarnation, Lsn, ShardId,
    Target, TargetId, TargetKind,
};
use skep_wire::Request;
use skep_wire::bounds::{Senders, bounds};
use skep_wire::file_locks::SetLock;
use skep_wire::frame::Header;
use skep_wire::metadata as md;
use skep_wire::storage as st;

struct Story {
    target: MetadataTarget<MemoryEngine>,
    now: Duration,
    wall: Timestamp,
    calls: Vec<(CallId, OutgoingCall)>,
    replies: Vec<(ConnectionId, Result<Vec<u8>>)>,
    /// Bytes of the log on the simulated disk.
    log: Vec<u8>,
    limits: Limits,
    /// The start number that clients send in their requests. `None` means the current start number,
    /// as if the clients had compared their slots right after each start.
    named_start: Option<u64>,
    /// Clients that the target has asked management to remove. The flag is the field `unless_heard`
    /// of the request.
    evicted: Vec<(NodeId, bool)>,
}

fn map() -> ClusterMap {
    let mut map = ClusterMap::empty(ClusterId::default());
    for (raw, kind) in [(1, TargetKind::Metadata), (2, TargetKind::Storage)] {
        map.targets.push(Target {
            id: TargetId::new(raw),
            kind,
            node: NodeId::new(raw),
            path: String::new(),
            reachability: Reachability::Online,
            consistency: Consistency::Good,
            health: skep_types::map::TargetHealth::default(),
            capacity: Capacity { free_bytes: 1 << 30, ..Capacity::default() },
            capacity_pool: CapacityPool::Normal,
        });
        map.groups.push(Group::of_one(GroupId::new(raw), kind, TargetId::new(raw)));
    }
    let (first, last) = (ShardId::new(0), ShardId::new(u16::MAX));
    map.shards.push(ShardRange { first, last, group: GroupId::new(1) });
    map.version = MapVersion::new(1);
    // By default, files have no inline bytes. The tests of inline bytes request them.
    map.policy.inline_bytes = 0;
    map
}

const LOG: LogOwner = LogOwner { cluster: ClusterId::new([0; 16]), target: TargetId::new(1) };

fn open(
    engine: MemoryEngine,
    records: &[Record],
    limits: &Limits,
    now: Duration,
) -> MetadataTarget<MemoryEngine> {
    let start = Start {
        group: GroupId::new(1),
        target: TargetId::new(1),
        epoch: Epoch::default(),
        counted: Vec::new(),
        synced: None,
        policy: SyncPolicy::Interval,
        limits: limits.clone(),
        map: Arc::new(map()),
        now,
        wall: Timestamp::default(),
    };
    MetadataTarget::open(engine, records.to_vec(), start).unwrap()
}

/// Returns the arrival of a request. `at` contains the slot and the sequence number.
fn arrival<R: Request>(on: ConnectionId, session: u64, at: (u32, u64), request: &R) -> Event {
    let is_of_a_target = !matches!(bounds(R::ID).senders, Senders::Any);
    let header = Header {
        message: R::ID,
        session: SessionId::new(session),
        sender_group: GroupId::new(if is_of_a_target { 2 } else { 0 }),
        sender_epoch: Epoch::new(1),
        slot: at.0,
        sequence: at.1,
        group: GroupId::new(1),
        epoch: Epoch::new(1),
        ..Header::default()
    };
    Event::Request { connection: on, header, body: request.to_bytes() }
}

impl Story {
    fn begin() -> Self {
        // With a longer delay, most tests would have to wait until the target sends removals of
        // chunk files.
        let removals = RemovalLimits { delay: Duration::ZERO, ..RemovalLimits::default() };
        Self::begin_with(Limits { removals, ..Limits::default() })
    }

    fn begin_with(limits: Limits) -> Self {
        let target = open(MemoryEngine::default(), &[], &limits, Duration::ZERO);
        let mut story = Self {
            target,
            now: Duration::ZERO,
            wall: Timestamp::default(),
            calls: Vec::new(),
            replies: Vec::new(),
            log: Vec::new(),
            limits,
            evicted: Vec::new(),
            named_start: None,
        };
        story.happens(Event::Tick);
        for session in [1, 2] {
            let open = md::OpenSession { client: NodeId::new(9), slots: 4 };
            story.ask(1, session, (0, 0), &open).unwrap();
        }
        story
    }

    /// Assigns the upper half of the shards to the metadata group 3.
    fn add_group(&mut self) {
        let mut newer = map();
        let other = GroupId::new(3);
        newer.groups.push(Group::of_one(other, TargetKind::Metadata, TargetId::new(3)));
        let (middle, last) = (0x8000, ShardId::new(u16::MAX));
        newer.shards[0].last = ShardId::new(middle - 1);
        newer.shards.push(ShardRange { first: ShardId::new(middle), last, group: other });
        newer.version = MapVersion::new(2);
        self.happens(Event::Map(newer.into()));
    }

    /// Kills the process and starts it again, with the whole log and an empty engine.
    fn restart(&mut self) {
        self.kill();
        self.happens(Event::Tick);
    }

    /// Like [`Self::restart`], but without an event for the new process.
    fn kill(&mut self) {
        let scanned = skep_format::log::scan(LOG, Lsn::new(1), &self.log).unwrap();
        assert_eq!(scanned.end, self.log.len(), "a record cannot be read back");
        self.target = open(MemoryEngine::default(), &scanned.records, &self.limits, self.now);
        self.calls.clear();
        self.replies.clear();
    }

    /// Starts the target after a power loss that has left only the first `log_bytes` bytes of the
    /// log.
    fn lose_power_and_await_replay(&mut self, log_bytes: usize) {
        self.log.truncate(log_bytes);
        self.kill();
        self.target.await_replay();
        self.happens(Event::Tick);
    }

    /// Passes an event to the target, and then the events that result from each batch, until a
    /// batch produces no events. Each sync ends in the next batch.
    fn happens(&mut self, event: Event) {
        self.happen_together(vec![event]);
    }

    /// Like [`Self::happens`], but handles several events in one batch.
    fn happen_together(&mut self, events: Vec<Event>) {
        let mut next = events;
        while !next.is_empty() {
            self.now += Duration::from_millis(11);
            next = self.run(next);
        }
    }

    /// Runs one batch. Returns the events that result from its actions, such as the end of a sync.
    fn run(&mut self, mut events: Vec<Event>) -> Vec<Event> {
        let mut next = Vec::new();
        let start = self.named_start.unwrap_or_else(|| self.start());
        for event in &mut events {
            if let Event::Request { header, .. } = event
                && header.sender_group.raw() == 0
            {
                header.set_start(start);
            }
        }
        let actions = self.target.handle(events, self.now, self.wall).unwrap();
        self.target.check_invariants().unwrap();
        for action in actions {
            match action {
                Action::Sync { lsn } => next.push(Event::Synced { lsn }),
                Action::Reply { connection, result, .. } => {
                    self.replies.push((connection, result));
                }
                Action::Call { call, request } => self.calls.push((call, request)),
                Action::Append { epoch, lsn, synced, payload } => {
                    let record = skep_format::log::encode_record(LOG, epoch, lsn, synced, &payload);
                    self.log.extend(record.expect("a record that can be read back"));
                }
                Action::Evict { client, unless_heard } => {
                    self.evicted.push((client, unless_heard));
                }
                Action::Checkpoint { lsn } => next.push(Event::Checkpointed { lsn }),
                Action::SendToMember(_) | Action::ChangeGroup(_) | Action::ReadLog(_) => {}
                Action::AskTakeOver(request) => panic!("a primary does not ask for {request:?}"),
                Action::Truncate { after } => panic!("a primary removes no record after {after}"),
            }
        }
        if self.target.has_to_store() {
            // The target requests its next batch immediately.
            next.extend(self.run(Vec::new()));
        }
        if next.is_empty() && self.target.gates.has_unsynced() {
            next.push(Event::Tick);
        }
        next
    }

    /// Returns the current start number of the target.
    fn start(&self) -> u64 {
        self.target.shared.starts.last().map_or(0, |(number, _)| number)
    }

    fn send<R: Request>(&mut self, on: ConnectionId, session: u64, at: (u32, u64), request: &R) {
        self.happens(arrival(on, session, at, request));
    }

    fn ask<R: Request>(
        &mut self,
        on: ConnectionId,
        session: u64,
        at: (u32, u64),
        request: &R,
    ) -> Result<R::Reply> {
        self.send(on, session, at, request);
        let (connection, result) = self.replies.pop().expect("an answer");
        assert_eq!(connection, on);
        result.map(|body| R::Reply::from_bytes(&body).expect("a reply of its kind"))
    }

    /// Passes the target the reply to its oldest call, which must be an `R`.
    fn answer<R: Request>(&mut self, reply: &R::Reply) {
        let (call, request) = self.calls.remove(0);
        assert_eq!(request.message, R::ID);
        self.happens(Event::Answer { call, result: Ok(reply.to_bytes()) });
    }

    fn create(&mut self, session: u64, at: (u32, u64)) -> InodeId {
        self.create_as("a", session, at)
    }

    /// Creates a file and opens it for writing.
    fn create_as(&mut self, name: &str, session: u64, at: (u32, u64)) -> InodeId {
        let create = create_in(InodeId::ROOT, name);
        self.ask(1, session, at, &create).unwrap().attributes.inode
    }

    fn size(&mut self, inode: InodeId) -> u64 {
        self.ask(1, 2, (0, 0), &md::GetAttributes { inode }).unwrap().attributes.size
    }
}

/// Returns the request that creates a regular file, and opens it for writing.
fn create_in(directory: InodeId, name: &str) -> md::Create {
    md::Create {
        directory,
        name: name.as_bytes().into(),
        kind: FileKind::Regular,
        new: md::NewInode { permissions: 0o600, umask: 0, uid: 0, gid: 0 },
        device: 0,
        exclusive: true,
        open: md::OpenMode::Write,
        pattern: None,
    }
}

/// Returns the request that adds a name in the root directory to a file.
fn link(inode: InodeId, name: &str) -> md::Link {
    md::Link { inode, directory: InodeId::ROOT, name: name.as_bytes().into() }
}

/// Returns the request that replays a change that the target made in its first start.
fn replay_of<R: Request>(change: u64, request: &R) -> md::Replay {
    md::Replay {
        start: 1,
        change,
        message: R::ID,
        request: request.to_bytes().into(),
        inode: InodeId::default(),
        created: false,
        pattern: None,
        truncate_generation: 0,
    }
}

fn report(inode: InodeId, written: md::WrittenExtent) -> md::ReportWritten {
    md::ReportWritten { inode, written: Some(written), synced: None }
}

/// Returns the extent of writes up to `end` that leave no holes.
fn written_up_to(end: u64) -> md::WrittenExtent {
    md::WrittenExtent {
        end,
        truncate_generation: 0,
        may_leave_holes: false,
        reach: 0,
        ends_inline: None,
    }
}

/// Returns a `Close` request for a handle that was open for writing. The request reports the
/// written range `extent`, but no pattern generation.
fn close_with(inode: InodeId, extent: md::WrittenExtent) -> md::Close {
    let written = md::ClosingReport { extent, pattern_generation: None };
    md::Close { inode, open: md::OpenMode::Write, written: Some(written) }
}

/// Returns an `Open` request without any option.
fn open_of(inode: InodeId, open: md::OpenMode) -> md::Open {
    md::Open { inode, open, truncate: false, must_have_name: false, inline_limit: 0 }
}

fn truncate(inode: InodeId) -> md::SetAttributes {
    md::SetAttributes {
        inode,
        permissions: None,
        cleared_permissions: 0,
        uid: None,
        gid: None,
        project: None,
        hands_down_project: None,
        size: Some(0),
        accessed: None,
        modified: None,
    }
}

fn stat(size: u64) -> st::ChunkStat {
    st::ChunkStat { exists: true, size, allocated: size, modified: Timestamp::default() }
}

/// Returns the reply of a storage host, with the incarnation `incarnation`, that has truncated a
/// chunk file.
fn truncated(incarnation: u64) -> st::TruncateChunkReply {
    st::TruncateChunkReply { incarnation: HostIncarnation::new(incarnation) }
}
