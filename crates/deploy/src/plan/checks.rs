//! Finds changes of management and of the copies of metadata that a plan cannot make in the running
//! cluster, or that an administrator should make by hand.

use super::management::former;
use super::{AllFacts, acting, group_plan};
use crate::checks::Verdict;
use crate::cluster::Cluster;
use crate::hosts::{Deployment, Host, Role};

/// Adds the problems and warnings of the cluster to the verdict.
pub fn judge_cluster(deployment: &Deployment, all: &AllFacts, verdict: &mut Verdict) {
    judge_founder(deployment, all, verdict);
    let acting = acting(deployment, all);
    if let Some(cluster) = &all.cluster {
        judge_nodes(deployment, all, cluster, verdict);
        judge_copies(deployment, cluster, acting, verdict);
        judge_members(deployment, all, cluster, verdict);
        judge_names(deployment, all, cluster, verdict);
    }
    match group_plan(deployment, all) {
        Err(problem) => verdict.problem(acting, problem),
        Ok(plan) => {
            for place in plan.waiting {
                let warning = format!(
                    "metadata target {place} serves nothing: the namespace is divided over the \
                     groups that exist, and all of them have their copies. The target can replace \
                     a member (docs/operations/metadata-groups.md)"
                );
                verdict.warning(acting, warning);
            }
        }
    }
}

/// Adds a problem if no host with the role management has a management node, although the cluster
/// exists. Without a node, the plan would create another cluster, to which the services of this
/// cluster do not belong. If a host with the role does not answer, its node is unknown, and no
/// problem is added.
pub fn judge_founder(deployment: &Deployment, all: &AllFacts, verdict: &mut Verdict) {
    let may_have_node = |host: &Host| {
        all.get(&host.name).is_none_or(|it| it.initialised.contains(&Role::Management))
    };
    if deployment.managers().any(may_have_node) {
        return;
    }
    let mut has_former = false;
    for host in former(deployment, all) {
        has_former = true;
        let problem = "the host runs a management node without having the role management, and no \
                       host that has the role runs one yet; give at least one such host the role, \
                       so that new nodes can join its management node";
        verdict.problem(host, problem.into());
    }
    let serves = |host: &&Host| {
        all.get(&host.name).is_some_and(|it| {
            it.initialised.contains(&Role::Metadata) || it.initialised.contains(&Role::Storage)
        })
    };
    let serving = deployment.hosts.iter().find(serves);
    if let Some(other) = serving.filter(|_| !has_former) {
        let problem = format!(
            "the directory /srv/skep/management is missing, and host {} has services of the \
             cluster, which a new management could not use; mount the disk of the directory, or \
             restore a copy of the directory with `skep cluster restore` \
             (docs/operations/deploying.md)",
            other.name
        );
        verdict.problem(acting(deployment, all), problem);
    }
}

fn judge_nodes(deployment: &Deployment, all: &AllFacts, cluster: &Cluster, verdict: &mut Verdict) {
    for host in deployment.managers() {
        let has_lost =
            all.get(&host.name).is_some_and(|it| !it.initialised.contains(&Role::Management));
        if let Some(node) = cluster.voter(&host.name).filter(|_| has_lost) {
            let problem = format!(
                "the host is a member of management, but its directory /srv/skep/management is \
                 missing, and a new directory cannot replace it; remove the lost node with `skep \
                 management remove {}` on another host of management, and run this command again",
                node.id
            );
            verdict.problem(host, problem);
        }
    }
    let wanted = deployment.managers().count();
    for host in former(deployment, all).filter(|_| wanted == 1) {
        if cluster.voter(&host.name).is_some() {
            let problem = "the host runs a management node, and does not have the role management \
                           any more; `skep deploy` removes a management node only if three others \
                           stay. Give three hosts the role, or remove the node by hand with `skep \
                           management remove` (docs/operations/several-hosts.md)";
            verdict.problem(host, problem.into());
        }
    }
    let is_known = |name: &str| deployment.hosts.iter().any(|host| host.name == name);
    for node in cluster.nodes.iter().filter(|node| node.is_voter() && !is_known(&node.name)) {
        let warning = format!(
            "management has a member {} [ID: {}] that is not in the hosts file; if the host of \
             this member is lost, remove the member with `skep management remove {}` on this host",
            node.name, node.id, node.id
        );
        verdict.warning(acting(deployment, all), warning);
    }
}

fn judge_copies(deployment: &Deployment, cluster: &Cluster, acting: &Host, verdict: &mut Verdict) {
    let Some(wanted) = deployment.copies.filter(|wanted| *wanted < cluster.copies) else { return };
    let problem = format!(
        "the cluster has {} copies of metadata, and the hosts file asks for {wanted}; `skep \
         deploy` removes no copy. Set copies = {0}, or take members out of their groups with `skep \
         group remove` and set metadata-copies with `skep config set`",
        cluster.copies
    );
    verdict.problem(acting, problem);
}

/// Adds a problem for each host that was reinstalled and has lost its metadata targets. The groups
/// of these targets cannot use new targets as long as the lost targets are members.
fn judge_members(
    deployment: &Deployment,
    all: &AllFacts,
    cluster: &Cluster,
    verdict: &mut Verdict,
) {
    for group in cluster.groups.iter().filter(|group| group.members.len() > 1) {
        for member in &group.members {
            let has_lost = |host: &&Host| {
                let facts = all.get(&host.name).map(|it| &it.initialised);
                host.name == member.place.host
                    && facts.is_some_and(|it| !it.contains(&Role::Metadata))
            };
            if let Some(host) = deployment.hosts.iter().find(has_lost) {
                let (group, target) = (group.id, member.target);
                let problem = format!(
                    "the host has lost metadata target {} [ID: {target}], a member of group \
                     {group}; take this target out of the cluster with `skep group remove {group} \
                     {target}`, `skep target remove {target}` and `skep node remove {}` on a host \
                     of management, and run this command again, which gives the group a new copy",
                    member.place.path, member.node
                );
                verdict.problem(host, problem);
            }
        }
    }
}

/// Adds a problem for each host to which nothing is deployed, if management lists a service with
/// its name. The host was removed or reinstalled, and management would refuse its new service.
/// [`judge_members`] reports members of groups with several members.
fn judge_names(deployment: &Deployment, all: &AllFacts, cluster: &Cluster, verdict: &mut Verdict) {
    let acting = &acting(deployment, all).name;
    let members = || cluster.groups.iter().filter(|it| it.members.len() > 1);
    let is_member = |node: u32| members().any(|it| it.members.iter().any(|it| it.node == node));
    for host in &deployment.hosts {
        // After an interrupted initialisation, the host has a record of the deployment, and the
        // next deployment continues with the registered service.
        if all.get(&host.name).is_none_or(|it| it.deployed.is_some()) {
            continue;
        }
        for role in host.services().filter(|role| *role != Role::Management) {
            let mut servers = cluster.servers.iter();
            let Some(server) = servers.find(|it| it.is_named(&host.name, role)) else { continue };
            if is_member(server.id) {
                continue;
            }
            let (name, id) = (&host.name, server.id);
            let targets: Vec<_> = cluster.targets_of(id).map(|it| it.id).collect();
            let commands: String =
                targets.iter().map(|it| format!("`skep target remove {it}`, ")).collect();
            let problem = format!(
                "management still lists {role} service {name} [ID: {id}], and this host has no \
                 service any more, because it was removed or reinstalled. Run {commands}`skep node \
                 remove {name}` on host {acting}, or delete {name} from the hosts file \
                 (docs/operations/deploying.md#retire-a-storage-host)"
            );
            verdict.problem(host, problem);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::tests::{add_storage, group, led_by};
    use crate::hosts::tests::SEVERAL;

    /// Returns the problems and the warnings for a running cluster. The management nodes of the
    /// cluster are on the hosts `initialised`, and management prints the state `cluster`. Other
    /// hosts with the role management have nothing of Skep.
    fn judged(file: &str, initialised: &[&str], cluster: Option<Cluster>) -> (String, String) {
        let deployment = Deployment::parse(file).unwrap();
        let mut all = AllFacts { cluster, ..AllFacts::default() };
        for host in &deployment.hosts {
            let facts = all.hosts.entry(host.name.clone()).or_default();
            if initialised.contains(&host.name.as_str()) {
                facts.initialised.extend([Role::Management, Role::Metadata]);
            }
        }
        let mut verdict = Verdict::default();
        judge_cluster(&deployment, &all, &mut verdict);
        let text = |problems: &[crate::ssh::HostProblem]| {
            let lines = problems.iter().map(|it| format!("{}: {}\n", it.host, it.problem));
            lines.collect::<String>()
        };
        (text(&verdict.problems), text(&verdict.warnings))
    }

    /// Returns the state of a complete cluster of the hosts file [`SEVERAL`].
    fn complete() -> Cluster {
        let groups = vec![group(4, &[("a1", "/nvme0/skep"), ("a2", "/nvme0/skep")])];
        Cluster { copies: 2, groups, ..led_by(&["a1", "a2", "a3"]) }
    }

    #[test]
    fn complete_cluster_has_no_problem() {
        let none = (String::new(), String::new());
        assert_eq!(judged(SEVERAL, &["a1", "a2", "a3"], Some(complete())), none);
        assert_eq!(judged(SEVERAL, &[], None), none, "a new cluster");
    }

    #[test]
    fn members_on_a_reinstalled_host_are_reported() {
        let (problems, _) = judged(SEVERAL, &["a1", "a3"], Some(complete()));
        assert!(
            problems.contains(
                "`skep group remove 4 3`, `skep target remove 3` and `skep node remove 13`"
            ),
            "{problems}"
        );
        assert!(problems.starts_with("a2: the host is a member of management"), "{problems}");
        assert!(problems.contains("skep management remove 2`"), "{problems}");
    }

    #[test]
    fn plan_names_a_removed_host_that_management_still_lists() {
        let mut cluster = complete();
        add_storage(&mut cluster, "s2", "10.0.0.5", &[4, 5]);
        let deployment = Deployment::parse(SEVERAL).unwrap();
        let mut all = AllFacts { cluster: Some(cluster), ..AllFacts::default() };
        let judged = |all: &AllFacts| {
            let mut verdict = Verdict::default();
            judge_names(&deployment, all, all.cluster.as_ref().unwrap(), &mut verdict);
            verdict.problems
        };
        assert!(judged(&all).is_empty(), "the host does not answer");
        all.hosts.entry("s2".into()).or_default();
        let problems = judged(&all);
        assert_eq!((problems.len(), problems[0].host.as_str()), (1, "s2"), "{problems:?}");
        let commands = "`skep target remove 4`, `skep target remove 5`, `skep node remove s2`";
        for words in ["storage service s2 [ID: 6]", commands, "delete s2 from the hosts file"] {
            assert!(problems[0].problem.contains(words), "{words}: {problems:?}");
        }
        all.hosts.entry("s2".into()).or_default().deployed = Some("skep".into());
        assert!(judged(&all).is_empty(), "an interrupted deployment continues");
    }

    #[test]
    fn one_plan_cannot_remove_all_management_nodes() {
        let moved = SEVERAL.replace("\"management\", \"metadata\"", "\"metadata\"");
        let moved = moved.replace("[\"storage\"]", "[\"management\", \"storage\"]");
        let moved = moved.replace("[\"management\"]", "[\"client\"]");
        let (problems, _) = judged(&moved, &["a1", "a2", "a3"], Some(complete()));
        assert!(problems.contains("a1: the host runs a management node without"), "{problems}");
        let one =
            SEVERAL.replace("roles = [\"management\", \"metadata\"]", "roles = [\"metadata\"]");
        let (problems, _) = judged(&one, &["a1", "a2", "a3"], Some(complete()));
        assert!(problems.contains("only if three others stay"), "{problems}");
    }

    /// The services of the cluster have its id and its secret, so they cannot join another cluster.
    #[test]
    fn lost_management_is_not_replaced_by_another_cluster() {
        let deployment = Deployment::parse(crate::hosts::tests::GOOD).unwrap();
        let judged = |initialised: &[(&str, Role)]| {
            let mut all = AllFacts::default();
            for host in &deployment.hosts {
                all.hosts.entry(host.name.clone()).or_default();
            }
            for (name, role) in initialised {
                all.hosts.get_mut(*name).unwrap().initialised.insert(*role);
            }
            let mut verdict = Verdict::default();
            judge_cluster(&deployment, &all, &mut verdict);
            verdict.problems
        };
        let problems = judged(&[("s1", Role::Storage)]);
        assert_eq!((problems.len(), problems[0].host.as_str()), (1, "m1"), "{problems:?}");
        assert!(problems[0].problem.contains("skep cluster restore"), "{problems:?}");
        assert_eq!(judged(&[("m1", Role::Metadata)]).len(), 1, "only its directory is lost");
        assert!(judged(&[]).is_empty(), "a new cluster");
        assert!(judged(&[("m1", Role::Management), ("s1", Role::Storage)]).is_empty());
        // A host that does not answer may still have a management node, so there is no problem.
        let mut all = AllFacts::default();
        all.hosts.entry("s1".into()).or_default().initialised.insert(Role::Storage);
        let mut verdict = Verdict::default();
        judge_founder(&deployment, &all, &mut verdict);
        assert!(verdict.problems.is_empty(), "{verdict:?}");
    }

    #[test]
    fn copies_are_never_removed_from_a_cluster() {
        let fewer = SEVERAL.replace("copies = 2", "copies = 1");
        let (problems, _) = judged(&fewer, &["a1", "a2", "a3"], Some(complete()));
        assert!(problems.contains("has 2 copies of metadata, and the hosts file asks for 1"));
        let without = SEVERAL.replace("copies = 2", "");
        let (problems, _) = judged(&without, &["a1", "a2", "a3"], Some(complete()));
        assert_eq!(problems, "", "a file without the setting keeps the copies");
    }

    #[test]
    fn plan_warns_of_unknown_members_and_unused_targets() {
        let mut cluster = complete();
        cluster.nodes[1].name = "other".into();
        let (_, warnings) = judged(SEVERAL, &["a1", "a2", "a3"], Some(cluster));
        assert!(warnings.contains("a member other [ID: 2]"), "{warnings}");
        let more = SEVERAL.replace("[\"/nvme0/skep\"]", "[\"/nvme0/skep\", \"/nvme0/more\"]");
        let (_, warnings) = judged(&more, &["a1", "a2", "a3"], Some(complete()));
        assert!(warnings.contains("a1:/nvme0/more serves nothing"), "{warnings}");
    }
}
