//! Formats names of objects and numbers for users.

use skep_types::text::escape_controls;
use skep_types::{ClusterMap, MemberState, NodeId, TargetId, TargetKind};

/// Returns the name of a target with its kind and service. Names come from other hosts, so this
/// function escapes control characters.
pub(crate) fn target(map: &ClusterMap, id: u32) -> String {
    let Some(target) = map.targets.iter().find(|target| target.id.raw() == id) else {
        return format!("target {}", TargetId::new(id));
    };
    let kind = match target.kind {
        TargetKind::Metadata => "metadata",
        TargetKind::Storage => "storage",
    };
    let node = node(map, target.node);
    format!("{kind} target {} on {node}", target.id)
}

/// Returns the short names of the other serving targets in the group of a target.
pub(crate) fn copies(map: &ClusterMap, id: u32) -> Vec<String> {
    let id = TargetId::new(id);
    let members = map.group_of(id).map_or(&[][..], |group| &group.members);
    let serving = members.iter().filter(|it| it.target != id && it.state == MemberState::Serving);
    let name = |target: TargetId| match map.target(target) {
        Some(found) => format!("{target} on {}", node(map, found.node)),
        None => target.to_string(),
    };
    serving.map(|it| name(it.target)).collect()
}

/// Returns the name of a node, or its id if the map does not have the node.
pub(crate) fn node(map: &ClusterMap, id: NodeId) -> String {
    match map.node(id) {
        Some(node) => escape_controls(&node.name).into_owned(),
        None => id.to_string(),
    }
}

/// Returns the name of a client with its id.
pub(crate) fn client(map: &ClusterMap, id: u32) -> String {
    let id = NodeId::new(id);
    match map.node(id) {
        Some(node) => format!("client {} ({id})", escape_controls(&node.name)),
        None => format!("client {id}"),
    }
}

/// Returns a duration with its unit: with one decimal place below 10, otherwise as a whole number.
pub(crate) fn time(ns: u64) -> String {
    let ns = ns as f64;
    let with_digits = |value: f64, unit: &str| match value < 9.95 {
        true => format!("{value:.1} {unit}"),
        false => format!("{value:.0} {unit}"),
    };
    match ns {
        _ if ns < 1e3 => format!("{ns:.0} ns"),
        _ if ns < 1e6 => with_digits(ns / 1e3, "us"),
        _ if ns < 1e9 => with_digits(ns / 1e6, "ms"),
        _ => with_digits(ns / 1e9, "s"),
    }
}

/// Returns a share in percent.
pub(crate) fn percent(part: u64, whole: u64) -> u64 {
    // Round the share, because reports show no decimal places.
    (part as f64 / whole.max(1) as f64 * 100.0).round() as u64
}
