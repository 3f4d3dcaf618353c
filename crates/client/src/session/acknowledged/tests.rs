//! Tests of the list of acknowledged changes.

use super::*;
use crate::limits::SYNCED_AFTER;
use crate::wake_ups::check_wake_ups;
use skep_wire::metadata::{Link, SlotSequence};
use std::sync::Arc;

const GROUP: GroupId = GroupId::new(1);
/// The time at which the changes of the tests are acknowledged.
const NOW: Duration = Duration::from_secs(1_000);
const SESSION: SessionId = SessionId::new(7);

/// Returns a change of the inode `inode`. The tests use this inode id as the number of the change.
fn change(slot: u32, sequence: u64, inode: u64) -> Change {
    let (directory, name) = (InodeId::ROOT, b"b"[..].into());
    let link = Link { inode: InodeId::new(inode), directory, name };
    let kept = KeptRequest {
        request: Arc::new(link),
        body_bytes: 21,
        inode: InodeId::new(inode),
        created: false,
        pattern: None,
        truncated: None,
    };
    Change {
        slot,
        sequence,
        place: (1, inode),
        request: "Link",
        inodes: Some([InodeId::new(inode); 2]),
        kept: Some(kept),
        mark: None,
    }
}

fn opened() -> AcknowledgedChanges {
    let changes = AcknowledgedChanges::default();
    changes.opened(GROUP, SESSION, 1);
    changes
}

fn reply(start: u64, executed: &[(u32, u64)]) -> CompareSlotsReply {
    let slots = executed.iter().map(|(slot, sequence)| (*slot, *sequence));
    let slots = slots.map(|(slot, sequence)| SlotSequence { slot, sequence }).collect();
    CompareSlotsReply { start, slots }
}

impl AcknowledgedChanges {
    /// Adds a change. Returns whether the group must sync.
    fn acknowledge(&self, change: Change) -> bool {
        let attempt = self.attempt(GROUP, SESSION);
        self.acknowledged(GROUP, attempt, change, NOW) == Acknowledged::MustSync
    }

    /// Compares the changes with slots that the mount has requested now.
    fn compare_now(&self, start: u64, executed: &[(u32, u64)]) -> Option<Compared> {
        self.compare(GROUP, self.attempt(GROUP, SESSION), &reply(start, executed))
    }

    /// Compares the changes, and lets the replay of each lost change fail. Returns the numbers of
    /// the lost changes.
    fn lost(&self, start: u64, executed: &[(u32, u64)]) -> Vec<u64> {
        let compared = self.compare_now(start, executed);
        if compared.expect("the session is current") == Compared::Before {
            return Vec::new();
        }
        assert!(self.is_replaying(GROUP, SESSION));
        let mut lost = Vec::new();
        while self.next_lost(GROUP, SESSION).is_some() {
            lost.extend(self.replay_failed(GROUP, SESSION));
        }
        self.revert(lost.iter());
        self.replay_ended(GROUP, SESSION);
        assert!(!self.is_replaying(GROUP, SESSION));
        lost.into_iter().map(|it| it.place.1).collect()
    }
}

#[test]
fn changes_that_a_target_lost_in_a_power_loss_are_found() {
    let changes = opened();
    for (slot, sequence) in [(0, 1), (1, 1), (2, 1), (0, 2)] {
        changes.acknowledge(change(slot, sequence, u64::from(slot) * 10 + sequence));
    }
    assert_eq!(changes.attempt(GROUP, SESSION).start, 1);
    let lost = changes.lost(2, &[(0, 1), (1, 4)]);
    assert_eq!(lost, [2, 21], "lost changes are in the order of their numbers");
    assert!(changes.lost(3, &[]).is_empty(), "the other changes are durable");
    let attempt = changes.attempt(GROUP, SESSION);
    assert!(attempt.has_reverted && attempt.start == 3);
    assert!(changes.take_reverted(&[InodeId::new(2)]));
    assert!(!changes.take_reverted(&[InodeId::new(2)]), "each reverted change is reported once");
    assert!(changes.take_reverted(&[InodeId::new(3), InodeId::new(21)]));
    assert!(!changes.attempt(GROUP, SESSION).has_reverted);
    assert!(changes.take_name_reverted() && !changes.take_name_reverted());
}

/// Hole H180 in `docs/tests/holes.md`.
#[test]
fn truncation_is_replayed_again_unless_reported_as_lost() {
    let changes = opened();
    let mut open = change(0, 1, 9);
    open.kept.iter_mut().for_each(|it| it.truncated = Some(4));
    changes.acknowledge(open);
    let truncated = |changes: &AcknowledgedChanges| {
        changes.next_lost(GROUP, SESSION).expect("a lost change").truncated
    };
    assert_eq!(changes.compare_now(2, &[]), Some(Compared::Now));
    assert_eq!(truncated(&changes), Some(4));
    changes.replayed(GROUP, SESSION, Some((None, NOW)));
    assert_eq!(changes.compare_again(GROUP, SESSION, &reply(3, &[])), Some(false));
    assert_eq!(
        truncated(&changes),
        Some(4),
        "the second power loss has reverted the truncation again"
    );
    changes.truncation_lost(GROUP, SESSION);
    changes.replayed(GROUP, SESSION, Some((None, NOW)));
    assert_eq!(changes.compare_again(GROUP, SESSION, &reply(4, &[])), Some(false));
    assert_eq!(truncated(&changes), None, "a program has got the error already");
}

#[test]
fn replayed_change_is_kept_until_it_is_durable() {
    let changes = opened();
    for number in 1..=3 {
        changes.acknowledge(change(0, number, number));
    }
    let compared = changes.compare_now(2, &[]);
    assert_eq!(compared, Some(Compared::Now));
    let other = changes.compare_now(2, &[]);
    assert_eq!(other, Some(Compared::Before), "only one thread replays the changes");
    let next = changes.next_lost(GROUP, SESSION).unwrap();
    assert_eq!((next.sequence, next.request.unwrap().change), (1, 1));
    changes.replayed(GROUP, SESSION, Some((None, NOW)));
    assert_eq!(changes.next_lost(GROUP, SESSION).unwrap().sequence, 2);
    // The target loses power again. It has executed neither of the two replays.
    assert_eq!(changes.compare_again(GROUP, SESSION, &reply(3, &[])), Some(false));
    let next = changes.next_lost(GROUP, SESSION).unwrap();
    assert_eq!(
        (next.sequence, next.request.unwrap().change),
        (2, 1),
        "the earliest change is first"
    );
    changes.replayed(GROUP, SESSION, Some((None, NOW)));
    // The target is killed after it has executed the next replay, but before it has replied.
    let executed = changes.compare_again(GROUP, SESSION, &reply(4, &[(REPLAY_SLOT, 3)]));
    assert_eq!(executed, Some(true), "the target executed the replay before the kill");
    let next = changes.next_lost(GROUP, SESSION).unwrap();
    assert_eq!((next.sequence, next.request.unwrap().change), (4, 3));
    changes.replayed(GROUP, SESSION, None);
    assert!(changes.next_lost(GROUP, SESSION).is_none());
    changes.replay_ended(GROUP, SESSION);
    assert!(changes.lost(5, &[(REPLAY_SLOT, 3)]).is_empty(), "the target has synced all changes");
    assert!(!changes.take_name_reverted(), "nothing stays lost");
}

/// Hole H70 in `docs/tests/holes.md`.
#[test]
fn change_with_a_late_reply_is_sent_again_if_it_was_lost() {
    let changes = opened();
    let attempt = changes.attempt(GROUP, SESSION);
    assert!(!changes.has_lost(GROUP, attempt, (0, 1)));
    assert!(changes.lost(2, &[(1, 1)]).is_empty());
    let acknowledged = |slot| changes.acknowledged(GROUP, attempt, change(slot, 1, 1), NOW);
    assert_eq!((acknowledged(0), acknowledged(1)), (Acknowledged::Lost, Acknowledged::Done));
    let has_lost = |slot| changes.has_lost(GROUP, attempt, (slot, 1));
    assert!(has_lost(0) && !has_lost(1));
    assert!(changes.lost(3, &[]).is_empty(), "neither change is in the list");
}

#[test]
fn target_that_lacks_durable_changes_gets_no_replay() {
    let changes = opened();
    changes.acknowledge(change(0, 1, 1));
    changes.synced(GROUP, changes.attempt(GROUP, SESSION));
    changes.acknowledge(change(1, 1, 2));
    // The administrator has restored the directory of the target from a backup.
    assert_eq!(changes.compare_now(2, &[]), Some(Compared::Now));
    assert!(changes.next_lost(GROUP, SESSION).unwrap().request.is_none());
    assert!(changes.replay_failed(GROUP, SESSION).is_some(), "the loss is reported");
}

#[test]
fn late_reply_with_slots_does_not_mark_a_newer_change_as_lost() {
    let changes = opened();
    assert!(changes.lost(2, &[(0, 1)]).is_empty());
    changes.acknowledge(change(0, 2, 1));
    assert!(changes.lost(2, &[(0, 1)]).is_empty(), "this reply is older than the change");
    assert_eq!(changes.lost(3, &[(0, 1)]), [1]);
}

/// Hole H71 in `docs/tests/holes.md`.
#[test]
fn slots_of_an_older_start_mark_no_change_as_lost() {
    let changes = opened();
    let attempt = changes.attempt(GROUP, SESSION);
    assert!(changes.lost(3, &[(0, 1)]).is_empty());
    changes.acknowledge(change(0, 2, 1));
    let late = changes.compare(GROUP, attempt, &reply(2, &[(0, 1)]));
    assert_eq!((late, changes.attempt(GROUP, SESSION).start), (Some(Compared::Before), 3));
}

#[test]
fn client_detects_which_requests_a_restarted_target_executed() {
    let changes = opened();
    assert!(!changes.was_executed(GROUP, SESSION, (0, 1)));
    changes.lost(2, &[(0, 1), (1, 4)]);
    let executed = |slot, sequence| changes.was_executed(GROUP, SESSION, (slot, sequence));
    assert!(executed(0, 1) && executed(1, 3) && !executed(0, 2) && !executed(2, 1));
}

#[test]
fn durable_reply_makes_only_earlier_changes_durable() {
    let changes = opened();
    changes.acknowledge(change(0, 1, 1));
    let attempt = changes.attempt(GROUP, SESSION);
    changes.acknowledge(change(1, 1, 2));
    changes.synced(GROUP, attempt);
    changes.synced(GROUP, attempt);
    assert_eq!(changes.lost(2, &[]), [2]);
    changes.acknowledge(change(1, 2, 3));
    changes.synced(GROUP, attempt);
    assert_eq!(changes.lost(3, &[]), [3], "the attempt began before the change");
}

#[test]
fn list_of_undurable_changes_is_bounded_and_ends_with_session() {
    let changes = opened();
    for sequence in 1..=MAX_ACKNOWLEDGED as u64 {
        assert!(!changes.attempt(GROUP, SESSION).is_list_full);
        changes.acknowledge(change(0, sequence, 1));
    }
    let attempt = changes.attempt(GROUP, SESSION);
    assert!(attempt.is_list_full);
    changes.synced(GROUP, attempt);
    assert!(!changes.attempt(GROUP, SESSION).is_list_full);
    let mut large = change(0, 9000, 1);
    if let Some(kept) = &mut large.kept {
        kept.body_bytes = MAX_ACKNOWLEDGED_BYTES;
    }
    changes.acknowledge(large);
    let attempt = changes.attempt(GROUP, SESSION);
    assert!(attempt.is_list_full, "the length of the bodies is limited too");
    changes.synced(GROUP, attempt);
    assert!(!changes.attempt(GROUP, SESSION).is_list_full);
    changes.acknowledge(change(0, 9001, 1));
    assert!(changes.opened(GROUP, SESSION, 2).is_empty());
    let start = changes.attempt(GROUP, SESSION).start;
    assert_eq!(start, 1, "another thread has opened the session");
    assert!(changes.opened(GROUP, SessionId::new(8), 1).is_empty(), "no change is known as lost");
    assert_eq!(changes.compare_now(3, &[]), None);
    let attempt = changes.attempt(GROUP, SessionId::new(8));
    assert_eq!(changes.compare(GROUP, attempt, &reply(3, &[])), Some(Compared::Now));
    assert!(changes.next_lost(GROUP, SessionId::new(8)).is_none());
}

#[test]
fn unmount_counts_changes_that_may_not_be_durable_yet() {
    let changes = opened();
    assert!(changes.unsettled(NOW).is_empty());
    changes.acknowledge(change(0, 1, 1));
    changes.acknowledge(change(0, 2, 2));
    assert_eq!(changes.unsettled(NOW), [(GROUP, 2)]);
    let later = NOW + SYNCED_AFTER + Duration::from_millis(1);
    assert!(changes.unsettled(later).is_empty(), "the target has synced the changes");
    assert_eq!(changes.compare_now(2, &[(0, 1)]), Some(Compared::Now));
    assert_eq!(changes.unsettled(NOW), [(GROUP, 1)], "the lost change is not repeated yet");
    changes.replayed(GROUP, SESSION, Some((None, NOW)));
    assert_eq!(changes.unsettled(NOW), [(GROUP, 1)]);
    changes.synced(GROUP, changes.attempt(GROUP, SESSION));
    assert!(changes.unsettled(NOW).is_empty());
}

/// docs/semantics.md 3.2.
#[test]
fn changes_missing_in_an_older_backup_are_reported() {
    let opened_after = |session: u64, start| {
        let changes = opened();
        changes.acknowledge(change(0, 1, 1));
        let lost = changes.opened(GROUP, SessionId::new(session), start);
        lost.iter().map(|it| it.place).collect::<Vec<_>>()
    };
    assert_eq!(opened_after(8, 2), [(1, 1)]);
    assert!(opened_after(8, 1).is_empty(), "the target has not started again");
    assert!(opened_after(1 << 32 | 8, 2).is_empty(), "the client was evicted");
}

#[test]
fn half_full_list_of_changes_starts_one_sync_at_a_time() {
    let changes = opened();
    let half = MAX_ACKNOWLEDGED as u64 / 2;
    for sequence in 1..half {
        assert!(!changes.acknowledge(change(0, sequence, 1)));
    }
    assert!(changes.acknowledge(change(0, half, 1)));
    let attempt = changes.attempt(GROUP, SESSION);
    assert!(!attempt.is_list_full, "no change waits for the sync");
    assert!(!changes.acknowledge(change(0, half + 1, 1)), "the sync is running");
    changes.synced(GROUP, attempt);
    changes.sync_ended(GROUP, SESSION);
    assert_eq!(changes.lost(2, &[(0, half)]), [1], "only the last change was not synced");
    let mut large = change(0, half + 2, 1);
    if let Some(kept) = &mut large.kept {
        kept.body_bytes = MAX_ACKNOWLEDGED_BYTES / 2;
    }
    assert!(changes.acknowledge(large), "half of the bytes is enough");
    changes.sync_ended(GROUP, SESSION);
    assert!(changes.acknowledge(change(0, half + 3, 1)), "the sync has failed");
}

/// Hole H50 in `docs/tests/holes.md`.
#[test]
fn lost_changes_of_a_replaced_session_are_reported() {
    let changes = opened();
    changes.acknowledge(change(0, 1, 1));
    assert_eq!(changes.compare_now(2, &[]), Some(Compared::Now));
    let lost = changes.opened(GROUP, SessionId::new(8), 2);
    let places: Vec<_> = lost.iter().map(|it| it.place).collect();
    assert_eq!(places, [(1, 1)], "the new session was opened during the replay");
    assert!(!changes.is_replaying(GROUP, SessionId::new(8)));
}

#[test]
fn end_of_a_replay_wakes_tasks_of_other_threads() {
    let begin = |changes: &Arc<AcknowledgedChanges>| {
        let start = changes.attempt(GROUP, SESSION).start + 1;
        let compared = changes.compare_now(start, &[]);
        assert_eq!(compared, Some(Compared::Now));
        Arc::clone(changes)
    };
    let end = |changes: Arc<AcknowledgedChanges>| changes.replay_ended(GROUP, SESSION);
    let wait = async |changes: &Arc<AcknowledgedChanges>| {
        changes.await_replay(GROUP, SESSION).await;
    };
    check_wake_ups(&Arc::new(opened()), begin, end, wait);
}

/// An unmount ends the thread of the replay after the first change was refused, and while the
/// request for the second change is in flight.
#[test]
fn interrupted_replay_is_continued_by_one_other_thread() {
    let changes = Arc::new(opened());
    for number in 1..=3 {
        changes.acknowledge(change(0, number, number));
    }
    assert_eq!(changes.compare_now(2, &[]), Some(Compared::Now));
    let refused = changes.replay_failed(GROUP, SESSION).unwrap();
    let under_way = changes.next_lost(GROUP, SESSION).unwrap();
    assert!(changes.resume_replay(GROUP, SESSION).is_none(), "the replay is running");
    changes.replay_interrupted(GROUP, SESSION, vec![refused]);
    assert!(changes.attempt(GROUP, SESSION).is_replaying, "no other change is sent");
    assert_eq!(changes.unsettled(NOW), [(GROUP, 3)]);
    let waiting = Arc::clone(&changes);
    skep_env::block_on(async move { waiting.await_replay(GROUP, SESSION).await }).unwrap();
    let stay_lost = changes.resume_replay(GROUP, SESSION).unwrap();
    assert_eq!(stay_lost.iter().map(|it| it.place.1).collect::<Vec<_>>(), [1]);
    assert!(changes.resume_replay(GROUP, SESSION).is_none(), "one thread continues it");
    let again = changes.next_lost(GROUP, SESSION).unwrap();
    assert_eq!(again.sequence, under_way.sequence, "the target executes the change once");
    assert_eq!(again.request.unwrap().change, 2);
    changes.replay_interrupted(GROUP, SESSION, stay_lost);
    let lost = changes.opened(GROUP, SessionId::new(8), 2);
    assert_eq!(lost.len(), 3, "the renewal of the session reports all of them");
}
