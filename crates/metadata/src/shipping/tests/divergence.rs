//! Tests of members whose stores have changes that their group lacks: the primary was restored from
//! a backup, and the members with the later changes were dropped (hole H148).

use super::backup::{NOW, ship};
use super::copy_network::{Source, waiting_map};
use super::*;

/// Returns a member that does not serve. The store of the member has the records 1 to 3. Its log
/// has the records 1 to 4, all of epoch 2.
fn with_store_up_to_3() -> Member {
    let mut engine = MemoryEngine::default();
    let mut changes = crate::engine::Mutations::new();
    changes.insert(vec![9, 3], Some(vec![3, 2]));
    engine.apply(&changes, Lsn::new(3)).unwrap();
    let mut member = Member::open(engine, (1..=4).map(|lsn| record(lsn, 2)).collect(), 3, NOW);
    // A new epoch, in which the member does not serve.
    member.handle(vec![Event::Map(waiting_map(3))], NOW);
    member
}

/// Sends a request of epoch 3 without records after the record `before`, whose epoch is
/// `previous_epoch`. `last` is the last record of the primary.
fn probe(
    member: &mut Member,
    (before, previous_epoch): (u64, u64),
    last: u64,
    process: u64,
) -> Result<LogHeld, ErrorCode> {
    let first = before + 1;
    let probe = ShipLog { last: Lsn::new(last), process, ..ship(first..first, previous_epoch, 0) };
    member.handle(vec![arrival(1, 3, &probe)], NOW);
    let (_, result) = member.replies.pop().expect("a reply");
    result.map_err(|error| error.code())
}

#[test]
fn member_with_a_store_ahead_of_its_primary_refuses_requests() {
    let mut member = with_store_up_to_3();
    let held = probe(&mut member, (2, 2), 2, 0).unwrap();
    assert!(held.is_behind && !member.backup.diverges(), "the request may be an old one");
    assert_eq!((held.appended, held.ship_after), (Lsn::default(), Lsn::new(3)));
    assert_eq!(probe(&mut member, (2, 2), 2, held.process), Err(ErrorCode::Corrupt));
    assert!(member.backup.diverges());
    // The primary now has a record 3 too, but with other changes than record 3 of the member.
    assert_eq!(probe(&mut member, (3, 3), 5, held.process), Err(ErrorCode::Corrupt));
    let wait = AwaitLogSync { epoch: Epoch::new(3), synced: Lsn::default() };
    member.handle(vec![arrival(2, 3, &wait)], NOW);
    assert!(member.replies.pop().expect("a reply").1.is_err());
    member.handle(vec![Event::Map(waiting_map(4))], NOW);
    assert!(!member.backup.diverges(), "the primary of the new epoch may have these changes");
}

#[test]
fn member_detects_other_changes_under_the_last_lsn_of_its_store() {
    let mut member = with_store_up_to_3();
    let held = probe(&mut member, (9, 3), 9, 0).unwrap();
    assert_eq!((held.is_behind, held.ship_after), (true, Lsn::new(4)));
    let held = probe(&mut member, (4, 3), 9, held.process).unwrap();
    assert_eq!((held.is_behind, held.ship_after), (true, Lsn::new(3)));
    assert_eq!(probe(&mut member, (3, 3), 9, held.process), Err(ErrorCode::Corrupt));
}

#[test]
fn member_with_an_older_store_follows_its_primary() {
    let mut member = with_store_up_to_3();
    let process = member.backup.held().process;
    let held = probe(&mut member, (3, 2), 9, process).unwrap();
    assert_eq!((held.is_behind, held.appended), (false, Lsn::new(3)));
    let late = probe(&mut member, (2, 2), 2, 0).unwrap();
    assert_eq!((late.is_behind, late.appended), (false, Lsn::new(3)), "a late request");
    assert!(!member.backup.diverges());
}

/// Right after a copy of the store, the log of the member has no record that shows an epoch.
#[test]
fn member_without_a_log_detects_other_changes_after_its_copy() {
    for (known, is_detected) in [(0, false), (2, true)] {
        let engine = with_store_up_to_3().backup.engine().clone();
        let mut member = Member::open(engine, Vec::new(), 3, NOW);
        member.backup.set_epoch_of(Lsn::new(3), Epoch::new(known));
        member.handle(vec![Event::Map(waiting_map(3))], NOW);
        let held = probe(&mut member, (9, 3), 9, 0).unwrap();
        assert_eq!((held.is_behind, held.ship_after), (true, Lsn::new(3)));
        let reply = probe(&mut member, (3, 3), 9, held.process);
        assert_eq!(reply.is_err(), is_detected, "the epoch of record 3 is {known}");
        assert_eq!(member.backup.diverges(), is_detected);
    }
}

/// Returns an incomplete copy of a store after record 80, which has epoch 1.
fn copy_up_to_80() -> MemoryEngine {
    let mut source = Source::begin(80, 0);
    source.send_parts(4);
    assert_eq!(source.member.discards, 1);
    source.member.engine().clone()
}

/// Lets `restored`, the primary that was restored from a backup, continue the copy `engine`. Runs
/// until the member removes this copy, without a check of its contents.
fn run_until_discarded(restored: &mut Source, engine: MemoryEngine) {
    restored.member.discard(restored.now);
    restored.member.open(engine, restored.now);
    restored.member.discards = 0;
    for _ in 0..400 {
        restored.store(u64::MAX);
        restored.ship(Duration::from_millis(1));
        restored.member.end_checkpoint(restored.now);
        restored.now += Duration::from_millis(5);
        let due = std::mem::take(&mut restored.network);
        due.into_iter().for_each(|(_, message)| restored.deliver(message));
        restored.member.handle(vec![Event::Tick], restored.now);
        for (number, message, result) in std::mem::take(&mut restored.member.replies) {
            let reply = super::copy_network::Message::Reply(number, message, result);
            restored.network.push((restored.now, reply));
        }
        if restored.member.discards > 0 {
            break;
        }
    }
    assert_eq!(restored.member.discards, 1, "the copy begins again");
}

/// The primary cannot continue a copy with changes that it lacks.
#[test]
fn copy_that_is_ahead_of_the_primary_begins_again() {
    let mut restored = Source::begin(50, 0);
    run_until_discarded(&mut restored, copy_up_to_80());
    restored.settle();
}

/// The group has continued with other changes, and has more records than the copy by now.
#[test]
fn copy_with_changes_that_the_group_lacks_begins_again() {
    let mut restored = Source::begin(70, 0);
    (0..20).for_each(|seed| restored.append(seed));
    run_until_discarded(&mut restored, copy_up_to_80());
    restored.settle();
}
