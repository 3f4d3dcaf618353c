//! Tests of a former primary whose disk hangs (hole H175).

use super::backup::ship;
use super::members::Primary;
use super::*;
use crate::shipping::former_primary::FormerPrimary;
use skep_types::group_change::MemberChange;
use skep_wire::metadata::GetAttributes;

/// Returns the map of epoch 4, in which [`BACKUP`] has become the primary.
fn moved_map() -> ClusterMap {
    let mut moved = ClusterMap::clone(&map(4));
    moved.groups[0].primary = BACKUP;
    moved.groups[0].primary_since = Epoch::new(4);
    moved
}

/// Passes a request of epoch 4 to the former primary. Returns its reply.
fn reply_to<R: Request>(former: &mut FormerPrimary, request: &R) -> Result<LogHeld> {
    match former.handle([arrival(1, 4, request)]).pop() {
        Some(Action::Reply { result, .. }) => result.and_then(|body| LogHeld::from_bytes(&body)),
        other => panic!("the former primary replies, and does not ask for {other:?}"),
    }
}

/// Returns the new primary of epoch 4. The lease that it granted to the former primary ends later
/// than the present time of the new primary.
fn new_primary() -> Primary {
    let (mut member, mut primary) = (Member::begin(3), Primary::begin(3));
    let request = ship(1..1, 0, 0);
    member.handle(vec![arrival(1, 3, &request)], primary.now / 2);
    member.handle(vec![arrival(2, 3, &request)], primary.now);
    member.handle(vec![Event::Map(map(4))], primary.now);
    primary.shipper.succeed(member.backup.into_stopped().succession);
    primary.shipper.set_members(&[PRIMARY], &[]);
    primary
}

/// Regression test: the new primary waited until the lease of the former primary had ended, and
/// until the former primary had been silent for the time of a lease.
#[test]
fn former_primary_with_a_hanging_disk_releases_its_lease() {
    let mut primary = new_primary();
    let mut former = FormerPrimary::new(GROUP, PRIMARY, Arc::new(moved_map()));
    assert!(former.is_awaited() && primary.shipper.answers_from() > primary.now);
    for step in 0..2 {
        assert_eq!(primary.changes(), [], "step {step}");
        let requests = primary.requests();
        assert!(!requests.is_empty(), "the new primary asks without a pause");
        for request in requests {
            let MemberMessage::Ship(ship) = &request.message else { panic!("a comparison") };
            let reply = reply_to(&mut former, ship);
            assert_eq!(reply.is_ok(), step == 0);
            primary.shipper.on_reply(PRIMARY, request.number, &reply, primary.now);
        }
        assert!(primary.shipper.answers_from() <= primary.now, "the lease is released");
        assert!(!primary.holds_lease(), "the former primary grants no lease");
    }
    assert_eq!(primary.changes(), [MemberChange::Drop]);
    assert_eq!(primary.shipper.hanging_disks().collect::<Vec<_>>(), [PRIMARY]);
    primary.shipper.set_members(&[], &[PRIMARY]);
    assert!(primary.holds_lease(), "the new primary serves");
}

#[test]
fn former_primary_replies_only_to_its_successor() {
    let mut former = FormerPrimary::new(GROUP, PRIMARY, map(3));
    assert!(former.is_awaited(), "the map with the new primary arrives later");
    let code = |reply: Result<LogHeld>| reply.unwrap_err().code();
    let next = ShipLog { epoch: Epoch::new(4), ..ship(4..4, 3, 0) };
    assert_eq!(code(reply_to(&mut former, &next)), ErrorCode::StaleMap);
    former.handle([Event::Map(Arc::new(moved_map()))]);
    let read = GetAttributes { inode: skep_types::InodeId::ROOT };
    assert_eq!(code(reply_to(&mut former, &read)), ErrorCode::StaleMap, "a request of a client");
    let held = reply_to(&mut former, &next).unwrap();
    assert_eq!((held.epoch, held.appended, held.synced), (Epoch::new(4), Lsn::new(0), Lsn::new(0)));
    assert_eq!((held.is_behind, held.ship_after, held.lease_ms), (true, Lsn::new(3), 0));
    let wait = AwaitLogSync { epoch: Epoch::new(4), synced: Lsn::default() };
    assert_eq!(code(reply_to(&mut former, &wait)), ErrorCode::DeviceFailed);
    assert_eq!(code(reply_to(&mut former, &next)), ErrorCode::DeviceFailed);
    let mut dropped = moved_map();
    dropped.groups[0].members[0].state = MemberState::Waiting;
    former.handle([Event::Map(Arc::new(dropped))]);
    assert!(!former.is_awaited(), "the new primary does not wait any more");
}
