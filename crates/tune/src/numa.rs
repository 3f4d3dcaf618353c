//! Compares the NUMA nodes on which running services may run with the nodes of the disks and
//! network interfaces that they use. Reads `/proc` and `/sys` only.
//!
//! A finding needs a host with several nodes, a running service, and a device whose node the kernel
//! shows. The finding reports a violation only if none of the disks (or of the interfaces) is on a
//! node of the service. The command may also look at disks that the service does not use.

use crate::check::{Finding, Scope};
use crate::rules::{Role, Test};
use crate::tree::Tree;
use skep_types::cpu_list;
use std::collections::{BTreeMap, BTreeSet};

/// The numbers of NUMA nodes.
type Nodes = BTreeSet<usize>;

/// For each running service that has a role of `scope`, returns a finding about its disks, and a
/// finding about its network interfaces. Empty on a host with one node.
pub fn findings(tree: &Tree, scope: &Scope) -> Vec<Finding> {
    let nodes = nodes(tree);
    if nodes.len() < 2 {
        return Vec::new();
    }
    let disks = of_devices(tree, "/sys/block", &scope.devices);
    let interfaces = of_devices(tree, "/sys/class/net", &scope.interfaces);
    let mut findings = Vec::new();
    for service in services(tree, scope, &nodes) {
        // Management reads and writes little, so the nodes of its disks do not matter.
        let disks = Some(("disks", &disks)).filter(|_| service.role != Role::Management);
        for (what, devices) in disks.into_iter().chain([("network interfaces", &interfaces)]) {
            findings.extend(compare(&service, what, devices));
        }
    }
    findings
}

/// A running service.
struct Service {
    pid: String,
    role: Role,
    /// Name of the role.
    word: String,
    /// The nodes on whose CPUs the service's main thread may run. Its other threads inherit this
    /// restriction.
    nodes: Nodes,
}

/// Returns the CPUs of each NUMA node of the host.
fn nodes(tree: &Tree) -> BTreeMap<usize, BTreeSet<usize>> {
    let of = |name: String| {
        let node = name.strip_prefix("node")?.parse::<usize>().ok()?;
        let list = tree.read(&format!("/sys/devices/system/node/{name}/cpulist"))?;
        Some((node, cpu_list::parse(list.trim())?))
    };
    tree.names("/sys/devices/system/node").into_iter().filter_map(of).collect()
}

/// Returns the running services that have one of the roles in `scope`.
fn services(tree: &Tree, scope: &Scope, nodes: &BTreeMap<usize, BTreeSet<usize>>) -> Vec<Service> {
    let of = |pid: String| {
        pid.parse::<u32>().ok()?;
        let command = tree.read(&format!("/proc/{pid}/cmdline"))?;
        let mut words = command.split('\0');
        let program = words.next()?.rsplit('/').next()?;
        let word = words.next().filter(|_| program == "skep")?;
        let is_service = |it: &Role| scope.roles.contains(it) && *it != Role::Client;
        let role = Role::named(word).ok().filter(is_service)?;
        let status = tree.read(&format!("/proc/{pid}/status"))?;
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        let cpus = cpu_list::parse(list.trim())?;
        let is_used = |(_, of_node): &(&usize, &BTreeSet<usize>)| !of_node.is_disjoint(&cpus);
        let nodes = nodes.iter().filter(is_used).map(|(node, _)| *node).collect();
        Some(Service { pid, role, word: word.to_owned(), nodes })
    };
    tree.names("/proc").into_iter().filter_map(of).collect()
}

/// Returns the node of each device whose node the kernel shows.
fn of_devices(tree: &Tree, directory: &str, names: &[String]) -> Vec<(String, usize)> {
    let of = |name: &String| {
        // A device without a node has the number -1.
        let node = tree.read_above(&format!("{directory}/{name}"), "numa_node")?;
        Some((name.clone(), node.trim().parse::<usize>().ok()?))
    };
    names.iter().filter_map(of).collect()
}

fn compare(service: &Service, what: &str, devices: &[(String, usize)]) -> Option<Finding> {
    if devices.is_empty() {
        return None;
    }
    let list = |nodes: &Nodes| format!("NUMA node {}", cpu_list::show(nodes));
    let of_devices: Nodes = devices.iter().map(|(_, node)| *node).collect();
    let names: Vec<&str> = devices.iter().map(|(name, _)| name.as_str()).collect();
    Some(Finding {
        rule: "numa-node".into(),
        file: format!("/proc/{}/status", service.pid),
        is: format!("{} on {}", service.word, list(&service.nodes)),
        test: Test::Equal,
        should_be: format!("{} of {what} {}", list(&of_devices), names.join(", ")),
        passes: !of_devices.is_disjoint(&service.nodes),
        can_apply: false,
        risk: String::new(),
        why: "each byte crosses the link between the processors; the option `--numa-node` \
              keeps a service on one NUMA node"
            .into(),
        source: "Dell 2020, binding to NUMA zones".into(),
        setting: None,
    })
}
