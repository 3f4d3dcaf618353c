//! Rules that need the load of a minute: queues that grow, and the slowest syncs of logs.
//!
//! The monitor has this load, and evaluates the rules each second. `skep health check` measures
//! only for a moment, so it asks the monitor for the findings of these rules ([`RULES`]).
//!
//! The module is pure: it does no I/O and reads no clock.

use crate::why::{Cause, names};
use skep_cluster::problems::Severity;
use skep_metrics::HistogramValue;
use skep_types::{ClusterMap, TargetId};

/// Rules whose findings only the monitor has, because they need the load of a minute or the space
/// of days, or because they are about the monitor itself.
pub const RULES: [&str; 6] = [
    "queue-growing",
    "log-sync-slow",
    "work-uneven",
    crate::filling::RULE,
    "history",
    "metrics-page-hidden",
];

/// Minimum number of syncs of a log. With fewer syncs, the rule does not judge their durations.
const FEWEST_SYNCS: u64 = 20;
/// Share of the syncs of a log that must not take longer than the limit that [`slow_log_syncs`]
/// gets.
const SLOW_SHARE: f64 = 0.99;

/// Returns a finding if the queue of a target is long and becomes longer. `before` and `now` are
/// the mean numbers of waiting requests in two half minutes, one after the other. A queue of at
/// most `limit` requests is not long.
pub fn growing_queue(
    map: &ClusterMap,
    target: TargetId,
    (before, now): (u64, u64),
    limit: u64,
) -> Option<Cause> {
    let is_growing = now > limit && now > before.saturating_add(before / 4);
    is_growing.then(|| Cause {
        rule: "queue-growing",
        severity: Severity::Warning,
        object: target.to_string(),
        targets: vec![target.raw()],
        client: None,
        is_over: false,
        what: format!(
            "the queue of {} grows: {now} requests wait, and half a minute earlier {before} waited",
            names::target(map, target.raw())
        ),
        remedy:
            "`skep stats --by user` and `--by client` show the users and clients that send the \
             requests; the target gets more requests than it can complete"
                .into(),
    })
}

/// Returns a finding if one of a hundred syncs of the log of a metadata target takes longer than
/// `limit_ns`. `syncs` are the durations of the syncs of a minute.
pub fn slow_log_syncs(
    map: &ClusterMap,
    target: TargetId,
    syncs: &HistogramValue,
    limit_ns: u64,
) -> Option<Cause> {
    let slow = u64::try_from(syncs.quantile(SLOW_SHARE)?.as_nanos()).ok()?;
    (syncs.count() >= FEWEST_SYNCS && slow > limit_ns).then(|| Cause {
        rule: "log-sync-slow",
        severity: Severity::Warning,
        object: target.to_string(),
        targets: vec![target.raw()],
        client: None,
        is_over: false,
        what: format!(
            "syncs of the log of {} are slow: one of a hundred takes {} or more",
            names::target(map, target.raw()),
            names::time(slow)
        ),
        remedy: "check the disk of this metadata target, or give the target a faster disk; each \
                 `fsync` waits for such a sync"
            .into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::why::tests::map;
    use std::time::Duration;

    #[test]
    fn only_a_long_and_growing_queue_is_a_finding() {
        let growing = |before, now| growing_queue(&map(), TargetId::new(3), (before, now), 64);
        let found = growing(100, 150).unwrap();
        assert_eq!((found.rule, found.object.as_str()), ("queue-growing", "t3"));
        let words = "the queue of storage target t3 on storage-1 grows: 150 requests wait";
        assert!(found.what.starts_with(words), "{}", found.what);
        assert_eq!(growing(500, 500), None, "a long queue that does not grow");
        assert_eq!(growing(10, 60), None, "a short queue that grows");
    }

    #[test]
    fn log_with_enough_slow_syncs_is_a_finding() {
        let slow = |fast: u32, slow: u32| {
            let mut syncs = HistogramValue::default();
            (0..fast).for_each(|_| syncs.record(Duration::from_millis(1)));
            (0..slow).for_each(|_| syncs.record(Duration::from_millis(400)));
            slow_log_syncs(&map(), TargetId::new(1), &syncs, 100_000_000)
        };
        assert!(slow(95, 5).unwrap().what.contains("metadata target t1 on metadata-1"));
        assert_eq!(slow(999, 1), None, "one of a thousand");
        let mut hung = HistogramValue::default();
        (0..50).for_each(|_| hung.record(Duration::from_millis(1)));
        hung.record(Duration::from_secs(100));
        let found = slow_log_syncs(&map(), TargetId::new(1), &hung, 100_000_000);
        assert!(found.is_some(), "the longest syncs have no upper bound");
        assert_eq!(slow(0, 19), None, "too few");
        assert_eq!(slow(0, 0), None);
    }
}
