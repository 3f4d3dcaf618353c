//! Moves of the primary by an administrator. The former primary releases its lease, so the new one
//! need not wait until the lease ends.

use crate::pair::{Pair, after};
use std::time::Duration;

/// Time in which the members exchange requests before the next move. If the lease of the primary
/// before the former one may not have ended, the new primary waits for this lease too.
const BETWEEN_MOVES: Duration = Duration::from_secs(3);
/// Maximum pause of programs in most moves. Without a release, the new primary replies 2.5 s after
/// the last request of the former one.
const USUAL_PAUSE: Duration = Duration::from_millis(1_900);
const MOVES: usize = 5;

/// Command: skep group move.
#[test]
fn moved_primary_does_not_wait_for_the_end_of_the_lease() {
    let mut pair = Pair::begin();
    let mut moves = Vec::new();
    pair.under_load(31, |pair, pauses| {
        for _ in 0..MOVES {
            after(BETWEEN_MOVES);
            pauses.take();
            let group = pair.group();
            let members = group["members"].as_array().expect("members");
            let backup = members.iter().find(|it| it["is_primary"] == false).expect("a backup");
            let (id, target) = (group["id"].to_string(), backup["target"].to_string());
            let name = pair.roles().1;
            pair.ask(&["group", "move", &id, &target]).expect_success();
            pair.wait_for_primary(name);
            moves.push(pauses.take());
        }
    });
    eprintln!("pauses of the moves: {moves:?}");
    moves.sort();
    assert!(moves[MOVES / 2] < USUAL_PAUSE, "{moves:?}");
}
