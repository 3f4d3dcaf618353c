//! Plans the steps for several management nodes: further nodes join the cluster, and nodes of hosts
//! that have lost the role management leave it.

use super::{Action, AllFacts, Phases, needs_token, service};
use crate::facts::Facts;
use crate::hosts::{Deployment, Host, Role};
use std::collections::BTreeSet;

/// Adds the steps after which all management nodes run and are members. Nodes that exist start at
/// the same time, because a majority of them must run before another node can join. New nodes join
/// one after the other. Returns the names of the hosts to which these steps write the token.
pub(super) fn start(
    deployment: &Deployment,
    all: &AllFacts,
    acting: &Host,
    phases: &mut Phases,
) -> BTreeSet<String> {
    let is_acting = |host: &Host| host.name == acting.name;
    let exists = |host: &Host| {
        let facts = all.get(&host.name);
        is_acting(host) || facts.is_some_and(|it| it.initialised.contains(&Role::Management))
    };
    let run = |host: &Host, facts: &Facts| {
        let actions = service(deployment, host, facts, Role::Management).into_iter();
        let actions = actions.map(|action| match action {
            // A host that has lost its directory must never create another cluster.
            Action::Initialise(Role::Management) if !is_acting(host) => Action::JoinManagement,
            action => action,
        });
        actions.collect::<Vec<_>>()
    };
    let existing = deployment.managers().filter(|host| exists(host));
    phases.add("management", existing, |host| {
        all.get(&host.name).map(|it| run(host, it)).unwrap_or_default()
    });
    let mut have_token = BTreeSet::new();
    for host in deployment.managers().filter(|host| !is_acting(host)) {
        // If management does not run, its members are unknown. The step changes nothing for a node
        // that is a member already.
        let is_member = all.cluster.as_ref().is_some_and(|it| it.voter(&host.name).is_some());
        let Some(facts) = all.get(&host.name).filter(|_| !is_member) else { continue };
        let mut actions = Vec::new();
        if !exists(host) {
            // Management never has two nodes with the same name, so the node of an interrupted
            // attempt is removed first.
            let nodes = all.cluster.iter().flat_map(|cluster| &cluster.nodes);
            let stale = nodes.filter(|node| node.name == host.name);
            let remove = |id: u32| Action::RemoveMember { host: host.name.clone(), node: id };
            let removals: Vec<_> = stale.map(|node| remove(node.id)).collect();
            phases.add("management", [acting], |_| removals.clone());
            if needs_token(deployment, facts) {
                have_token.insert(host.name.clone());
                actions.push(Action::WriteToken);
            }
            actions.extend(run(host, facts));
        }
        actions.push(Action::AddMember);
        phases.add("management", [host], |_| actions.clone());
    }
    have_token
}

/// Returns the hosts that have a management node, but not the role management any more.
pub(super) fn former<'a>(
    deployment: &'a Deployment,
    all: &'a AllFacts,
) -> impl Iterator<Item = &'a Host> {
    deployment.hosts.iter().filter(move |host| {
        let facts = all.get(&host.name);
        !host.has(Role::Management)
            && facts.is_some_and(|it| it.initialised.contains(&Role::Management))
    })
}

/// Adds the steps that remove the management nodes of hosts which have lost the role management.
/// Each node stops before it is removed, because the leader cannot be removed. The other members
/// are a majority without this node, because the hosts file has at least three of them
/// ([`super::judge_cluster`]).
pub(super) fn retire(deployment: &Deployment, all: &AllFacts, acting: &Host, phases: &mut Phases) {
    // Without management, the ids of the nodes are unknown. A later plan removes the nodes.
    let Some(cluster) = &all.cluster else { return };
    for host in former(deployment, all) {
        phases.add("retire", [host], |_| vec![Action::Stop(Role::Management)]);
        phases.add("retire", [acting], |_| {
            let nodes = cluster.nodes.iter().filter(|node| node.name == host.name);
            let remove = |id: u32| Action::RemoveMember { host: host.name.clone(), node: id };
            nodes.map(|node| remove(node.id)).collect()
        });
        phases.add("retire", [host], |_| vec![Action::DiscardManagement]);
    }
}
