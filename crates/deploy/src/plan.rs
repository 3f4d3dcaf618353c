//! Plans the steps that lead from the observed state of the hosts to the cluster that the hosts
//! file describes.
//!
//! The module does no I/O. It compares the hosts file with the facts. A plan has phases. A phase
//! begins when all hosts have ended the phase before it. Within a phase, hosts work in parallel,
//! and each host runs its steps in order. Steps that are done already are left out, so a plan for a
//! complete cluster has only the steps that verify it.

use crate::checks::Program;
use crate::config::config_hash;
use crate::facts::{Contents, Facts, Running};
use crate::hosts::{Deployment, Disk, Host, Role};
use std::collections::BTreeMap;
use std::fmt::{self, Display};

/// A step: one change of one host, or a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Copy the program to the host.
    Install,
    /// Write configuration files, units, and the lines of `/etc/fstab`.
    Configure,
    /// Create a file system on an empty disk.
    Format(Disk),
    /// Mount all disks of the host.
    MountDisks,
    /// Write the join token to a file.
    WriteToken,
    /// Initialise the directories of a service.
    Initialise(Role),
    /// Stop a service, and wait for its end.
    Stop(Role),
    /// Start a service, and wait until it is ready.
    Start(Role),
    /// Wait until all targets are registered, and then divide the namespace among the metadata
    /// targets.
    FormatCluster,
    /// Wait until all servers of the hosts file answer.
    AwaitHealth,
    /// Wait until all members of metadata groups serve, and until all management nodes have the
    /// whole log. Then another host can stop, and the cluster continues to work.
    AwaitMembers,
    /// Mount the cluster.
    Mount,
    /// Unmount the cluster.
    Unmount,
    /// Write the check file through the mount.
    WriteCheck,
    /// Read the check file through the mount, and compare its checksum.
    ReadCheck,
    /// Remove the check file.
    RemoveCheck,
    /// Remove all files and directories that a deployment has created on the host.
    Remove,
}

impl Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Install => "install the program",
            Self::Configure => "write the configuration and the systemd units",
            Self::Format(disk) => {
                return write!(formatter, "format {} for {}", disk.device, disk.role);
            }
            Self::MountDisks => "mount the disks",
            Self::WriteToken => "write the token",
            Self::Initialise(role) => return write!(formatter, "initialise {role}"),
            Self::Stop(role) => return write!(formatter, "stop {role}"),
            Self::Start(role) => return write!(formatter, "start {role}"),
            Self::FormatCluster => "format the cluster",
            Self::AwaitHealth => "wait until the cluster is healthy",
            Self::AwaitMembers => "wait until all copies of metadata and management are complete",
            Self::Mount => "mount the cluster",
            Self::Unmount => "unmount the cluster",
            Self::WriteCheck => "write a file through the mount",
            Self::ReadCheck => "read the file through the mount",
            Self::RemoveCheck => "remove the file",
            Self::Remove => "remove all files and services of Skep",
        };
        formatter.write_str(text)
    }
}

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

/// The facts about all hosts, by the names of the hosts.
pub type AllFacts = BTreeMap<String, Facts>;

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
    let management = [deployment.management()];
    phases.add("management", management, |host| {
        facts(host).map(|it| service(deployment, host, it, Role::Management)).unwrap_or_default()
    });
    phases.add("join", hosts, |host| {
        facts(host).map(|it| join(deployment, host, it)).unwrap_or_default()
    });
    let is_formatted = facts(management[0]).is_some_and(|it| it.is_formatted);
    phases.add("format", management, |_| match is_formatted {
        true => Vec::new(),
        false => vec![Action::FormatCluster],
    });
    phases.add("health", management, |_| vec![Action::AwaitHealth]);
    // The monitor starts when the cluster is formatted. If it started earlier, the deployment would
    // cause alerts.
    phases.add("monitor", hosts, |host| {
        facts(host).map_or_else(Vec::new, |it| monitor(deployment, host, it))
    });
    phases.add("mount", hosts, |host| match facts(host) {
        Some(it) if host.has(Role::Client) && it.mount.is_none() => vec![Action::Mount],
        _ => Vec::new(),
    });
    verify(deployment, &mut phases);
    phases.0
}

/// Returns the steps that install the program and the configuration files, and format and mount the
/// disks.
fn install(deployment: &Deployment, program: &Program, host: &Host, facts: &Facts) -> Vec<Action> {
    let mut actions = Vec::new();
    let is_current = facts.program.as_ref() == Some(&program.hash);
    // Only an upgrade replaces a program that services are running.
    if !is_current && facts.running.is_empty() {
        actions.push(Action::Install);
    }
    let is_configured = facts.deployed.is_some()
        && host.services().all(|role| has_config(deployment, host, facts, role));
    if !is_configured || host.disks.iter().any(|disk| is_new(facts, disk)) {
        actions.push(Action::Configure);
    }
    let new = host.disks.iter().filter(|disk| is_new(facts, disk));
    actions.extend(new.cloned().map(Action::Format));
    let is_mounted = |disk: &Disk| facts.places.get(&disk.device) == Some(&Contents::Mounted);
    if !host.disks.iter().all(is_mounted) {
        actions.push(Action::MountDisks);
    }
    actions
}

fn is_new(facts: &Facts, disk: &Disk) -> bool {
    !matches!(facts.places.get(&disk.device), Some(Contents::Ours | Contents::Mounted))
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

fn join(deployment: &Deployment, host: &Host, facts: &Facts) -> Vec<Action> {
    let mut actions = Vec::new();
    if facts.token.is_none() {
        actions.push(Action::WriteToken);
    }
    let others = host.services().filter(|role| role.is_node() && *role != Role::Management);
    actions.extend(others.flat_map(|role| service(deployment, host, facts, role)));
    actions
}

/// Returns the steps after which the monitor runs on the host that the hosts file names, and does
/// not run on other hosts. They do not include an initialisation, because the monitor initialises
/// its directory when it starts.
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

fn verify(deployment: &Deployment, phases: &mut Phases) {
    let clients: Vec<&Host> =
        deployment.hosts.iter().filter(|host| host.has(Role::Client)).collect();
    let Some((first, others)) = clients.split_first() else { return };
    phases.add("verify: write", [*first], |_| vec![Action::WriteCheck]);
    // If there is only one client, it reads the file that it has written itself.
    let readers = if others.is_empty() { &clients[..] } else { others };
    phases.add("verify: read", readers.iter().copied(), |_| vec![Action::ReadCheck]);
    phases.add("verify: remove", [*first], |_| vec![Action::RemoveCheck]);
}

/// Returns the steps of an upgrade. First, all hosts get the new program. Then the services restart
/// one after the other. Between two services, the upgrade waits until the restarted member has what
/// its group has changed meanwhile, because the next service may be the only other member. With
/// `remount`, clients unmount the cluster and mount it again at the end.
pub fn upgrade(
    deployment: &Deployment,
    program: &Program,
    all: &AllFacts,
    remount: bool,
) -> Vec<Phase> {
    let mut phases = Phases::default();
    let management = deployment.management();
    let facts = |host: &Host| all.get(&host.name).cloned().unwrap_or_default();
    let is_new = |host: &Host| facts(host).program.as_ref() != Some(&program.hash);
    let hosts = &deployment.hosts;
    let awaited = |_: &Host| vec![Action::AwaitHealth, Action::AwaitMembers];
    phases.add("health", [management], awaited);
    phases.add("install", hosts, |host| match is_new(host) {
        true => vec![Action::Install],
        false => Vec::new(),
    });
    for role in [Role::Storage, Role::Metadata, Role::Management, Role::Monitor] {
        for host in hosts.iter().filter(|host| host.has(role)) {
            let runs_old = facts(host).running.get(&role) == Some(&Running::Old);
            if !is_new(host) && !runs_old {
                continue;
            }
            // If the monitor does not run, an upgrade does not start it. `skep deploy apply` does.
            if !role.is_node() && !facts(host).runs(role) {
                continue;
            }
            phases.add("restart", [host], |_| vec![Action::Stop(role), Action::Start(role)]);
            if role.is_node() {
                phases.add("health", [management], awaited);
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

/// Returns the steps that remove hosts from the cluster. Clients unmount first. Then services stop,
/// management last.
pub fn remove(deployment: &Deployment, names: &[String]) -> Vec<Phase> {
    let mut phases = Phases::default();
    let hosts: Vec<&Host> =
        deployment.hosts.iter().filter(|host| names.contains(&host.name)).collect();
    let clients = hosts.iter().copied().filter(|host| host.has(Role::Client));
    phases.add("unmount", clients, |_| vec![Action::Unmount]);
    for role in [Role::Monitor, Role::Storage, Role::Metadata, Role::Management] {
        let having = hosts.iter().copied().filter(|host| host.has(role));
        phases.add("stop", having, |_| vec![Action::Stop(role)]);
    }
    phases.add("remove", hosts.iter().copied(), |_| vec![Action::Remove]);
    phases.0
}

/// Returns only the steps of the host `name`, and the steps that are for the cluster as a whole.
pub fn only(phases: Vec<Phase>, name: &str) -> Vec<Phase> {
    let is_common = |action: &Action| {
        use Action::{AwaitHealth, FormatCluster, ReadCheck, RemoveCheck, WriteCheck};
        matches!(action, FormatCluster | AwaitHealth | WriteCheck | ReadCheck | RemoveCheck)
    };
    let keep = |mut phase: Phase| {
        phase.hosts.retain(|host| host.host == name || host.actions.iter().all(is_common));
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
