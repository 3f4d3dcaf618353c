//! The waiting requests in the report of `skep health check`, and the problems that follow from
//! these requests.
//!
//! If the service of a target does not accept connections, the requests for this target are no
//! separate problem. [`explained`] adds a clause about these requests to the problem of the
//! service.

use super::problem::{Problem, Since};
use crate::output::span;
use crate::wait_chain::{Wait, chain, silent_targets, with_node};
use serde::Serialize;
use skep_types::{ClusterMap, GroupId, NodeId, NodeKind, TargetId, TargetKind};
use skep_wire::management::NodeWait;
use std::collections::BTreeSet;

/// The remedy if requests wait for a group that the cluster map does not have.
const UNKNOWN_GROUP: &str = "the map has no target of this group, since the target was removed, or \
                             management was restored from a backup that is older than the target. \
                             The file `storage-group` in the directory of a storage target \
                             contains the id of its group: start the service of the target whose \
                             file has this id. The target joins again with its ids, and the \
                             programs continue. If its disk is lost, restore a newer backup of \
                             management and mark the target as lost, or remove the files that \
                             programs wait for, and restore these files from a backup";

/// The requests of a node that have had no reply for more than 5 seconds, as JSON.
#[derive(Debug, Serialize)]
pub(super) struct WaitReport {
    node: u32,
    /// Name of the node. For a mount: its host and mount point.
    name: String,
    /// Id of the group that the requests are for. `None` if a service has accepted the requests and
    /// does not reply.
    group: Option<u32>,
    target: Option<u32>,
    waits_ms: u64,
    requests: u32,
    /// The last error, or a description of the oldest request without a reply.
    error: String,
}

impl WaitReport {
    fn target(&self) -> Option<TargetId> {
        self.target.map(TargetId::new)
    }
}

pub(super) fn wait_report(map: &ClusterMap, waiting: &NodeWait) -> WaitReport {
    let NodeWait { node, wait } = waiting;
    WaitReport {
        node: node.raw(),
        name: map.node(*node).map_or_else(|| node.to_string(), |it| it.name.clone()),
        group: Some(wait.group.raw()).filter(|group| *group != 0),
        target: map.primary(wait.group).map(|target| target.id.raw()),
        waits_ms: wait.since_ms,
        requests: wait.requests,
        error: wait.error.clone(),
    }
}

/// Returns the problems of the waits that no other problem explains. `unserved` has the targets
/// whose service does not accept connections.
pub(super) fn problems(
    waits: &[WaitReport],
    unserved: &BTreeSet<TargetId>,
    map: &ClusterMap,
) -> Vec<Problem> {
    let is_explained =
        |wait: &WaitReport| wait.target().is_some_and(|target| unserved.contains(&target));
    let shown = waits.iter().filter(|wait| !is_explained(wait));
    shown.map(|wait| wait_problem(wait, waits, unserved, map)).collect()
}

/// Returns the clause about the requests that wait for the targets of a node. Returns an empty text
/// if no request waits for these targets.
pub(super) fn explained(waits: &[WaitReport], node: NodeId, map: &ClusterMap) -> String {
    let is_of = |target: TargetId| map.target(target).is_some_and(|it| it.node == node);
    let of_node: Vec<_> = waits.iter().filter(|it| it.target().is_some_and(is_of)).collect();
    let names: BTreeSet<_> = of_node.iter().map(|it| it.name.as_str()).collect();
    let names: Vec<_> = names.into_iter().collect();
    let requests: u32 = of_node.iter().map(|it| it.requests).sum();
    match of_node.iter().map(|it| it.waits_ms).max() {
        None => String::new(),
        Some(oldest) => format!(
            "; {} for this service, for up to {}, at {}",
            requests_wait(requests),
            span(oldest),
            names.join(", ")
        ),
    }
}

fn requests_wait(count: u32) -> String {
    match count {
        1 => "1 request waits".to_owned(),
        count => format!("{count} requests wait"),
    }
}

/// Returns the problem of a mount whose requests have no reply, although a service has accepted
/// them.
fn unanswered_problem(
    wait: &WaitReport,
    all: &[WaitReport],
    unserved: &BTreeSet<TargetId>,
    map: &ClusterMap,
) -> Problem {
    let WaitReport { node, name, requests, error, .. } = wait;
    let requests = match requests {
        1 => "1 request of a program waits".to_owned(),
        count => format!("{count} requests of programs wait"),
    };
    let known = all.iter().filter_map(|it| {
        Some(Wait { node: NodeId::new(it.node), target: it.target.map(TargetId::new)? })
    });
    let unreachable = silent_targets(error).find(|target| unserved.contains(target));
    let remedy = match (unreachable, chain(error, known, map)) {
        (Some(target), _) => format!(
            "the program waits for {}, whose service is unreachable, as another problem in this \
             list shows: the program continues when this target answers",
            with_node(target, map)
        ),
        (None, Some(chain)) => format!("{chain}: the program continues when this target answers"),
        (None, None) => {
            "the service has accepted the request and does not reply: the service waits for its \
             disk, for another service or for a client, or the network to the service was \
             interrupted in the last seconds. The other problems in this list, `skep transaction \
             list` and the log of the service show the cause"
                .to_owned()
        }
    };
    Problem {
        key: format!("requests-wait {node}"),
        rule: "requests-wait",
        what: format!(
            "{name}: {requests} for a reply, and the oldest has waited {}: {error}",
            span(wait.waits_ms)
        ),
        remedy: format!("{remedy}; `skep entry path INODE` prints the path of the file"),
        since: Some(Since::before(skep_env::wall_time(), wait.waits_ms)),
        ..Problem::default()
    }
}

fn wait_problem(
    wait: &WaitReport,
    all: &[WaitReport],
    unserved: &BTreeSet<TargetId>,
    map: &ClusterMap,
) -> Problem {
    let Some(group) = wait.group else { return unanswered_problem(wait, all, unserved, map) };
    let WaitReport { name, requests, error, .. } = wait;
    let target = match wait.target {
        Some(target) => format!("target {target}"),
        None => format!("group {group}"),
    };
    // Metadata targets send requests to storage targets that remove and truncate chunk files, or
    // read the sizes of files whose writer has died. No program waits for a removal.
    let is_of_metadata =
        map.nodes.iter().any(|it| it.id.raw() == wait.node && it.kind == NodeKind::Metadata);
    let kind = map.group(GroupId::new(group)).map(|it| it.kind);
    let remedy = match kind {
        None => UNKNOWN_GROUP,
        Some(TargetKind::Storage) if is_of_metadata => {
            "check the service of the target. When the target answers, the metadata target \
             continues to remove and truncate chunk files, and recovers the sizes of files whose \
             writer has died. Until then the space of removed files is not free, and some programs \
             wait: those that use a file on the target after a truncation, and those that lock a \
             file there whose writer has died"
        }
        Some(_) => "check the service of the target; the programs continue when the target answers",
    };
    Problem {
        key: format!("requests-wait {} {group}", wait.node),
        rule: "requests-wait",
        what: format!(
            "{name}: {} for {target}, and the oldest has waited {}: {error}",
            requests_wait(*requests),
            span(wait.waits_ms)
        ),
        remedy: remedy.into(),
        since: Some(Since::before(skep_env::wall_time(), wait.waits_ms)),
        ..Problem::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_cluster::state::kind_word;
    use skep_types::{ClusterId, Group, Node, Target};

    /// Returns a map with the nodes of a metadata target t2, a storage target t4 and a client.
    fn map() -> ClusterMap {
        let mut map = ClusterMap::empty(ClusterId::default());
        let nodes = [(2, NodeKind::Metadata), (4, NodeKind::Storage), (9, NodeKind::Client)];
        for (id, kind) in nodes {
            map.nodes.push(Node::online(NodeId::new(id), kind, kind_word(kind)));
        }
        for (id, kind) in [(2, TargetKind::Metadata), (4, TargetKind::Storage)] {
            map.targets.push(Target::new(TargetId::new(id), kind, NodeId::new(id), "/d"));
        }
        map.groups.push(Group::of_one(GroupId::new(4), TargetKind::Storage, TargetId::new(4)));
        map
    }

    fn wait(node: u32, group: Option<u32>, error: &str) -> WaitReport {
        WaitReport {
            node,
            name: "it".into(),
            group,
            target: group,
            waits_ms: 9000,
            requests: 1,
            error: error.into(),
        }
    }

    #[test]
    fn remedy_differs_for_waiting_services_and_waiting_programs() {
        let none = BTreeSet::new();
        let problem =
            |node, group| wait_problem(&wait(node, group, "no answer"), &[], &none, &map());
        let remedy = |node| problem(node, Some(4)).remedy;
        for words in ["removed files is not free", "after a truncation", "whose writer has died"] {
            assert!(remedy(2).contains(words), "{}", remedy(2));
        }
        assert!(remedy(9).contains("the programs continue"), "{}", remedy(9));
        let accepted = problem(9, None);
        assert_eq!(
            accepted.what,
            "it: 1 request of a program waits for a reply, and the oldest has waited 9.0s: no \
             answer"
        );
    }

    /// Hole H197 in `docs/tests/holes.md`.
    #[test]
    fn wait_for_a_group_missing_after_a_restore_names_the_remedy() {
        let wait = WaitReport { target: None, ..wait(9, Some(77), "not in the cluster map") };
        let found = problems(&[wait], &BTreeSet::new(), &map());
        assert!(found[0].what.contains("for group 77"), "{}", found[0].what);
        for words in ["older than the target", "`storage-group`", "joins again", "disk is lost"] {
            assert!(found[0].remedy.contains(words), "{}", found[0].remedy);
        }
    }

    #[test]
    fn wait_for_an_unreachable_service_names_target_and_node() {
        let wait = wait(9, None, "write of inode 9, without a reply from target t4");
        let found = problems(&[wait], &BTreeSet::from([TargetId::new(4)]), &map());
        let expected = "the program waits for target t4 on storage, whose service is unreachable";
        assert!(found[0].remedy.starts_with(expected), "{}", found[0].remedy);
    }

    #[test]
    fn wait_at_metadata_is_traced_to_the_target_that_causes_it() {
        let waits =
            [wait(9, None, "open, without a reply from target t2"), wait(2, Some(4), "refused")];
        let found = problems(&waits, &BTreeSet::new(), &map());
        assert_eq!(found.len(), 2, "{found:?}");
        let expected = "target t2 on metadata itself waits for target t4 on storage: the program";
        assert!(found[0].remedy.starts_with(expected), "{}", found[0].remedy);
        // If the service of t4 does not accept connections, the problem of this service already
        // contains the wait of t2 for t4.
        let found = problems(&waits, &BTreeSet::from([TargetId::new(4)]), &map());
        let [problem] = &found[..] else { panic!("{found:?}") };
        assert!(problem.what.contains("without a reply from target t2"), "{}", problem.what);
        let clause = "; 1 request waits for this service, for up to 9.0s, at it";
        assert_eq!(explained(&waits, NodeId::new(4), &map()), clause);
        assert_eq!(explained(&waits, NodeId::new(2), &map()), "");
    }
}
