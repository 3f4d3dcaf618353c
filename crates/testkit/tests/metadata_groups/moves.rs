//! Tests how long a primary waits for the leases of earlier primaries. After `skep group move`, the
//! previous primary releases its lease, so the new primary does not wait for the end of this lease.
//! After a restart, a primary does not wait for leases that have ended, but it waits for all other
//! leases.

use crate::pair::{Pair, after};
use rustix::process::Signal;
use skep_testkit::{PATIENCE, wait_for};
use std::time::{Duration, Instant};

/// Time between two moves, in which the members exchange requests. After a shorter time, the new
/// primary would also have to wait for the lease of the primary before the previous primary.
const BETWEEN_MOVES: Duration = Duration::from_secs(3);
/// Maximum pause of programs in most moves. Without a release, the new primary replies 2.5 s after
/// the last request of the previous primary.
const USUAL_PAUSE: Duration = Duration::from_millis(1_900);
const MOVES: usize = 5;
/// Number of kills and restarts of the primary.
const RESTARTS: usize = 3;

/// Lease times during which the test can move and restart the primary.
const LONG: [(&str, &str); 2] = [("metadata-take-over-after", "10s"), ("metadata-lease", "8s")];
/// Under `LONG`, a member that confirms a request of its primary promises to reply to no client for
/// this time.
const LONG_PROMISES: Duration = Duration::from_secs(10);
/// Time after which all services have received and stored a new cluster map.
const SPREAD: Duration = Duration::from_secs(2);

/// Number of bytes in the file `member-mark` after the maximum duration of the member's promises:
/// the LSN and the epoch at the end of the last copy, and the checksum.
const AFTER_BOUND: usize = 8 + 8 + 4;

/// Returns the maximum duration of a member's promises, from its file `member-mark`.
fn promise_bound(pair: &Pair, name: &str) -> Duration {
    let path = pair.scratch.join(&format!("{name}-target")).join("member-mark");
    let bytes = std::fs::read(path).expect("a member has a mark");
    let fields = &bytes[..bytes.len() - AFTER_BOUND];
    let bound = fields.last_chunk::<4>().expect("a bound");
    Duration::from_millis(u32::from_le_bytes(*bound).into())
}

/// A restarted primary that waits for the leases of earlier primaries replies 2.5 s after its
/// start. The test restarts the primary immediately after the kill, so the backup member does not
/// take over.
#[test]
fn restarted_primary_does_not_wait_for_leases_that_have_ended() {
    let mut pair = Pair::begin();
    pair.under_load(37, |pair, pauses| {
        let name = pair.move_primary();
        pair.wait_for_primary(name);
        after(BETWEEN_MOVES);
        let mut restarts = Vec::new();
        for _ in 0..RESTARTS {
            pauses.take();
            pair.kill(name);
            pair.start_service("metadata", name);
            let pause = pauses.take();
            assert_eq!(pair.roles().0, name, "the backup took over after {pause:?}");
            restarts.push(pause);
        }
        eprintln!("pauses of the restarts: {restarts:?}");
        restarts.sort();
        assert!(restarts[RESTARTS / 2] < USUAL_PAUSE, "{restarts:?}");
    });
}

/// Command: skep group move.
#[test]
fn moved_primary_does_not_wait_for_the_end_of_the_lease() {
    let mut pair = Pair::begin();
    let mut moves = Vec::new();
    pair.under_load(31, |pair, pauses| {
        for _ in 0..MOVES {
            after(BETWEEN_MOVES);
            pauses.take();
            let name = pair.move_primary();
            pair.wait_for_primary(name);
            moves.push(pauses.take());
        }
    });
    eprintln!("pauses of the moves: {moves:?}");
    moves.sort();
    assert!(moves[MOVES / 2] < USUAL_PAUSE, "{moves:?}");
}

/// The removed member is suspended, so it has not received the map with the other primary. This
/// member may still hold a lease.
///
/// The remaining member has stored the maximum duration of its promises durably. After a restart,
/// this member waits for the whole duration, counted from its start. A member that is killed after
/// the end of its promises has already stored this end, and replies immediately after the restart.
/// On a busy host, the promises may end before the commands of this test. So the test requires the
/// wait only if it has killed the member within `LONG_PROMISES` after a promise.
///
/// Command: skep group remove.
#[test]
fn restarted_primary_waits_for_the_lease_of_a_removed_member() {
    let mut pair = Pair::begin();
    pair.under_load(43, |pair, pauses| {
        for (name, value) in LONG {
            pair.ask(&["config", "set", name, value]).expect_success();
        }
        after(SPREAD);
        let ((former, name), group) = (pair.roles(), pair.group());
        let members = group["members"].as_array().expect("members");
        let member = |is_primary: bool| {
            let found = members.iter().find(|it| it["is_primary"] == is_primary);
            found.expect("one of two members")["target"].to_string()
        };
        let (id, target, backup) = (group["id"].to_string(), member(true), member(false));
        wait_for("the backup member has stored the new duration of promises", PATIENCE, || {
            (promise_bound(pair, name) == LONG_PROMISES).then_some(())
        });
        // The programs make changes during the call, and the backup member confirms these changes.
        // So the last promise of the backup member begins after `began`.
        let began = Instant::now();
        pauses.take();
        pair.signal(former, Signal::STOP);
        // `skep group list` would wait for the suspended member, and the backup member could take
        // over during this wait.
        pair.ask(&["group", "move", &id, &backup]).expect_success();
        for verb in ["drop", "remove"] {
            pair.ask(&["group", verb, &id, &target]).expect_success();
        }
        after(SPREAD);
        pair.kill(name);
        let (killed_after, restarted) = (began.elapsed(), Instant::now());
        pair.start_service("metadata", name);
        pauses.take();
        let waited = restarted.elapsed();
        pair.signal(former, Signal::CONT);
        let measured =
            format!("killed after {killed_after:?}, replied {waited:?} after the restart");
        eprintln!("{measured}");
        assert!(waited >= LONG_PROMISES || killed_after >= LONG_PROMISES, "{measured}");
    });
}
