//! Shows where many operations of one mount spent their time, according to their records. With this
//! report, a user without the cluster's token can see why the user's own operations are slow.
//!
//! `attribution` splits the time of one operation among its causes. Unlike the statistics of
//! services, the records of a mount include the transfer to the targets and the time in the mount.

use super::{milliseconds, parts};
use crate::operation::Usual;
use crate::why::{Phase, Report, findings_of_map};
use skep_types::ClusterMap;
use skep_wire::traces::TraceRecord;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Maximum number of phases in a report.
const MAX_PHASES: usize = 12;
/// A report omits phases with a smaller share of the whole time than this share.
const SMALLEST_SHARE: f64 = 0.01;
/// Operations whose purpose is to wait for a lock.
const WAITS: [&str; 1] = ["setlkw"];

/// Returns the report about the operations in `records`. These operations ended within the last
/// `span`.
pub fn of_mount(records: &[TraceRecord], map: &ClusterMap, span: Duration) -> Report {
    let mut sums: BTreeMap<(u32, String), Phase> = BTreeMap::new();
    let mut counts: BTreeMap<(u32, String), u32> = BTreeMap::new();
    let (mut requests, mut ms) = (0, 0.0);
    for record in records.iter().filter(|it| !WAITS.contains(&it.operation.as_str())) {
        requests += 1;
        ms += milliseconds(record.duration_us);
        for part in parts(record, map, &Usual::default()) {
            let key = (part.target, part.stage.clone());
            *counts.entry(key.clone()).or_default() += 1;
            let phase = sums.entry(key).or_insert_with(|| Phase {
                share: 0.0,
                target: part.target,
                stage: part.stage,
                what: part.what,
                seconds: 0.0,
                each_ms: 0.0,
                peers_ms: None,
            });
            phase.seconds += part.ms / 1e3;
        }
    }
    let used: BTreeSet<u32> = sums.keys().map(|(target, _)| *target).collect();
    let mut phases: Vec<_> = sums
        .into_iter()
        .map(|(key, mut phase)| {
            phase.share = phase.seconds * 1e3 / f64::max(ms, 1e-3);
            phase.each_ms = phase.seconds * 1e3 / f64::from(counts[&key]);
            phase
        })
        .filter(|phase| phase.share >= SMALLEST_SHARE)
        .collect();
    phases.sort_by(|a, b| b.share.total_cmp(&a.share));
    phases.truncate(MAX_PHASES);
    Report {
        span_seconds: span.as_secs_f64(),
        requests,
        seconds: ms / 1e3,
        phases,
        findings: findings_of_map(map, |target| used.contains(&target.raw())),
        waiting: Vec::new(),
        slowest: Vec::new(),
        unreachable: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::why::tests::map;
    use skep_types::TargetId;
    use skep_types::map::{Condition, TargetHealth};
    use skep_wire::traces::{StageTimes, TraceCall};

    fn operation(name: &str, target: u32, disk_us: u32) -> TraceRecord {
        let call = TraceCall {
            message: 96,
            target: TargetId::new(target),
            begin_us: 0,
            duration_us: disk_us,
            is_failed: false,
            stages: Some(StageTimes { disk_us, ..StageTimes::default() }),
        };
        TraceRecord {
            service: "mount".into(),
            operation: name.into(),
            duration_us: u64::from(disk_us),
            calls: vec![call],
            ..TraceRecord::default()
        }
    }

    #[test]
    fn times_of_mount_operations_are_summed_by_target_and_stage() {
        let records = [
            operation("write", 5, 6_000),
            operation("write", 5, 2_000),
            operation("write", 3, 2_000),
            operation("setlkw", 3, 9_000_000),
        ];
        let mut map = map();
        for target in &mut map.targets {
            target.health = TargetHealth::new(Condition::Hung, "no answer");
        }
        let report = of_mount(&records, &map, Duration::from_secs(3));
        assert_eq!((report.requests, report.span_seconds), (3, 3.0));
        assert!((report.seconds - 0.01).abs() < 1e-9, "{report:?}");
        let phases: Vec<_> =
            report.phases.iter().map(|it| (it.target, it.stage.as_str(), it.each_ms)).collect();
        assert_eq!(phases, [(5, "disk", 4.0), (3, "disk", 2.0)]);
        assert!((report.phases[0].share - 0.8).abs() < 1e-9);
        // The report only has findings about targets that these operations used.
        let objects: Vec<_> = report.findings.iter().map(|it| it.object.as_str()).collect();
        assert!(objects.contains(&"t5") && !objects.contains(&"t6"), "{objects:?}");
    }
}
