//! Bugs that the simulator has found, each as the shortest story that shows it. One target, one
//! storage group; the test plays clients, storage and the disk.

use super::*;
use crate::engine::memory::MemoryEngine;
use skep_types::map::{Capacity, CapacityPool, Consistency, Reachability, ShardRange};
use skep_types::{
    ClusterId, Epoch, FileKind, Group, GroupMember, InodeId, MapVersion, MemberState, NodeId,
    SessionId, Target, TargetId,
};
use skep_wire::metadata as md;
use skep_wire::storage as st;

struct Story {
    target: MetadataTarget<MemoryEngine>,
    now: Duration,
    calls: Vec<(CallId, OutgoingCall)>,
    replies: Vec<(ConnectionId, Result<Vec<u8>>)>,
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
            capacity: Capacity { free_bytes: 1 << 30, ..Capacity::default() },
            capacity_pool: CapacityPool::Normal,
        });
        let member = GroupMember { target: TargetId::new(raw), state: MemberState::Serving };
        let (id, epoch) = (GroupId::new(raw), Epoch::new(1));
        map.groups.push(Group { id, kind, epoch, members: vec![member] });
    }
    let (first, last) = (ShardId::new(0), ShardId::new(u16::MAX));
    map.shards.push(ShardRange { first, last, group: GroupId::new(1) });
    map.version = MapVersion::new(1);
    map
}

impl Story {
    fn begin() -> Self {
        let start = Start {
            group: GroupId::new(1),
            policy: SyncPolicy::Interval,
            limits: Limits::default(),
            map: Arc::new(map()),
            now: Duration::ZERO,
            wall: Timestamp::default(),
        };
        let target = MetadataTarget::open(MemoryEngine::default(), [], start).unwrap();
        let (calls, replies) = (Vec::new(), Vec::new());
        let mut story = Self { target, now: Duration::ZERO, calls, replies };
        story.happens(Event::Tick);
        for session in [1, 2] {
            let open = md::OpenSession { client: NodeId::new(9), slots: 4 };
            story.ask(1, session, (0, 0), &open).unwrap();
        }
        story
    }

    /// Something happens, and every sync that follows from it ends at once.
    fn happens(&mut self, event: Event) {
        let mut next = Some(event);
        while let Some(event) = next.take() {
            self.now += Duration::from_millis(11);
            let actions = self.target.handle([event], self.now, Timestamp::default()).unwrap();
            for action in actions {
                match action {
                    Action::Sync { lsn } => next = Some(Event::Synced { lsn }),
                    Action::Reply { connection, result, .. } => {
                        self.replies.push((connection, result));
                    }
                    Action::Call { call, request } => self.calls.push((call, request)),
                    Action::Append { .. } => {}
                    Action::Checkpoint { lsn } => next = Some(Event::Checkpointed { lsn }),
                }
            }
            if next.is_none() && self.target.first_unsynced_at.is_some() {
                next = Some(Event::Tick);
            }
        }
    }

    fn send<R: Request>(&mut self, on: ConnectionId, session: u64, at: (u32, u64), request: &R) {
        let header = Header {
            message: R::ID,
            session: SessionId::new(session),
            slot: at.0,
            sequence: at.1,
            group: GroupId::new(1),
            epoch: Epoch::new(1),
            ..Header::default()
        };
        self.happens(Event::Request { connection: on, header, body: request.to_bytes() });
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

    /// Answers the oldest call of the target.
    fn answer<R: Request>(&mut self, reply: &R::Reply) {
        let (call, request) = self.calls.remove(0);
        assert_eq!(request.message, R::ID);
        self.happens(Event::Answer { call, result: Ok(reply.to_bytes()) });
    }

    fn create(&mut self, session: u64, at: (u32, u64)) -> InodeId {
        let create = md::Create {
            directory: InodeId::ROOT,
            name: b"a"[..].into(),
            kind: FileKind::Regular,
            new: md::NewInode { permissions: 0o600, uid: 0, gid: 0 },
            device: 0,
            exclusive: true,
            open: md::OpenMode::Write,
        };
        self.ask(1, session, at, &create).unwrap().attributes.inode
    }

    fn size(&mut self, inode: InodeId) -> u64 {
        self.ask(1, 2, (0, 0), &md::GetAttributes { inode }).unwrap().attributes.size
    }
}

fn cut(inode: InodeId) -> md::SetAttributes {
    md::SetAttributes {
        inode,
        permissions: None,
        uid: None,
        gid: None,
        project: None,
        size: Some(0),
        accessed: None,
        modified: None,
    }
}

fn stat(size: u64) -> st::ChunkStat {
    st::ChunkStat { exists: true, size, allocated: size, modified: Timestamp::default() }
}

/// A refusal wasn't remembered: the same unlink, late on an abandoned connection, removed the name
/// that somebody had made since.
#[test]
fn a_refused_request_does_not_run_when_it_comes_late() {
    let mut story = Story::begin();
    let unlink = md::Unlink { directory: InodeId::ROOT, name: b"a"[..].into() };
    for on in [1, 2] {
        let refused = story.ask(on, 1, (0, 1), &unlink).unwrap_err();
        assert_eq!(refused.code(), ErrorCode::NotFound);
        if on == 1 {
            story.create(2, (0, 1));
        }
    }
    let lookup = md::Lookup { directory: InodeId::ROOT, name: b"a"[..].into() };
    story.ask(1, 1, (0, 0), &lookup).expect("the name is still there");
}

/// The late repetition of a request at work took the answer over to its abandoned connection.
#[test]
fn every_connection_gets_the_answer_of_a_request_that_came_twice() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    for on in [5, 6] {
        story.send(on, 1, (0, 2), &cut(inode));
    }
    assert!(story.replies.is_empty());
    story.answer::<st::TruncateChunk>(&skep_wire::management::Done {});
    let mut connections: Vec<_> = story.replies.iter().map(|(on, _)| *on).collect();
    connections.sort_unstable();
    assert_eq!(connections, [5, 6]);
}

/// An operation that waited for others while its session ended committed afterwards, and left a
/// slot and opens that nobody would ever remove.
#[test]
fn an_operation_is_refused_when_its_session_ended_while_it_waited() {
    let mut story = Story::begin();
    let inode = story.create(2, (0, 1));
    let open = md::Open { inode, open: md::OpenMode::Read, truncate: true };
    story.send(5, 1, (0, 1), &open);
    story.ask(1, 1, (0, 0), &md::CloseSession {}).unwrap();
    story.answer::<st::TruncateChunk>(&skep_wire::management::Done {});
    let (_, result) = story.replies.pop().expect("an answer");
    assert_eq!(result.unwrap_err().code(), ErrorCode::StaleSession);
    let slots = story.target.table.scan(&Key::slots_of(SessionId::new(1)), &[], 9).unwrap();
    let opens = story.target.table.scan(&Key::opens_of(SessionId::new(1)), &[], 9).unwrap();
    assert!(slots.is_empty() && opens.is_empty());
}

/// A size that was found out from chunk files was taken although the file had been cut meanwhile:
/// it grew back, with zeros.
#[test]
fn a_size_from_before_a_truncation_is_asked_for_anew() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    story.ask(1, 1, (0, 0), &md::CloseSession {}).unwrap();
    let asked = story.calls.remove(0);
    assert_eq!(asked.1.message, st::StatChunk::ID);
    story.send(1, 2, (0, 1), &cut(inode));
    story.answer::<st::TruncateChunk>(&skep_wire::management::Done {});
    story.replies.clear();
    let result = Ok(stat(100).to_bytes());
    story.happens(Event::Answer { call: asked.0, result });
    assert_eq!(story.size(inode), 0);
    story.answer::<st::StatChunk>(&stat(0));
    story.happens(Event::Tick);
    assert_eq!(story.size(inode), 0);
    assert!(story.calls.is_empty(), "it is found out");
}

/// The second of two writers died while the size was asked for: what it had written was cut off.
#[test]
fn a_size_from_before_another_death_is_asked_for_anew() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    let open = md::Open { inode, open: md::OpenMode::Write, truncate: false };
    story.ask(1, 2, (0, 1), &open).unwrap();
    story.ask(1, 1, (0, 0), &md::CloseSession {}).unwrap();
    let asked = story.calls.remove(0);
    story.ask(1, 2, (0, 0), &md::CloseSession {}).unwrap();
    story.happens(Event::Answer { call: asked.0, result: Ok(stat(10).to_bytes()) });
    story.answer::<st::StatChunk>(&stat(50));
    assert_eq!(story.size(inode), 50);
}
