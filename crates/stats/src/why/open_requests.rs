//! Targets with requests that have no reply for a long time.
//!
//! The phases show only requests that have ended. A request that waits for a frozen disk is in none
//! of them, and its target counts as hung only after a while. Pure: no I/O and no clock.

use super::cause::Cause;
use super::evidence::{Evidence, OpenRequests};
use super::names;
use skep_cluster::problems::Severity;
use skep_types::map::{Condition, Reachability};
use skep_types::{ClusterMap, Target, TargetKind};

/// Age from which a request without a reply is a cause. Requests under heavy load take less.
const LONG_NS: u64 = 3_000_000_000;

/// Returns a cause for each target with a request that is open for long, unless one of the causes
/// in `found` or the state of a target explains it.
pub(super) fn long_open(evidence: &Evidence, map: &ClusterMap, found: &[Cause]) -> Vec<Cause> {
    let is_long = |target: &&Target| {
        evidence.targets.get(&target.id.raw()).is_some_and(|it| it.open.oldest_ns >= LONG_NS)
    };
    let is_named = |target: &Target| {
        found.iter().any(|cause| cause.targets.contains(&target.id.raw())) || !serves(target)
    };
    let of_kind = |kind| map.targets.iter().filter(move |target| target.kind == kind);
    let storage: Vec<_> = of_kind(TargetKind::Storage).filter(is_long).collect();
    // A metadata target may wait for a storage target.
    let is_storage_a_cause = !storage.is_empty() || of_kind(TargetKind::Storage).any(is_named);
    let metadata = of_kind(TargetKind::Metadata).filter(is_long);
    let metadata = metadata.filter(|_| !is_storage_a_cause);
    let all = storage.into_iter().chain(metadata).filter(|target| !is_named(target));
    all.filter_map(|target| {
        let open = evidence.targets.get(&target.id.raw())?.open;
        Some(cause(map, target, &open))
    })
    .collect()
}

/// Whether the map shows no reason why requests wait for a target.
fn serves(target: &Target) -> bool {
    let is_served = matches!(
        target.health.condition,
        Condition::Serving | Condition::Closed | Condition::ReadOnly
    );
    target.reachability == Reachability::Online && is_served
}

fn cause(map: &ClusterMap, target: &Target, open: &OpenRequests) -> Cause {
    let id = target.id.raw();
    let name = names::target(map, id);
    let oldest = names::time(open.oldest_ns);
    let is_over = open.ago_ns > 0;
    let what = match (open.count, is_over) {
        (_, true) => format!(
            "a request to {name} had no reply for {oldest}, {} ago",
            names::time(open.ago_ns)
        ),
        (0 | 1, false) => format!("1 request to {name} has no reply for {oldest}"),
        (count, false) => {
            format!("{count} requests to {name} have no reply, the oldest one for {oldest}")
        }
    };
    let remedy = match target.kind {
        TargetKind::Storage => {
            "its disk may hang: check the disk and the kernel's log of its host; the programs that \
             wait continue when it answers"
        }
        TargetKind::Metadata => {
            "it waits for another target, for a client that holds the file, or for its own disk: \
             `skep transaction list`, `skep lock list` and the log of its service show which"
        }
    };
    Cause {
        rule: "requests-open",
        severity: Severity::Warning,
        object: target.id.to_string(),
        targets: vec![id],
        client: None,
        is_over,
        what,
        remedy: remedy.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::why::tests::{MS, SECOND, change, found as cause_names, healthy, map, times};
    use crate::why::{Thresholds, causes};
    use skep_metrics::Stage;
    use skep_types::TargetId;
    use skep_types::map::TargetHealth;

    fn open(count: u64, seconds: u64) -> OpenRequests {
        OpenRequests { count, oldest_ns: seconds * SECOND, ago_ns: 0 }
    }

    #[test]
    fn request_without_a_reply_is_a_cause_after_three_seconds() {
        let mut evidence = healthy();
        change(&mut evidence, 5).open = open(6, 4);
        // A metadata target waits for the storage target.
        change(&mut evidence, 1).open = open(1, 4);
        let causes_of = |evidence: &Evidence| causes(evidence, &map(), &Thresholds::default());
        let found = causes_of(&evidence);
        let [cause] = &found[..] else { panic!("{found:?}") };
        assert_eq!((cause.rule, cause.object.as_str()), ("requests-open", "t5"));
        let words =
            "6 requests to storage target t5 on storage-2 have no reply, the oldest one for 4";
        assert!(cause.what.starts_with(words), "{}", cause.what);
        // The monitor still knows it when it is over.
        evidence.add(&healthy());
        let found = causes_of(&evidence);
        assert!(found.iter().all(|it| it.is_over), "{found:?}");
        assert!(found[0].what.contains("10 s ago"), "{}", found[0].what);
        // Under load, requests wait for a moment.
        let mut loaded = healthy();
        change(&mut loaded, 5).open = open(100, 2);
        assert_eq!(cause_names(&loaded), []);
        // A metadata target that waits for no storage target.
        change(&mut loaded, 1).open = open(1, 5);
        assert_eq!(cause_names(&loaded), [("requests-open", "t1".to_owned())]);
    }

    #[test]
    fn open_requests_of_a_target_with_another_cause_are_not_named() {
        let mut evidence = healthy();
        change(&mut evidence, 5).open = open(6, 4);
        let mut changed = map();
        let five =
            changed.targets.iter_mut().find(|it| it.id == TargetId::new(5)).expect("target 5");
        five.health = TargetHealth::new(Condition::Hung, "no answer");
        assert_eq!(causes(&evidence, &changed, &Thresholds::default()), []);
        let slow = times(50, Stage::Disk, 400 * MS);
        change(&mut evidence, 5).kinds.insert("write_chunk".into(), slow);
        assert_eq!(cause_names(&evidence), [("target-slow", "t5".to_owned())]);
    }
}
