//! The primary's lease, and the changes of its group for which it asks management.

use super::*;
use crate::limits::{KEPT_FOR_ABSENT_BYTES, LEASE, LEASE_RENEWAL};
use skep_types::group_change::MemberChange;

/// A shipper with `count` records of epoch 4, all of them held and safe at the primary.
struct Primary {
    shipper: Shipper,
    last: u64,
    now: Duration,
}

impl Primary {
    fn begin(count: u64) -> Self {
        let mut window = RecordWindow::after(Lsn::default());
        (1..=count).for_each(|lsn| window.push(record(lsn, 4)));
        let shipper = Shipper::new(Epoch::new(4), window);
        Self { shipper, last: count, now: Duration::from_secs(100) }
    }

    fn requests(&mut self) -> Vec<MemberRequest> {
        self.shipper.begin_batch(self.now);
        let last = Lsn::new(self.last);
        let log = GroupLog { epoch: Epoch::new(4), held: last, safe: last, sync_wanted: last };
        self.shipper.requests(&log, self.now)
    }

    /// Replies to all requests: the member has the records up to `appended`.
    fn reply(&mut self, requests: &[MemberRequest], appended: u64, is_behind: bool) {
        let lsn = Lsn::new(appended);
        let held = LogHeld {
            epoch: Epoch::new(4),
            appended: if is_behind { Lsn::default() } else { lsn },
            synced: if is_behind { Lsn::default() } else { lsn },
            ship_after: lsn,
            is_behind,
        };
        for request in requests {
            self.shipper.on_reply(BACKUP, request.number, &Ok(held), self.now);
        }
    }

    fn holds_lease(&self) -> bool {
        self.shipper.holds_lease(LEASE, self.now)
    }

    fn changes(&mut self) -> Vec<MemberChange> {
        let held = Lsn::new(self.last);
        let changes = self.shipper.changes(held, &Limits::default(), self.now);
        changes.into_iter().map(|(change, _)| change).collect()
    }
}

#[test]
fn lease_begins_when_the_acknowledged_request_was_sent() {
    let mut primary = Primary::begin(3);
    assert!(primary.holds_lease(), "a group of one needs no lease");
    primary.shipper.set_members(&[BACKUP], &[]);
    assert!(!primary.holds_lease(), "nothing is acknowledged yet");
    let requests = primary.requests();
    primary.now += LEASE - Duration::from_millis(1);
    primary.reply(&requests, 3, false);
    assert!(primary.holds_lease());
    primary.now += Duration::from_millis(1);
    assert!(!primary.holds_lease());
    primary.shipper.set_members(&[], &[BACKUP]);
    assert!(primary.holds_lease(), "the member does not serve");
}

#[test]
fn quiet_group_renews_its_lease() {
    let mut primary = Primary::begin(3);
    primary.shipper.set_members(&[BACKUP], &[]);
    for _ in 0..20 {
        let requests = primary.requests();
        primary.reply(&requests, 3, false);
        assert!(primary.holds_lease());
        let due = primary.shipper.next_due(Lsn::new(3)).expect("a next request");
        assert!(due <= primary.now + LEASE_RENEWAL, "{due:?}");
        primary.now = due;
    }
}

#[test]
fn member_that_does_not_follow_is_dropped() {
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
    assert_eq!(primary.changes(), [], "not again at once");
}

#[test]
fn stopped_primary_drops_no_member_before_it_reads_replies() {
    let mut primary = Primary::begin(3);
    primary.shipper.set_members(&[BACKUP], &[]);
    primary.requests();
    primary.now += 5 * LEASE;
    primary.requests();
    assert_eq!(primary.changes(), []);
    assert!(!primary.holds_lease());
}

#[test]
fn returned_member_is_counted_before_it_serves() {
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
    assert_eq!(primary.shipper.counted(), [BACKUP], "management may have marked it");
}

#[test]
fn member_that_stops_before_it_may_serve_is_not_counted() {
    let mut primary = Primary::begin(5);
    primary.shipper.set_members(&[], &[BACKUP]);
    let requests = primary.requests();
    primary.reply(&requests, 4, false);
    assert_eq!(primary.shipper.begin_to_count().len(), 1);
    let began = primary.now;
    while !primary.shipper.end_counting(&Limits::default(), primary.now) {
        assert!(primary.now < began + 3 * LEASE, "the member is no longer counted");
        primary.now += Duration::from_millis(100);
        primary.requests();
    }
    assert_eq!(primary.shipper.counted(), []);
}

#[test]
fn member_that_lacks_more_than_is_kept_needs_a_copy() {
    let mut primary = Primary::begin(0);
    primary.shipper.set_members(&[], &[BACKUP]);
    let payload = vec![7; KEPT_FOR_ABSENT_BYTES / 4];
    for lsn in 1..=9 {
        primary.shipper.append(Epoch::new(4), Lsn::new(lsn), Lsn::default(), &payload);
    }
    primary.last = 9;
    primary.shipper.release(Lsn::new(9));
    assert!(primary.shipper.kept_bytes() <= KEPT_FOR_ABSENT_BYTES as u64);
    for _ in 0..3 {
        let requests = primary.requests();
        primary.reply(&requests, 1, true);
        primary.now += Duration::from_secs(1);
    }
    assert!(primary.shipper.members(primary.now)[0].needs_copy);
    let requests = primary.requests();
    let MemberMessage::Ship(ship) = &requests[0].message else { panic!("the primary asks again") };
    assert!(ship.records.is_empty(), "records that the member cannot append are not sent");
    assert!(primary.shipper.begin_to_count().is_empty());
    primary.shipper.set_members(&[], &[]);
    primary.shipper.release(Lsn::new(9));
    assert_eq!(primary.shipper.kept_bytes(), 0);
}
