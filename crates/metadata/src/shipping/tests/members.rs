//! Tests of the changes of its group that the primary requests from management.

use super::*;
use crate::limits::{LEASE_RENEWAL, UNDECIDED_DROP};
use crate::shipping::standing::{LinkRole, Standing};
use crate::shipping::succession::Succession;
use skep_types::Error;
use skep_types::group_change::MemberChange;

/// The shipper of a primary whose records all have epoch 4.
pub(super) struct Primary {
    pub(super) shipper: Shipper,
    pub(super) last: u64,
    /// Last record that the primary has synced.
    pub(super) synced: u64,
    pub(super) now: Duration,
}

impl Primary {
    pub(super) fn begin(count: u64) -> Self {
        let mut window = RecordWindow::after(Lsn::default());
        (1..=count).for_each(|lsn| window.push(record(lsn, 4)));
        let shipper = Shipper::new(Epoch::new(4), window);
        Self { shipper, last: count, synced: count, now: Duration::from_secs(100) }
    }

    pub(super) fn requests(&mut self) -> Vec<MemberRequest> {
        self.shipper.begin_batch(self.now);
        let last = Lsn::new(self.last);
        let (epoch, synced) = (Epoch::new(4), Lsn::new(self.synced));
        let log = GroupLog { epoch, held: last, safe: last, synced, sync_wanted: last, wait_ms: 0 };
        self.shipper.requests(&log, self.now)
    }

    /// Replies to all requests as a member that has the records up to `appended`.
    pub(super) fn reply(&mut self, requests: &[MemberRequest], appended: u64, is_behind: bool) {
        self.reply_with(requests, (appended, appended), is_behind);
    }

    /// Replies to all requests as a member with the given last appended and last synced record.
    pub(super) fn reply_with(
        &mut self,
        requests: &[MemberRequest],
        progress: (u64, u64),
        is_behind: bool,
    ) {
        let (lsn, synced) = (Lsn::new(progress.0), Lsn::new(progress.1));
        let held = LogHeld {
            epoch: Epoch::new(4),
            appended: if is_behind { Lsn::default() } else { lsn },
            synced: if is_behind { Lsn::default() } else { synced },
            ship_after: lsn,
            is_behind,
            needs_copy: false,
            process: 0,
            lease_ms: 2243,
        };
        for request in requests {
            self.shipper.on_reply(BACKUP, request.number, &Ok(held), self.now);
        }
    }

    /// Replies to all requests as the process `process` of a member that has the records up to
    /// `appended`.
    pub(super) fn confirm_as(&mut self, requests: &[MemberRequest], process: u64, appended: u64) {
        let (epoch, last) = (Epoch::new(4), Lsn::new(appended));
        let (appended, synced, ship_after) = (last, last, last);
        let held = LogHeld { epoch, appended, synced, ship_after, process, ..LogHeld::default() };
        for request in requests {
            self.shipper.on_reply(BACKUP, request.number, &Ok(held), self.now);
        }
    }

    /// Lets all requests fail, as if the host of the member had no network.
    pub(super) fn fail(&mut self, requests: &[MemberRequest]) {
        let failed = Err(Error::new(ErrorCode::Disconnected, "the member does not answer"));
        for request in requests {
            self.shipper.on_reply(BACKUP, request.number, &failed, self.now);
        }
    }

    pub(super) fn holds_lease(&self) -> bool {
        self.shipper.holds_lease(LEASE, self.now)
    }

    pub(super) fn changes(&mut self) -> Vec<MemberChange> {
        let needed = Progress { appended: Lsn::new(self.last), synced: Lsn::new(self.synced) };
        let synced = Lsn::new(self.synced);
        let changes = self.shipper.changes(needed, synced, LEASE, self.now);
        changes.into_iter().map(|(change, _)| change).collect()
    }
}

#[test]
fn member_that_is_silent_for_a_lease_is_dropped() {
    let mut primary = Primary::begin(3);
    primary.shipper.set_members(&[BACKUP], &[]);
    let requests = primary.requests();
    primary.reply(&requests, 3, false);
    let mut dropped_at = None;
    let began = primary.now;
    while dropped_at.is_none() && primary.now < began + 3 * LEASE {
        primary.now += Duration::from_millis(100);
        primary.requests();
        dropped_at = (primary.changes() == [MemberChange::Drop]).then_some(primary.now);
    }
    let silent = dropped_at.expect("the member is dropped") - began;
    assert!(silent >= LEASE && silent <= LEASE + 2 * LEASE_RENEWAL, "{silent:?}");
    assert_eq!(primary.changes(), [], "the primary pauses before it requests the drop again");
}

/// Hole H196 in `docs/tests/holes.md`. The directory of the primary is a backup that was made
/// before the creation of the group, and has no mark. The other member still has the records that
/// the primary has lost.
#[test]
fn primary_detects_a_member_with_later_records_than_its_own() {
    let ahead = |serving: &[TargetId], absent: &[TargetId], appended| {
        let mut primary = Primary::begin(3);
        primary.shipper.set_members(serving, absent);
        let requests = primary.requests();
        assert!(!requests.is_empty());
        primary.reply(&requests, appended, false);
        primary.shipper.member_ahead()
    };
    assert_eq!(ahead(&[BACKUP], &[], 3), None);
    assert_eq!(ahead(&[BACKUP], &[], 4), Some((BACKUP, Lsn::new(4))));
    assert_eq!(ahead(&[], &[BACKUP], 4), None, "the group relies on no record of this member");
}

/// Replies to the first request as a member whose service stops.
fn refuse_as_stopping(primary: &mut Primary, requests: &[MemberRequest]) {
    let stops = Err(Error::new(ErrorCode::NotReady, "the service of the target is stopping"));
    primary.shipper.on_reply(BACKUP, requests[0].number, &stops, primary.now);
}

#[test]
fn stopping_member_is_dropped_immediately() {
    let mut primary = Primary::begin(3);
    primary.shipper.set_members(&[BACKUP], &[]);
    let requests = primary.requests();
    primary.reply(&requests, 3, false);
    primary.now += LEASE_RENEWAL;
    let requests = primary.requests();
    assert_eq!(primary.changes(), []);
    refuse_as_stopping(&mut primary, &requests);
    assert_eq!(primary.changes(), [MemberChange::Drop]);
    assert_eq!(
        primary.shipper.counted(),
        [BACKUP],
        "replies wait for the member until management has dropped it"
    );
}

/// A stopping previous primary first confirms one request that is not addressed to its process.
/// Then it refuses all other requests.
#[test]
fn member_is_complete_only_by_replies_of_its_present_process() {
    let mut primary = Primary::begin(3);
    primary.shipper.set_members(&[BACKUP], &[]);
    let since = primary.now;
    let requests = primary.requests();
    primary.confirm_as(&requests, 7, 3);
    assert_eq!(primary.shipper.complete_since(since), [], "the request names no process");
    for (process, appended, is_complete) in [(8, 3, false), (8, 2, false), (8, 3, true)] {
        primary.now += LEASE_RENEWAL;
        let requests = primary.requests();
        primary.confirm_as(&requests, process, appended);
        let complete = primary.shipper.complete_since(since) == [BACKUP];
        assert_eq!(complete, is_complete, "process {process} has record {appended}");
    }
    let later = primary.now + Duration::from_millis(1);
    assert_eq!(
        primary.shipper.complete_since(later),
        [],
        "the member has confirmed the log only after an earlier request"
    );
    primary.now = later;
    assert_eq!(primary.requests().len(), 0);
    primary.shipper.renew_leases();
    let requests = primary.requests();
    assert_eq!(requests.len(), 1, "the primary sends a request although no renewal is due");
    primary.confirm_as(&requests, 8, 3);
    assert_eq!(primary.shipper.complete_since(later), [BACKUP]);
    primary.now += LEASE_RENEWAL;
    let requests = primary.requests();
    refuse_as_stopping(&mut primary, &requests);
    assert_eq!(primary.shipper.complete_since(later), [], "the service of the member stops");
}

#[test]
fn restarted_member_is_not_dropped_for_its_earlier_stop() {
    let mut primary = Primary::begin(3);
    primary.shipper.set_members(&[BACKUP], &[]);
    let requests = primary.requests();
    refuse_as_stopping(&mut primary, &requests);
    primary.now += Duration::from_millis(100);
    let requests = primary.requests();
    primary.reply(&requests, 3, false);
    assert_eq!(primary.changes(), []);
}

#[test]
fn wrong_lsn_in_a_reply_does_not_end_the_primary() {
    let mut primary = Primary::begin(5);
    primary.shipper.set_members(&[], &[BACKUP]);
    let requests = primary.requests();
    primary.reply(&requests, u64::MAX, true);
    primary.now += Duration::from_secs(1);
    assert!(!primary.requests().is_empty());
    primary.shipper.check_invariants(Lsn::new(5), Lsn::new(5));
}

#[test]
fn old_drop_request_without_effect_is_reported_once() {
    let mut standing = Standing::new(LinkRole::Serving);
    let asked = Duration::from_secs(100);
    assert!(!standing.take_undecided_drop(asked), "no drop was requested");
    standing.note_drop(asked);
    assert!(!standing.take_undecided_drop(asked + UNDECIDED_DROP / 2));
    assert!(standing.take_undecided_drop(asked + UNDECIDED_DROP));
    assert!(!standing.take_undecided_drop(asked + 2 * UNDECIDED_DROP));
}

#[test]
fn stopping_member_is_no_longer_counted() {
    let mut primary = Primary::begin(5);
    primary.shipper.set_members(&[], &[BACKUP]);
    let requests = primary.requests();
    primary.reply(&requests, 4, false);
    assert_eq!(primary.shipper.begin_to_count().len(), 1);
    let requests = primary.requests();
    refuse_as_stopping(&mut primary, &requests);
    assert!(primary.shipper.end_counting(LEASE, primary.now));
    assert_eq!(primary.shipper.counted(), []);
}

#[test]
fn resumed_primary_reads_replies_before_dropping_a_member() {
    let mut primary = Primary::begin(3);
    primary.shipper.set_members(&[BACKUP], &[]);
    primary.requests();
    primary.now += 5 * LEASE;
    primary.requests();
    assert_eq!(primary.changes(), []);
    assert!(!primary.holds_lease());
}

#[test]
fn primary_counts_a_caught_up_member_before_it_serves() {
    let mut primary = Primary::begin(5);
    primary.shipper.set_members(&[], &[BACKUP]);
    let requests = primary.requests();
    assert_eq!((primary.shipper.begin_to_count().len(), primary.changes()), (0, vec![]));
    primary.reply(&requests, 2, true);
    primary.now += Duration::from_secs(1);
    let requests = primary.requests();
    let MemberMessage::Ship(ship) = &requests[0].message else { panic!("records are shipped") };
    assert_eq!((ship.first, ship.records.len()), (Lsn::new(3), 3));
    primary.reply(&requests, 4, false);
    assert_eq!(primary.shipper.begin_to_count().len(), 1);
    assert_eq!(primary.shipper.counted(), [BACKUP]);
    assert_eq!(primary.changes(), [], "the member lacks a held record");
    let requests = primary.requests();
    primary.reply(&requests, 5, false);
    assert_eq!(primary.changes(), [MemberChange::MarkInSync]);
    primary.shipper.set_members(&[], &[BACKUP]);
    assert_eq!(primary.shipper.counted(), [BACKUP], "it may serve already");
}

/// An earlier primary may still reply, and the member may have promised nothing to it. So the
/// member must not become the primary before the leases of the earlier primary have ended (hole
/// H44).
#[test]
fn primary_marks_no_member_before_the_end_of_earlier_leases() {
    let mut primary = Primary::begin(5);
    let (wait, millisecond) = (Duration::from_secs(9), Duration::from_millis(1));
    primary.shipper.succeed(Succession::at(primary.now + wait));
    primary.shipper.set_members(&[], &[BACKUP]);
    let requests = primary.requests();
    primary.reply(&requests, 5, false);
    assert_eq!(primary.shipper.begin_to_count().len(), 1);
    assert_eq!(primary.changes(), []);
    primary.now += wait - millisecond;
    assert_eq!(primary.changes(), []);
    primary.now += millisecond;
    assert_eq!(primary.changes(), [MemberChange::MarkInSync]);
}

/// The primary may have sent replies that promise durability before it counted the member.
#[test]
fn returned_member_serves_only_after_its_sync_of_safe_records() {
    let mut primary = Primary::begin(5);
    primary.shipper.set_members(&[], &[BACKUP]);
    let requests = primary.requests();
    primary.reply_with(&requests, (5, 4), false);
    assert_eq!(primary.shipper.begin_to_count().len(), 1);
    assert_eq!(primary.changes(), [], "the member has not synced a safe record");
    primary.now += Duration::from_secs(1);
    let requests = primary.requests();
    primary.reply(&requests, 5, false);
    assert_eq!(primary.changes(), [MemberChange::MarkInSync]);
}

#[test]
fn silent_member_is_no_longer_counted() {
    let mut primary = Primary::begin(5);
    primary.shipper.set_members(&[], &[BACKUP]);
    let requests = primary.requests();
    primary.reply(&requests, 4, false);
    assert_eq!(primary.shipper.begin_to_count().len(), 1);
    let began = primary.now;
    while !primary.shipper.end_counting(LEASE, primary.now) {
        assert!(primary.now < began + 3 * LEASE, "the member is no longer counted");
        primary.now += Duration::from_millis(100);
        primary.requests();
    }
    assert_eq!(primary.shipper.counted(), []);
}

/// Regression test: the primary of a new group had all records in memory, so it counted a member
/// without a store. Each reply waited for this member, and the primary sent it no copy.
#[test]
fn member_without_a_store_gets_a_copy_before_it_is_counted() {
    let mut primary = Primary::begin(5);
    primary.shipper.set_members(&[], &[BACKUP]);
    let requests = primary.requests();
    let empty =
        LogHeld { epoch: Epoch::new(4), is_behind: true, needs_copy: true, ..LogHeld::default() };
    primary.shipper.on_reply(BACKUP, requests[0].number, &Ok(empty), primary.now);
    assert!(primary.shipper.begin_to_count().is_empty());
    primary.now += Duration::from_secs(1);
    assert!(matches!(primary.requests()[0].message, MemberMessage::Copy(_)));
}

/// Management may have marked the member as in sync, although its reply to the primary was lost. So
/// replies wait for the member until a new epoch revokes the request.
#[test]
fn primary_drops_a_silent_member_it_asked_to_mark_as_in_sync() {
    let mut primary = Primary::begin(5);
    primary.shipper.set_members(&[], &[BACKUP]);
    let requests = primary.requests();
    primary.reply(&requests, 5, false);
    assert_eq!(primary.shipper.begin_to_count().len(), 1);
    assert_eq!(primary.changes(), [MemberChange::MarkInSync]);
    let began = primary.now;
    let mut changes = Vec::new();
    while !changes.contains(&MemberChange::Drop) {
        assert!(primary.now < began + 2 * LEASE, "the member is dropped");
        primary.now += Duration::from_millis(100);
        primary.requests();
        changes.extend(primary.changes());
        assert!(!primary.shipper.end_counting(LEASE, primary.now));
    }
    assert_eq!(primary.shipper.counted(), [BACKUP]);
    primary.shipper.begin_epoch(Epoch::new(5));
    assert_eq!(primary.shipper.counted(), [], "management has dropped the member in the new epoch");
}

/// The previous process may have ended before it stored the cluster map in which the member serves.
#[test]
fn restarted_primary_still_waits_for_a_counted_member() {
    let mut primary = Primary::begin(5);
    primary.shipper.continue_to_count(vec![BACKUP]);
    primary.shipper.set_members(&[], &[BACKUP]);
    assert_eq!(primary.shipper.counted(), [BACKUP]);
    assert!(!primary.holds_lease(), "the member has acknowledged nothing yet");
    let began = primary.now;
    let mut changes = Vec::new();
    while changes.is_empty() {
        assert!(primary.now < began + 2 * LEASE, "the member is dropped");
        primary.now += Duration::from_millis(100);
        primary.requests();
        assert!(!primary.shipper.end_counting(LEASE, primary.now));
        changes = primary.changes();
    }
    assert_eq!(
        changes,
        [MemberChange::Drop],
        "the drop revokes the request of the earlier process"
    );
    primary.shipper.begin_epoch(Epoch::new(5));
    primary.shipper.set_members(&[], &[BACKUP]);
    assert_eq!(
        primary.shipper.counted(),
        [],
        "replies wait for the member only in the epoch of the request"
    );
}

/// Regression test: the primary sent only records after the last confirmed one, and the member
/// could append none of them until the next epoch.
#[test]
fn confirmed_records_lost_by_an_absent_member_are_sent_again() {
    let mut primary = Primary::begin(5);
    primary.shipper.set_members(&[], &[BACKUP]);
    let requests = primary.requests();
    primary.reply(&requests, 5, false);
    primary.shipper.append(Epoch::new(4), Lsn::new(6), Lsn::new(5), &record(6, 4).payload);
    (primary.last, primary.synced) = (6, 6);
    let requests = primary.requests();
    assert_eq!(shipped(&requests), [6]);
    primary.reply(&requests, 2, true);
    primary.now += Duration::from_secs(1);
    let requests = primary.requests();
    assert_eq!(shipped(&requests), [3, 4, 5, 6]);
    primary.reply(&requests, 6, false);
    assert_eq!(primary.shipper.begin_to_count().len(), 1);
}

/// The member has confirmed records, and then loses its store. Regression test: the primary sent 64
/// requests without records every 20 ms, and asked to mark the member as in sync.
#[test]
fn member_that_lost_its_store_gets_few_requests() {
    let mut primary = Primary::begin(5);
    primary.shipper.set_members(&[], &[BACKUP]);
    let requests = primary.requests();
    primary.reply(&requests, 5, false);
    assert_eq!(primary.shipper.begin_to_count().len(), 1);
    primary.last = 6;
    primary.shipper.append(Epoch::new(4), Lsn::new(6), Lsn::default(), &record(6, 4).payload);
    let mut sent = 0;
    for _ in 0..20 {
        let requests = primary.requests();
        sent += requests.len();
        let lost = LogHeld {
            epoch: Epoch::new(4),
            is_behind: true,
            needs_copy: true,
            ..LogHeld::default()
        };
        for request in &requests {
            primary.shipper.on_reply(BACKUP, request.number, &Ok(lost), primary.now);
        }
        primary.now += Duration::from_millis(20);
    }
    assert!(sent <= 2 * 20, "{sent} requests in 400 ms");
    primary.last = 5;
    assert_eq!(primary.changes(), [], "the member has no record any more");
}

/// Returns the numbers of the records in the requests.
pub(super) fn shipped(requests: &[MemberRequest]) -> Vec<u64> {
    let numbers = requests.iter().flat_map(|request| match &request.message {
        MemberMessage::Ship(ship) => {
            let first = ship.first.raw();
            first..first + ship.records.len() as u64
        }
        MemberMessage::AwaitSync(_) | MemberMessage::Copy(_) => 0..0,
    });
    numbers.collect()
}
