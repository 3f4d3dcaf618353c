//! Tests of members with hanging disks: their removal, their return, and the hand-over by a primary
//! with a hanging disk.

use super::members::Primary;
use super::*;
use crate::limits::{HANG_DAMPING, LEASE_RENEWAL, LONGEST_DAMPING, SILENCE_DAMPING, SYNC_PATIENCE};
use crate::shipping::standing::{LinkRole, Standing};
use skep_types::Error;
use skep_types::group_change::MemberChange;

/// Regression test: all durable replies of the group waited until the disk continued, since the
/// member still confirmed records.
#[test]
fn member_with_a_hanging_disk_is_dropped() {
    let mut primary = Primary::begin(5);
    primary.shipper.set_members(&[BACKUP], &[]);
    let began = primary.now;
    let mut dropped_at = None;
    while dropped_at.is_none() && primary.now < began + 2 * SYNC_PATIENCE {
        let requests = primary.requests();
        primary.reply_with(&requests, (5, 4), false);
        dropped_at = (primary.changes() == [MemberChange::Drop]).then_some(primary.now);
        primary.now += Duration::from_millis(100);
    }
    let hung = dropped_at.expect("the member is dropped") - began;
    assert!(hung >= SYNC_PATIENCE && hung <= SYNC_PATIENCE + LEASE_RENEWAL, "{hung:?}");
    assert_eq!(primary.shipper.hanging_disks().collect::<Vec<_>>(), [BACKUP]);
    assert!(primary.shipper.waits_for_hanging_disk());
}

/// All members may have the same slow disk, or the primary may have written less than the other
/// members.
#[test]
fn member_disk_is_not_hanging_if_the_primary_is_no_faster() {
    let mut primary = Primary::begin(5);
    primary.synced = 4;
    primary.shipper.set_members(&[BACKUP], &[]);
    let began = primary.now;
    while primary.now < began + 2 * SYNC_PATIENCE {
        let requests = primary.requests();
        primary.reply_with(&requests, (5, 4), false);
        primary.now += Duration::from_millis(100);
    }
    assert!(!primary.shipper.waits_for_hanging_disk(), "the primary has not synced record 5");
}

/// Lets the member confirm all records up to `appended` from now on. Checks that the primary counts
/// the member again, and not before [`HANG_DAMPING`].
fn check_damping(primary: &mut Primary, appended: u64) {
    let began = primary.now;
    while primary.shipper.begin_to_count().is_empty() {
        assert!(primary.now < began + 2 * HANG_DAMPING, "the primary counts the member again");
        primary.now += Duration::from_millis(100);
        let requests = primary.requests();
        primary.reply(&requests, appended, false);
    }
    assert!(primary.now >= began + HANG_DAMPING);
}

#[test]
fn returning_member_with_a_hanging_disk_is_not_counted() {
    let mut primary = Primary::begin(5);
    primary.shipper.set_members(&[], &[BACKUP]);
    let requests = primary.requests();
    primary.reply_with(&requests, (5, 4), false);
    assert_eq!(primary.shipper.begin_to_count().len(), 1);
    let began = primary.now;
    while !primary.shipper.end_counting(LEASE, primary.now) {
        assert!(primary.now < began + 2 * SYNC_PATIENCE, "the member is no longer counted");
        primary.now += Duration::from_millis(100);
        let requests = primary.requests();
        primary.reply_with(&requests, (5, 4), false);
    }
    assert_eq!(primary.shipper.begin_to_count().len(), 0);
    check_damping(&mut primary, 5);
}

/// A member confirms only synced records if it has asked to take over, and management may still
/// carry out the request.
#[test]
fn hanging_disk_is_found_if_a_member_confirms_synced_records() {
    let mut primary = Primary::begin(5);
    primary.shipper.set_members(&[BACKUP], &[]);
    let requests = primary.requests();
    primary.reply(&requests, 5, false);
    primary.shipper.append(Epoch::new(4), Lsn::new(6), Lsn::new(5), &record(6, 4).payload);
    (primary.last, primary.synced) = (6, 6);
    let began = primary.now;
    while primary.changes() != [MemberChange::Drop] {
        assert!(primary.now < began + 2 * SYNC_PATIENCE, "the member is dropped");
        primary.now += Duration::from_millis(100);
        let requests = primary.requests();
        primary.reply_with(&requests, (5, 5), false);
    }
    assert!(primary.shipper.waits_for_hanging_disk());
}

#[test]
fn member_that_reports_a_hanging_disk_is_dropped_immediately() {
    let mut primary = Primary::begin(3);
    primary.shipper.set_members(&[BACKUP], &[]);
    let requests = primary.requests();
    let hangs =
        Err(Error::new(ErrorCode::DeviceFailed, "the disk of the member completes no sync"));
    primary.shipper.on_reply(BACKUP, requests[0].number, &hangs, primary.now);
    assert_eq!(primary.changes(), [MemberChange::Drop]);
    assert_eq!(primary.shipper.hanging_disks().collect::<Vec<_>>(), [BACKUP]);
    primary.shipper.begin_epoch(Epoch::new(4));
    primary.shipper.set_members(&[], &[BACKUP]);
    check_damping(&mut primary, 3);
}

/// Each failure of a counted member delays all replies of the group.
#[test]
fn flapping_member_must_be_steady_before_it_is_counted() {
    let mut primary = Primary::begin(5);
    primary.shipper.set_members(&[], &[BACKUP]);
    let mut waits = Vec::new();
    for _ in 0..3 {
        let answers = primary.now;
        loop {
            let requests = primary.requests();
            primary.reply(&requests, 5, false);
            if !primary.shipper.begin_to_count().is_empty() {
                break;
            }
            assert!(primary.now < answers + LONGEST_DAMPING, "the member is counted again");
            primary.now += Duration::from_millis(100);
        }
        waits.push(primary.now - answers);
        while !primary.shipper.end_counting(LEASE, primary.now) {
            primary.now += Duration::from_millis(100);
            let requests = primary.requests();
            primary.fail(&requests);
        }
    }
    assert!(waits[1] < SILENCE_DAMPING, "one failure may be an accident: {waits:?}");
    assert!(waits[2] >= SILENCE_DAMPING, "{waits:?}");
}

#[test]
fn hanging_disk_is_remembered_in_the_next_epoch() {
    let (asked, lsn) = (Duration::from_secs(100), Lsn::new);
    let mut standing = Standing::new(LinkRole::Serving);
    standing.compare_syncs(lsn(4), lsn(5), asked);
    standing.acknowledge(Some(asked + SYNC_PATIENCE / 2), LEASE);
    assert!(!standing.has_hanging_disk() && !standing.of_next_epoch().has_hanging_disk());
    standing.acknowledge(Some(asked + SYNC_PATIENCE), LEASE);
    assert!(standing.has_hanging_disk());
    let mut next = standing.of_next_epoch();
    assert!(!next.has_hanging_disk(), "the member may be stopped now");
    next.acknowledge(Some(asked + 2 * SYNC_PATIENCE), LEASE);
    assert!(next.has_hanging_disk());
    next.compare_syncs(lsn(5), lsn(5), asked + 2 * SYNC_PATIENCE);
    assert!(!next.has_hanging_disk());
}

#[test]
fn successor_has_synced_the_record_that_the_primary_cannot_sync() {
    let mut primary = Primary::begin(5);
    primary.shipper.set_members(&[BACKUP], &[]);
    let hanging = (Lsn::new(5), primary.now);
    for (round, is_found) in [(1, false), (2, true)] {
        let requests = primary.requests();
        primary.confirm_as(&requests, 7, 5);
        let found = primary.shipper.successor(hanging, primary.now, |_| true);
        assert_eq!(found.is_some(), is_found, "the request of round {round} names the process");
        primary.now += LEASE_RENEWAL;
    }
    let later = (Lsn::new(6), hanging.1);
    primary.now += Duration::from_secs(1);
    assert_eq!(primary.shipper.successor(later, primary.now, |_| true), None, "lacks record 6");
    assert_eq!(primary.shipper.successor(hanging, primary.now, |_| true), Some(BACKUP));
    assert_eq!(
        primary.shipper.successor(hanging, primary.now, |_| true),
        None,
        "the primary pauses before its next request"
    );
}
