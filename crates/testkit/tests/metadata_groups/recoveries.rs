//! The metrics of a metadata target count take-overs and the return of a member.

use crate::pair::{METADATA, Pair};
use skep_testkit::{PATIENCE, metrics_page, wait_for};

/// Returns the count and the total duration in seconds of the recoveries of the kind `kind`, from
/// the metrics page of the second service. (The page of the first service is in another network
/// namespace.) `None` means that the service does not reply.
fn recoveries(pair: &Pair, kind: &str) -> Option<(f64, f64)> {
    let page = metrics_page::of_service(&pair.scratch.join(METADATA[1]))?;
    let sample = |suffix: &str| {
        let start = format!("skep_metadata_recovery_seconds_{suffix}{{");
        let is_it = |line: &&str| line.starts_with(&start) && line.contains(kind);
        let (_, value) = page.lines().find(is_it)?.rsplit_once(' ')?;
        value.parse::<f64>().ok()
    };
    Some((sample("count")?, sample("sum")?))
}

#[test]
fn metrics_count_take_overs_and_returns_of_a_member() {
    let [first, second] = METADATA;
    let mut pair = Pair::begin();
    assert_eq!(pair.roles().0, first);
    assert_eq!(recoveries(&pair, "take_over"), Some((0.0, 0.0)));
    pair.kill(first);
    pair.wait_for_primary(second);
    let (_, seconds) = wait_for("the take-over is counted", PATIENCE, || {
        recoveries(&pair, "take_over").filter(|(count, _)| *count == 1.0)
    });
    assert!((0.0..PATIENCE.as_secs_f64()).contains(&seconds), "{seconds}");
    pair.start_service("metadata", first);
    pair.wait_for_serving(2);
    pair.kill(second);
    pair.wait_for_primary(first);
    pair.start_service("metadata", second);
    let (_, seconds) = wait_for("the return is counted", PATIENCE, || {
        recoveries(&pair, "catch_up").filter(|(count, _)| *count >= 1.0)
    });
    assert!(seconds > 0.0, "a return takes time");
    pair.wait_for_serving(2);
    let replays = recoveries(&pair, "log_replay").expect("the service answers");
    assert!(replays.0 >= 1.0, "the new process has opened its log: {replays:?}");
}
