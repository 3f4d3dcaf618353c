//! Finds targets with requests that have had no reply for a long time.
//!
//! The phases of a report contain only requests that have ended. A request that waits for a frozen
//! disk is in none of them, and its target counts as hung only after a while. The module is pure:
//! it does no I/O and reads no clock.

use super::cause::Cause;
use super::evidence::{Evidence, OpenRequests};
use super::names;
use skep_cluster::problems::Severity;
use skep_types::map::{Condition, Reachability};
use skep_types::{ClusterMap, Target, TargetKind};

/// Minimum age of a request without a reply that is reported as a cause. Even under heavy load,
/// requests take less time.
const LONG_NS: u64 = 3_000_000_000;

/// Returns a cause for each target with a request that has been open for a long time. Omits a
/// target if one of the causes in `found`, or the state of a target in the map, explains the long
/// time.
pub(super) fn long_open(evidence: &Evidence, map: &ClusterMap, found: &[Cause]) -> Vec<Cause> {
    let is_long = |target: &&Target| {
        evidence.targets.get(&target.id.raw()).is_some_and(|it| it.open.oldest_ns >= LONG_NS)
    };
    let is_named = |target: &Target| {
        found.iter().any(|cause| cause.targets.contains(&target.id.raw())) || !serves(target)
    };
    let of_kind = |kind| map.targets.iter().filter(move |target| target.kind == kind);
    let storage: Vec<_> = of_kind(TargetKind::Storage).filter(is_long).collect();
    // The request may be open because the metadata target waits for a storage target.
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

/// Whether the target is usable according to the map, so that the map does not explain why requests
/// wait.
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
            "check the disk of this target and the kernel's log of its host, because the disk may \
             hang; the programs that wait continue when the target answers"
        }
        TargetKind::Metadata => {
            "`skep transaction list`, `skep lock list` and the log of the service show whether \
             this target waits for another target, for a client that uses the file, or for its own \
             disk"
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
        // The metadata target t1 also has an open request, but this request waits for the storage
        // target t5, so t1 is no cause.
        change(&mut evidence, 1).open = open(1, 4);
        let causes_of = |evidence: &Evidence| causes(evidence, &map(), &Thresholds::default());
        let found = causes_of(&evidence);
        let [cause] = &found[..] else { panic!("{found:?}") };
        assert_eq!((cause.rule, cause.object.as_str()), ("requests-open", "t5"));
        let words =
            "6 requests to storage target t5 on storage-2 have no reply, the oldest one for 4";
        assert!(cause.what.starts_with(words), "{}", cause.what);
        // Add evidence from after the end of the request. The sum must still contain the request.
        evidence.add(&healthy());
        let found = causes_of(&evidence);
        assert!(found.iter().all(|it| it.is_over), "{found:?}");
        assert!(found[0].what.contains("10 s ago"), "{}", found[0].what);
        // Requests that wait only for a moment, as they do under load, are no cause.
        let mut loaded = healthy();
        change(&mut loaded, 5).open = open(100, 2);
        assert_eq!(cause_names(&loaded), []);
        // Now a metadata target has an open request that does not wait for a storage target.
        change(&mut loaded, 1).open = open(1, 5);
        assert_eq!(cause_names(&loaded), [("requests-open", "t1".to_owned())]);
    }

    #[test]
    fn open_requests_are_not_listed_if_a_cause_names_their_target() {
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
