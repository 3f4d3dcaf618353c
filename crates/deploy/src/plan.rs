//! Plans the steps that lead from the observed state of the hosts to the cluster that the hosts
//! file describes.
//!
//! The module does no I/O, and compares the hosts file with the facts. A plan has phases. A phase
//! begins when all hosts have ended the phase before it. Within a phase, hosts work in parallel,
//! and each host runs its steps in order. Steps that are done already are left out, so a plan for a
//! complete cluster has only the steps that verify it.
//!
//! # Several management nodes and copies of metadata
//! One host of management runs the steps that concern the whole cluster. [`acting`] chooses a host
//! whose management node votes and runs. So a plan continues even if one of three hosts of
//! management is missing. The plan of a new cluster with several management nodes and copies is:
//!
//! 1. The acting host initialises management, as in a cluster with one node.
//! 2. Each further host of management, one after the other, gets the token, initialises its node
//!    with `--join`, starts it, and makes it a member (`skep management add`). While management has
//!    two members, it does not work if one of them fails.
//! 3. The acting host sets `metadata-copies`, before the first metadata service starts.
//! 4. All services start and join. Their tokens, the mounts and the monitor have the addresses of
//!    all management nodes of the file.
//! 5. The acting host creates the metadata groups, and formats the cluster.
//! 6. The plan waits until all members of management and of the groups are complete.
//!
//! A later plan compares the file with the members and groups that management lists
//! ([`crate::cluster`]), and not with a record of earlier plans. So the later plan continues at the
//! missing step. An initialised node that is no member becomes a member. A group with too few
//! members gets another member. The node of a host that has lost the role management is removed. An
//! upgrade restarts one service after the other and the leader of management last, so that
//! management elects a new leader only once.

mod action;
mod checks;
mod management;

pub use action::Action;
pub use checks::{judge_cluster, judge_founder};

use crate::checks::Program;
use crate::cluster::Cluster;
use crate::config::{config_hash, fstab_hash};
use crate::facts::{Contents, Facts, Running, Tuning};
use crate::groups::{self, GroupPlan};
use crate::hosts::{Deployment, Disk, Host, Role};
use crate::tuning;
use crate::units;
use std::collections::BTreeMap;

/// The steps of one host in one phase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostSteps {
    /// Name of the host.
    pub host: String,
    /// The steps, in the order in which they run.
    pub actions: Vec<Action>,
}

/// Steps of several hosts. The hosts may run them at the same time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Phase {
    /// Name of the phase, which shows users its purpose.
    pub name: &'static str,
    /// The hosts that have steps in this phase.
    pub hosts: Vec<HostSteps>,
}

/// The facts about all hosts and about the cluster.
#[derive(Debug, Clone, Default)]
pub struct AllFacts {
    /// The facts about each host that answers, by the name of the host.
    pub hosts: BTreeMap<String, Facts>,
    /// The state of the cluster. `None` means that no management node has answered.
    pub cluster: Option<Cluster>,
}

impl AllFacts {
    /// Returns the facts about a host. `None` means that the host did not answer.
    pub fn get(&self, host: &str) -> Option<&Facts> {
        self.hosts.get(host)
    }

    /// Whether the namespace of the cluster is divided over its metadata groups.
    pub fn is_formatted(&self) -> bool {
        self.cluster.as_ref().is_some_and(|it| it.is_formatted)
            || self.hosts.values().any(|it| it.is_formatted)
    }
}

/// Returns the host of management on which the steps for the cluster as a whole run. If possible,
/// this is a host whose management node votes and runs. In a new cluster, it is the first host of
/// management in the hosts file.
///
/// # Panics
/// Does not panic, because a checked hosts file has a host of management.
pub fn acting<'a>(deployment: &'a Deployment, all: &AllFacts) -> &'a Host {
    let rank = |host: &&Host| {
        let facts = all.get(&host.name);
        let is_voter = all.cluster.as_ref().is_none_or(|it| it.voter(&host.name).is_some());
        let is_initialised = facts.is_some_and(|it| it.initialised.contains(&Role::Management));
        let runs = facts.is_some_and(|it| it.runs(Role::Management));
        (!is_voter, !is_initialised, !runs)
    };
    deployment.managers().min_by_key(rank).expect("a checked file has a host of management")
}

/// Returns the changes of the metadata groups.
///
/// # Errors
/// Returns the problem, with a remedy, if the metadata targets of the hosts file do not suffice.
pub fn group_plan(deployment: &Deployment, all: &AllFacts) -> Result<GroupPlan, String> {
    if deployment.copies.unwrap_or(1) == 1 {
        return Ok(GroupPlan::default());
    }
    match &all.cluster {
        Some(cluster) => groups::plan(deployment, &cluster.groups, all.is_formatted()),
        // The groups of this cluster are unknown until management runs.
        None if all.is_formatted() => Ok(GroupPlan::default()),
        None => groups::divide(deployment),
    }
}

/// Collects the phases of a plan. Leaves out phases without steps.
#[derive(Debug, Default)]
struct Phases(Vec<Phase>);

impl Phases {
    fn add<'a>(
        &mut self,
        name: &'static str,
        hosts: impl IntoIterator<Item = &'a Host>,
        actions: impl Fn(&Host) -> Vec<Action>,
    ) {
        let steps = hosts
            .into_iter()
            .map(|host| HostSteps { host: host.name.clone(), actions: actions(host) })
            .filter(|steps| !steps.actions.is_empty())
            .collect::<Vec<_>>();
        if !steps.is_empty() {
            self.0.push(Phase { name, hosts: steps });
        }
    }
}

/// Returns the steps that create the cluster of the hosts file, or continue an interrupted
/// creation, or extend the cluster.
pub fn apply(deployment: &Deployment, program: &Program, all: &AllFacts) -> Vec<Phase> {
    let mut phases = Phases::default();
    let hosts = &deployment.hosts;
    let facts = |host: &Host| all.get(&host.name);
    phases.add("install", hosts, |host| {
        facts(host).map(|it| install(deployment, program, host, it)).unwrap_or_default()
    });
    let acting = [acting(deployment, all)];
    let have_token = management::start(deployment, all, acting[0], &mut phases);
    phases.add("copies", acting, |_| set_copies(deployment, all));
    phases.add("join", hosts, |host| {
        let has_token = have_token.contains(&host.name);
        facts(host).map(|it| join(deployment, host, it, has_token)).unwrap_or_default()
    });
    let groups = group_plan(deployment, all).unwrap_or_default();
    let is_formatted = all.is_formatted();
    phases.add("format", acting, |_| {
        let mut actions: Vec<_> = groups.new.iter().cloned().map(Action::CreateGroup).collect();
        if !is_formatted {
            actions.push(Action::FormatCluster);
        }
        actions
    });
    phases.add("copies", acting, |_| {
        let added = groups.added.iter().cloned();
        added.map(|(group, place)| Action::AddCopy { group, place }).collect()
    });
    let has_copies = deployment.has_several_managers() || deployment.copies.unwrap_or(1) > 1;
    phases.add("health", acting, |_| match has_copies && !is_formatted {
        true => vec![Action::AwaitHealth, Action::AwaitMembers],
        false => vec![Action::AwaitHealth],
    });
    management::retire(deployment, all, acting[0], &mut phases);
    // The monitor starts when the cluster is formatted. If it started earlier, the deployment would
    // cause alerts.
    phases.add("monitor", hosts, |host| {
        facts(host).map_or_else(Vec::new, |it| monitor(deployment, host, it))
    });
    phases.add("mount", hosts, |host| match facts(host) {
        Some(it) if host.has(Role::Client) && it.mount.is_none() => vec![Action::Mount],
        _ => Vec::new(),
    });
    // The directories of the targets, which earlier phases create, show which disks to tune.
    phases.add("tune", hosts, |host| facts(host).map_or_else(Vec::new, |it| tune(host, it)));
    verify(deployment, &mut phases);
    phases.0
}

/// Returns the steps that install the program and the configuration files, and format and mount the
/// disks.
fn install(deployment: &Deployment, program: &Program, host: &Host, facts: &Facts) -> Vec<Action> {
    let mut actions = Vec::new();
    let is_current = facts.program.as_ref() == Some(&program.hash);
    // Only an upgrade replaces a program that services are running.
    let is_replaced = !is_current && facts.running.is_empty();
    if is_replaced {
        actions.push(Action::Install);
    }
    let is_configured = facts.deployed.is_some()
        && host.services().all(|role| has_config(deployment, host, facts, role))
        && facts.fstab == fstab_hash(deployment, host);
    if !is_configured || host.disks.iter().any(|disk| is_new(facts, disk)) {
        actions.push(Action::Configure);
    } else if has_other_units(host, facts, is_replaced) {
        // Running services use the new units after their next start.
        actions.push(Action::WriteUnits);
    }
    let new = host.disks.iter().filter(|disk| is_new(facts, disk));
    actions.extend(new.cloned().map(Action::Format));
    let is_mounted = |disk: &Disk| facts.places.get(&disk.device) == Some(&Contents::Mounted);
    if !host.disks.iter().all(is_mounted) {
        actions.push(Action::MountDisks);
    }
    actions
}

/// Whether the systemd units of a host may differ from the units of its program, or the host lacks
/// the drop-in file of a service with disks. `is_replaced` means that the host gets another
/// program.
fn has_other_units(host: &Host, facts: &Facts, is_replaced: bool) -> bool {
    let platform = &facts.platform;
    let has_drop_in = |role| {
        let wanted = units::drop_in_hash(host, role);
        wanted.is_none_or(|wanted| platform.drop_ins.get(&role) == Some(&wanted))
    };
    let lacks_drop_in = !host.services().all(has_drop_in);
    let starts_services = host.services().next().is_some();
    platform.has_old_units
        || platform.has_systemd && (lacks_drop_in || is_replaced && starts_services)
}

fn is_new(facts: &Facts, disk: &Disk) -> bool {
    let contents = facts.places.get(&disk.device);
    !matches!(contents, Some(Contents::Ours | Contents::Mounted | Contents::Failed(_)))
}

fn has_config(deployment: &Deployment, host: &Host, facts: &Facts, role: Role) -> bool {
    facts.configs.get(&role) == Some(&config_hash(deployment, host, role))
}

/// Returns the steps after which the service runs with its current configuration.
fn service(deployment: &Deployment, host: &Host, facts: &Facts, role: Role) -> Vec<Action> {
    let is_changed = !has_config(deployment, host, facts, role);
    let has_all = facts.initialised.contains(&role) && !is_changed;
    let mut actions = Vec::new();
    if facts.runs(role) && !has_all {
        actions.push(Action::Stop(role));
    }
    if !has_all {
        actions.push(Action::Initialise(role));
    }
    if !facts.runs(role) || !has_all {
        actions.push(Action::Start(role));
    }
    actions
}

/// Whether a host has no token file, or a token file that lacks addresses of management nodes.
fn needs_token(deployment: &Deployment, facts: &Facts) -> bool {
    let addresses = deployment.management_addresses();
    facts.token.is_none() || addresses.iter().any(|it| !facts.token_addresses.contains(it))
}

/// Returns the step that sets the number of copies, if the cluster has another number.
fn set_copies(deployment: &Deployment, all: &AllFacts) -> Vec<Action> {
    let present = all.cluster.as_ref().map_or(1, |it| it.copies);
    let wanted = deployment.copies.filter(|copies| *copies != present);
    wanted.map(Action::SetCopies).into_iter().collect()
}

fn join(deployment: &Deployment, host: &Host, facts: &Facts, has_token: bool) -> Vec<Action> {
    let mut actions = Vec::new();
    if !has_token && needs_token(deployment, facts) {
        actions.push(Action::WriteToken);
    }
    let others = host.services().filter(|role| role.is_node() && *role != Role::Management);
    actions.extend(others.flat_map(|role| service(deployment, host, facts, role)));
    actions
}

/// Returns the steps after which the monitor runs on the host that the hosts file names, and does
/// not run on other hosts. The steps do not include an initialisation, because the monitor
/// initialises its directory when it starts.
fn monitor(deployment: &Deployment, host: &Host, facts: &Facts) -> Vec<Action> {
    let role = Role::Monitor;
    let is_wanted = host.has(role) && has_config(deployment, host, facts, role);
    match (host.has(role), facts.runs(role)) {
        (true, true) if is_wanted => Vec::new(),
        (true, true) => vec![Action::Stop(role), Action::Start(role)],
        (true, false) => vec![Action::Start(role)],
        (false, true) => vec![Action::Stop(role)],
        (false, false) => Vec::new(),
    }
}

/// Returns the steps that tune the host, or restore its settings.
fn tune(host: &Host, facts: &Facts) -> Vec<Action> {
    match (tuning::wanted(host), &facts.tuning) {
        (Some(wanted), Tuning::Ours(present)) if wanted == *present => Vec::new(),
        (Some(_), _) => vec![Action::Tune],
        (None, Tuning::Ours(_)) => vec![Action::RestoreTuning],
        (None, Tuning::Unchanged | Tuning::ByHand) => Vec::new(),
    }
}

fn verify(deployment: &Deployment, phases: &mut Phases) {
    let clients: Vec<&Host> =
        deployment.hosts.iter().filter(|host| host.has(Role::Client)).collect();
    let Some((first, others)) = clients.split_first() else { return };
    phases.add("verify: write", [*first], |_| vec![Action::WriteCheck]);
    // A single client reads the file that it has written itself.
    let readers = if others.is_empty() { &clients[..] } else { others };
    phases.add("verify: read", readers.iter().copied(), |_| vec![Action::ReadCheck]);
    phases.add("verify: remove", [*first], |_| vec![Action::RemoveCheck]);
}

/// Returns the steps of an upgrade. An upgrade that was interrupted between the stop and the start
/// of a service has left this service stopped, so stopped services start before all other steps.
/// After this, all hosts get the new program and its systemd units. Last, the services restart one
/// after the other. The leader of management restarts after the other management nodes. Between two
/// services, the upgrade waits until the restarted member has all changes of its group or of
/// management. Without this wait, the next stop could stop the only complete member. With
/// `remount`, clients unmount the cluster and mount it again at the end.
pub fn upgrade(
    deployment: &Deployment,
    program: &Program,
    all: &AllFacts,
    remount: bool,
) -> Vec<Phase> {
    let mut phases = Phases::default();
    let acting = acting(deployment, all);
    let facts = |host: &Host| all.get(&host.name).cloned().unwrap_or_default();
    let is_new = |host: &Host| facts(host).program.as_ref() != Some(&program.hash);
    let hosts = &deployment.hosts;
    for starts_first in [true, false] {
        phases.add("start", hosts, |host| {
            let facts = facts(host);
            let is_stopped = |role: &Role| {
                role.is_node() && facts.initialised.contains(role) && !facts.runs(*role)
            };
            let stopped = host.services().filter(is_stopped);
            let stopped = stopped.filter(|role| (*role == Role::Management) == starts_first);
            stopped.map(Action::Start).collect()
        });
    }
    let awaited = |_: &Host| vec![Action::AwaitHealth, Action::AwaitMembers];
    phases.add("health", [acting], awaited);
    let has_old_units = |host: &Host| facts(host).platform.has_old_units;
    phases.add("install", hosts, |host| {
        let install = is_new(host).then_some(Action::Install);
        let writes =
            facts(host).deployed.is_some() && has_other_units(host, &facts(host), is_new(host));
        install.into_iter().chain(writes.then_some(Action::WriteUnits)).collect()
    });
    for role in [Role::Storage, Role::Metadata, Role::Management, Role::Monitor] {
        let mut having: Vec<&Host> = hosts.iter().filter(|host| host.has(role)).collect();
        if role == Role::Management {
            let leader = all.cluster.as_ref().and_then(Cluster::leader);
            having.sort_by_key(|host| Some(host.name.as_str()) == leader);
        }
        for host in having {
            let runs_old = facts(host).running.get(&role) == Some(&Running::Old);
            if !is_new(host) && !has_old_units(host) && !runs_old {
                continue;
            }
            // An upgrade does not start a stopped monitor. `skep deploy apply` starts the monitor.
            if !role.is_node() && !facts(host).runs(role) {
                continue;
            }
            phases.add("restart", [host], |_| vec![Action::Stop(role), Action::Start(role)]);
            if role.is_node() {
                phases.add("health", [acting], awaited);
            }
        }
    }
    if remount {
        phases.add("remount", hosts.iter().filter(|host| host.has(Role::Client)), |_| {
            vec![Action::Unmount, Action::Mount]
        });
    }
    verify(deployment, &mut phases);
    phases.0
}

/// Returns the steps that remove hosts from the cluster. Clients unmount first. After this, the
/// services stop, and management stops last. If `keeps_data` is set, the removal of a host fails if
/// it would delete data.
pub fn remove(deployment: &Deployment, names: &[String], keeps_data: bool) -> Vec<Phase> {
    let mut phases = Phases::default();
    let hosts: Vec<&Host> =
        deployment.hosts.iter().filter(|host| names.contains(&host.name)).collect();
    let clients = hosts.iter().copied().filter(|host| host.has(Role::Client));
    phases.add("unmount", clients, |_| vec![Action::Unmount]);
    for role in [Role::Monitor, Role::Storage, Role::Metadata, Role::Management] {
        let having = hosts.iter().copied().filter(|host| host.has(role));
        phases.add("stop", having, |_| vec![Action::Stop(role)]);
    }
    phases.add("remove", hosts.iter().copied(), |_| vec![Action::Remove { keeps_data }]);
    phases.0
}

/// Returns only the steps of the host `name`, and the steps that are for the cluster as a whole.
pub fn only(phases: Vec<Phase>, name: &str) -> Vec<Phase> {
    let is_common = |action: &Action| {
        use Action::{AwaitHealth, CreateGroup, FormatCluster, SetCopies};
        use Action::{ReadCheck, RemoveCheck, WriteCheck};
        match action {
            FormatCluster | AwaitHealth | WriteCheck | ReadCheck | RemoveCheck => true,
            SetCopies(_) | CreateGroup(_) => true,
            Action::AddCopy { place, .. } => place.host == name,
            _ => false,
        }
    };
    let keep = |mut phase: Phase| {
        for host in phase.hosts.iter_mut().filter(|host| host.host != name) {
            host.actions.retain(is_common);
        }
        phase.hosts.retain(|host| !host.actions.is_empty());
        (!phase.hosts.is_empty()).then_some(phase)
    };
    phases.into_iter().filter_map(keep).collect()
}

/// Returns the total number of steps in all phases.
pub fn count(phases: &[Phase]) -> usize {
    phases.iter().flat_map(|phase| &phase.hosts).map(|host| host.actions.len()).sum()
}

#[cfg(test)]
#[path = "plan/tests.rs"]
mod tests;
