//! Tests of the records that a primary ships from its log on disk, and of the copy of the store
//! that it sends if the log lacks records.

use super::members::{Primary, shipped};
use super::*;
use crate::limits::KEPT_FOR_ABSENT_BYTES;
use crate::shipping::record_window::record_bytes;
use crate::shipping::{FoundRecords, LogRead};
use skep_wire::log_shipping::{CopyStep, StoreCopied};

/// Returns a primary with the records 1 to 9. The primary has only the records 7 to 9 in memory.
/// Its absent member has only record 1.
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

/// Returns the LSNs of the records that the requests ship. Checks that each request has epoch 4 for
/// the record before the first record of the request.
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
    assert!(primary.shipper.log_reads().is_empty(), "the first read has not ended");
    assert_eq!(primary.shipper.next_due(Lsn::new(9)), None, "the end of the read is an event");
    primary.shipper.on_log_read(BACKUP, Lsn::new(1), on_disk(1, 1..=4));
    let piece = 3 * record_bytes(&Record { payload: payload_of(1), ..record(1, 4) }) as u64;
    assert_eq!(primary.shipper.members(9, primary.now)[0].missing_bytes, Some(piece + 9));
    let requests = primary.requests();
    assert_eq!(
        shipped_after_epoch_4(&requests),
        [2],
        "the primary sends one request until the member has compared its record"
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
    assert_eq!(
        shipped_after_epoch_4(&requests),
        [5, 6],
        "the requests in flight have reached the limit of bytes"
    );
    primary.reply(&requests, 6, false);
    let requests = primary.requests();
    assert_eq!(shipped_after_epoch_4(&requests), [7, 8], "the primary has these records in memory");
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

/// A member without data gets a copy of the present state instead of all earlier changes.
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
fn failed_log_read_makes_the_primary_send_a_copy() {
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

#[test]
fn absent_member_gets_only_records_that_the_primary_has_synced() {
    for serves in [false, true] {
        let mut primary = Primary::begin(3);
        let (serving, absent): (&[_], &[_]) =
            if serves { (&[BACKUP], &[]) } else { (&[], &[BACKUP]) };
        primary.shipper.set_members(serving, absent);
        let requests = primary.requests();
        primary.reply(&requests, 3, false);
        assert_eq!(!primary.shipper.begin_to_count().is_empty(), !serves);
        assert_eq!(primary.shipper.counts_nonserving_member(), !serves);
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
