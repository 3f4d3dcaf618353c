//! Determines the current status of a lab's hosts, links, processes and mounts.

use crate::data::is_mount_point;
use crate::names::{NAMESPACES, Role};
use crate::network::{Traffic, traffic};
use crate::state::{Host, Phase, State};
use serde::Serialize;
use skep_types::Result;
use std::path::{Path, PathBuf};

/// The status of a lab, and of each of its hosts.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// Name of the lab.
    pub name: String,
    /// Whether the lab is still starting, or is up.
    pub phase: Phase,
    /// Whether the start of the lab has completed, all hosts exist, and all processes and mounts
    /// are running.
    pub is_well: bool,
    /// Address of the management service. Only the hosts of the lab can reach this address.
    pub cluster: String,
    /// Path of the file with the join token of the lab's cluster.
    pub token_file: PathBuf,
    /// Data directory of the lab, with the directories of all services and targets.
    pub directory: PathBuf,
    /// Directory with the logs of all services and mounts.
    pub log_directory: PathBuf,
    /// The status of each host.
    pub hosts: Vec<HostStatus>,
    /// All storage targets of the lab.
    pub targets: Vec<crate::Target>,
}

/// The status of one host of a lab.
#[derive(Debug, Clone, Serialize)]
pub struct HostStatus {
    /// Name of the host within the lab.
    pub name: String,
    /// Role of the host in the lab.
    pub role: Role,
    /// Name of the host's network namespace.
    pub namespace: String,
    /// Whether the network namespace of the host exists.
    pub is_there: bool,
    /// Address of the host in the lab's network.
    pub address: String,
    /// Maximum rate of the host's link, in each direction. `None` means no limit.
    pub link_bytes_per_second: Option<u64>,
    /// Number of bytes that the host has sent since its link was created, including the headers of
    /// packets. `None` means that the host does not exist.
    pub sent_bytes: Option<u64>,
    /// Number of bytes that the host has received since its link was created, including the headers
    /// of packets. `None` means that the host does not exist.
    pub received_bytes: Option<u64>,
    /// Directory on which the client mounts the cluster's file system. `None` means that the host
    /// is not a client.
    pub mount_point: Option<PathBuf>,
    /// Whether the file system is mounted on this directory. `None` means that the host is not a
    /// client.
    pub is_mounted: Option<bool>,
    /// The status of each process that was started on the host.
    pub processes: Vec<ProcessStatus>,
}

/// The status of one process of a lab.
#[derive(Debug, Clone, Serialize)]
pub struct ProcessStatus {
    /// Name of the process, such as `storage` or `mount`.
    pub name: String,
    /// Process id.
    pub pid: u32,
    /// Whether the process is still running.
    pub runs: bool,
}

/// Determines the current status of a lab.
///
/// # Errors
/// Returns `Io` if the mount table cannot be read.
pub fn status(state: &State) -> Result<Status> {
    let hosts: Vec<_> =
        state.hosts.iter().map(|host| of_host(state, host)).collect::<Result<_>>()?;
    let is_well = state.phase == Phase::Up && hosts.iter().all(HostStatus::is_well);
    Ok(Status {
        name: state.name.clone(),
        phase: state.phase,
        is_well,
        cluster: state.cluster.clone(),
        token_file: state.token_file.clone(),
        directory: state.directory.clone(),
        log_directory: state.log_directory.clone(),
        hosts,
        targets: state.targets.clone(),
    })
}

impl HostStatus {
    /// Whether the host exists, has at least one process, and all its processes are running. On a
    /// client, the file system must also be mounted.
    pub fn is_well(&self) -> bool {
        self.is_there
            && self.is_mounted != Some(false)
            && !self.processes.is_empty()
            && self.processes.iter().all(|process| process.runs)
    }
}

fn of_host(state: &State, host: &Host) -> Result<HostStatus> {
    let is_there = Path::new(NAMESPACES).join(&host.namespace).exists();
    let bytes: Option<Traffic> = traffic(state, host).ok().filter(|_| is_there);
    let is_this_boot = state.is_of_this_boot();
    let own = state.processes.iter().filter(|process| process.host == host.name);
    let processes = own
        .map(|process| ProcessStatus {
            name: process.name.clone(),
            pid: process.pid,
            runs: is_this_boot && process.runs(),
        })
        .collect();
    let is_mounted = host.mount_point.as_deref().map(is_mount_point).transpose()?;
    Ok(HostStatus {
        name: host.name.clone(),
        role: host.role,
        namespace: host.namespace.clone(),
        is_there,
        address: host.address.clone(),
        link_bytes_per_second: host.link_bytes_per_second,
        sent_bytes: bytes.map(|it| it.sent_bytes),
        received_bytes: bytes.map(|it| it.received_bytes),
        mount_point: host.mount_point.clone(),
        is_mounted,
        processes,
    })
}
