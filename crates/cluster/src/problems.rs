//! The problems that a cluster map shows, each with its remedy. `skep health check` and the monitor
//! show the same problems.
//!
//! Does not own problems that are visible only in connections or in load statistics.

use crate::state::kind_word;
use skep_types::map::{CapacityPool, Condition, Consistency, KnownReason, Reachability};
use skep_types::{ClusterMap, Group, NodeId, NodeKind, Target, TargetId, TargetKind};

/// How strongly a problem affects users.
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
    /// How strongly the problem affects users.
    pub severity: Severity,
    /// The target that has the problem, or the primary of the group with the problem. `None` if the
    /// problem belongs to the whole cluster.
    pub target: Option<TargetId>,
    /// The affected object, such as a target, and its fault.
    pub what: String,
    /// The effect until the problem is repaired, and the remedy for an administrator.
    pub remedy: &'static str,
}

/// Returns the name of a severity.
pub fn severity_word(severity: Severity) -> &'static str {
    match severity {
        Severity::Warning => "warning",
        Severity::Critical => "critical",
    }
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

/// Returns the problems that a cluster map shows, such as targets whose data is not consistent.
pub fn problems_of_map(map: &ClusterMap) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut add = |rule, what: String, remedy| {
        let (severity, target) = (Severity::Critical, None);
        problems.push(Problem { rule, severity, target, what, remedy });
    };
    for kind in [NodeKind::Metadata, NodeKind::Storage] {
        if !map.nodes.iter().any(|node| node.kind == kind) {
            add(
                "no-service",
                format!("the cluster has no {} service", kind_word(kind)),
                "initialise and start such a service; `skep cluster token --cluster DIRECTORY` \
                 prints the token that the service needs to join",
            );
        }
    }
    // The missing services come first, since a cluster without them cannot be formatted.
    if !map.formatted {
        add(
            "not-formatted",
            "the cluster is not formatted".into(),
            "start all metadata services of the cluster, then run `skep cluster format`",
        );
    }
    for target in &map.targets {
        if target.consistency == Consistency::Bad {
            problems.extend(lost(map, target));
            continue;
        }
        let found = [reachability, condition, capacity, consistency];
        problems.extend(found.into_iter().filter_map(|rule| rule(map, target)));
        let reason = target.health.known_reason();
        if map.group_of(target.id).is_none() && reason != Some(KnownReason::ComparedAfterRestore) {
            problems.push(waiting(map, target));
        }
    }
    problems.extend(map.groups.iter().filter_map(|group| copies(map, group)));
    problems
}

/// Returns the problem of a target that is in no group.
fn waiting(map: &ClusterMap, target: &Target) -> Problem {
    let rule = ("target-waits", Severity::Warning);
    if has_left_its_group(map, target) {
        return problem(
            (map, target),
            rule,
            " has left its group, and its data is worthless",
            "run `skep group add` with the id of a group and of this target, which then gets a new \
             copy; or take the target out of the cluster with `skep target remove`",
        );
    }
    problem(
        (map, target),
        rule,
        " waits for a group, and serves nothing until it is in a group",
        "run `skep group create` with the id of this target, and with ids of waiting targets on \
         other hosts if the setting metadata-copies asks for several copies; or run `skep group \
         add` with the id of a group and of this target",
    )
}

/// Whether an administrator has taken a metadata target out of its group.
fn has_left_its_group(map: &ClusterMap, target: &Target) -> bool {
    target.kind == TargetKind::Metadata
        && target.consistency != Consistency::Good
        && map.group_of(target.id).is_none()
}

/// Returns the problem of a metadata group that has fewer members than the setting
/// `metadata-copies` requires.
fn copies(map: &ClusterMap, group: &Group) -> Option<Problem> {
    let (found, wanted) = (group.members.len(), usize::from(map.policy.metadata_copies));
    if !map.formatted || group.kind != TargetKind::Metadata || found >= wanted {
        return None;
    }
    Some(Problem {
        rule: "group-lacks-copies",
        severity: Severity::Warning,
        target: Some(group.primary),
        what: format!(
            "metadata group {} has {found} of the {wanted} copies that the setting metadata-copies \
             asks for",
            group.id
        ),
        remedy: "start a metadata service with a new target, and run `skep group add` with the id \
                 of this group and of that target; or change the setting metadata-copies",
    })
}

/// Whether all targets of a node are marked as lost. Such a node need not run.
pub fn has_only_lost_targets(map: &ClusterMap, node: NodeId) -> bool {
    let mut targets = map.targets.iter().filter(|target| target.node == node).peekable();
    targets.peek().is_some() && targets.all(|target| target.consistency == Consistency::Bad)
}

/// Returns the problem of a target that was marked as lost. A lost target is a problem only if a
/// service has opened its directory again. The service refuses all requests for this target.
fn lost(map: &ClusterMap, target: &Target) -> Option<Problem> {
    let is_served =
        target.reachability == Reachability::Online && target.health.condition != Condition::Down;
    let rule = ("target-lost", Severity::Warning);
    let fact = " was marked as lost, but its directory is back: its service refuses all requests \
                for this target";
    let remedy = "remove the target from the settings of its service, copy the files that you need \
                  from its directory, and add the disk as a new target in an empty directory";
    is_served.then(|| problem((map, target), rule, fact, remedy))
}

/// Returns the targets that were marked as lost. Lost targets do not make a cluster unhealthy,
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
                "{name} was marked as lost: reads and writes of bytes on this target return EIO, \
                 also writes that extend a file which has lost nothing, and new files in \
                 directories whose pattern names this target fail with ENOSPC; `skep target files \
                 --paths {id}` lists these files and directories"
            ),
            remedy: "restore the files that lost bytes from a backup, or remove them; copy the \
                     other files (`cp -a FILE FILE.new && mv FILE.new FILE`), which places them on \
                     other targets; give the directories other patterns with `skep entry set`; \
                     then `skep target remove` removes the target from the cluster",
        }
    };
    map.targets.iter().filter(is_lost).map(note).collect()
}

/// Returns the name of a target for people: its kind, its id, its node, and its directory on that
/// node.
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
    let remedy = "management receives no heartbeats from the service of this target: check that \
                  the service runs and can connect to management";
    let rule = ("target-offline", Severity::Critical);
    (target.reachability != Reachability::Online)
        .then(|| problem((map, target), rule, &fact, remedy))
}

fn condition(map: &ClusterMap, target: &Target) -> Option<Problem> {
    use Severity::{Critical, Warning};
    let (reason, known) = (&target.health.problem, target.health.known_reason());
    match target.health.condition {
        Condition::Serving | Condition::Closed if reason.is_empty() => None,
        Condition::Serving if known == Some(KnownReason::AwaitsOwnDisk) => Some(problem(
            (map, target),
            ("target-note", Warning),
            &format!(": {reason}"),
            "check that the leader of management answers; if operations of the group stay slow, \
             move its primary with `skep group move`",
        )),
        Condition::Serving if known == Some(KnownReason::ComparedAfterRestore) => Some(problem(
            (map, target),
            ("target-note", Warning),
            &format!(" is in no group after a restore of management: {reason}"),
            "keep this target: it may have the newest changes of its group, and management makes \
             it a member again; if this takes longer, see \"Management\" in \
             docs/operations/backups.md",
        )),
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
            "check the disk of this target, then restart its service; new files are placed on \
             other targets",
        )),
        Condition::Hung => Some(problem(
            (map, target),
            ("target-hung", Critical),
            &format!(" hangs: {reason}"),
            "check the disk of this target and the kernel's log on its host; operations on its \
             files wait, unless another member of its group serves them",
        )),
        // The target serves again after a moment, so this is no problem.
        Condition::Down if known == Some(KnownReason::Reopens) => None,
        Condition::Down if known == Some(KnownReason::Unreported) => Some(problem(
            (map, target),
            ("target-down", Critical),
            &format!(" is not served: {reason}"),
            "add the directory of this target to `targets` in the settings of its service, and \
             restart the service; operations on its files wait, unless another member of its group \
             serves them",
        )),
        Condition::Down if known == Some(KnownReason::ComparedAfterRestore) => Some(problem(
            (map, target),
            ("target-down", Critical),
            &format!(": {reason}"),
            "operations on files of the group wait until the named members have reported their \
             logs: if this takes longer, start the services of these members; if a member is lost, \
             see \"Management\" in docs/operations/backups.md",
        )),
        Condition::Down => Some(problem(
            (map, target),
            ("target-down", Critical),
            &format!(" is not served: {reason}"),
            "solve the problem; the service opens the target again at most a minute later; until \
             then, operations on its files wait, unless another member of its group serves them",
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
            "delete files or add targets; new files are placed on other targets while those have \
             free space",
        )),
        CapacityPool::Emergency if target.capacity.is_full() => Some(problem(
            (map, target),
            ("target-full", Severity::Critical),
            " is full",
            match target.kind {
                TargetKind::Metadata => {
                    "free up space on the disk of this target, or delete files and directories; \
                     new files and directories fail with ENOSPC"
                }
                TargetKind::Storage => {
                    "delete files or add targets, and give other patterns to directories whose \
                     pattern names this target: `skep target files --paths ID` lists these \
                     directories and the files on the target; writes that need space on this \
                     target fail with ENOSPC"
                }
            },
        )),
        CapacityPool::Emergency => Some(problem(
            (map, target),
            ("target-full", Severity::Critical),
            " is almost full",
            match target.kind {
                TargetKind::Metadata => {
                    "free up space on the disk of this target, or delete files and directories; \
                     the target already refuses new files and directories, or refuses them soon"
                }
                TargetKind::Storage => {
                    "delete files or add targets, and give other patterns to directories whose \
                     pattern names this target: `skep target files --paths ID` lists these \
                     directories and the files on the target; writes to files on this target will \
                     fail soon"
                }
            },
        )),
    }
}

fn consistency(map: &ClusterMap, target: &Target) -> Option<Problem> {
    let fact = " lacks changes that other members of its group have";
    let remedy = match target.kind {
        TargetKind::Metadata => {
            "start the service of this target if it does not run. As soon as it runs, the target \
             gets the changes from its group, and `skep group status` shows how many it lacks. The \
             group continues without this target meanwhile"
        }
        TargetKind::Storage => "this target receives no new files until its resync is complete",
    };
    let rule = ("target-inconsistent", Severity::Warning);
    let is_incomplete = target.consistency != Consistency::Good && !has_left_its_group(map, target);
    is_incomplete.then(|| problem((map, target), rule, fact, remedy))
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::map::TargetHealth;
    use skep_types::{ClusterId, GroupId, GroupMember, MemberState, NodeId};

    const COPIES: &str = "group-lacks-copies";

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
    fn remedy_for_a_slow_primary_disk_is_to_move_the_primary() {
        let health = TargetHealth::new(Condition::Serving, KnownReason::AwaitsOwnDisk.text());
        let problems = problems_of_map(&map(Target { health, ..target() }));
        let noted = problems.iter().find(|it| it.rule == "target-note").unwrap();
        assert!(noted.what.contains("replies of the group wait"), "{}", noted.what);
        assert!(noted.remedy.contains("skep group move"), "{}", noted.remedy);
    }

    #[test]
    fn problem_of_a_target_without_a_group_names_a_remedy() {
        let text = format!("{}: t7, t8", KnownReason::ComparedAfterRestore.text());
        let health = TargetHealth::new(Condition::Serving, &text);
        let metadata = Target { kind: TargetKind::Metadata, health, ..target() };
        let found = problems_of_map(&map(metadata.clone()));
        let of_target: Vec<_> = found.iter().filter(|it| it.target.is_some()).collect();
        let [problem] = &of_target[..] else { panic!("{of_target:?}") };
        assert!(problem.what.ends_with("t7, t8"), "{}", problem.what);
        assert!(problem.remedy.contains("keep this target"), "{}", problem.remedy);
        let health = TargetHealth::new(Condition::Down, &text);
        let found = problems_of_map(&map(Target { health, ..metadata }));
        let down = found.iter().find(|it| it.rule == "target-down").expect("a problem");
        assert!(down.remedy.contains("named members"), "{}", down.remedy);
    }

    #[test]
    fn missing_services_are_reported_before_a_missing_format() {
        let empty = ClusterMap { formatted: false, ..ClusterMap::empty(ClusterId::default()) };
        let rules: Vec<_> = problems_of_map(&empty).into_iter().map(|it| it.rule).collect();
        assert_eq!(rules, ["no-service", "no-service", "not-formatted"]);
    }

    #[test]
    fn each_bad_state_of_a_target_is_reported_as_a_problem() {
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
    fn target_that_left_its_group_is_one_problem_with_a_remedy() {
        let consistency = Consistency::NeedsResync;
        let found =
            problems_of_map(&map(Target { kind: TargetKind::Metadata, consistency, ..target() }));
        let of_target: Vec<_> = found.iter().filter(|it| it.target.is_some()).collect();
        let [problem] = &of_target[..] else { panic!("{of_target:?}") };
        assert!(problem.what.contains("has left its group"), "{}", problem.what);
        assert!(problem.remedy.contains("skep group add"), "{}", problem.remedy);
        assert!(!problem.remedy.contains("skep group create"), "{}", problem.remedy);
    }

    #[test]
    fn metadata_group_with_too_few_copies_is_a_problem() {
        let metadata = Target { kind: TargetKind::Metadata, ..target() };
        let mut map = map(metadata);
        map.groups = vec![Group::of_one(GroupId::new(3), TargetKind::Metadata, TargetId::new(7))];
        assert_eq!(problems_of_map(&map).iter().filter(|it| it.rule == COPIES).count(), 0);
        map.policy.metadata_copies = 2;
        let found = problems_of_map(&map);
        let found = found.iter().find(|it| it.rule == COPIES).expect("a problem");
        assert!(
            found.what.starts_with("metadata group g3 has 1 of the 2 copies"),
            "{}",
            found.what
        );
        map.groups[0]
            .members
            .push(GroupMember { target: TargetId::new(8), state: MemberState::Waiting });
        assert!(problems_of_map(&map).iter().all(|it| it.rule != COPIES));
    }

    #[test]
    fn problem_of_a_target_names_the_node_of_the_target() {
        let offline = map(Target { reachability: Reachability::Offline, ..target() });
        let found = problems_of_map(&offline);
        let found = found.iter().find(|it| it.rule == "target-offline").unwrap();
        assert_eq!(found.what, "storage target t7 on storage-2 (/d) is Offline");
    }

    #[test]
    fn lost_target_is_listed_until_its_removal() {
        assert_eq!(lost_targets(&map(target())), []);
        let lost = Target {
            consistency: Consistency::Bad,
            reachability: Reachability::Offline,
            ..target()
        };
        let [note] = &lost_targets(&map(lost))[..] else { panic!("one target is lost") };
        assert!(note.what.contains("t7 on storage-2"), "{}", note.what);
        assert!(note.what.contains("skep target files --paths 7"), "{}", note.what);
        // `skep target files` does not list a file that has no bytes on the target yet, but a write
        // that makes the file grow onto the target fails. So the text must mention such files.
        assert!(note.what.contains("writes that extend a file"), "{}", note.what);
        assert!(note.remedy.contains("copy the other files"), "{}", note.remedy);
    }

    #[test]
    fn lost_target_is_a_problem_only_while_its_service_runs() {
        let lost = Target { consistency: Consistency::Bad, ..target() };
        assert_eq!(rules(lost.clone()), ["target-lost"]);
        let offline = Target { reachability: Reachability::Offline, ..lost.clone() };
        assert_eq!(rules(offline), Vec::<&str>::new());
        let health = TargetHealth { condition: Condition::Down, problem: "EIO".into() };
        assert_eq!(rules(Target { health, ..lost }), Vec::<&str>::new());
    }
}
