//! The problems that a cluster map shows, each with its remedy. `skep health check` and the monitor
//! show the same problems.
//!
//! Does not own problems that are visible only in connections or in load figures.

use crate::state::kind_word;
use skep_types::map::{CapacityPool, Condition, Consistency, Reachability};
use skep_types::{ClusterMap, NodeId, NodeKind, Target, TargetId, TargetKind};

/// How much a problem hurts users.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Operations of users work, but are slow or will soon fail.
    Warning,
    /// Operations of users fail or wait.
    Critical,
}

/// A problem of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Name of the rule that found the problem, such as `target-down`.
    pub rule: &'static str,
    /// How much the problem hurts users.
    pub severity: Severity,
    /// The target that has the problem.
    pub target: Option<TargetId>,
    /// The affected object and the fact about it.
    pub what: String,
    /// The effect until the problem is repaired, and the remedy for an administrator.
    pub remedy: &'static str,
}

/// Returns the name of a reachability state.
pub fn reachability_word(state: Reachability) -> &'static str {
    match state {
        Reachability::Online => "Online",
        Reachability::ProbablyOffline => "Probably-Offline",
        Reachability::Offline => "Offline",
    }
}

/// Returns the name of a kind of target.
pub fn target_kind_word(kind: TargetKind) -> &'static str {
    match kind {
        TargetKind::Metadata => "metadata",
        TargetKind::Storage => "storage",
    }
}

/// Returns the problems that a cluster map shows, such as targets that are not consistent.
pub fn problems_of_map(map: &ClusterMap) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut add = |rule, what: String, remedy| {
        let (severity, target) = (Severity::Critical, None);
        problems.push(Problem { rule, severity, target, what, remedy });
    };
    if !map.formatted {
        add(
            "not-formatted",
            "the cluster is not formatted".into(),
            "start all its metadata services, then run `skep cluster format`",
        );
    }
    for kind in [NodeKind::Metadata, NodeKind::Storage] {
        if !map.nodes.iter().any(|node| node.kind == kind) {
            add(
                "no-service",
                format!("the cluster has no {} service", kind_word(kind)),
                "initialise and start one; `skep cluster token --cluster DIRECTORY` prints the \
                 token that it needs to join",
            );
        }
    }
    for target in &map.targets {
        if target.consistency == Consistency::Bad {
            problems.extend(lost(map, target));
            continue;
        }
        let found = [reachability, condition, capacity, consistency];
        problems.extend(found.into_iter().filter_map(|rule| rule(map, target)));
        if map.group_of(target.id).is_none() {
            problems.push(problem(
                (map, target),
                ("target-waits", Severity::Warning),
                " waits for a group, and serves nothing until then",
                "run `skep group create` with its id",
            ));
        }
    }
    problems
}

/// Whether all targets of a node are given up as lost. Such a node need not run.
pub fn has_only_lost_targets(map: &ClusterMap, node: NodeId) -> bool {
    let mut targets = map.targets.iter().filter(|target| target.node == node).peekable();
    targets.peek().is_some() && targets.all(|target| target.consistency == Consistency::Bad)
}

/// A target that was given up as lost is a problem only if its directory is back. Its service could
/// then open the directory, but refuses all requests for the target.
fn lost(map: &ClusterMap, target: &Target) -> Option<Problem> {
    let is_served =
        target.reachability == Reachability::Online && target.health.condition != Condition::Down;
    let rule = ("target-lost", Severity::Warning);
    let fact = " was given up as lost, and its directory is back: its service refuses all requests \
                for it";
    let remedy = "take it out of the settings of its service, copy what you need from its \
                  directory, and add the disk as a new target in an empty directory";
    is_served.then(|| problem((map, target), rule, fact, remedy))
}

/// Returns the targets that were given up as lost. Lost targets do not make a cluster unhealthy,
/// since the cluster works without them. But files with bytes on lost targets are damaged until an
/// administrator has restored or removed these files.
pub fn lost_targets(map: &ClusterMap) -> Vec<Problem> {
    let is_lost = |target: &&Target| target.consistency == Consistency::Bad;
    let note = |target: &Target| {
        let name = name_of(map, target);
        let id = target.id.raw();
        Problem {
            rule: "target-given-up",
            severity: Severity::Warning,
            target: Some(target.id),
            what: format!(
                "{name} was given up as lost: reads of the bytes on it return EIO; `skep target \
                 files --paths {id}` lists the files"
            ),
            remedy: "restore these files from a backup, or remove them; then `skep target remove` \
                     removes the target from the cluster",
        }
    };
    map.targets.iter().filter(is_lost).map(note).collect()
}

/// Returns the name of a target for people: its kind, its id, its node and its directory there.
fn name_of(map: &ClusterMap, target: &Target) -> String {
    let Target { id, path, .. } = target;
    let node = map.node(target.node).map_or_else(String::new, |node| format!(" on {}", node.name));
    format!("{} target {id}{node} ({path})", target_kind_word(target.kind))
}

fn problem(
    (map, target): (&ClusterMap, &Target),
    (rule, severity): (&'static str, Severity),
    fact: &str,
    remedy: &'static str,
) -> Problem {
    let what = format!("{}{fact}", name_of(map, target));
    Problem { rule, severity, target: Some(target.id), what, remedy }
}

fn reachability(map: &ClusterMap, target: &Target) -> Option<Problem> {
    let fact = format!(" is {}", reachability_word(target.reachability));
    let remedy = "management receives no heartbeats from its service: check that the service is \
                  running and can connect to management";
    let rule = ("target-offline", Severity::Critical);
    (target.reachability != Reachability::Online)
        .then(|| problem((map, target), rule, &fact, remedy))
}

fn condition(map: &ClusterMap, target: &Target) -> Option<Problem> {
    use Severity::{Critical, Warning};
    let reason = &target.health.problem;
    match target.health.condition {
        Condition::Serving | Condition::Closed if reason.is_empty() => None,
        Condition::Serving | Condition::Closed => Some(problem(
            (map, target),
            ("target-note", Warning),
            &format!(": {reason}"),
            "see \"A metadata target from a copy\" in docs/operations/several-hosts.md",
        )),
        Condition::ReadOnly => Some(problem(
            (map, target),
            ("target-failed", Critical),
            &format!(" refuses writes: {reason}"),
            "new files are placed on other targets; check its disk, then restart the service",
        )),
        Condition::Hung => Some(problem(
            (map, target),
            ("target-hung", Critical),
            &format!(" hangs: {reason}"),
            "operations on its files wait; check its disk and the kernel's log on its host",
        )),
        Condition::Down => Some(problem(
            (map, target),
            ("target-down", Critical),
            &format!(" is not served: {reason}"),
            "operations on its files wait; its service tries again by itself, at most a minute \
             after the problem is solved",
        )),
    }
}

fn capacity(map: &ClusterMap, target: &Target) -> Option<Problem> {
    match target.capacity_pool {
        CapacityPool::Normal => None,
        CapacityPool::Low => Some(problem(
            (map, target),
            ("target-low", Severity::Warning),
            " is low on free space",
            "new files are placed on other targets while these have free space; delete files or \
             add targets",
        )),
        CapacityPool::Emergency => Some(problem(
            (map, target),
            ("target-full", Severity::Critical),
            " is almost full",
            match target.kind {
                TargetKind::Metadata => {
                    "it refuses new files and directories, now or soon; free space on its disk, or \
                     delete files and directories"
                }
                TargetKind::Storage => {
                    "writes to files on it will fail soon; delete files or add targets"
                }
            },
        )),
    }
}

fn consistency(map: &ClusterMap, target: &Target) -> Option<Problem> {
    let fact = " lacks changes that other members of its group have";
    let remedy = match target.kind {
        TargetKind::Metadata => {
            "its group goes on without it; start its service if it does not run: it returns by \
             itself, unless `skep group status` shows that it needs a copy"
        }
        TargetKind::Storage => "it receives no new files until its resync is complete",
    };
    let rule = ("target-inconsistent", Severity::Warning);
    (target.consistency != Consistency::Good).then(|| problem((map, target), rule, fact, remedy))
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::map::TargetHealth;
    use skep_types::{ClusterId, NodeId};

    fn target() -> Target {
        Target {
            reachability: Reachability::Online,
            ..Target::new(TargetId::new(7), TargetKind::Storage, NodeId::new(2), "/d")
        }
    }

    fn map(target: Target) -> ClusterMap {
        let mut map = ClusterMap::empty(ClusterId::default());
        map.formatted = true;
        map.nodes.push(skep_types::Node {
            id: target.node,
            kind: NodeKind::Storage,
            name: "storage-2".into(),
            addresses: Vec::new(),
            domain: String::new(),
            reachability: target.reachability,
            version: String::new(),
        });
        map.targets = vec![target];
        map
    }

    fn rules(target: Target) -> Vec<&'static str> {
        let map = map(target);
        // The target of this test has no group.
        let of_target = problems_of_map(&map)
            .into_iter()
            .filter(|it| it.target.is_some() && it.rule != "target-waits");
        of_target.map(|it| it.rule).collect()
    }

    #[test]
    fn each_bad_state_of_a_target_is_a_listed_problem() {
        assert_eq!(rules(target()), Vec::<&str>::new());
        let offline = Target { reachability: Reachability::Offline, ..target() };
        assert_eq!(rules(offline), ["target-offline"]);
        let full = Target { capacity_pool: CapacityPool::Emergency, ..target() };
        assert_eq!(rules(full), ["target-full"]);
        for (condition, rule) in [
            (Condition::ReadOnly, "target-failed"),
            (Condition::Hung, "target-hung"),
            (Condition::Down, "target-down"),
        ] {
            let health = TargetHealth { condition, problem: "EIO".into() };
            let both = Target { health, consistency: Consistency::NeedsResync, ..target() };
            assert_eq!(rules(both), [rule, "target-inconsistent"]);
        }
    }

    #[test]
    fn problems_of_targets_name_their_node() {
        let offline = map(Target { reachability: Reachability::Offline, ..target() });
        let found = problems_of_map(&offline);
        let found = found.iter().find(|it| it.rule == "target-offline").unwrap();
        assert_eq!(found.what, "storage target t7 on storage-2 (/d) is Offline");
    }

    #[test]
    fn lost_target_is_noted_until_it_is_removed() {
        assert_eq!(lost_targets(&map(target())), []);
        let lost = Target {
            consistency: Consistency::Bad,
            reachability: Reachability::Offline,
            ..target()
        };
        let [note] = &lost_targets(&map(lost))[..] else { panic!("one target is lost") };
        assert!(note.what.contains("t7 on storage-2"), "{}", note.what);
        assert!(note.what.contains("skep target files --paths 7"), "{}", note.what);
    }

    #[test]
    fn lost_target_is_a_problem_only_while_it_is_served() {
        let lost = Target { consistency: Consistency::Bad, ..target() };
        assert_eq!(rules(lost.clone()), ["target-lost"]);
        let offline = Target { reachability: Reachability::Offline, ..lost.clone() };
        assert_eq!(rules(offline), Vec::<&str>::new());
        let health = TargetHealth { condition: Condition::Down, problem: "EIO".into() };
        assert_eq!(rules(Target { health, ..lost }), Vec::<&str>::new());
    }
}
