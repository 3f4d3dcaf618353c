//! The advice for administrators: which of the metadata targets that wait for a group should form a
//! new group.
//!
//! A pure function over the cluster map. Does not own the creation of groups (`groups`).

use skep_types::map::Consistency;
use skep_types::{ClusterMap, Node, Target, TargetKind};

/// Returns the command that creates a group of waiting metadata targets on different nodes and in
/// different failure domains. The setting `metadata-copies` determines the number of members. If
/// too few targets wait, returns a text with the number of waiting targets and the way to get more.
pub(super) fn advice(map: &ClusterMap) -> String {
    let waits = |target: &&Target| {
        let is_new = target.consistency == Consistency::Good;
        target.kind == TargetKind::Metadata && is_new && map.group_of(target.id).is_none()
    };
    let wanted = usize::from(map.policy.metadata_copies).max(1);
    let mut members: Vec<&Target> = Vec::new();
    for target in map.targets.iter().filter(waits) {
        if members.len() < wanted && members.iter().all(|other| are_apart(map, target, other)) {
            members.push(target);
        }
    }
    let ids: Vec<_> = members.iter().map(|target| target.id.raw().to_string()).collect();
    let ids = ids.join(" ");
    if members.len() >= wanted {
        return format!("`skep group create {ids}` creates a group");
    }
    let waiting = match members.len() {
        0 => "no such target waits".to_owned(),
        1 => "only 1 such target waits".to_owned(),
        count => format!("only {count} such targets wait"),
    };
    let fewer = match members.is_empty() {
        true => String::new(),
        false => format!(
            ". `skep group create {ids}` creates a group with fewer copies, to which `skep group \
             add` adds targets later"
        ),
    };
    format!(
        "the setting metadata-copies asks for groups of {wanted} targets on different nodes and in \
         different failure domains, and {waiting}: start a metadata service with a new target on \
         another host{fewer}"
    )
}

/// Whether at least one of the two targets remains after any single failure of a node or of a
/// failure domain.
fn are_apart(map: &ClusterMap, one: &Target, other: &Target) -> bool {
    let domain = |node: Option<&Node>| node.map(|it| it.domain.clone()).unwrap_or_default();
    let (here, there) = (domain(map.node(one.node)), domain(map.node(other.node)));
    one.node != other.node && (here.is_empty() || here != there)
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::map::Reachability;
    use skep_types::{ClusterId, NodeId, NodeKind, TargetId};

    /// Returns a map with one waiting metadata target on each node. `domains` has the failure
    /// domain of each node.
    fn map(copies: u16, domains: &[&str]) -> ClusterMap {
        let mut map = ClusterMap::empty(ClusterId::default());
        map.policy.metadata_copies = copies;
        for (id, domain) in (1..).zip(domains) {
            map.nodes.push(Node {
                id: NodeId::new(id),
                kind: NodeKind::Metadata,
                name: format!("metadata-{id}"),
                addresses: Vec::new(),
                domain: (*domain).into(),
                reachability: Reachability::Online,
                version: String::new(),
            });
            let id = (TargetId::new(id), NodeId::new(id));
            map.targets.push(Target::new(id.0, TargetKind::Metadata, id.1, "/d"));
        }
        map
    }

    #[test]
    fn advised_group_has_the_configured_number_of_copies() {
        let check = |copies, domains: &[&str], command: &str| {
            let found = advice(&map(copies, domains));
            assert!(found.starts_with(&format!("`skep group create {command}`")), "{found}");
        };
        check(1, &["", ""], "1");
        check(2, &["", "", ""], "1 2");
        check(2, &["a", "a", "b"], "1 3");
        check(3, &["a", "b", "c"], "1 2 3");
        let mut on_one_node = map(2, &["", "", ""]);
        on_one_node.targets[1].node = NodeId::new(1);
        let found = advice(&on_one_node);
        assert!(found.contains("create 1 3`"), "{found}");
    }

    #[test]
    fn advice_names_number_of_targets_that_can_form_a_group() {
        let found = advice(&map(2, &["a", "a"]));
        assert!(found.contains("groups of 2 targets"), "{found}");
        assert!(found.contains("only 1 such target waits"), "{found}");
        assert!(found.contains("`skep group create 1` creates a group with fewer"), "{found}");
        let found = advice(&map(3, &["a", "b"]));
        assert!(found.contains("only 2 such targets wait"), "{found}");
        let found = advice(&map(2, &[]));
        assert!(found.contains("no such target waits: start"), "{found}");
        assert!(!found.contains("skep group create"), "{found}");
    }
}
