//! Tests of the two gates of a target in a group of two members: which replies, calls and changes
//! of the store wait until both members have appended a record (*held*) or synced it (*safe*).

use super::*;
use crate::limits::MemberLimits;
use skep_cluster::lease_times::LeaseTimes;
use skep_types::map::Policy;
use skep_types::map::{GroupMember, MemberState};
use skep_wire::log_shipping::LogHeld;

pub(super) const BACKUP: TargetId = TargetId::new(9);

pub(super) fn map_of_two() -> ClusterMap {
    let mut map = map();
    let member = GroupMember { target: BACKUP, state: MemberState::Serving };
    map.groups[0].members.push(member);
    map
}

fn open_pair(engine: MemoryEngine, records: &[Record]) -> MetadataTarget<MemoryEngine> {
    MetadataTarget::open(engine, records.to_vec(), start_of(map_of_two())).unwrap()
}

pub(super) fn start_of(map: ClusterMap) -> Start {
    Start {
        group: GroupId::new(1),
        target: TargetId::new(1),
        epoch: Epoch::default(),
        counted: Vec::new(),
        synced: None,
        policy: SyncPolicy::Interval,
        // These tests do not reply to the requests that renew the lease, so the lease must never
        // end.
        limits: Limits {
            members: MemberLimits {
                leases: Some(LeaseTimes {
                    lease: Duration::MAX,
                    ..LeaseTimes::of(&Policy::default())
                }),
                ..MemberLimits::default()
            },
            ..Limits::default()
        },
        map: Arc::new(map),
        now: Duration::ZERO,
        wall: Timestamp::default(),
    }
}

pub(super) fn progress(epoch: u64, appended: Lsn, synced: Lsn) -> Event {
    let epoch = Epoch::new(epoch);
    let held = LogHeld {
        epoch,
        appended,
        synced,
        ship_after: appended,
        is_behind: false,
        needs_copy: false,
        process: 0,
        lease_ms: 0,
    };
    Event::MemberReply { member: BACKUP, number: 0, result: Ok(held) }
}

/// Begins a story with two members and two sessions. The second member has synced all records.
pub(super) fn begin_pair() -> Story {
    let target = open_pair(MemoryEngine::default(), &[]);
    let mut pair = Story { target, log: Vec::new(), ..Story::begin() };
    pair.settle(vec![Event::Tick]);
    for session in [1, 2] {
        let open = md::OpenSession { client: NodeId::new(9), slots: 4 };
        pair.settle(vec![arrival(1, session, (0, 0), &open)]);
    }
    assert_eq!(pair.answered(), [1, 1]);
    pair
}

/// Returns the arrival of a request that sets an attribute. The request uses this slot of session
/// 1, and connection 100 + `slot`.
pub(super) fn set(slot: u32) -> Event {
    let name = format!("user.{slot}");
    let set = md::SetXattr {
        inode: InodeId::ROOT,
        name: name.as_bytes().into(),
        value: vec![7; 10].into(),
        mode: md::XattrMode::Any,
        clear_set_group_id: false,
    };
    arrival(100 + u64::from(slot), 1, (slot, 1), &set)
}

/// Returns the arrival of a read request on connection 200.
fn read() -> Event {
    arrival(200, 1, (0, 0), &md::ListXattrs { inode: InodeId::ROOT })
}

impl Story {
    /// Handles events, and the further events that they cause, until none is left. The second
    /// member confirms each record immediately.
    fn settle(&mut self, events: Vec<Event>) {
        let mut next = events;
        for _ in 0..20 {
            self.now += Duration::from_millis(11);
            next = self.run(next);
            let last = self.target.last_logged();
            next.push(progress(1, last, last));
        }
        self.run(next);
    }

    /// Creates a file, and opens it for writing.
    fn create_settled(&mut self, name: &str, at: (u32, u64)) -> InodeId {
        let create = create_in(InodeId::ROOT, name);
        self.settle(vec![arrival(1, 1, at, &create)]);
        let (_, reply) = self.replies.pop().expect("a reply");
        md::OpenReply::from_bytes(&reply.unwrap()).unwrap().attributes.inode
    }

    /// Reports to the target up to which records the second member has appended and synced.
    fn confirm(&mut self, appended: Lsn, synced: Lsn) {
        self.run(vec![progress(1, appended, synced)]);
    }

    /// Ends a sync of this target's log.
    fn sync(&mut self) {
        self.now += Duration::from_millis(11);
        self.run(vec![Event::Tick]);
        let lsn = self.target.last_logged();
        self.run(vec![Event::Synced { lsn }]);
        assert_eq!(self.target.gates.synced(), lsn);
    }

    /// Removes all replies that the target has sent, and returns their connections.
    fn answered(&mut self) -> Vec<ConnectionId> {
        self.replies.drain(..).map(|(connection, _)| connection).collect()
    }

    /// Returns the last record in the store.
    pub(super) fn last_stored(&self) -> Lsn {
        let value = self.target.engine().get(&Key::Applied.to_bytes()).unwrap();
        value.map_or(Lsn::default(), |value| Lsn::from_bytes(&value).unwrap())
    }

    /// Kills the process, and starts it again with the same store and log.
    fn restart_pair(&mut self) {
        let records = skep_format::log::scan(LOG, Lsn::new(1), &self.log).unwrap().records;
        self.target = open_pair(self.target.engine().clone(), &records);
        self.calls.clear();
        self.replies.clear();
        let next = self.run(vec![Event::Tick]);
        self.run(next);
    }
}

#[test]
fn group_of_one_member_replies_right_after_the_append() {
    let mut story = Story::begin();
    let (now, wall) = (story.now, story.wall);
    let mut events = vec![set(1), read()];
    if let Event::Request { header, .. } = &mut events[0] {
        header.set_start(story.start());
    }
    let actions = story.target.handle(events, now, wall).unwrap();
    let order = actions.iter().map(|action| match action {
        Action::Append { .. } => "append",
        Action::Reply { .. } => "reply",
        _ => "other",
    });
    assert_eq!(order.collect::<Vec<_>>(), ["append", "reply", "reply"]);
}

#[test]
fn reply_waits_until_the_second_member_has_the_record() {
    let mut pair = begin_pair();
    let before = pair.target.last_logged();
    pair.run(vec![set(1)]);
    let record = pair.target.last_logged();
    assert!(record > before);
    pair.confirm(before, before);
    pair.sync();
    assert_eq!(pair.answered(), [0; 0], "the sync of this target releases nothing");
    pair.confirm(record, before);
    assert_eq!(pair.answered(), [101]);
}

/// In the old map of the restarted process, the second member does not serve. In a newer map, which
/// this process has not received yet, the second member serves.
#[test]
fn restart_stores_no_record_that_a_serving_member_may_lack() {
    let mut pair = begin_pair();
    pair.run(vec![set(1)]);
    pair.sync();
    let record = pair.target.last_logged();
    let stored = pair.last_stored();
    assert!(stored < record);
    let mut map = map_of_two();
    map.groups[0].members[1].state = MemberState::Waiting;
    let records = skep_format::log::scan(LOG, Lsn::new(1), &pair.log).unwrap().records;
    let engine = pair.target.engine().clone();
    let start = Start { counted: vec![BACKUP], ..start_of(map) };
    pair.target = MetadataTarget::open(engine, records, start).unwrap();
    pair.replies.clear();
    pair.run(vec![Event::Tick]);
    pair.run(vec![read()]);
    assert_eq!((pair.last_stored(), pair.answered()), (stored, Vec::new()));
    pair.sync();
    let last = pair.target.last_logged();
    pair.confirm(last, last);
    assert_eq!(pair.answered(), [200]);
    assert!(pair.last_stored() >= record);
}

/// Management may carry out a request to drop a member after the host of this target has lost
/// power. The device of this host must then have all acknowledged records.
#[test]
fn member_is_dropped_only_after_a_sync_of_held_records() {
    let mut pair = begin_pair();
    pair.run(vec![set(1)]);
    let record = pair.target.last_logged();
    pair.confirm(record, record);
    assert_eq!(pair.answered(), [101]);
    let stops = Err(ErrorCode::NotReady.into());
    pair.run(vec![Event::MemberReply { member: BACKUP, number: u64::MAX, result: stops }]);
    assert!(!pair.target.gates.holds_only_synced(), "the device lacks an acknowledged record");
    pair.sync();
    assert!(pair.target.gates.holds_only_synced());
}

#[test]
fn primary_restarted_after_a_drop_request_awaits_its_own_sync() {
    let mut pair = begin_pair();
    let records = skep_format::log::scan(LOG, Lsn::new(1), &pair.log).unwrap().records;
    let engine = pair.target.engine().clone();
    let start = Start { counted: vec![BACKUP], ..start_of(map_of_two()) };
    pair.target = MetadataTarget::open(engine, records, start).unwrap();
    let next = pair.run(vec![Event::Tick]);
    pair.run(vec![read()]);
    let last = pair.target.last_logged();
    assert!(pair.target.gates.synced() < last);
    let reason = pair.target.waits().last().map(|it| it.reason);
    assert_eq!(reason, Some(WaitReason::OwnSync));
    pair.confirm(last, last);
    assert_eq!(pair.answered(), [0; 0], "the device lacks the record of the start");
    pair.settle(next);
    assert_eq!(pair.answered(), [200]);
}

#[test]
fn read_reply_waits_only_for_records_that_it_depends_on() {
    let mut pair = begin_pair();
    let before = pair.target.last_logged();
    pair.run(vec![read()]);
    assert_eq!(pair.answered(), [200], "the second member has all records that this read shows");
    pair.run(vec![set(1), read()]);
    let first = pair.target.last_logged();
    pair.run(vec![read()]);
    pair.run(vec![set(2)]);
    let second = pair.target.last_logged();
    pair.confirm(before, before);
    assert_eq!(pair.answered(), [0; 0]);
    pair.confirm(first, before);
    assert_eq!(pair.answered(), [101, 200, 200], "later records do not delay these replies");
    pair.confirm(second, before);
    assert_eq!(pair.answered(), [102]);
}

#[test]
fn error_reply_waits_for_the_records_that_caused_the_error() {
    let mut pair = begin_pair();
    let before = pair.target.last_logged();
    pair.run(vec![set(1)]);
    // This request has an older sequence number than the last request in slot 1.
    let stale = arrival(
        300,
        1,
        (1, 0),
        &md::RemoveXattr { inode: InodeId::ROOT, name: b"user.unknown"[..].into() },
    );
    pair.run(vec![stale]);
    pair.confirm(before, before);
    assert_eq!(pair.answered(), [0; 0]);
    let last = pair.target.last_logged();
    pair.confirm(last, before);
    assert_eq!(pair.answered(), [101, 300]);
}

#[test]
fn durable_reply_waits_until_both_members_have_synced() {
    for own_sync_first in [true, false] {
        let mut pair = begin_pair();
        let before = pair.target.last_logged();
        let open = md::OpenSession { client: NodeId::new(9), slots: 4 };
        pair.run(vec![arrival(7, 3, (0, 0), &open)]);
        let lsn = pair.target.last_logged();
        pair.confirm(lsn, before);
        assert_eq!(pair.answered(), [0; 0], "no member has synced the record");
        let mut events = [Event::Synced { lsn }, progress(1, lsn, lsn)];
        if !own_sync_first {
            events.reverse();
        }
        let [first, second] = events;
        pair.run(vec![first]);
        assert_eq!(pair.answered(), [0; 0], "one member has synced it");
        pair.run(vec![second]);
        assert_eq!(pair.answered(), [7]);
    }
}

#[test]
fn wait_reason_shows_whether_a_sync_or_a_copy_is_missing() {
    let mut pair = begin_pair();
    let before = pair.target.last_logged();
    let reasons = |pair: &Story| -> Vec<_> {
        pair.target.waits().iter().map(|it| (it.connection, it.reason)).collect()
    };
    let open = md::OpenSession { client: NodeId::new(9), slots: 4 };
    pair.run(vec![arrival(7, 3, (0, 0), &open)]);
    let lsn = pair.target.last_logged();
    assert_eq!(
        reasons(&pair),
        [(7, WaitReason::Copies)],
        "the second member has not appended the record"
    );
    pair.confirm(lsn, before);
    assert_eq!(reasons(&pair), [(7, WaitReason::OwnSync)], "no member has synced the record");
    pair.run(vec![Event::Synced { lsn }]);
    assert_eq!(reasons(&pair), [(7, WaitReason::Copies)], "only this target has synced the record");
    pair.confirm(lsn, lsn);
    assert_eq!(reasons(&pair), [], "both members have synced the record");
    assert_eq!(pair.answered(), [7]);
}

#[test]
fn progress_reported_in_another_epoch_releases_no_reply() {
    let mut pair = begin_pair();
    pair.run(vec![set(1)]);
    let last = pair.target.last_logged();
    pair.run(vec![progress(0, last, last), progress(2, last, last)]);
    assert_eq!(pair.answered(), [0; 0]);
    pair.run(vec![progress(1, last, last)]);
    assert_eq!(pair.answered(), [101]);
}

#[test]
fn replies_do_not_wait_for_a_dropped_member() {
    let mut pair = begin_pair();
    pair.run(vec![set(1)]);
    pair.sync();
    assert!(pair.last_stored() < pair.target.last_logged() && pair.replies.is_empty());
    let mut alone = map();
    alone.version = MapVersion::new(2);
    pair.run(vec![Event::Map(Arc::new(alone))]);
    assert_eq!(pair.answered(), [101]);
    assert_eq!(pair.last_stored(), pair.target.last_logged());
}

#[test]
fn store_never_has_records_after_the_last_safe_record() {
    let mut pair = begin_pair();
    let mut records = vec![pair.target.last_logged()];
    let mut safe = records[0];
    for round in 1..=12 {
        let set = arrival(
            1,
            1,
            (0, round),
            &md::SetXattr {
                inode: InodeId::ROOT,
                name: b"user.a"[..].into(),
                value: vec![7; round as usize].into(),
                mode: md::XattrMode::Any,
                clear_set_group_id: false,
            },
        );
        pair.run(vec![set]);
        pair.sync();
        records.push(pair.target.last_logged());
        // In most rounds, the second member has not synced the last four records. In the remaining
        // rounds, the second member has not synced only the last record.
        let lag = [4, 4, 4, 1, 4][round as usize % 5];
        let synced = records[records.len().saturating_sub(1 + lag)];
        pair.confirm(pair.target.last_logged(), synced);
        safe = safe.max(synced);
        assert!(pair.last_stored() <= safe, "{} is stored, {safe} is safe", pair.last_stored());
    }
    let last = pair.target.last_logged();
    pair.confirm(last, last);
    assert_eq!(pair.last_stored(), last);
    assert!(pair.target.is_idle());
}

/// Creates a file that has 10 bytes in chunk files, with requests in slot 0.
fn written(pair: &mut Story) -> InodeId {
    let inode = pair.create_settled("a", (0, 1));
    let report = report(inode, written_up_to(10));
    pair.settle(vec![arrival(1, 1, (0, 2), &report)]);
    assert_eq!(pair.answered(), [1]);
    inode
}

#[test]
fn truncation_of_chunk_files_waits_until_both_members_sync() {
    let mut pair = begin_pair();
    let inode = written(&mut pair);
    let before = pair.target.last_logged();
    pair.run(vec![arrival(1, 1, (0, 3), &truncate(inode))]);
    let record = pair.target.last_logged();
    pair.run(vec![Event::Synced { lsn: record }]);
    assert!(pair.calls.is_empty(), "only this target has synced the record");
    pair.confirm(record, before);
    assert!(pair.calls.is_empty(), "the second member has not synced the record");
    pair.confirm(record, record);
    assert_eq!(pair.calls.len(), 1);
    assert_eq!(pair.calls[0].1.message, st::TruncateChunk::ID);
}

/// After a start, the second member may lack records. So a record is not *safe* only because the
/// target has synced it.
#[test]
fn restart_keeps_unconfirmed_records_out_of_the_store() {
    let mut pair = begin_pair();
    let inode = written(&mut pair);
    let before = pair.target.last_logged();
    pair.run(vec![arrival(1, 1, (0, 3), &truncate(inode))]);
    let record = pair.target.last_logged();
    pair.run(vec![Event::Synced { lsn: record }]);
    pair.restart_pair();
    assert!(pair.last_stored() <= before);
    pair.run(vec![arrival(200, 1, (0, 0), &md::GetEntryInfo { inode: InodeId::ROOT })]);
    pair.sync();
    assert!(pair.calls.is_empty() && pair.replies.is_empty());
    // The second member first confirms the old records, and then the records of the new start.
    pair.confirm(record, record);
    assert_eq!(pair.last_stored(), record);
    assert_eq!(pair.calls.len(), 1, "the truncation goes on");
    let last = pair.target.last_logged();
    pair.confirm(last, last);
    pair.settle(vec![Event::Tick]);
    assert_eq!(pair.answered(), [200]);
}

/// The record that reserves inode numbers may have been *safe* before the restart, although the
/// store lacks it. So the target may already have assigned some of these numbers.
#[test]
fn restart_skips_inode_numbers_of_an_unconfirmed_reservation() {
    let target = open_pair(MemoryEngine::default(), &[]);
    let mut pair = Story { target, log: Vec::new(), ..Story::begin() };
    pair.run(vec![Event::Tick]);
    pair.sync();
    assert_eq!(pair.last_stored(), Lsn::default());
    pair.restart_pair();
    pair.settle(vec![Event::Tick]);
    let open = md::OpenSession { client: NodeId::new(9), slots: 4 };
    pair.settle(vec![arrival(1, 1, (0, 0), &open)]);
    let inode = pair.create_settled("b", (2, 1));
    let number = inode.raw() & ((1 << 48) - 1);
    assert!(number > crate::limits::NUMBER_RANGE, "{inode}");
}
