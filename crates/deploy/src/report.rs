//! The result of a command: the state of the hosts and of the cluster, and the steps. The option
//! `--output json` prints this result.

use crate::execute::StepReport;
use crate::facts::{Facts, Running};
use crate::hosts::{Deployment, Host, Place, Role};
use crate::plan::{AllFacts, Phase, group_plan};
use crate::ssh::HostProblem;
use serde::Serialize;

/// The state of one service on a host.
#[derive(Debug, Serialize)]
pub struct ServiceReport {
    /// The kind of the service, as a role of the host.
    pub role: Role,
    /// `running`, `running the program before the upgrade`, `stopped` or `missing`.
    pub state: &'static str,
}

/// The state of one host.
#[derive(Debug, Serialize)]
pub struct HostReport {
    /// Name of the host.
    pub host: String,
    /// Address of the host for ssh.
    pub address: String,
    /// Roles of the host.
    pub roles: Vec<Role>,
    /// Release of the host's kernel. Empty if the host did not answer.
    pub kernel: String,
    /// Version line of the installed program. Empty if the program cannot be run, or if the host
    /// did not answer.
    pub version: String,
    /// Services of the host.
    pub services: Vec<ServiceReport>,
    /// Whether the cluster is mounted on the host. `None` means that the host is not a client.
    pub is_mounted: Option<bool>,
}

/// A management node: one of the cluster, or one that the plan creates.
#[derive(Debug, Serialize)]
pub struct ManagementReport {
    /// Name of the node, which is the name of its host.
    pub host: String,
    /// `leader`, `follower`, `learner` (the node does not vote yet), `none` (it is no member), or
    /// `missing` (the cluster has no such node). `unknown` means that management or the host does
    /// not answer.
    pub role: String,
    /// Whether the node answers the leader.
    pub is_online: bool,
    /// Number of changes in the log that the node has not stored yet. `None` means that the number
    /// is unknown.
    pub lag: Option<u64>,
}

/// A member of a metadata group.
#[derive(Debug, Serialize)]
pub struct MemberReport {
    /// Name of the host.
    pub host: String,
    /// Directory of the target.
    pub path: String,
    /// The state of the member, such as `Serving`. `missing` means that the plan adds this member.
    /// `unknown` means that neither management nor the host shows whether the member exists.
    pub state: String,
}

/// A metadata group: one of the cluster, or one that the plan creates.
#[derive(Debug, Serialize)]
pub struct GroupReport {
    /// Id of the group. `None` means that the plan creates the group, or that the groups of the
    /// cluster are unknown.
    pub id: Option<u32>,
    /// The members of the group.
    pub members: Vec<MemberReport>,
}

/// The result of a command.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// Name of the cluster.
    pub cluster: String,
    /// All hosts, as they were at the start.
    pub hosts: Vec<HostReport>,
    /// The management nodes, as they were at the start. The nodes of the hosts file come first.
    pub management: Vec<ManagementReport>,
    /// Number of metadata copies that the hosts file sets. If it sets none, the number that the
    /// cluster has.
    pub copies: u32,
    /// The metadata groups, as they were at the start, and the groups that the plan creates.
    pub metadata_groups: Vec<GroupReport>,
    /// Whether all hosts have answered and `skep deploy apply` has no steps left except checks and
    /// the installation of the program. `None` for all commands except `plan` and `status`.
    pub is_complete: Option<bool>,
    /// Facts about hosts that an administrator should check.
    pub warnings: Vec<HostProblem>,
    /// Problems of hosts. If there is one, no step ran.
    pub problems: Vec<HostProblem>,
    /// The steps that ran. If there are problems, the steps that would have run without the
    /// problems.
    pub steps: Vec<StepReport>,
    /// Duration of the command.
    pub seconds: f64,
}

impl Outcome {
    /// Whether all steps only wait for the cluster or verify it.
    pub fn is_only_verified(&self) -> bool {
        let is_check = |phase: &str| phase == "health" || phase.starts_with("verify");
        self.steps.iter().all(|step| is_check(step.phase))
    }
}

/// Returns reports of all steps of a plan. Each report shows that its step did not run.
pub(crate) fn planned(phases: &[Phase]) -> Vec<StepReport> {
    let mut steps = Vec::new();
    for phase in phases {
        for host in &phase.hosts {
            steps.extend(host.actions.iter().map(|action| StepReport {
                phase: phase.name,
                host: host.host.clone(),
                step: action.to_string(),
                seconds: None,
                error: None,
            }));
        }
    }
    steps
}

/// Returns the state of a host. `facts` is `None` if the host did not answer.
pub(crate) fn host_report(host: &Host, facts: Option<&Facts>) -> HostReport {
    let state = |role: Role| {
        let Some(facts) = facts else { return "unknown" };
        match facts.running.get(&role) {
            Some(Running::Current) => "running",
            Some(Running::Old) => "running the program before the upgrade",
            None if facts.initialised.contains(&role) => "stopped",
            None if !role.is_node() && facts.configs.contains_key(&role) => "stopped",
            None => "missing",
        }
    };
    HostReport {
        host: host.name.clone(),
        address: host.address.clone(),
        roles: host.roles.clone(),
        kernel: facts.map(|it| it.platform.kernel.clone()).unwrap_or_default(),
        version: facts.map(|it| it.version.clone()).unwrap_or_default(),
        services: host.services().map(|role| ServiceReport { role, state: state(role) }).collect(),
        is_mounted: host.has(Role::Client).then(|| facts.is_some_and(|it| it.mount == Some(true))),
    }
}

/// Returns the management nodes of the hosts file and of the cluster.
pub(crate) fn management(deployment: &Deployment, all: &AllFacts) -> Vec<ManagementReport> {
    let nodes = all.cluster.as_ref().map(|it| it.nodes.as_slice()).unwrap_or_default();
    let of_cluster = nodes.iter().map(|node| ManagementReport {
        host: node.name.clone(),
        role: node.role.clone(),
        is_online: node.reachability == "Online",
        lag: node.lag,
    });
    let missing = deployment.managers().filter(|host| !nodes.iter().any(|it| it.name == host.name));
    let missing = missing.map(|host| {
        // The node of a host that does not answer may exist.
        let may_exist =
            all.get(&host.name).is_none_or(|it| it.initialised.contains(&Role::Management));
        ManagementReport {
            host: host.name.clone(),
            role: if may_exist { "unknown" } else { "missing" }.into(),
            is_online: false,
            lag: None,
        }
    });
    let mut reports: Vec<_> = of_cluster.chain(missing).collect();
    let position =
        |name: &str| deployment.managers().position(|it| it.name == name).unwrap_or(usize::MAX);
    reports.sort_by_key(|report| position(&report.host));
    reports
}

/// Returns the metadata groups of the cluster, with the members and groups that the plan adds.
pub(crate) fn metadata_groups(deployment: &Deployment, all: &AllFacts) -> Vec<GroupReport> {
    let plan = group_plan(deployment, all).unwrap_or_default();
    // If management does not answer, a target of the hosts file may be a member of a group.
    let may_exist = |host: &str| {
        let facts = all.get(host);
        all.cluster.is_none() && facts.is_none_or(|it| it.initialised.contains(&Role::Metadata))
    };
    let planned = |place: &Place| MemberReport {
        host: place.host.clone(),
        path: place.path.clone(),
        state: if may_exist(&place.host) { "unknown" } else { "missing" }.into(),
    };
    let groups = all.cluster.as_ref().map(|it| it.groups.as_slice()).unwrap_or_default();
    let existing = groups.iter().map(|group| {
        let members = group
            .members
            .iter()
            .map(|it| MemberReport { state: it.state.clone(), ..planned(&it.place) });
        let added = plan.added.iter().filter(|(id, _)| *id == group.id);
        let added = added.map(|(_, place)| planned(place));
        GroupReport { id: Some(group.id), members: members.chain(added).collect() }
    });
    let new = plan.new.iter();
    let new =
        new.map(|group| GroupReport { id: None, members: group.iter().map(planned).collect() });
    existing.chain(new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Cluster;
    use crate::cluster::tests::{group, led_by};
    use crate::hosts::tests::SEVERAL;

    #[test]
    fn report_names_planned_and_existing_members() {
        let deployment = Deployment::parse(SEVERAL).unwrap();
        let mut all = AllFacts::default();
        let roles = |all: &AllFacts| {
            let reports = management(&deployment, all);
            let role = |it: ManagementReport| format!("{} {}", it.host, it.role);
            reports.into_iter().map(role).collect::<Vec<_>>()
        };
        let members = |all: &AllFacts| {
            let mut lines = Vec::new();
            for group in metadata_groups(&deployment, all) {
                let line = |it: MemberReport| format!("{:?} {} {}", group.id, it.host, it.state);
                lines.extend(group.members.into_iter().map(line));
            }
            lines
        };
        assert_eq!(roles(&all), ["a1 unknown", "a2 unknown", "a3 unknown"], "no host answers");
        assert_eq!(members(&all), ["None a1 unknown", "None a2 unknown"]);
        for host in &deployment.hosts {
            all.hosts.insert(host.name.clone(), Facts::default());
        }
        assert_eq!(roles(&all), ["a1 missing", "a2 missing", "a3 missing"]);
        assert_eq!(members(&all), ["None a1 missing", "None a2 missing"]);
        let groups = vec![group(4, &[("a2", "/nvme0/skep")])];
        all.cluster = Some(Cluster { groups, ..led_by(&["a2", "other", "a1"]) });
        assert_eq!(roles(&all), ["a1 follower", "a2 leader", "a3 missing", "other follower"]);
        assert_eq!(members(&all), ["Some(4) a2 Serving", "Some(4) a1 missing"]);
    }
}
