//! Lists the nodes and targets of the cluster map, in the form in which commands print nodes and
//! targets.

use crate::near_misses::hint;
use crate::output::{count, percent, render, size, table};
use crate::table_layout::TOTAL;
use serde::Serialize;
pub(crate) use skep_cluster::problems::{
    reachability_word as reachability, target_kind_word as target_kind,
};
use skep_cluster::state::kind_word;
use skep_types::map::{Capacity, CapacityPool, Condition, Consistency, Reachability};
use skep_types::{
    ClusterMap, Error, ErrorCode, Node, NodeId, NodeKind, Result, Target, TargetKind,
};
use std::collections::BTreeMap;

/// A node, as one entry of a list.
#[derive(Debug, Serialize)]
pub(crate) struct NodeLine {
    pub(crate) id: u32,
    pub(crate) name: String,
    /// Name of the node's host. `None` if the node is a server that has not reported its host.
    pub(crate) host: Option<String>,
    pub(crate) kind: &'static str,
    pub(crate) reachability: &'static str,
    pub(crate) addresses: Vec<String>,
    pub(crate) domain: Option<String>,
    pub(crate) targets: Vec<u32>,
    pub(crate) version: String,
}

/// A target, as one entry of a list.
#[derive(Debug, Serialize)]
pub(crate) struct TargetLine {
    pub(crate) id: u32,
    pub(crate) kind: &'static str,
    pub(crate) node: u32,
    pub(crate) node_name: String,
    pub(crate) path: String,
    pub(crate) group: Option<u32>,
    pub(crate) reachability: &'static str,
    pub(crate) consistency: &'static str,
    pub(crate) condition: &'static str,
    /// The error that a target which does not serve all requests has reported.
    pub(crate) problem: Option<String>,
    pub(crate) pool: &'static str,
    pub(crate) total_bytes: u64,
    pub(crate) free_bytes: u64,
    pub(crate) total_inodes: u64,
    pub(crate) free_inodes: u64,
    /// Identifies the file system on which the target is. Targets on the same file system share its
    /// free space.
    pub(crate) file_system: String,
    #[serde(skip)]
    capacity: Capacity,
}

impl TargetLine {
    /// Whether the target was marked as lost.
    fn is_lost(&self) -> bool {
        self.condition == LOST
    }

    /// Returns one word for the state of the target: "Lost" if the target was marked as lost. If
    /// the node is not online, the word for the target's reachability. Otherwise, the word for its
    /// condition.
    fn state(&self) -> &'static str {
        if self.is_lost() {
            LOST
        } else if self.reachability == reachability(Reachability::Online) {
            self.condition
        } else {
            self.reachability
        }
    }
}

impl TargetLine {
    /// Returns the condition for people. The node reports the condition, so the condition is
    /// unknown while the node is not online. A metadata target without a group serves nothing.
    pub(crate) fn shown_condition(&self) -> &'static str {
        let serves = condition(Condition::Serving);
        match known_condition(self.reachability, self.condition) {
            shown if shown == serves && self.group.is_none() => "Waiting",
            shown => shown,
        }
    }
}

fn known_condition(of_node: &'static str, condition: &'static str) -> &'static str {
    let is_known = of_node == reachability(Reachability::Online) || condition == LOST;
    if is_known { condition } else { "-" }
}

/// The word for the condition of a target that was marked as lost.
const LOST: &str = "Lost";

/// Returns the name of a capacity pool.
pub(crate) fn pool(pool: CapacityPool) -> &'static str {
    match pool {
        CapacityPool::Normal => "normal",
        CapacityPool::Low => "low",
        CapacityPool::Emergency => "emergency",
    }
}

/// Returns the name of a consistency state.
pub(crate) fn consistency(state: Consistency) -> &'static str {
    match state {
        Consistency::Good => "Good",
        Consistency::NeedsResync => "Needs-Resync",
        Consistency::Bad => "Bad",
    }
}

/// Returns the name of a target's condition.
pub(crate) fn condition(condition: Condition) -> &'static str {
    match condition {
        Condition::Serving => "Serving",
        Condition::ReadOnly => "Read-Only",
        Condition::Hung => "Hung",
        Condition::Down => "Down",
        Condition::Closed => "Closed",
    }
}

/// Returns the failure domain of a node, if the node has a failure domain.
pub(crate) fn domain(node: &Node) -> Option<String> {
    Some(node.domain.clone()).filter(|domain| !domain.is_empty())
}

/// Returns the name of a node's host. `hosts` contains the host names of servers. The name of a
/// client begins with the name of its host.
fn host(node: &Node, hosts: &BTreeMap<NodeId, String>) -> Option<String> {
    match node.kind {
        NodeKind::Client => node.name.split([':', '#']).next().map(str::to_owned),
        _ => hosts.get(&node.id).cloned(),
    }
}

/// Returns all nodes, servers before clients. `hosts` contains the host names of servers.
pub(crate) fn nodes(map: &ClusterMap, hosts: &BTreeMap<NodeId, String>) -> Vec<NodeLine> {
    let mut nodes: Vec<_> = map.nodes.iter().collect();
    nodes.sort_by_key(|node| (node.kind, node.id));
    let line = |node: &&skep_types::Node| NodeLine {
        id: node.id.raw(),
        name: node.name.clone(),
        host: host(node, hosts),
        kind: kind_word(node.kind),
        reachability: reachability(node.reachability),
        addresses: node.addresses.clone(),
        domain: domain(node),
        targets: map.targets.iter().filter(|it| it.node == node.id).map(|it| it.id.raw()).collect(),
        version: node.version.clone(),
    };
    nodes.iter().map(line).collect()
}

/// Finds a node by its name or id. The letter of the id may be omitted.
///
/// # Errors
/// - `NotFound` if there is no such node, with a hint on how to list the nodes.
/// - `InvalidArgument` if several nodes have the name.
pub(crate) fn node_named<'a>(map: &'a ClusterMap, text: &str) -> Result<&'a Node> {
    let is_called_so = |node: &&Node| {
        node.name == text || node.id.to_string() == text || node.id.raw().to_string() == text
    };
    let found: Vec<_> = map.nodes.iter().filter(is_called_so).collect();
    match found[..] {
        [node] => Ok(node),
        [] => Err(Error::new(
            ErrorCode::NotFound,
            format!(
                "cannot find node '{text}': no node has this id or name{}; `skep node list` shows \
                 all nodes with ids and names",
                hint(text, map.nodes.iter().map(|node| node.name.as_str()))
            ),
        )),
        _ => Err(Error::new(
            ErrorCode::InvalidArgument,
            format!(
                "cannot choose a node '{text}': several nodes have this name; use an id from `skep \
                 node list`"
            ),
        )),
    }
}

/// Finds a target by its id. The letter of the id may be omitted.
///
/// # Errors
/// `NotFound` if there is no such target, with a hint on how to list the targets.
pub(crate) fn target_named<'a>(map: &'a ClusterMap, text: &str) -> Result<&'a Target> {
    let is_called_so =
        |target: &&Target| target.id.to_string() == text || target.id.raw().to_string() == text;
    map.targets.iter().find(is_called_so).ok_or_else(|| {
        let what = format!(
            "cannot find target '{text}': no target has this id; `skep target list` shows all \
             targets"
        );
        Error::new(ErrorCode::NotFound, what)
    })
}

/// Returns all targets, metadata targets before storage targets.
pub(crate) fn targets(map: &ClusterMap) -> Vec<TargetLine> {
    let mut targets: Vec<&Target> = map.targets.iter().collect();
    targets.sort_by_key(|target| (target.kind, target.id));
    let line = |target: &&Target| TargetLine {
        id: target.id.raw(),
        kind: target_kind(target.kind),
        node: target.node.raw(),
        node_name: map.node(target.node).map(|node| node.name.clone()).unwrap_or_default(),
        path: target.path.clone(),
        group: map.group_of(target.id).map(|group| group.id.raw()),
        reachability: reachability(target.reachability),
        consistency: consistency(target.consistency),
        condition: match target.consistency {
            Consistency::Bad => LOST,
            _ => condition(target.health.condition),
        },
        problem: problem(map, target),
        pool: pool(target.capacity_pool),
        total_bytes: target.capacity.total_bytes,
        free_bytes: target.capacity.free_bytes,
        total_inodes: target.capacity.total_inodes,
        free_inodes: target.capacity.free_inodes,
        file_system: format!("{:032x}", target.capacity.file_system),
        capacity: target.capacity,
    };
    targets.iter().map(line).collect()
}

/// Returns the problem of a target: that the target is lost, the problem that the target has
/// reported, or that a metadata target has no shards.
fn problem(map: &ClusterMap, target: &Target) -> Option<String> {
    let reported = &target.health.problem;
    if target.consistency == Consistency::Bad {
        let id = target.id.raw();
        return Some(format!(
            "the target was marked as lost; list its files with `skep target files --paths {id}`, \
             restore or remove these files, then run `skep target remove {id}`"
        ));
    }
    let group = map.group_of(target.id).map(|group| group.id);
    let is_unused = map.formatted
        && target.kind == TargetKind::Metadata
        && !map.shards.iter().any(|range| Some(range.group) == group);
    match (reported.is_empty(), is_unused) {
        (false, _) => Some(reported.clone()),
        (true, true) => {
            let what = "the target serves no part of the namespace, because its group was created \
                        after `skep cluster format`; all files and directories are on the other \
                        metadata targets";
            Some(what.to_owned())
        }
        (true, false) => None,
    }
}

/// Formats one table for each kind of target, with the free space of the targets, as `beegfs-df`
/// does. If several targets use the same file system, the total counts its space once. The total
/// does not count lost targets. `heartbeat_ms` is the interval of heartbeats of the cluster.
pub(crate) fn df(lines: &[TargetLine], heartbeat_ms: u32) -> String {
    let class = |kind: &str, title: &str| {
        let titles = [
            "Target", "Node", "State", "Pool", ">Total", ">Free", ">Free%", ">ITotal", ">IFree",
            ">IFree%",
        ];
        let mut shown = table(&titles);
        let mut add = |[name, node]: [&str; 2], [state, pool]: [&str; 2], capacity: Capacity| {
            let inodes = |number: u64| match capacity.total_inodes {
                0 => "-".to_owned(),
                _ => count(number),
            };
            shown.add_row([
                name.to_owned(),
                node.to_owned(),
                state.to_owned(),
                pool.to_owned(),
                size(capacity.total_bytes),
                size(capacity.free_bytes),
                percent(capacity.free_bytes, capacity.total_bytes),
                inodes(capacity.total_inodes),
                inodes(capacity.free_inodes),
                percent(capacity.free_inodes, capacity.total_inodes),
            ]);
        };
        let of_kind = || lines.iter().filter(|line| line.kind == kind);
        for line in of_kind() {
            let id = line.id.to_string();
            // New files do not use a lost target, so its capacity pool has no meaning.
            let pool = if line.is_lost() { "-" } else { line.pool };
            add([&id, &line.node_name], [line.state(), pool], line.capacity);
        }
        let usable = of_kind().filter(|line| !line.is_lost()).map(|line| line.capacity);
        add([TOTAL, "-"], ["-", "-"], Capacity::sum(usable));
        format!("{title}:\n{}", render(&shown))
    };
    class("metadata", "METADATA SERVERS")
        + "\n"
        + &class("storage", "STORAGE TARGETS")
        + &note_of_copies(lines)
        + &note_of_accuracy(heartbeat_ms)
}

/// Returns the note about the accuracy and the age of the free space. A service measures the free
/// space of its targets at most once a second and reports it with its next heartbeat. A mount
/// receives the result with its own next heartbeat.
fn note_of_accuracy(heartbeat_ms: u32) -> String {
    let seconds = 1 + u64::from(heartbeat_ms).saturating_mul(2).div_ceil(1000);
    format!(
        "\nFree space is accurate to 1 % of the total, and about {seconds} s old.\nData that \
         clients have not sent yet counts as free.\n"
    )
}

/// Returns a note that the targets of a metadata group all store the same data. Empty if each
/// metadata group has one target.
fn note_of_copies(lines: &[TargetLine]) -> String {
    let mut members = BTreeMap::<u32, usize>::new();
    for line in lines.iter().filter(|line| line.kind == "metadata") {
        line.group.into_iter().for_each(|group| *members.entry(group).or_default() += 1);
    }
    match members.values().max() {
        Some(copies @ 2..) => format!(
            "\nThe {copies} targets of a metadata group store the same data. The total counts the \
             space of each of these targets.\n"
        ),
        _ => String::new(),
    }
}

/// Returns the line about a node that did not reply to a command, with the reason.
pub(crate) fn problem_of_node(node: &Node, error: &Error) -> String {
    format!("{} [ID: {}]: {}", node.name, node.id.raw(), error.context())
}

/// Returns the heading of the table for a kind of node.
pub(crate) fn class_title(kind: NodeKind) -> &'static str {
    match kind {
        NodeKind::Management => "Management",
        NodeKind::Metadata => "Metadata",
        NodeKind::Storage => "Storage",
        NodeKind::Client => "Clients",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{ClusterId, TargetId};

    #[test]
    fn problems_show_node_ids_in_the_form_of_the_tables() {
        let node = Node::online(NodeId::new(5), NodeKind::Storage, "storage-2");
        let shown = problem_of_node(&node, &Error::new(ErrorCode::Disconnected, "no reply"));
        assert_eq!(shown, "storage-2 [ID: 5]: no reply");
    }

    #[test]
    fn age_of_free_space_follows_from_the_heartbeat() {
        assert!(note_of_accuracy(1_000).contains(" about 3 s old."));
        assert!(note_of_accuracy(1_250).contains(" about 4 s old."));
    }

    #[test]
    fn condition_of_a_target_is_unknown_while_its_node_is_offline() {
        assert_eq!(known_condition("Online", "Serving"), "Serving");
        assert_eq!(known_condition("Offline", "Serving"), "-");
        assert_eq!(known_condition("Probably-Offline", "Serving"), "-");
        assert_eq!(known_condition("Offline", LOST), LOST);
    }

    #[test]
    fn total_space_in_df_output_excludes_lost_targets() {
        let target = |id: u32| {
            let (id, kind) = (TargetId::new(id), TargetKind::Storage);
            let (total_bytes, free_bytes) = (1 << 30, 288 << 20);
            let file_system = u128::from(id.raw());
            let capacity = Capacity { total_bytes, free_bytes, file_system, ..Capacity::default() };
            Target { capacity, ..Target::new(id, kind, NodeId::new(1), "/disk") }
        };
        let mut map = ClusterMap::empty(ClusterId::default());
        let row = |map: &ClusterMap, first: &str| {
            let text = df(&targets(map), map.policy.heartbeat_ms);
            let mut rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            let row = rows.rfind(|row| row.first() == Some(&first)).expect("a row");
            row.join(" ")
        };
        map.targets = vec![target(7)];
        let of_one = row(&map, TOTAL);
        map.targets.push(target(8));
        assert_ne!(row(&map, TOTAL), of_one);
        map.targets[1].consistency = Consistency::Bad;
        assert_eq!(row(&map, TOTAL), of_one);
        assert!(row(&map, "8").contains(" Lost - "), "{}", row(&map, "8"));
    }
}
