//! Tests of the changes of its group that the primary requests from management.

use super::*;
use crate::limits::{KEPT_FOR_ABSENT_BYTES, LEASE_RENEWAL};
use crate::shipping::record_window::record_bytes;
use crate::shipping::{FoundRecords, LogRead, Progress};
use skep_types::Error;
use skep_types::group_change::MemberChange;
use skep_wire::log_shipping::{CopyStep, StoreCopied};

/// The shipper of a primary whose records all have epoch 4.
pub(super) struct Primary {
    pub(super) shipper: Shipper,
    last: u64,
    /// Last record that the primary has synced.
    synced: u64,
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
    fn reply_with(&mut self, requests: &[MemberRequest], progress: (u64, u64), is_behind: bool) {
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

    /// Replies to all requests as the process `process` of a member, which has all records up to
    /// `appended` and appends no others.
    fn confirm_as(&mut self, requests: &[MemberRequest], process: u64, appended: u64) {
        let (epoch, last) = (Epoch::new(4), Lsn::new(appended));
        let (appended, synced, ship_after) = (last, last, last);
        let held = LogHeld { epoch, appended, synced, ship_after, process, ..LogHeld::default() };
        for request in requests {
            self.shipper.on_reply(BACKUP, request.number, &Ok(held), self.now);
        }
    }

    pub(super) fn holds_lease(&self) -> bool {
        self.shipper.holds_lease(LEASE, self.now)
    }

    fn changes(&mut self) -> Vec<MemberChange> {
        let needed = Progress { appended: Lsn::new(self.last), synced: Lsn::new(self.synced) };
        let changes = self.shipper.changes(needed, LEASE, self.now);
        changes.into_iter().map(|(change, _)| change).collect()
    }
}

#[test]
fn member_without_replies_for_a_lease_is_dropped() {
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

/// Replies to the first request as a member whose service stops.
fn refuse_as_stopping(primary: &mut Primary, requests: &[MemberRequest]) {
    let stops = Err(Error::new(ErrorCode::NotReady, "the service of the target stops"));
    primary.shipper.on_reply(BACKUP, requests[0].number, &stops, primary.now);
}

#[test]
fn stopping_member_is_dropped_at_once() {
    let mut primary = Primary::begin(3);
    primary.shipper.set_members(&[BACKUP], &[]);
    let requests = primary.requests();
    primary.reply(&requests, 3, false);
    primary.now += LEASE_RENEWAL;
    let requests = primary.requests();
    assert_eq!(primary.changes(), []);
    refuse_as_stopping(&mut primary, &requests);
    assert_eq!(primary.changes(), [MemberChange::Drop]);
    assert_eq!(primary.shipper.counted(), [BACKUP], "until management has dropped it");
}

/// A former primary that stops confirms one request, which does not name its process, before it
/// refuses all others.
#[test]
fn member_is_complete_after_a_request_that_names_its_process() {
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
    assert_eq!(primary.shipper.complete_since(later), [], "only after an earlier request");
    primary.now = later;
    assert_eq!(primary.requests().len(), 0);
    primary.shipper.renew_leases();
    let requests = primary.requests();
    assert_eq!(requests.len(), 1, "although no renewal is due");
    primary.confirm_as(&requests, 8, 3);
    assert_eq!(primary.shipper.complete_since(later), [BACKUP]);
    primary.now += LEASE_RENEWAL;
    let requests = primary.requests();
    refuse_as_stopping(&mut primary, &requests);
    assert_eq!(primary.shipper.complete_since(later), [], "its service stops");
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
fn stopping_member_no_longer_counts_for_watermarks() {
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
fn returned_member_counts_for_watermarks_before_serving() {
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

/// Replies that promise durability may have left before the member counted.
#[test]
fn returned_member_serves_only_after_it_has_synced_safe_records() {
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
fn returned_and_stopped_member_ends_its_count_for_watermarks() {
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

/// Regression test: the primary of a young group, which still had all records, waited for a member
/// without a store with each reply, and sent it no copy.
#[test]
fn member_without_a_store_counts_only_after_a_copy() {
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

/// Management may have marked the member as in sync, although the reply was lost. So the primary
/// waits for the member until management has revoked the request.
#[test]
fn counted_member_is_dropped_when_its_service_stops() {
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
    assert_eq!(primary.shipper.counted(), [], "management has dropped it in the new epoch");
}

/// The earlier process may have ended before it stored the cluster map in which the member serves.
#[test]
fn restarted_primary_waits_for_its_earlier_counted_member() {
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
    assert_eq!(changes, [MemberChange::Drop], "this revokes the request of the earlier process");
    primary.shipper.begin_epoch(Epoch::new(5));
    primary.shipper.set_members(&[], &[BACKUP]);
    assert_eq!(primary.shipper.counted(), [], "only in the epoch of the request");
}

/// Regression test: the primary sent only records after the confirmed ones, and the member refused
/// all of them until the next epoch.
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

/// The member confirmed records, lost its store, and then confirms nothing. Regression test: the
/// primary sent 64 requests without records every 20 ms, and asked to mark the member as in sync.
#[test]
fn counted_member_without_its_store_gets_few_requests() {
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

/// Returns a primary whose last 9 records are half in memory, and that has an absent member with
/// the record 1.
fn primary_with_old_records() -> Primary {
    let mut primary = Primary::begin(0);
    primary.shipper.set_members(&[], &[BACKUP]);
    for lsn in 1..=9 {
        let payload = payload_of(lsn);
        primary.shipper.append(Epoch::new(4), Lsn::new(lsn), Lsn::default(), &payload);
    }
    (primary.last, primary.synced) = (9, 9);
    primary.shipper.release(Lsn::new(9), KEPT_FOR_ABSENT_BYTES);
    assert!(primary.shipper.kept_bytes() <= KEPT_FOR_ABSENT_BYTES as u64);
    let requests = primary.requests();
    assert_eq!(shipped_after_epoch_4(&requests)[0], 7, "the first record in memory");
    primary.reply(&requests, 1, true);
    primary.now += Duration::from_secs(1);
    primary
}

fn payload_of(lsn: u64) -> Vec<u8> {
    vec![lsn as u8; KEPT_FOR_ABSENT_BYTES / 4]
}

fn on_disk(begins: u64, lsn: std::ops::RangeInclusive<u64>) -> Result<FoundRecords> {
    let record = |lsn| Record { payload: payload_of(lsn), ..record(lsn, 4) };
    Ok(FoundRecords {
        begins: Lsn::new(begins),
        records: lsn.map(record).collect(),
        bytes_after: 9,
    })
}

/// Returns the numbers of the records that the requests ship. Checks the epoch of the record before
/// them.
fn shipped_after_epoch_4(requests: &[MemberRequest]) -> Vec<u64> {
    for request in requests {
        if let MemberMessage::Ship(ship) = &request.message {
            assert_eq!(ship.previous_epoch, Epoch::new(4));
        }
    }
    shipped(requests)
}

#[test]
fn member_gets_older_records_from_the_log_on_disk() {
    let mut primary = primary_with_old_records();
    assert_eq!(primary.requests().len(), 0, "nothing is sent before the records are read");
    let read = primary.shipper.log_reads();
    let before = primary.shipper.members(9, primary.now)[0].clone();
    assert_eq!((before.needs_copy, before.missing_bytes), (false, None));
    let last = Lsn::new(9 - primary.shipper.kept_bytes() / payload_of(1).len() as u64);
    assert_eq!(read, [LogRead { member: BACKUP, first: Lsn::new(1), last }]);
    assert!(primary.shipper.log_reads().is_empty(), "one read at a time");
    assert_eq!(primary.shipper.next_due(Lsn::new(9)), None, "the end of the read is an event");
    primary.shipper.on_log_read(BACKUP, Lsn::new(1), on_disk(1, 1..=4));
    let piece = 3 * record_bytes(&Record { payload: payload_of(1), ..record(1, 4) }) as u64;
    assert_eq!(primary.shipper.members(9, primary.now)[0].missing_bytes, Some(piece + 9));
    let requests = primary.requests();
    assert_eq!(
        shipped_after_epoch_4(&requests),
        [2],
        "one request until the member has compared its record"
    );
    assert!(primary.shipper.begin_to_count().is_empty(), "the member lacks more than few records");
    primary.reply(&requests, 2, false);
    let requests = primary.requests();
    assert_eq!(shipped_after_epoch_4(&requests), [3, 4]);
    assert_eq!(primary.shipper.log_reads()[0].first, Lsn::new(4));
    primary.reply(&requests, 4, false);
    primary.now += Duration::from_secs(1);
    assert_eq!(shipped_after_epoch_4(&primary.requests()), []);
    let due = primary.shipper.next_due(Lsn::new(9));
    assert!(due.is_none_or(|due| due > primary.now), "no request is due during a read");
    primary.shipper.on_log_read(BACKUP, Lsn::new(4), on_disk(1, 4..=last.raw()));
    let requests = primary.requests();
    assert_eq!(shipped_after_epoch_4(&requests), [5, 6], "the limit of bytes under way");
    primary.reply(&requests, 6, false);
    let requests = primary.requests();
    assert_eq!(shipped_after_epoch_4(&requests), [7, 8], "from memory");
    primary.reply(&requests, 8, false);
    let requests = primary.requests();
    assert_eq!(shipped_after_epoch_4(&requests), [9]);
    primary.reply(&requests, 9, false);
    assert_eq!(primary.shipper.begin_to_count().len(), 1);
    assert_eq!(primary.shipper.members(9, primary.now)[0].missing_bytes, Some(0));
}

#[test]
fn member_gets_a_copy_if_the_log_on_disk_begins_too_late() {
    let mut primary = primary_with_old_records();
    primary.requests();
    assert_eq!(primary.shipper.log_reads().len(), 1);
    primary.shipper.on_log_read(
        BACKUP,
        Lsn::new(1),
        on_disk(3, std::ops::RangeInclusive::new(1, 0)),
    );
    assert!(primary.shipper.members(9, primary.now)[0].needs_copy);
    let requests = primary.requests();
    let MemberMessage::Copy(ask) = &requests[0].message else { panic!("the primary asks") };
    assert_eq!(ask.step, CopyStep::Ask, "records that the member cannot append are not sent");
    let copied = |applied| StoreCopied {
        epoch: Epoch::new(4),
        is_copying: false,
        is_whole: false,
        applied: Lsn::new(applied),
        after: Bytes(Vec::new()),
        pair_count: 0,
        pair_bytes: 0,
        checksum: 0,
    };
    let number = requests[0].number;
    primary.shipper.on_copy_reply(BACKUP, number, &Ok(copied(1)), primary.now);
    primary.now += Duration::from_secs(1);
    let requests = primary.requests();
    let MemberMessage::Copy(begin) = &requests[0].message else { panic!("the copy begins") };
    let expected = (CopyStep::Begin, Lsn::new(4));
    assert_eq!((begin.step, begin.first), expected, "the log has the epoch of record 3");
    let number = requests[0].number;
    primary.shipper.on_copy_reply(BACKUP, number, &Ok(copied(3)), primary.now);
    assert_eq!(primary.requests().len(), 0, "the log on disk has the next record");
    assert_eq!(primary.shipper.log_reads()[0].first, Lsn::new(3));
}

/// A target without data gets the present state, not all changes that led to it.
#[test]
fn member_without_any_record_gets_a_copy() {
    let mut primary = Primary::begin(0);
    primary.shipper.set_members(&[], &[BACKUP]);
    for lsn in 1..=9 {
        primary.shipper.append(Epoch::new(4), Lsn::new(lsn), Lsn::default(), b"");
    }
    (primary.last, primary.synced) = (9, 9);
    primary.shipper.release(Lsn::new(5), 0);
    let requests = primary.requests();
    primary.reply(&requests, 0, true);
    primary.now += Duration::from_secs(1);
    let requests = primary.requests();
    assert!(matches!(requests[0].message, MemberMessage::Copy(_)));
    assert!(primary.shipper.log_reads().is_empty());
}

#[test]
fn read_that_fails_makes_the_primary_send_a_copy() {
    let mut primary = primary_with_old_records();
    primary.requests();
    primary.shipper.log_reads();
    primary.shipper.on_log_read(BACKUP, Lsn::new(1), Err(ErrorCode::Corrupt.into()));
    primary.now += Duration::from_secs(1);
    assert!(matches!(primary.requests()[0].message, MemberMessage::Copy(_)));
    assert!(primary.shipper.begin_to_count().is_empty());
    primary.shipper.set_members(&[], &[]);
    primary.shipper.release(Lsn::new(9), KEPT_FOR_ABSENT_BYTES);
    assert_eq!(primary.shipper.kept_bytes(), 0);
}

/// The numbers of the records in the requests.
fn shipped(requests: &[MemberRequest]) -> Vec<u64> {
    let numbers = requests.iter().flat_map(|request| match &request.message {
        MemberMessage::Ship(ship) => {
            let first = ship.first.raw();
            first..first + ship.records.len() as u64
        }
        MemberMessage::AwaitSync(_) | MemberMessage::Copy(_) => 0..0,
    });
    numbers.collect()
}

#[test]
fn member_that_does_not_serve_gets_only_synced_records() {
    for serves in [false, true] {
        let mut primary = Primary::begin(3);
        let (serving, absent): (&[_], &[_]) =
            if serves { (&[BACKUP], &[]) } else { (&[], &[BACKUP]) };
        primary.shipper.set_members(serving, absent);
        let requests = primary.requests();
        primary.reply(&requests, 3, false);
        assert_eq!(!primary.shipper.begin_to_count().is_empty(), !serves);
        assert_eq!(primary.shipper.ships_after_sync(), !serves);
        primary.last = 4;
        let (epoch, lsn) = (Epoch::new(4), Lsn::new(4));
        primary.shipper.append(epoch, lsn, Lsn::new(3), &record(4, 4).payload);
        let at_once = shipped(&primary.requests());
        primary.synced = 4;
        let after_sync = shipped(&primary.requests());
        let expected: (&[u64], &[u64]) = if serves { (&[4], &[]) } else { (&[], &[4]) };
        assert_eq!((at_once.as_slice(), after_sync.as_slice()), expected, "serves: {serves}");
    }
}
