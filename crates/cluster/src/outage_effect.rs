//! The effect of the outage of a service on programs: which operations wait, and for how long.
//!
//! `skep health check`, the monitor and the log of management print the texts of this module.
//! Contains pure functions over the cluster map. Does not own the detection of outages, nor their
//! remedies.

use skep_types::map::{Condition, Consistency, KnownReason, MemberState, Reachability};
use skep_types::{ClusterMap, Group, Node, NodeKind, Target, TargetId};

/// The effect of the outage of one target on the group of the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// Operations continue, because another member is the primary.
    Continues,
    /// Operations wait until another member has taken over.
    TakenOver,
    /// Operations wait until the target is back, because no other member has all data of the group.
    Waits,
    /// Operations wait until the target or another member is back. Another member has all data of
    /// the group, but is absent as well.
    WaitsForAny,
}

impl Effect {
    /// Whether operations wait until a service is back.
    fn is_blocking(self) -> bool {
        matches!(self, Self::Waits | Self::WaitsForAny)
    }
}

/// The effect of the outage of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutageEffect {
    /// Whether some operations wait until the service is back.
    pub is_blocking: bool,
    /// Whether, in the group of at least one target of the service, all members with complete data
    /// are absent. No member can then take over.
    pub is_group_absent: bool,
    /// The effect as a clause for messages.
    pub text: String,
}

/// Returns the effect of the outage of a service.
pub fn effect_of_outage(map: &ClusterMap, node: &Node) -> OutageEffect {
    if node.kind == NodeKind::Management {
        return OutageEffect {
            is_blocking: false,
            is_group_absent: false,
            text: effect_of_management(map).into(),
        };
    }
    let own = map.targets.iter().filter(|target| target.node == node.id);
    let kept = own.filter(|target| target.consistency != Consistency::Bad);
    let effects: Vec<_> = kept.filter_map(|it| Some((it.id, effect(map, it)?))).collect();
    let is_blocking = effects.iter().any(|(_, effect)| effect.is_blocking());
    let absent = absent_groups(map, &effects);
    let is_group_absent = !absent.is_empty();
    // If a group waits for this service itself (`Effect::Waits`), the return of another service is
    // not enough.
    let needs_service = effects.iter().any(|(_, effect)| *effect == Effect::Waits);
    let text = effect_on_targets(&effects, if needs_service { &[] } else { &absent });
    OutageEffect { is_blocking, is_group_absent, text }
}

/// Returns whether operations wait until a service serves a target again. Also returns the effect
/// on operations, as a clause for messages. The service of the target runs, but does not serve the
/// target.
pub fn effect_of_unserved_target(map: &ClusterMap, target: &Target) -> (bool, &'static str) {
    let effect = effect(map, target);
    let text = match effect {
        None => "no operation waits, since the target is in no group",
        Some(Effect::Continues) => {
            "operations on files continue: another member of its group serves them"
        }
        Some(Effect::TakenOver) => {
            "operations on its files wait for a few seconds, until another member of its group \
             takes over"
        }
        Some(Effect::Waits | Effect::WaitsForAny) => "operations on its files wait",
    };
    (effect.is_some_and(Effect::is_blocking), text)
}

fn effect_of_management(map: &ClusterMap) -> &'static str {
    match map.nodes.iter().filter(|it| it.kind == NodeKind::Management).count() {
        0 | 1 => {
            "operations on files continue, but nodes cannot join, and the cluster map does not \
             change"
        }
        _ => {
            "operations on files continue, and the other management nodes continue as long as more \
             than half of all management nodes run"
        }
    }
}

/// Returns the groups in which all serving members are absent. Each group is the list of these
/// members.
fn absent_groups(map: &ClusterMap, effects: &[(TargetId, Effect)]) -> Vec<Vec<TargetId>> {
    let waiting = effects.iter().filter(|(_, effect)| *effect == Effect::WaitsForAny);
    let groups = waiting.filter_map(|(target, _)| map.group_of(*target));
    let serving = |group: &Group| -> Vec<TargetId> {
        let members = group.members.iter().filter(|it| it.state == MemberState::Serving);
        members.map(|it| it.target).collect()
    };
    groups.map(serving).collect()
}

/// Returns the effects on the groups of a service as a clause. `absent` has the groups in which all
/// serving members are absent. Any one of these members is enough to serve its group.
fn effect_on_targets(effects: &[(TargetId, Effect)], absent: &[Vec<TargetId>]) -> String {
    let of = |effect| effects.iter().filter(move |it| it.1 == effect);
    let blocking = effects.iter().filter(|(_, effect)| effect.is_blocking());
    let waiting: Vec<_> = blocking.map(|(target, _)| target.to_string()).collect();
    let is_all = waiting.len() == effects.len();
    match (effects.is_empty(), &waiting[..], of(Effect::TakenOver).count()) {
        (true, ..) => "no operation waits, since this service serves no files".into(),
        (_, [], 0) => {
            "operations on files continue: other members of the groups of this service serve them"
                .into()
        }
        (_, [], _) => {
            "operations on files of this service wait for a few seconds, until other members of \
             its groups take over"
                .into()
        }
        (_, waiting, _) if !absent.is_empty() => format!(
            "operations on files of {} wait, since no group member with complete data is \
             reachable: start the {}",
            waiting.join(", "),
            needed_services(absent)
        ),
        (_, _, 0) if is_all => {
            "operations on files of this service wait until the service is back; other files are \
             not affected"
                .into()
        }
        (_, waiting, _) => format!(
            "operations on files of {} wait until the service is back; other members serve the \
             groups of its other targets",
            waiting.join(", ")
        ),
    }
}

/// Returns the text that names the needed services: for each group, one of its absent members.
fn needed_services(absent: &[Vec<TargetId>]) -> String {
    let one_of = |members: &Vec<TargetId>| {
        let members: Vec<_> = members.iter().map(ToString::to_string).collect();
        format!("one of {}", members.join(", "))
    };
    let needed: Vec<_> = absent.iter().map(one_of).collect();
    match &needed[..] {
        [one] => format!("service of {one}"),
        several => format!("services of {}", several.join(" and of ")),
    }
}

/// Returns the effect on the group of a target. `None` means that the target has no group.
fn effect(map: &ClusterMap, target: &Target) -> Option<Effect> {
    let group = map.group_of(target.id)?;
    let members = || group.members.iter().filter(|it| it.state == MemberState::Serving);
    let has_data = members().any(|member| member.target == target.id);
    let others: Vec<_> = members()
        .filter_map(|member| map.target(member.target))
        .filter(|other| other.id != target.id && other.node != target.node)
        .collect();
    let has_other = others.iter().any(|other| can_serve(other));
    Some(match (has_other, group.primary == target.id) {
        (false, _) if has_data && !others.is_empty() => Effect::WaitsForAny,
        (false, _) => Effect::Waits,
        (true, true) => Effect::TakenOver,
        (true, false) => Effect::Continues,
    })
}

/// Whether a target with all data of its group can serve the group.
fn can_serve(target: &Target) -> bool {
    let is_served = match target.health.condition {
        Condition::Down => target.health.known_reason() == Some(KnownReason::Reopens),
        Condition::Hung => false,
        _ => true,
    };
    target.reachability == Reachability::Online && is_served
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups;
    use skep_types::group_change::{GroupChange, MemberChange};
    use skep_types::map::TargetHealth;
    use skep_types::{ClusterId, GroupId, NodeId, TargetKind};

    fn node(id: u32, kind: NodeKind) -> Node {
        Node {
            id: NodeId::new(id),
            kind,
            name: format!("node-{id}"),
            addresses: Vec::new(),
            domain: String::new(),
            reachability: Reachability::Online,
            version: String::new(),
        }
    }

    /// Returns a map with a group of targets 1 and 2 on nodes 1 and 2, and a group of target 3 on
    /// node 1.
    fn map() -> ClusterMap {
        let mut map = ClusterMap::empty(ClusterId::default());
        for id in [1, 2] {
            map.nodes.push(node(id, NodeKind::Metadata));
        }
        for (id, on) in [(1, 1), (2, 2), (3, 1)] {
            let (id, on) = (TargetId::new(id), NodeId::new(on));
            let target = Target::new(id, TargetKind::Metadata, on, "/d");
            map.targets.push(Target { reachability: Reachability::Online, ..target });
        }
        let pair = [TargetId::new(1), TargetId::new(2)];
        for (id, targets) in [(5, &pair[..]), (6, &[TargetId::new(3)])] {
            let group = groups::create(GroupId::new(id), TargetKind::Metadata, targets);
            map.groups.push(group.unwrap());
        }
        map
    }

    fn of(map: &ClusterMap, node: usize) -> String {
        let OutageEffect { is_blocking, text, .. } = effect_of_outage(map, &map.nodes[node]);
        let says_so = ["until the service is back", " wait, since no group member "];
        assert_eq!(is_blocking, says_so.iter().any(|it| text.contains(it)), "{text}");
        text
    }

    #[test]
    fn group_of_two_targets_continues_if_one_target_is_absent() {
        let mut map = map();
        map.groups.pop();
        assert!(of(&map, 0).contains("until other members of its groups take over"));
        assert!(of(&map, 1).starts_with("operations on files continue"), "{}", of(&map, 1));
        let group = &map.groups[0];
        let change = GroupChange {
            group: group.id,
            epoch: group.epoch,
            change: MemberChange::TakeOver,
            target: TargetId::new(2),
        };
        map.groups[0] = groups::apply(group, &change).unwrap();
        assert!(of(&map, 0).starts_with("operations on files continue"), "{}", of(&map, 0));
        // The previous primary lacks changes, so it cannot take over from the new one.
        assert!(of(&map, 1).contains("wait until the service is back"), "{}", of(&map, 1));
    }

    #[test]
    fn operations_wait_if_both_members_of_a_group_are_absent() {
        let mut map = map();
        map.groups.pop();
        for absent in [Reachability::ProbablyOffline, Reachability::Offline] {
            map.targets[..2].iter_mut().for_each(|target| target.reachability = absent);
            let expected = "wait, since no group member with complete data is reachable: start the \
                            service of one of t1, t2";
            for node in [0, 1] {
                assert!(of(&map, node).contains(expected), "{}", of(&map, node));
            }
        }
    }

    #[test]
    fn advice_is_to_start_one_member_of_each_unreachable_group() {
        let mut map = map();
        let fourth = Target::new(TargetId::new(4), TargetKind::Metadata, NodeId::new(2), "/d");
        map.targets.push(fourth);
        let pair = [TargetId::new(3), TargetId::new(4)];
        map.groups[1] = groups::create(GroupId::new(6), TargetKind::Metadata, &pair).unwrap();
        map.targets.iter_mut().for_each(|target| target.reachability = Reachability::Offline);
        let expected = "operations on files of t1, t3 wait, since no group member with complete \
                        data is reachable: start the services of one of t1, t2 and of one of t3, \
                        t4";
        assert_eq!(of(&map, 0), expected);
    }

    #[test]
    fn operations_on_a_single_target_wait_for_its_service() {
        let mut map = map();
        let mixed = of(&map, 0);
        assert!(mixed.starts_with("operations on files of t3 wait"), "{mixed}");
        map.targets[1].reachability = Reachability::Offline;
        assert!(of(&map, 0).contains("other files are not affected"), "{}", of(&map, 0));
        map.targets.iter_mut().for_each(|target| target.consistency = Consistency::Bad);
        assert!(of(&map, 0).starts_with("no operation waits"), "{}", of(&map, 0));
    }

    #[test]
    fn operations_wait_if_no_member_takes_over_from_a_target() {
        let mut map = map();
        let of =
            |map: &ClusterMap, index: usize| effect_of_unserved_target(map, &map.targets[index]);
        assert_eq!(of(&map, 2), (true, "operations on its files wait"));
        assert!(!of(&map, 0).0 && of(&map, 0).1.contains("takes over"));
        assert!(!of(&map, 1).0 && of(&map, 1).1.contains("another member of its group serves"));
        // The service of the other member runs, but does not serve this member either.
        map.targets[1].health = TargetHealth::new(Condition::Down, "no disk");
        assert_eq!(of(&map, 0), (true, "operations on its files wait"));
        map.targets[1].health = TargetHealth::new(Condition::Down, KnownReason::Reopens.text());
        assert!(!of(&map, 0).0);
        map.groups.clear();
        assert!(!of(&map, 0).0 && of(&map, 0).1.contains("in no group"));
    }

    #[test]
    fn outage_of_one_of_several_management_nodes_stops_nothing() {
        let mut map = ClusterMap::empty(ClusterId::default());
        map.nodes.push(node(1, NodeKind::Management));
        assert!(of(&map, 0).contains("nodes cannot join"));
        map.nodes.extend([2, 3].map(|id| node(id, NodeKind::Management)));
        let several = of(&map, 0);
        assert!(several.contains("more than half") && !several.contains("cannot"), "{several}");
    }
}
