//! Tests of the lock table: comparison with a model that has a lock for each byte, the order in
//! which waiters are woken, and deadlock cycles.

use super::*;
use crate::limits::{BARRIER, LONGEST_BARRIER, MAX_OVERTAKEN, WAIT_ANSWER, WAKE_RESERVATION};
use proptest::prelude::*;
use skep_format::metadata::Key;
use skep_types::codec::Codec;
use skep_wire::file_locks::LockParty;
use skep_wire::limits::{LOCK_END, MAX_LISTED_WAITS};
use std::ops::Range;

const FILE: InodeId = InodeId::new(9);
const OTHER_FILE: InodeId = InodeId::new(10);

fn request(inode: InodeId, owner: u64, mode: Option<LockMode>, range: Range<u64>) -> LockRequest {
    let (start, end) = (range.start, range.end);
    LockRequest { inode, kind: LockKind::Posix, owner, mode, start, end, pid: 7 }
}

fn session_of(owner: u64) -> SessionId {
    SessionId::new(1 + owner % 2)
}

/// Returns the claim of an owner on [`FILE`]. Owners with even numbers belong to one session,
/// owners with odd numbers to another one.
fn claim(owner: u64, mode: LockMode, range: Range<u64>) -> LockClaim {
    let request = request(FILE, owner, Some(mode), range);
    LockClaim::of(session_of(owner), &request).unwrap()
}

/// Applies a `SetLock`. Returns whether the lock was granted.
fn set(locks: &mut FileLocks, request: &LockRequest, wait: u64) -> bool {
    set_at(NOW, locks, request, wait)
}

fn set_at(now: Duration, locks: &mut FileLocks, request: &LockRequest, wait: u64) -> bool {
    let session = session_of(request.owner);
    let (inode, kind, owner) = (request.inode, request.kind, request.owner);
    let claim = LockClaim::of(session, request);
    if claim.as_ref().is_some_and(|it| locks.obstacle(inode, it, wait, now).is_some()) {
        return false;
    }
    let of = LockOwner { inode, kind, session, owner };
    let value = locks.after(&of, request).map(|record| record.to_bytes());
    locks.on_write(&Key::FileLocks(of).to_bytes(), value.as_deref()).unwrap();
    if let Some(claim) = claim {
        locks.granted(inode, &claim, wait, now);
    }
    true
}

fn lock(locks: &mut FileLocks, owner: u64, mode: LockMode, range: Range<u64>) -> bool {
    set(locks, &request(FILE, owner, Some(mode), range), 0)
}

fn unlock(locks: &mut FileLocks, owner: u64, range: Range<u64>) {
    assert!(set(locks, &request(FILE, owner, None, range), 0));
}

/// Parks a wait of `owner`, whose number is also the id of the wait.
fn wait(locks: &mut FileLocks, owner: u64, mode: LockMode, range: Range<u64>, now: Duration) {
    locks.wait(FILE, claim(owner, mode, range), owner, (owner, Header::default(), now));
}

/// Wakes waiters. Returns each owner that gets a reply, with `true` if the owner was woken, or
/// `false` if the owner must poll again.
fn woken(locks: &mut FileLocks, now: Duration) -> Vec<(u64, bool)> {
    locks.wake(now).iter().map(|it| (it.connection, it.is_woken)).collect()
}

const NOW: Duration = Duration::from_secs(100);
const BYTES: u64 = 12;

proptest! {
    #[test]
    fn range_locks_equal_a_model_with_a_lock_per_byte(
        steps in proptest::collection::vec(
            (0..4_u64, 0..BYTES, 1..BYTES, 0..3_u8), 1..60,
        ),
    ) {
        let mut locks = FileLocks::default();
        let mut model = vec![BTreeMap::new(); BYTES as usize];
        for (owner, start, len, what) in steps {
            let range = start..(start + len).min(BYTES);
            let mode = [None, Some(LockMode::Shared), Some(LockMode::Exclusive)][usize::from(what)];
            let bytes = range.start as usize..range.end as usize;
            let is_free = |at: &BTreeMap<u64, LockMode>| {
                at.iter().all(|(by, held)| {
                    *by == owner
                        || mode.is_none()
                        || (mode, *held) == (Some(LockMode::Shared), LockMode::Shared)
                })
            };
            let expected = model[bytes.clone()].iter().all(is_free);
            let granted = set(&mut locks, &request(FILE, owner, mode, range.clone()), 0);
            prop_assert_eq!(granted, expected);
            if granted {
                for at in &mut model[bytes] {
                    match mode {
                        Some(mode) => drop(at.insert(owner, mode)),
                        None => drop(at.remove(&owner)),
                    }
                }
            }
            let mut found = vec![BTreeMap::new(); BYTES as usize];
            for (_, held) in locks.all() {
                for at in held.start..held.end {
                    prop_assert_eq!(found[at as usize].insert(held.owner, held.mode), None);
                }
            }
            prop_assert_eq!(&found, &model);
        }
        for owner in 0..4 {
            unlock(&mut locks, owner, 0..LOCK_END);
        }
        prop_assert!(locks.files.is_empty() && locks.range_count() == 0);
    }
}

#[test]
fn waiters_are_woken_in_order_and_their_lock_is_reserved() {
    let mut locks = FileLocks::default();
    assert!(lock(&mut locks, 1, LockMode::Exclusive, 0..10));
    for owner in [2, 3] {
        assert!(!lock(&mut locks, owner, LockMode::Exclusive, 0..10));
        wait(&mut locks, owner, LockMode::Exclusive, 0..10, NOW);
    }
    wait(&mut locks, 4, LockMode::Shared, 20..30, NOW);
    assert_eq!(woken(&mut locks, NOW), [(4, true)], "no lock conflicts with this request");
    unlock(&mut locks, 1, 0..10);
    assert_eq!(woken(&mut locks, NOW), [(2, true)]);
    assert!(
        !lock(&mut locks, 5, LockMode::Shared, 0..1),
        "the lock is reserved for a woken waiter"
    );
    assert!(set(&mut locks, &request(FILE, 2, Some(LockMode::Exclusive), 0..10), 2));
    unlock(&mut locks, 2, 0..10);
    assert_eq!(woken(&mut locks, NOW), [(3, true)]);
    // Waiter 3 was woken, but does not set its lock in time.
    let later = NOW + WAKE_RESERVATION;
    wait(&mut locks, 6, LockMode::Shared, 0..10, later);
    assert_eq!(woken(&mut locks, later), [(6, true)]);
    assert!(set(&mut locks, &request(FILE, 6, Some(LockMode::Shared), 0..10), 6));
    // Waiter 4 has not set its lock in time either.
    assert_eq!((locks.wait_count(), locks.waiting.len()), (0, 0));
}

#[test]
fn a_waiter_that_polls_again_keeps_its_queue_position() {
    let mut locks = FileLocks::default();
    assert!(lock(&mut locks, 1, LockMode::Exclusive, 0..10));
    wait(&mut locks, 2, LockMode::Exclusive, 0..10, NOW);
    wait(&mut locks, 3, LockMode::Exclusive, 0..10, NOW + WAKE_RESERVATION);
    let asked_again = NOW + WAIT_ANSWER;
    assert_eq!(woken(&mut locks, asked_again), [(2, false)]);
    wait(&mut locks, 2, LockMode::Exclusive, 0..10, asked_again);
    unlock(&mut locks, 1, 0..10);
    assert_eq!(woken(&mut locks, asked_again), [(2, true)]);
    // The client ends wait 2, so the target wakes waiter 3.
    locks.end_wait((FILE, LockKind::Posix), (session_of(2), 2));
    assert_eq!(woken(&mut locks, asked_again), [(3, true)]);
    assert!(locks.end_waits_of(session_of(3)).is_empty(), "the request has its reply");
    assert_eq!((locks.wait_count(), locks.files.len()), (0, 0));
}

/// Returns the number of readers that get a lock immediately. The owner ids of the readers begin at
/// `from`.
fn readers(locks: &mut FileLocks, from: u64, now: Duration) -> u32 {
    let shared = |owner| request(FILE, owner, Some(LockMode::Shared), 0..10);
    (from..from + 1000).take_while(|owner| set_at(now, locks, &shared(*owner), 0)).count() as u32
}

#[test]
fn readers_overtake_a_writer_a_limited_number_of_times() {
    let mut locks = FileLocks::default();
    assert!(lock(&mut locks, 1, LockMode::Shared, 0..10));
    wait(&mut locks, 2, LockMode::Exclusive, 0..10, NOW + 60 * BARRIER);
    assert_eq!(woken(&mut locks, NOW), []);
    assert_eq!(readers(&mut locks, 10, NOW), MAX_OVERTAKEN);
    assert!(lock(&mut locks, 3, LockMode::Shared, 10..20), "no other file has waiters");
    // The writer's first barrier has ended. The next barrier of the writer is twice as long.
    let later = NOW + BARRIER;
    assert_eq!(woken(&mut locks, later), []);
    assert_eq!(readers(&mut locks, 1000, later), MAX_OVERTAKEN);
    assert_eq!(woken(&mut locks, later + BARRIER), []);
    assert_eq!(readers(&mut locks, 2000, later + BARRIER), 0);
    assert_eq!(readers(&mut locks, 2000, later + 2 * BARRIER), MAX_OVERTAKEN);
}

/// docs/semantics.md 6.4.
#[test]
fn barriers_of_an_overtaken_waiter_last_at_most_ten_minutes() {
    let mut locks = FileLocks::default();
    assert!(lock(&mut locks, 1, LockMode::Shared, 0..10));
    wait(&mut locks, 2, LockMode::Exclusive, 0..10, NOW + 100 * LONGEST_BARRIER);
    let (mut now, mut owner) = (NOW, 1000);
    for seconds in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600] {
        assert_eq!(readers(&mut locks, owner, now), MAX_OVERTAKEN, "before {seconds} s");
        let end = now + Duration::from_secs(seconds);
        let is_blocked = readers(&mut locks, owner + 500, end - Duration::from_millis(1)) == 0;
        assert!(is_blocked, "the barrier ends before {seconds} s");
        (now, owner) = (end, owner + 1000);
    }
}

/// A waiting writer must not block readers forever. The writer may wait for a process that itself
/// waits for locks of these readers, so blocked readers would cause a deadlock. On a single host,
/// the kernel never lets a waiting writer block readers.
#[test]
fn blocked_readers_are_woken_when_the_barrier_ends() {
    let mut locks = FileLocks::default();
    assert!(lock(&mut locks, 1, LockMode::Shared, 0..10));
    assert!(lock(&mut locks, 9, LockMode::Exclusive, 20..30));
    wait(&mut locks, 2, LockMode::Exclusive, 0..30, NOW + 60 * BARRIER);
    for owner in 100..200 {
        wait(&mut locks, owner, LockMode::Shared, 5..25, NOW + 60 * BARRIER);
    }
    assert_eq!(woken(&mut locks, NOW), []);
    // The writer cannot get its lock yet, but the readers can.
    unlock(&mut locks, 9, 20..30);
    let all: Vec<_> = (100..200).map(|owner| (owner, true)).collect();
    assert_eq!(woken(&mut locks, NOW), all);
    for owner in 100..200 {
        let shared = request(FILE, owner, Some(LockMode::Shared), 5..25);
        assert!(set(&mut locks, &shared, owner), "owner {owner} was woken");
    }
    // The overtaken writer now has a barrier, which blocks another reader. An owner that waits for
    // this reader closes no cycle, because the search has no edge from the reader to the writer.
    assert!(!lock(&mut locks, 300, LockMode::Shared, 0..10));
    wait(&mut locks, 300, LockMode::Shared, 0..10, NOW + 60 * BARRIER);
    let elsewhere = request(OTHER_FILE, 300, Some(LockMode::Exclusive), 0..1);
    assert!(set(&mut locks, &elsewhere, 0));
    let of_1 = LockClaim::of(session_of(1), &LockRequest { owner: 1, ..elsewhere }).unwrap();
    assert!(!locks.closes_cycle(OTHER_FILE, &of_1));
    assert_eq!(woken(&mut locks, NOW), []);
    assert_eq!(woken(&mut locks, NOW + BARRIER), [(300, true)]);
    let shared = request(FILE, 300, Some(LockMode::Shared), 0..10);
    assert!(set_at(NOW + BARRIER, &mut locks, &shared, 300));
}

#[test]
fn deadlocks_are_found_across_files_and_sessions() {
    let mut locks = FileLocks::default();
    assert!(lock(&mut locks, 1, LockMode::Exclusive, 0..1));
    assert!(lock(&mut locks, 2, LockMode::Exclusive, 1..2));
    let elsewhere = request(OTHER_FILE, 3, Some(LockMode::Exclusive), 0..1);
    assert!(set(&mut locks, &elsewhere, 0));
    // Owner 1 waits for owner 2, which waits for owner 3. So owner 3 must not wait for owner 1.
    wait(&mut locks, 1, LockMode::Shared, 1..2, NOW);
    let for_3 = LockClaim::of(session_of(2), &LockRequest { owner: 2, ..elsewhere }).unwrap();
    assert!(!locks.closes_cycle(OTHER_FILE, &for_3));
    locks.wait(OTHER_FILE, for_3, 2, (2, Header::default(), NOW));
    let closing = claim(3, LockMode::Exclusive, 0..5);
    assert!(locks.closes_cycle(FILE, &closing));
    assert!(!locks.closes_cycle(FILE, &claim(3, LockMode::Exclusive, 7..8)));
    assert!(!locks.closes_cycle(FILE, &claim(4, LockMode::Exclusive, 0..5)));
    // Without the wait of owner 2 there is no cycle.
    locks.end_wait((OTHER_FILE, LockKind::Posix), (session_of(2), 2));
    assert!(!locks.closes_cycle(FILE, &closing));
}

#[test]
fn queueing_behind_waiters_is_not_a_deadlock() {
    let mut locks = FileLocks::default();
    assert!(lock(&mut locks, 1, LockMode::Exclusive, 0..10));
    wait(&mut locks, 2, LockMode::Exclusive, 0..10, NOW);
    wait(&mut locks, 3, LockMode::Exclusive, 0..10, NOW);
    let of_another_thread = claim(2, LockMode::Exclusive, 0..10);
    assert!(!locks.closes_cycle(FILE, &of_another_thread));
    // A lock that owner 2 holds is an edge of the cycle, unlike a wait of owner 2.
    assert!(lock(&mut locks, 2, LockMode::Exclusive, 20..30));
    wait(&mut locks, 1, LockMode::Exclusive, 20..30, NOW);
    assert!(locks.closes_cycle(FILE, &of_another_thread));
}

#[test]
fn waits_for_different_lock_kinds_form_no_deadlock() {
    let mut locks = FileLocks::default();
    assert!(lock(&mut locks, 1, LockMode::Exclusive, 0..10));
    let flock = |owner, mode| LockRequest {
        kind: LockKind::Flock,
        ..request(OTHER_FILE, owner, Some(mode), 0..LOCK_END)
    };
    assert!(set(&mut locks, &flock(2, LockMode::Exclusive), 0));
    let waiting = LockClaim::of(session_of(1), &flock(1, LockMode::Shared)).unwrap();
    locks.wait(OTHER_FILE, waiting, 1, (1, Header::default(), NOW));
    assert!(!locks.closes_cycle(FILE, &claim(2, LockMode::Exclusive, 0..10)));
}

#[test]
fn search_for_lock_holders_is_bounded_and_counts_skipped_waits() {
    let mut locks = FileLocks::default();
    for owner in 0..100 {
        assert!(lock(&mut locks, owner, LockMode::Shared, 0..10));
    }
    for owner in 100..104 {
        wait(&mut locks, owner, LockMode::Exclusive, 0..10, NOW);
    }
    let both = BTreeMap::from([(SessionId::new(1), 4), (SessionId::new(2), 4)]);
    assert_eq!(locks.waits_by_holder(), (both, 0), "each wait counts once for a session");
    for owner in 104..400 {
        wait(&mut locks, owner, LockMode::Exclusive, 0..10, NOW);
    }
    let (waits, unexamined) = locks.waits_by_holder();
    assert!(unexamined > 250, "{unexamined}");
    assert_eq!(waits[&SessionId::new(1)] + unexamined, 300);
}

#[test]
fn posix_lock_waits_are_listed_in_pages() {
    let mut locks = FileLocks::default();
    assert!(lock(&mut locks, 2, LockMode::Shared, 0..10));
    assert!(lock(&mut locks, 4, LockMode::Shared, 5..10));
    // Waiter 100 waits for both locks. The other waiters wait only for the lock at the beginning of
    // the file.
    wait(&mut locks, 100, LockMode::Exclusive, 0..10, NOW);
    for owner in 101..1000 {
        wait(&mut locks, owner, LockMode::Exclusive, 0..1, NOW);
    }
    let party = |owner| LockParty { session: session_of(owner), owner };
    let (mut found, mut after) = (Vec::new(), Some(LockParty::default()));
    while let Some(from) = after {
        let page = locks.posix_waits(from);
        assert!(page.waits.len() <= MAX_LISTED_WAITS);
        found.extend(page.waits);
        after = page.next;
    }
    found.sort_by_key(|it| it.wait);
    let waits: Vec<_> = found.iter().map(|it| (it.waiter, it.wait)).collect();
    assert_eq!(waits, (100..1000).map(|owner| (party(owner), owner)).collect::<Vec<_>>());
    assert_eq!(found[0].holders, [party(2), party(4)]);
    assert!(found[1..].iter().all(|it| it.holders == [party(2)]));
    // A woken waiter is about to set its lock, so it waits for no owner. `flock` locks have no
    // deadlock detection.
    unlock(&mut locks, 4, 5..10);
    unlock(&mut locks, 2, 0..10);
    assert_eq!(woken(&mut locks, NOW), [(100, true)]);
    let first = locks.posix_waits(LockParty::default());
    assert!(first.waits.iter().all(|it| it.wait != 100 && it.holders.is_empty()));
}

#[test]
fn only_files_with_expired_waits_are_examined() {
    let mut locks = FileLocks::default();
    assert!(lock(&mut locks, 1, LockMode::Exclusive, 0..10));
    let elsewhere = request(OTHER_FILE, 1, Some(LockMode::Exclusive), 0..10);
    assert!(set(&mut locks, &elsewhere, 0));
    assert!(locks.due.is_empty(), "no file has a wait");
    wait(&mut locks, 2, LockMode::Exclusive, 0..10, NOW);
    let due = |at| BTreeSet::from([(at, (FILE, LockKind::Posix))]);
    let answer = NOW + WAIT_ANSWER;
    assert_eq!(locks.due, due(answer));
    assert_eq!(woken(&mut locks, answer), [(2, false)]);
    assert_eq!(locks.due, due(answer + WAKE_RESERVATION));
    locks.check_invariants();
    assert_eq!(woken(&mut locks, answer + WAKE_RESERVATION), []);
    assert!(locks.due.is_empty() && locks.wait_count() == 0);
    locks.check_invariants();
}

/// Regression test: the table kept the wait of the first owner for ever.
#[test]
fn lock_wait_with_a_reused_number_replaces_the_earlier_wait() {
    let mut locks = FileLocks::default();
    assert!(lock(&mut locks, 1, LockMode::Exclusive, 0..10));
    // Owners 2 and 4 belong to one session.
    for owner in [2, 4] {
        let claim = claim(owner, LockMode::Exclusive, 0..10);
        locks.wait(FILE, claim, 9, (owner, Header::default(), NOW));
        locks.check_invariants();
    }
    assert_eq!((locks.wait_count(), locks.waiting.len()), (1, 1));
    assert_eq!(locks.end_waits_of(session_of(2)).len(), 1);
    assert!(locks.waiting.is_empty() && locks.due.is_empty());
}
