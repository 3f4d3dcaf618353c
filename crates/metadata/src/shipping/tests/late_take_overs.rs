//! Tests of requests to take over that management carries out only after a power loss of the member
//! that has sent the request (hole H35).

use super::backup::{NOW, ask, asks, ship, with_log};
use super::*;

/// Returns a member with two synced records and a third one, which it has appended and not synced
/// yet.
fn with_unsynced_record() -> Member {
    let mut member = with_log(&[3, 3]);
    ask(&mut member, &ship(3..4, 3, 0)).unwrap();
    member
}

#[test]
fn backup_member_asks_to_take_over_only_with_a_synced_log() {
    let mut member = with_unsynced_record();
    let silent = NOW + TAKE_OVER_AFTER;
    for step in 1..5 {
        assert_eq!(asks(&mut member, NOW + step * Duration::from_millis(500)), None);
    }
    assert_eq!(member.syncing, Some(Lsn::new(3)));
    assert_eq!(asks(&mut member, silent), None, "a power loss could remove record 3");
    assert!(member.backup.next_tick() > silent, "the end of the sync is an event");
    member.end_sync(silent);
    assert_eq!(member.asked.pop().map(|it| it.lacks_records), Some(false));
}

/// Management may carry out the request after the host of the member has lost power.
#[test]
fn backup_member_confirms_only_synced_records_after_its_request() {
    let mut member = with_log(&[3, 3]);
    let asked_at = ask_after_silence(&mut member);
    member.handle(vec![arrival(1, 3, &ship(3..4, 3, 0))], asked_at);
    let (_, held) = member.replies.pop().expect("the member appends the record");
    assert_eq!(held.unwrap().appended, Lsn::new(2));
    assert_eq!(member.syncing, Some(Lsn::new(3)), "the reply of the primary waits for this sync");
    member.end_sync(asked_at);
    assert_eq!(member.backup.held().appended, Lsn::new(3));
    member.handle(vec![Event::Map(map(4))], asked_at);
    let records = ship(4..5, 3, 0).records;
    let next = ShipLog { epoch: Epoch::new(4), records, ..ship(4..4, 3, 0) };
    member.handle(vec![arrival(2, 4, &next)], asked_at);
    let (_, held) = member.replies.pop().expect("the member appends the record");
    assert_eq!(held.unwrap().appended, Lsn::new(4), "the request has ended with its epoch");
}

/// Passes ticks without requests of the primary until the member asks to take over. Returns the
/// time of its request.
fn ask_after_silence(member: &mut Member) -> Duration {
    let step = Duration::from_millis(100);
    let asked = (1..40).find(|number| asks(member, NOW + *number * step) == Some(false));
    NOW + asked.expect("the member asks") * step
}

#[test]
fn restarted_take_over_candidate_confirms_only_synced_records() {
    let requested = |counted| {
        let start = Start { counted, ..super::copy_network::start(3, NOW) };
        let mut backup = Backup::open(MemoryEngine::default(), [], start, TAKE_OVER_AFTER).unwrap();
        backup.handle([arrival(1, 3, &ship(1..2, 0, 0))], NOW).unwrap();
        backup.held().appended
    };
    assert_eq!(requested(Vec::new()), Lsn::new(1));
    assert_eq!(requested(vec![BACKUP]), Lsn::new(0));
}
