//! Determines which findings follow from other findings, so that one fault raises one alert. For
//! example, if a service does not reply, its targets are offline, and if a host fails, none of its
//! services replies.
//!
//! The module is pure: it uses no I/O and no clock. [`crate::findings`] has the rules of the
//! findings.

use crate::collect::Collected;
use crate::findings::{Finding, FindingKey};
use skep_cluster::outage_effect::effect_of_outage;
use skep_cluster::problems::{Severity, has_only_lost_targets};
use skep_stats::why::host_of;
use skep_types::{ClusterMap, Node, NodeKind};
use std::collections::{BTreeMap, BTreeSet};

/// Rule: no service of a host replies.
pub(crate) const HOST: &str = "host-unreachable";
/// Rule: a service does not reply.
const SERVICE: &str = "service-unreachable";
/// Rule: management does not reply.
const MANAGEMENT: &str = "management-unreachable";
/// Rule: a target lacks changes that other members of its group have.
const INCONSISTENT: &str = "target-inconsistent";
/// Rules about targets. A finding of these rules follows from the outage of the target's service.
const OF_TARGETS: [&str; 6] = [
    "target-offline",
    "target-down",
    INCONSISTENT,
    "target-slow",
    "log-sync-slow",
    "queue-growing",
];
/// Rules about targets that serve nothing, and so miss the changes of their groups.
const STOPPED: [&str; 4] = ["target-offline", "target-down", "target-hung", "target-failed"];

/// Adds a finding for each host with several services if no service of the host replies. Sets the
/// causes of all findings.
pub(crate) fn group(found: Vec<Finding>, collected: &Collected) -> Vec<Finding> {
    let Some(map) = &collected.map else { return found };
    let mut all = unreachable_hosts(map, collected);
    all.extend(found);
    let known: BTreeSet<(&str, &str)> =
        all.iter().map(|finding| (finding.rule, finding.object.as_str())).collect();
    let causes: Vec<_> = all.iter().map(|finding| cause(finding, map, &known)).collect();
    for (finding, cause) in all.iter_mut().zip(causes) {
        finding.cause = cause;
    }
    all
}

/// Returns the root cause of `finding`: the finding from which it follows, and which itself follows
/// from no other finding. `None` means that `finding` follows from no other finding. `known`
/// contains the rules and the objects of all findings.
fn cause(
    finding: &Finding,
    map: &ClusterMap,
    known: &BTreeSet<(&str, &str)>,
) -> Option<FindingKey> {
    let existing = |rule: &'static str, object: &str| {
        known.contains(&(rule, object)).then(|| (rule, object.to_owned()))
    };
    match finding.rule {
        MANAGEMENT => existing(HOST, &host_of_management(map)?),
        SERVICE => existing(HOST, &host_of(service_of(finding, map)?)?),
        rule if OF_TARGETS.contains(&rule) => {
            let of_service = service_of(finding, map).and_then(|node| {
                let host = host_of(node).and_then(|host| existing(HOST, &host));
                host.or_else(|| existing(SERVICE, &node.id.to_string()))
            });
            let of_target = || STOPPED.iter().find_map(|rule| existing(rule, &finding.object));
            of_service.or_else(|| of_target().filter(|_| rule == INCONSISTENT))
        }
        _ => None,
    }
}

/// Returns the service that an object belongs to, where `n2` is a node and `t7` is a target. `None`
/// means that the object is neither a node nor a target, or that the map does not contain the
/// object.
pub(crate) fn service_of_object<'a>(object: &str, map: &'a ClusterMap) -> Option<&'a Node> {
    let number = |prefix: char| object.strip_prefix(prefix)?.parse::<u32>().ok();
    let of_target = || {
        let id = number('t')?;
        map.targets.iter().find(|target| target.id.raw() == id).map(|target| target.node.raw())
    };
    let id = number('n').or_else(of_target)?;
    map.nodes.iter().find(|node| node.id.raw() == id)
}

fn service_of<'a>(finding: &Finding, map: &'a ClusterMap) -> Option<&'a Node> {
    service_of_object(&finding.object, map)
}

/// Returns the host on which all management nodes run. `None` means that there is no such host.
fn host_of_management(map: &ClusterMap) -> Option<String> {
    let mut nodes = map.nodes.iter().filter(|node| node.kind == NodeKind::Management);
    let host = host_of(nodes.next()?)?;
    nodes.all(|node| host_of(node).as_ref() == Some(&host)).then_some(host)
}

/// Returns a finding for each host that has several services, if none of these services replies. If
/// a host has only one service, the finding about this service is enough, so the host gets no
/// finding.
fn unreachable_hosts(map: &ClusterMap, collected: &Collected) -> Vec<Finding> {
    let mut hosts: BTreeMap<String, Vec<&Node>> = BTreeMap::new();
    let services = map.nodes.iter().filter(|node| node.kind != NodeKind::Client);
    for node in services.filter(|node| !has_only_lost_targets(map, node.id)) {
        if let Some(host) = host_of(node) {
            hosts.entry(host).or_default().push(node);
        }
    }
    let reason = |node: &Node| collected.unreachable.get(&node.id.raw());
    let is_out = |nodes: &[&Node]| nodes.len() > 1 && nodes.iter().all(|it| reason(it).is_some());
    let out = hosts.into_iter().filter(|(_, nodes)| is_out(nodes));
    out.map(|(host, nodes)| Finding {
        rule: HOST,
        severity: Severity::Critical,
        what: format!(
            "no service on {host} replies ({}): {}",
            joined(&nodes, ", ", |node| node.name.clone()),
            nodes.first().and_then(|node| reason(node)).map_or("", String::as_str)
        ),
        remedy: format!(
            "check that this host runs and that the monitor can connect to it, and start its \
             services; {}",
            joined(&nodes, "; ", |node| {
                format!("{}: {}", node.name, effect_of_outage(map, node).text)
            })
        ),
        object: host,
        cause: None,
    })
    .collect()
}

fn joined(nodes: &[&Node], separator: &str, text: impl Fn(&Node) -> String) -> String {
    nodes.iter().map(|node| text(node)).collect::<Vec<_>>().join(separator)
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::map::Reachability;
    use skep_types::{ClusterId, NodeId, Target, TargetId, TargetKind};

    fn node(id: u32, kind: NodeKind, host: &str) -> Node {
        Node {
            id: NodeId::new(id),
            kind,
            name: format!("node-{id}"),
            addresses: vec![format!("{host}:{}", 7400 + id)],
            domain: String::new(),
            reachability: Reachability::Online,
            version: String::new(),
        }
    }

    /// A cluster with management on host 10.0.0.1, and with two hosts that have a metadata service
    /// and a storage service each. Storage target `t5` is on node `n5` of host 10.0.0.3.
    fn map() -> ClusterMap {
        let mut map = ClusterMap::empty(ClusterId::default());
        map.nodes = vec![
            node(1, NodeKind::Management, "10.0.0.1"),
            node(2, NodeKind::Metadata, "10.0.0.2"),
            node(3, NodeKind::Storage, "10.0.0.2"),
            node(4, NodeKind::Metadata, "10.0.0.3"),
            node(5, NodeKind::Storage, "10.0.0.3"),
        ];
        map.targets = (2..=5)
            .map(|id| {
                let kind = if id % 2 == 0 { TargetKind::Metadata } else { TargetKind::Storage };
                Target::new(TargetId::new(id), kind, NodeId::new(id), "/d")
            })
            .collect();
        map
    }

    fn finding(rule: &'static str, object: &str) -> Finding {
        Finding {
            rule,
            severity: Severity::Critical,
            object: object.into(),
            what: String::new(),
            remedy: String::new(),
            cause: None,
        }
    }

    /// Returns each grouped finding as `RULE OBJECT`, with `< RULE OBJECT` of its cause. The nodes
    /// `unreachable` do not reply.
    fn grouped(unreachable: &[u32], found: &[(&'static str, &str)]) -> Vec<String> {
        let reasons = unreachable.iter().map(|id| (*id, "no reply".to_owned()));
        let collected =
            Collected { map: Some(map()), unreachable: reasons.collect(), ..Collected::default() };
        let found = found.iter().map(|&(rule, object)| finding(rule, object)).collect();
        let grouped = group(found, &collected).into_iter();
        let shown = grouped.map(|it| {
            let cause = it.cause.map(|(rule, object)| format!(" < {rule} {object}"));
            format!("{} {}{}", it.rule, it.object, cause.unwrap_or_default())
        });
        shown.collect()
    }

    #[test]
    fn failed_host_is_the_cause_of_silent_services_and_targets() {
        let found = [
            ("service-unreachable", "n4"),
            ("service-unreachable", "n5"),
            ("target-offline", "t5"),
            ("target-inconsistent", "t4"),
            ("target-low", "t5"),
            ("target-offline", "t3"),
        ];
        let expected = [
            "host-unreachable host 10.0.0.3",
            "service-unreachable n4 < host-unreachable host 10.0.0.3",
            "service-unreachable n5 < host-unreachable host 10.0.0.3",
            "target-offline t5 < host-unreachable host 10.0.0.3",
            "target-inconsistent t4 < host-unreachable host 10.0.0.3",
            "target-low t5",
            "target-offline t3",
        ];
        assert_eq!(grouped(&[4, 5], &found), expected);
    }

    #[test]
    fn failed_service_is_the_cause_of_findings_of_its_targets() {
        let found = [
            ("service-unreachable", "n5"),
            ("target-offline", "t5"),
            ("target-offline", "t2"),
            ("target-inconsistent", "t2"),
        ];
        let expected = [
            "service-unreachable n5",
            "target-offline t5 < service-unreachable n5",
            "target-offline t2",
            "target-inconsistent t2 < target-offline t2",
        ];
        assert_eq!(grouped(&[5], &found), expected);
    }

    #[test]
    fn alert_about_a_failed_host_includes_its_management() {
        let mut map = map();
        map.nodes.push(node(6, NodeKind::Storage, "10.0.0.1"));
        let reasons = [(1, "no reply".to_owned()), (6, "no reply".to_owned())];
        let collected = Collected {
            map: Some(map),
            map_problem: Some("no reply".into()),
            unreachable: reasons.into(),
            ..Collected::default()
        };
        let found = group(vec![finding(MANAGEMENT, "management")], &collected);
        assert_eq!(found[0].key(), (HOST, "host 10.0.0.1".to_owned()));
        assert!(found[0].what.contains("(node-1, node-6): no reply"), "{}", found[0].what);
        assert_eq!(found[1].cause, Some(found[0].key()));
    }
}
