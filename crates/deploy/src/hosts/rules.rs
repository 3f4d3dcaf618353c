//! The rules of a hosts file that concern several settings or several hosts.
//!
//! The module reads no file. Each problem names the host or the setting, and the remedy.

use super::{Deployment, Disk, Host, Role, is_name, is_path};
use crate::groups;
use skep_types::cpu_list;
use skep_types::registration::domain_problem;
use std::collections::BTreeMap;

/// Numbers of management nodes that a cluster may have.
const MANAGEMENT_NODES: [usize; 3] = [1, 3, 5];
/// Maximum number of copies of metadata.
const MOST_COPIES: u32 = 3;

/// Returns the problems of a hosts file.
pub(super) fn check(file: &Deployment, problems: &mut Vec<String>) {
    if !is_name(&file.cluster) {
        problems.push(format!(
            "invalid cluster '{}': expected letters a to z, digits and '-'",
            file.cluster
        ));
    }
    if !is_path(&file.mount.point) {
        problems.push(format!(
            "invalid mount.point '{}': expected an absolute path below the root directory",
            file.mount.point
        ));
    }
    if !file.mount.options.chars().all(|it| it.is_ascii_graphic() && !"'\"\\".contains(it)) {
        problems.push("invalid mount.options: expected options separated by commas".into());
    }
    problems.extend(file.disks.problems());
    let mut names: BTreeMap<&str, u32> = BTreeMap::new();
    let mut addresses: BTreeMap<&str, &str> = BTreeMap::new();
    for host in &file.hosts {
        *names.entry(&host.name).or_default() += 1;
        if let Some(other) = addresses.insert(&host.address, &host.name) {
            problems.push(format!(
                "hosts {other} and {} have the same address {}; give both roles to one host",
                host.name, host.address
            ));
        }
    }
    for (name, _) in names.iter().filter(|(_, count)| **count > 1) {
        problems.push(format!("host {name} appears twice; name all its roles in one [[host]]"));
    }
    check_management(file, problems);
    for role in [Role::Metadata, Role::Storage] {
        if !file.hosts.iter().any(|host| host.has(role)) {
            problems.push(format!("the role {role} is missing; give it to at least one host"));
        }
    }
    check_copies(file, problems);
}

fn check_management(file: &Deployment, problems: &mut Vec<String>) {
    let names: Vec<_> = file.managers().map(|host| host.name.as_str()).collect();
    let reason = match names.len() {
        0 => {
            problems.push("the role management is missing; give it to one host".into());
            return;
        }
        count if MANAGEMENT_NODES.contains(&count) => return,
        2 => {
            "management on two nodes stops when one node is lost, so two nodes fail more often \
             than one"
        }
        4 => "four nodes survive the loss of only one node, as three nodes do",
        _ => {
            "each change waits for more than half of the nodes, and five nodes already survive the \
             loss of two"
        }
    };
    problems.push(format!(
        "hosts {} have the role management: {reason}; give the role to one, three or five hosts",
        names.join(" and ")
    ));
}

fn check_copies(file: &Deployment, problems: &mut Vec<String>) {
    let Some(copies) = file.copies else { return };
    if !(1..=MOST_COPIES).contains(&copies) {
        problems.push(format!(
            "invalid copies {copies}: expected a number of copies of metadata from 1 to \
             {MOST_COPIES}"
        ));
        return;
    }
    if copies > 1
        && file.hosts.iter().any(|host| host.has(Role::Metadata))
        && let Err(problem) = groups::divide(file)
    {
        problems.push(problem);
    }
}

/// Gives the role of the monitor to the first host of management, if the file gives it to no host.
pub(super) fn place_monitor(is_wanted: bool, hosts: &mut [Host], problems: &mut Vec<String>) {
    let having = hosts.iter().filter(|host| host.has(Role::Monitor));
    let names: Vec<&str> = having.map(|host| host.name.as_str()).collect();
    match names.as_slice() {
        [] if is_wanted => {
            if let Some(host) = hosts.iter_mut().find(|host| host.has(Role::Management)) {
                host.roles.push(Role::Monitor);
                host.roles.sort();
            }
        }
        [name, ..] if !is_wanted => problems.push(format!(
            "host {name} has the role monitor, but `monitor = false` is set; remove the role or \
             this setting"
        )),
        [] | [_] => {}
        several => problems.push(format!(
            "hosts {} have the role monitor; give it to one host only",
            several.join(" and ")
        )),
    }
}

/// Checks the CPUs and the NUMA node to which a host binds its services.
pub(super) fn check_binding(
    name: &str,
    cpus: &str,
    numa_node: Option<u32>,
    problems: &mut Vec<String>,
) {
    if !cpus.is_empty() && cpu_list::parse(cpus).is_none() {
        problems.push(format!(
            "host {name}: invalid cpus '{cpus}': expected CPUs and ranges, such as 0-7,16"
        ));
    }
    if !cpus.is_empty() && numa_node.is_some() {
        problems.push(format!("host {name}: cpus and numa_node are both set; set one of them"));
    }
}

/// Checks the name of a failure domain by the same rules as the services of the host. An empty name
/// means that the host has no domain.
pub(super) fn check_domain(name: &str, domain: &str, problems: &mut Vec<String>) {
    if let Some(problem) = domain_problem(domain).filter(|_| !domain.is_empty()) {
        problems.push(format!("host {name}: {problem}"));
    }
}

pub(super) fn check_places(
    name: &str,
    disks: &[Disk],
    directories: &[(Role, String)],
    problems: &mut Vec<String>,
) {
    let places = disks.iter().map(|disk| &disk.device);
    let places: Vec<&String> = places.chain(directories.iter().map(|(_, path)| path)).collect();
    for (index, place) in places.iter().enumerate() {
        if places[..index].contains(place) {
            problems.push(format!("host {name}: {place} is used by two targets; name it once"));
        }
        if !is_path(place) {
            problems.push(format!(
                "host {name}: invalid path '{place}': expected an absolute path of letters, digits \
                 and ._+@:-"
            ));
        }
    }
    for (index, disk) in disks.iter().enumerate() {
        // Two devices can have the same mount point, for example the logical volumes /dev/a-b/c and
        // /dev/a/b-c.
        let point = disk.mount_point();
        let is_same = |other: &&Disk| other.device != disk.device && other.mount_point() == point;
        if let Some(other) = disks[..index].iter().find(is_same) {
            problems.push(format!(
                "host {name}: {} and {} would both be mounted on {point}; rename one of these \
                 logical volumes",
                other.device, disk.device
            ));
        }
    }
    for disk in disks.iter().filter(|disk| !disk.device.starts_with("/dev/")) {
        problems.push(format!(
            "host {name}: '{}' is not a block device; name one below /dev, or use {}_directories",
            disk.device, disk.role
        ));
    }
}
