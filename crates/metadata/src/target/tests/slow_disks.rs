//! Tests of a primary whose disk is slow: it hands its group over, and sends no reply after the end
//! of its lease.

use super::gates::{BACKUP, begin_pair, map_of_two, progress, set, start_of};
use super::*;
use crate::limits::SYNC_PATIENCE;
use skep_cluster::lease_times::LeaseTimes;
use skep_types::group_change::MemberChange;
use skep_types::map::Policy;
use skep_wire::log_shipping::LogHeld;

/// Runs one batch. Returns the ids of its requests to the second member, and the connections on
/// which it replies.
fn batch(pair: &mut Story, events: Vec<Event>) -> (Vec<u64>, Vec<ConnectionId>) {
    let (mut asked, mut answered) = (Vec::new(), Vec::new());
    for action in pair.target.handle(events, pair.now, pair.wall).unwrap() {
        match action {
            Action::SendToMember(request) => asked.push(request.number),
            Action::Reply { connection, .. } => answered.push(connection),
            _ => {}
        }
    }
    (asked, answered)
}

/// The batch of a primary may take longer than its lease, for example because a read waits for the
/// disk. Another member may have become the primary before the replies of this batch.
#[test]
fn replies_of_a_slow_batch_wait_for_the_lease() {
    let times = LeaseTimes::of(&Policy::default());
    let mut start = start_of(map_of_two());
    start.limits.members.leases = Some(times);
    let target = MetadataTarget::open(MemoryEngine::default(), Vec::new(), start).unwrap();
    let mut pair = Story { target, log: Vec::new(), ..Story::begin() };
    let granted = |asked: Vec<u64>| -> Vec<Event> {
        let (epoch, lease_ms) = (Epoch::new(1), times.lease.as_millis() as u32);
        let held = LogHeld { epoch, lease_ms, ..LogHeld::default() };
        let reply = |number| Event::MemberReply { member: BACKUP, number, result: Ok(held) };
        asked.into_iter().map(reply).collect()
    };
    pair.now = Duration::from_secs(100);
    let (asked, _) = batch(&mut pair, vec![Event::Tick]);
    batch(&mut pair, granted(asked));
    let end = pair.now + times.lease;
    assert!(pair.target.may_answer_at(pair.now) && !pair.target.may_answer_at(end));
    let request = Header { tag: 9, sequence: 4, ..Header::default() };
    let late = Action::Reply { connection: 200, request, result: Ok(vec![7]) };
    pair.target.hold_replies(vec![late]);
    pair.now = end;
    let (asked, answered) = batch(&mut pair, vec![Event::Tick]);
    assert_eq!(answered, [0; 0], "the lease has ended");
    let (_, answered) = batch(&mut pair, granted(asked));
    assert_eq!(answered, [200], "the member has granted another lease");
}

/// Regression test: all durable replies of the group waited until the disk of the primary
/// continued.
#[test]
fn primary_with_a_hanging_disk_hands_its_group_over() {
    let mut pair = begin_pair();
    let (mut changes, mut events) = (Vec::new(), vec![Event::Tick]);
    let began = pair.now;
    pair.run(vec![set(1)]);
    while changes.is_empty() {
        assert!(pair.now < began + 2 * SYNC_PATIENCE, "the target hands its group over");
        pair.now += Duration::from_millis(100);
        let actions = pair.target.handle(events, pair.now, pair.wall).unwrap();
        let last = pair.target.last_logged();
        events = vec![Event::Tick];
        for action in actions {
            match action {
                // The process 7 of the second member confirms each request. The sync of this target
                // does not end.
                Action::SendToMember(request) => {
                    let Event::MemberReply { member, result, .. } = progress(1, last, last) else {
                        unreachable!("`progress` returns a reply of a member")
                    };
                    let result = result.map(|held| LogHeld { process: 7, ..held });
                    events.push(Event::MemberReply { member, number: request.number, result });
                }
                Action::ChangeGroup(change) => changes.push((change.change, change.target)),
                _ => {}
            }
        }
    }
    assert_eq!(changes, [(MemberChange::HandOver, BACKUP)]);
    assert!(pair.now >= began + SYNC_PATIENCE);
}
