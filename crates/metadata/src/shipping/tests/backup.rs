//! Tests that send single requests to a backup member.

use super::*;
use crate::limits::MAX_SYNC_WAITS;
use crate::shipping::succession::Succession;
use skep_cluster::limits::{CLOCK_DRIFT, MAX_TAKE_OVER_AFTER_MS};
use skep_wire::log_shipping::ShippedRecord;
use skep_wire::metadata::GetAttributes;

pub(super) const NOW: Duration = Duration::from_secs(1);

/// Returns a request in epoch 3 with records of that epoch.
pub(super) fn ship(numbers: std::ops::Range<u64>, previous_epoch: u64, safe: u64) -> ShipLog {
    let first = Lsn::new(numbers.start);
    let shipped = |record: Record| {
        let (epoch, payload) = (record.epoch, Bytes(record.payload));
        ShippedRecord { epoch, payload }
    };
    ShipLog {
        epoch: Epoch::new(3),
        first,
        previous_epoch: Epoch::new(previous_epoch),
        last: Lsn::default(),
        process: 0,
        records: numbers.map(|lsn| shipped(record(lsn, 3))).collect(),
        held: Lsn::new(safe),
        safe: Lsn::new(safe),
        syncs_at_once: false,
        wait_ms: 0,
    }
}

pub(super) fn ask<R: Request>(member: &mut Member, request: &R) -> Result<LogHeld, ErrorCode> {
    member.handle(vec![arrival(1, 3, request)], NOW);
    let (_, result) = member.replies.pop().expect("a reply");
    result.map_err(|error| error.code())
}

fn epochs(member: &Member) -> Vec<u64> {
    member.log.iter().map(|record| record.epoch.raw()).collect()
}

pub(super) fn with_log(epochs: &[u64]) -> Member {
    let log = (1..).zip(epochs).map(|(lsn, epoch)| record(lsn, *epoch)).collect();
    Member::open(MemoryEngine::default(), log, 3, NOW)
}

#[test]
fn member_reports_a_gap_instead_of_appending_records() {
    let mut member = Member::begin(3);
    let held = ask(&mut member, &ship(3..5, 3, 0)).unwrap();
    assert_eq!((held.is_behind, held.ship_after, held.appended), (true, Lsn::new(0), Lsn::new(0)));
    assert_eq!(epochs(&member), [0; 0]);
    let held = ask(&mut member, &ship(1..4, 0, 0)).unwrap();
    assert_eq!((held.is_behind, held.appended), (false, Lsn::new(3)));
}

#[test]
fn member_confirms_only_records_equal_to_those_of_the_primary() {
    let mut member = with_log(&[1, 1, 2]);
    let held = ask(&mut member, &ship(6..6, 3, 0)).unwrap();
    assert_eq!((held.is_behind, held.appended, held.ship_after), (true, Lsn::new(0), Lsn::new(3)));
    // The member's record 3 has another epoch than the primary's record 3, so the primary must ship
    // from record 3 on.
    let held = ask(&mut member, &ship(4..6, 1, 0)).unwrap();
    assert_eq!((held.is_behind, held.appended, held.ship_after), (true, Lsn::new(0), Lsn::new(2)));
    assert_eq!(epochs(&member), [1, 1, 2], "the member removes no record without a replacement");
    let held = ask(&mut member, &ship(3..6, 1, 0)).unwrap();
    assert_eq!((held.is_behind, held.appended), (false, Lsn::new(5)));
    assert_eq!(epochs(&member), [1, 1, 3, 3, 3]);
}

#[test]
fn backup_member_replaces_no_record_during_a_sync_of_the_record() {
    let mut member = with_log(&[1, 1]);
    let at_once = ShipLog { syncs_at_once: true, ..ship(3..4, 1, 0) };
    ask(&mut member, &at_once).unwrap();
    assert_eq!(member.syncing, Some(Lsn::new(3)));
    // Another primary takes over in epoch 4, without record 3.
    member.handle(vec![Event::Map(map(4))], NOW);
    let other = ShipLog { epoch: Epoch::new(4), ..ship(3..3, 1, 0) };
    let other = ShipLog {
        records: vec![ShippedRecord { epoch: Epoch::new(4), payload: Bytes(record(3, 4).payload) }],
        ..other
    };
    member.handle(vec![arrival(1, 4, &other)], NOW);
    let (_, result) = member.replies.pop().unwrap();
    assert_eq!(result.unwrap_err().code(), ErrorCode::Busy);
    member.end_sync(NOW);
    member.handle(vec![arrival(1, 4, &other)], NOW);
    let (_, result) = member.replies.pop().unwrap();
    let held = result.unwrap();
    assert_eq!((held.appended, held.synced), (Lsn::new(3), Lsn::new(2)), "record 3 is not synced");
    assert_eq!(epochs(&member), [1, 1, 4]);
}

#[test]
fn request_of_another_epoch_is_refused() {
    let mut member = with_log(&[1, 1]);
    for epoch in [2, 4] {
        let older = ShipLog { epoch: Epoch::new(epoch), ..ship(3..4, 1, 0) };
        member.handle(vec![arrival(1, epoch, &older)], NOW);
        let (_, result) = member.replies.pop().unwrap();
        assert_eq!(result.unwrap_err().code(), ErrorCode::StaleMap, "epoch {epoch}");
    }
    let older = ShipLog { epoch: Epoch::new(2), ..ship(3..4, 1, 0) };
    assert_eq!(ask(&mut member, &older).unwrap_err(), ErrorCode::StaleMap);
    assert_eq!(epochs(&member), [1, 1]);
}

#[test]
fn member_with_a_map_older_than_its_log_replaces_no_record() {
    let mut member = with_log(&[1, 1, 4]);
    for safe in [0, 2] {
        assert_eq!(ask(&mut member, &ship(3..5, 1, safe)).unwrap_err(), ErrorCode::StaleMap);
    }
    let wait = AwaitLogSync { epoch: Epoch::new(3), synced: Lsn::default() };
    assert_eq!(ask(&mut member, &wait).unwrap_err(), ErrorCode::StaleMap);
    assert_eq!((epochs(&member), member.backup.newest_epoch()), (vec![1, 1, 4], Epoch::new(4)));
    // The primary of a later epoch may replace the record.
    member.handle(vec![Event::Map(map(5))], NOW);
    let newer = ShipLog { epoch: Epoch::new(5), ..ship(3..4, 1, 0) };
    member.handle(vec![arrival(2, 5, &newer)], NOW);
    assert_eq!(member.replies.pop().unwrap().1.unwrap().appended, Lsn::new(3));
    assert_eq!((epochs(&member), member.backup.newest_epoch()), (vec![1, 1, 3], Epoch::new(4)));
}

#[test]
fn backup_member_refuses_client_requests_with_a_stale_map_error() {
    let mut member = Member::begin(3);
    let read = GetAttributes { inode: skep_types::InodeId::ROOT };
    assert_eq!(ask(&mut member, &read).unwrap_err(), ErrorCode::StaleMap);
}

#[test]
fn log_records_of_another_group_are_refused() {
    let mut member = Member::begin(3);
    let mut event = arrival(1, 3, &ship(1..2, 0, 0));
    if let Event::Request { header, .. } = &mut event {
        header.sender_group = GroupId::new(7);
    }
    member.handle(vec![event], NOW);
    let (_, result) = member.replies.pop().unwrap();
    assert_eq!(result.unwrap_err().code(), ErrorCode::Protocol);
}

#[test]
fn member_stores_only_records_that_are_safe_and_synced_locally() {
    let mut member = Member::begin(3);
    ask(&mut member, &ShipLog { syncs_at_once: true, ..ship(1..5, 0, 0) }).unwrap();
    ask(&mut member, &ship(5..6, 3, 2)).unwrap();
    assert_eq!(member.stored(), 0, "no record is synced here");
    member.end_sync(NOW);
    assert_eq!(member.stored(), 2, "only record 2 is safe");
    ask(&mut member, &ship(6..6, 3, 5)).unwrap();
    assert_eq!(member.stored(), 4, "record 5 is not synced here");
}

#[test]
fn backup_member_with_a_full_disk_refuses_records() {
    let mut member = Member::begin(3);
    let shortage = Some("the disk is full".to_owned());
    member.handle(vec![Event::FreeSpace { shortage }], NOW);
    assert_eq!(ask(&mut member, &ship(1..2, 0, 0)).unwrap_err(), ErrorCode::NoSpace);
    member.handle(vec![Event::FreeSpace { shortage: None }], NOW);
    assert_eq!(ask(&mut member, &ship(1..2, 0, 0)).unwrap().appended, Lsn::new(1));
}

#[test]
fn sync_wait_is_answered_after_the_sync_or_its_time_limit() {
    let mut member = Member::begin(3);
    ask(&mut member, &ShipLog { syncs_at_once: true, ..ship(1..3, 0, 0) }).unwrap();
    let wait = AwaitLogSync { epoch: Epoch::new(3), synced: Lsn::default() };
    member.handle(vec![arrival(5, 3, &wait)], NOW);
    assert!(member.replies.is_empty());
    member.end_sync(NOW);
    let (number, result) = member.replies.pop().unwrap();
    assert_eq!((number, result.unwrap().synced), (5, Lsn::new(2)));
    // The next wait ends at its time limit.
    let wait = AwaitLogSync { synced: Lsn::new(2), ..wait };
    member.handle(vec![arrival(6, 3, &wait)], NOW);
    member.handle(vec![Event::Tick], NOW + Duration::from_millis(249));
    assert!(member.replies.is_empty());
    assert_eq!(member.backup.next_tick(), NOW + Duration::from_millis(250));
    member.handle(vec![Event::Tick], NOW + Duration::from_millis(250));
    assert_eq!(member.replies.len(), 1);
}

#[test]
fn requests_that_wait_for_a_sync_are_bounded_in_number() {
    let mut member = Member::begin(3);
    let wait = AwaitLogSync { epoch: Epoch::new(3), synced: Lsn::default() };
    let waits = (0..=MAX_SYNC_WAITS as u64).map(|number| arrival(number, 3, &wait));
    member.handle(waits.collect(), NOW);
    let replied: Vec<_> = member.replies.iter().map(|(number, _)| *number).collect();
    assert_eq!(replied, [0]);
}

/// Sends a request of epoch 3 without records to the present process of the member. `last` is the
/// last record of the primary.
fn beat(member: &mut Member, first: u64, last: u64, now: Duration) {
    let process = member.backup.held().process;
    let beat = ShipLog { last: Lsn::new(last), process, ..ship(first..first, 3, 0) };
    member.handle(vec![arrival(1, 3, &beat)], now);
}

/// Passes a tick at `now`. Returns the field `lacks_records` of the request to take over that the
/// member sends. `None` means that the member sends no request.
pub(super) fn asks(member: &mut Member, now: Duration) -> Option<bool> {
    member.handle(vec![Event::Tick], now);
    member.asked.pop().map(|it| it.lacks_records)
}

#[test]
fn backup_member_asks_to_take_over_after_the_primary_was_silent() {
    let mut member = with_log(&[3, 3]);
    let after = TAKE_OVER_AFTER;
    let step = Duration::from_millis(100);
    let mut now = NOW;
    while now < NOW + after - step {
        now += step;
        assert_eq!(asks(&mut member, now), None, "the earlier process may have replied at {NOW:?}");
    }
    beat(&mut member, 3, 2, now);
    let heard = now;
    while now < heard + after - step {
        now += step;
        assert_eq!(asks(&mut member, now), None);
    }
    now += step;
    assert_eq!(asks(&mut member, now), Some(false));
    assert_eq!(asks(&mut member, now + step), None, "the member pauses before its next request");
    assert_eq!(asks(&mut member, now + 6 * step), Some(false));
}

#[test]
fn resumed_member_reads_pending_messages_before_a_take_over() {
    let mut member = with_log(&[3, 3]);
    beat(&mut member, 3, 2, NOW);
    assert_eq!(asks(&mut member, NOW + Duration::from_secs(10)), None);
}

#[test]
fn member_is_complete_only_with_all_records_of_the_primary() {
    let mut member = with_log(&[3, 3]);
    member.backup.distrust();
    beat(&mut member, 3, 4, NOW);
    assert!(member.backup.lacks_records(), "the primary has four records");
    ask(&mut member, &ship(3..4, 3, 0)).unwrap();
    assert!(member.backup.lacks_records());
    ask(&mut member, &ship(4..5, 3, 0)).unwrap();
    assert!(!member.backup.lacks_records());
}

/// The primary has sent a request to the former process before a power loss of the member. Later
/// requests may have shipped further records before the power loss, and the member may have
/// confirmed these records.
#[test]
fn request_to_a_former_process_does_not_complete_a_member() {
    let mut member = with_log(&[3, 3]);
    member.backup.distrust();
    let process = member.backup.held().process;
    for former in [0, process + 1] {
        let late = ShipLog { last: Lsn::new(2), process: former, ..ship(3..3, 3, 0) };
        assert_eq!(ask(&mut member, &late).unwrap().appended, Lsn::new(2));
        assert!(member.backup.lacks_records());
    }
    beat(&mut member, 3, 2, NOW);
    assert!(!member.backup.lacks_records());
}

/// Regression test: a new epoch counted as a request of the previous primary. The new epoch
/// extended the promise, so a new primary waited twice as long.
#[test]
fn new_epoch_does_not_extend_the_promise_of_a_member() {
    let mut member = with_log(&[3, 3]);
    beat(&mut member, 3, 2, NOW);
    let later = NOW + Duration::from_millis(700);
    member.handle(vec![Event::Map(map(4))], later);
    let succession = member.backup.into_stopped().succession;
    assert_eq!(succession.answers_from(), NOW + TAKE_OVER_AFTER);
}

#[test]
fn member_reports_a_loss_of_records_after_skipped_epochs() {
    let mut member = with_log(&[3, 3]);
    member.handle(vec![Event::Map(map(4))], NOW);
    assert!(!member.backup.lacks_records());
    member.handle(vec![Event::Map(map(4 + (1 << 32)))], NOW);
    assert!(member.backup.lacks_records());
    assert_eq!(asks(&mut member, NOW), None, "the new epoch has just begun");
    let later = NOW + Duration::from_millis(500);
    let silent =
        (0..6).find_map(|step| asks(&mut member, later + 500 * step * Duration::from_millis(1)));
    assert_eq!(silent, Some(true), "management chooses the longest log");
}

/// Sends a request of a primary that still waits for one second for the lease of an earlier
/// primary.
fn waiting_beat(member: &mut Member, now: Duration) {
    let beat = ShipLog { wait_ms: 1000, ..ship(3..3, 3, 0) };
    member.handle(vec![arrival(1, 3, &beat)], now);
}

/// The sum of the wait in [`waiting_beat`] and the largest drift between the two clocks during this
/// wait.
const WAIT: Duration = Duration::from_millis(1025);

/// Returns the succession of a backup member that becomes the primary in `epoch`. The member has
/// received its first request at `began`, and its last request at `last`.
fn succession(began: Duration, last: Duration, epoch: u64) -> Succession {
    let mut member = with_log(&[3, 3]);
    waiting_beat(&mut member, began);
    waiting_beat(&mut member, last);
    member.handle(vec![Event::Map(map(epoch))], last);
    member.backup.into_stopped().succession
}

#[test]
fn release_by_the_previous_primary_shortens_the_lease_wait() {
    let last = NOW + 4 * TAKE_OVER_AFTER;
    let mut succession = succession(NOW, last, 4);
    assert_eq!(succession.answers_from(), last + TAKE_OVER_AFTER);
    succession.on_report(BACKUP);
    assert_eq!(
        succession.answers_from(),
        last + TAKE_OVER_AFTER,
        "the report of another member changes nothing"
    );
    succession.on_report(PRIMARY);
    assert_eq!(succession.answers_from(), NOW + WAIT, "the release has ended the wait");
}

/// The previous primary may itself have waited for the end of its predecessor's lease.
#[test]
fn release_by_a_previous_primary_does_not_end_earlier_leases() {
    let last = NOW + TAKE_OVER_AFTER / 4;
    let mut succession = succession(NOW, last, 4);
    succession.on_report(PRIMARY);
    assert_eq!(succession.answers_from(), NOW + WAIT);
}

/// The member has granted no lease to the primaries for whose leases its own primary still waits.
#[test]
fn new_primary_waits_at_least_as_long_as_its_predecessor() {
    let mut member = with_log(&[3, 3]);
    let waiting = ShipLog { wait_ms: 60_000, ..ship(3..3, 3, 0) };
    member.handle(vec![arrival(1, 3, &waiting)], NOW);
    member.handle(vec![Event::Map(map(4))], NOW);
    let mut succession = member.backup.into_stopped().succession;
    let end = NOW + Duration::from_millis(61_500);
    assert_eq!(
        succession.answers_from(),
        end,
        "the wait includes the largest drift between the two clocks"
    );
    succession.on_report(PRIMARY);
    assert_eq!(succession.answers_from(), end, "the previous primary did not hold these leases");
}

#[test]
fn reported_wait_is_limited_to_the_longest_possible_lease() {
    let mut member = with_log(&[3, 3]);
    let wrong = ShipLog { wait_ms: u32::MAX, ..ship(3..3, 3, 0) };
    member.handle(vec![arrival(1, 3, &wrong)], NOW);
    member.handle(vec![Event::Map(map(4))], NOW);
    let longest = Duration::from_millis(MAX_TAKE_OVER_AFTER_MS.into());
    let end = NOW + longest + longest / CLOCK_DRIFT;
    assert_eq!(member.backup.into_stopped().succession.answers_from(), end);
}

/// A request without a wait shows that the wait of the primary has ended.
#[test]
fn release_by_a_previous_primary_needs_the_end_of_its_own_wait() {
    let mut member = with_log(&[3, 3]);
    waiting_beat(&mut member, NOW);
    let later = NOW + WAIT / 2;
    beat(&mut member, 3, 2, later);
    member.handle(vec![Event::Map(map(4))], later);
    let mut succession = member.backup.into_stopped().succession;
    succession.on_report(PRIMARY);
    assert_eq!(succession.answers_from(), later);
}

#[test]
fn only_a_reply_in_the_present_term_releases_previous_leases() {
    let mut member = with_log(&[3, 3]);
    let of_former = ShipLog { epoch: Epoch::new(2), ..ship(3..3, 3, 0) };
    assert_eq!(ask(&mut member, &of_former).unwrap_err(), ErrorCode::StaleMap);
    assert!(!member.backup.has_acknowledged_primary(), "a refusal releases nothing");
    ask(&mut member, &ship(3..3, 3, 0)).unwrap();
    assert!(member.backup.has_acknowledged_primary());
    member.handle(vec![Event::Map(map(4))], NOW);
    assert!(member.backup.has_acknowledged_primary(), "a later epoch of the same term");
    let mut next = ClusterMap::clone(&map(5));
    next.groups[0].primary_since = Epoch::new(5);
    member.handle(vec![Event::Map(Arc::new(next))], NOW);
    assert!(!member.backup.has_acknowledged_primary(), "the primary of another term has begun");
    let beat = ShipLog { epoch: Epoch::new(5), ..ship(3..3, 3, 0) };
    member.handle(vec![arrival(1, 5, &beat)], NOW);
    assert!(member.backup.has_acknowledged_primary());
}

/// The member sends the reply to `AwaitLogSync` some time after the request has arrived.
#[test]
fn promise_begins_with_the_reply_that_grants_the_lease() {
    let mut member = with_log(&[3, 3]);
    let request = AwaitLogSync { epoch: Epoch::new(3), synced: Lsn::new(2) };
    member.handle(vec![arrival(1, 3, &request)], NOW);
    assert!(member.replies.is_empty(), "the member waits for a sync");
    let later = NOW + Duration::from_millis(300);
    member.handle(vec![Event::Tick], later);
    let (_, reply) = member.replies.pop().expect("the time for the reply has passed");
    assert_eq!(reply.unwrap().lease_ms, 2243);
    let succession = member.backup.into_stopped().succession;
    assert_eq!(succession.answers_from(), later + TAKE_OVER_AFTER);
}

/// Returns a map of epoch 3 with the setting `metadata-take-over-after`.
fn map_with(take_over_after: Duration, version: u64) -> Event {
    let mut map = ClusterMap::clone(&map(3));
    map.version = MapVersion::new(version);
    map.policy.metadata_take_over_after_ms = u32::try_from(take_over_after.as_millis()).unwrap();
    Event::Map(Arc::new(map))
}

const LONG: Duration = Duration::from_secs(12);

#[test]
fn take_over_setting_changes_the_lease_and_the_promise_together() {
    let mut member = with_log(&[3, 3]);
    member.handle(vec![map_with(LONG, 4)], NOW);
    assert_eq!(member.backup.promise_left(), TAKE_OVER_AFTER, "a map alone promises nothing");
    assert_eq!(ask(&mut member, &ship(3..3, 3, 0)).unwrap().lease_ms, 11_512);
    assert_eq!(member.backup.promise_left(), LONG);
    let second = Duration::from_secs(1);
    member.handle(vec![map_with(TAKE_OVER_AFTER, 5)], NOW);
    assert_eq!(ask(&mut member, &ship(3..3, 3, 0)).unwrap().lease_ms, 2243);
    member.handle(vec![Event::Tick], NOW + second);
    assert_eq!(member.backup.promise_left(), LONG - second, "a promise is never shortened");
    assert_eq!(member.backup.into_stopped().succession.answers_from(), NOW + LONG);
}

#[test]
fn member_asks_to_take_over_after_the_time_in_the_settings() {
    let mut member = with_log(&[3, 3]);
    member.handle(vec![map_with(LONG, 4)], NOW);
    beat(&mut member, 3, 2, NOW);
    let step = Duration::from_millis(500);
    let asked = (1..30).find(|number| asks(&mut member, NOW + *number * step).is_some());
    assert_eq!(asked, Some(24));
    let mut member = with_log(&[3, 3]);
    member.handle(vec![map_with(LONG, 4)], NOW);
    beat(&mut member, 3, 2, NOW);
    member.handle(vec![map_with(TAKE_OVER_AFTER, 5)], NOW + step);
    let asked = (2..30).find(|number| asks(&mut member, NOW + *number * step).is_some());
    assert_eq!(asked, Some(5), "the member's promise delays only the member's replies");
}

/// The previous process has made longer promises than the map of this process permits.
#[test]
fn new_primary_waits_for_promises_of_its_earlier_process() {
    let start = super::copy_network::start(3, NOW);
    let mut backup = Backup::open(MemoryEngine::default(), [], start, LONG).unwrap();
    backup.handle([Event::Map(map(4))], NOW + Duration::from_secs(1)).unwrap();
    assert_eq!(backup.into_stopped().succession.answers_from(), NOW + LONG);
}

#[test]
fn release_by_previous_primary_is_ignored_after_a_skipped_epoch() {
    let last = NOW + 4 * TAKE_OVER_AFTER;
    let mut succession = succession(NOW, last, 5);
    succession.on_report(PRIMARY);
    assert_eq!(
        succession.answers_from(),
        last + TAKE_OVER_AFTER,
        "the member has not seen epoch 4"
    );
}

/// The same target is the primary in two terms, and another target is the primary between them.
#[test]
fn ended_wait_of_a_first_term_does_not_count_in_a_second_term() {
    let mut member = with_log(&[3, 3]);
    beat(&mut member, 3, 2, NOW);
    let mut back = ClusterMap::clone(&map(5));
    back.groups[0].primary_since = Epoch::new(5);
    let later = NOW + 4 * TAKE_OVER_AFTER;
    member.handle(vec![Event::Map(Arc::new(back.clone()))], later);
    let request = ShipLog { epoch: Epoch::new(5), wait_ms: 1000, ..ship(3..3, 3, 0) };
    member.handle(vec![arrival(1, 5, &request)], later);
    (back.groups[0].epoch, back.version) = (Epoch::new(6), MapVersion::new(6));
    member.handle(vec![Event::Map(Arc::new(back))], later);
    let mut succession = member.backup.into_stopped().succession;
    succession.on_report(PRIMARY);
    assert_eq!(succession.answers_from(), later + WAIT);
}
