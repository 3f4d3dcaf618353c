//! Tests of the primary's lease, which the members of its group grant.

use super::members::Primary;
use super::*;
use crate::limits::{LEASE_RENEWAL, MEMBER_PAUSE};

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

/// A member with a shorter `metadata-take-over-after` grants a shorter lease than the primary has
/// requested.
#[test]
fn primary_relies_on_a_lease_only_for_the_time_granted() {
    let mut primary = Primary::begin(3);
    primary.shipper.set_members(&[BACKUP], &[]);
    let began = primary.now;
    // The third lease ends before the second lease, and changes nothing.
    for (granted_ms, end_ms) in [(0, 0), (900, 1_400), (300, 1_400)] {
        let held = LogHeld {
            epoch: Epoch::new(4),
            appended: Lsn::new(3),
            synced: Lsn::new(3),
            ship_after: Lsn::new(3),
            lease_ms: granted_ms,
            ..LogHeld::default()
        };
        let requests = primary.requests();
        assert!(!requests.is_empty(), "the primary renews its lease");
        for request in requests {
            primary.shipper.on_reply(BACKUP, request.number, &Ok(held), primary.now);
        }
        let end = began + Duration::from_millis(end_ms);
        assert!(!primary.shipper.holds_lease(LEASE, end), "granted {granted_ms} ms");
        let before = end - Duration::from_millis(1);
        assert!(granted_ms == 0 || primary.shipper.holds_lease(LEASE, before));
        primary.now += LEASE_RENEWAL;
    }
}

/// A report of an earlier epoch does not show that the previous primary has ended its role.
#[test]
fn only_a_report_of_the_present_epoch_releases_a_lease() {
    let mut member = Member::begin(3);
    let request = ShipLog {
        epoch: Epoch::new(3),
        first: Lsn::new(1),
        previous_epoch: Epoch::default(),
        last: Lsn::default(),
        process: 0,
        records: Vec::new(),
        held: Lsn::default(),
        safe: Lsn::default(),
        syncs_at_once: false,
        wait_ms: 0,
    };
    let began = Duration::from_secs(50);
    member.handle(vec![arrival(1, 3, &request)], began);
    member.handle(vec![arrival(2, 3, &request)], Duration::from_secs(100));
    member.handle(vec![Event::Map(map(4))], Duration::from_secs(100));
    let mut primary = Primary::begin(3);
    primary.shipper.succeed(member.backup.into_stopped().succession);
    primary.shipper.set_members(&[PRIMARY], &[]);
    for (epoch, holds) in [(3, false), (4, true)] {
        let held = LogHeld {
            epoch: Epoch::new(epoch),
            appended: Lsn::new(3),
            synced: Lsn::new(3),
            ship_after: Lsn::new(3),
            lease_ms: 2243,
            ..LogHeld::default()
        };
        for request in primary.requests() {
            primary.shipper.on_reply(PRIMARY, request.number, &Ok(held), primary.now);
        }
        assert_eq!(primary.holds_lease(), holds, "a report of epoch {epoch}");
        primary.now += MEMBER_PAUSE;
    }
}

#[test]
fn primary_of_an_idle_group_renews_its_lease() {
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
