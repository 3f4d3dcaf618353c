//! Reports the status of a lab: its hosts, links, processes and mounts.

use crate::data::is_mount_point;
use crate::names::{NAMESPACES, Role};
use crate::network::{Traffic, traffic};
use crate::state::{Host, Phase, State};
use serde::Serialize;
use skep_types::Result;
use std::path::{Path, PathBuf};

/// The current status of a lab.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// The lab's name.
    pub name: String,
    /// Whether the lab is starting or up.
    pub phase: Phase,
    /// Whether all hosts exist, and all processes and mounts are running.
    pub is_well: bool,
    /// Address of management, reachable only from within the lab.
    pub cluster: String,
    /// Path of the file with the cluster's token.
    pub token_file: PathBuf,
    /// Directory that contains the directories of services and targets.
    pub directory: PathBuf,
    /// Directory that contains the logs.
    pub log_directory: PathBuf,
    /// Status of each host of the lab.
    pub hosts: Vec<HostStatus>,
    /// All storage targets of the lab.
    pub targets: Vec<crate::Target>,
}

/// The status of one host of a lab.
#[derive(Debug, Clone, Serialize)]
pub struct HostStatus {
    /// Name of the host in the lab.
    pub name: String,
    /// Role of the host.
    pub role: Role,
    /// Name of the host's network namespace.
    pub namespace: String,
    /// Whether the namespace exists.
    pub is_there: bool,
    /// Address of the host in the lab's network.
    pub address: String,
    /// Rate of the host's link, in each direction. `None` means no limit.
    pub link_bytes_per_second: Option<u64>,
    /// Number of bytes that the host has sent over its link since the link was created, with all
    /// headers. `None` means that the host does not exist.
    pub sent_bytes: Option<u64>,
    /// Number of bytes that the host has received over its link since the link was created, with
    /// all headers. `None` means that the host does not exist.
    pub received_bytes: Option<u64>,
    /// Directory on which the cluster is mounted. `None` means that the host is not a client.
    pub mount_point: Option<PathBuf>,
    /// Whether the cluster is mounted. `None` means that the host is not a client.
    pub is_mounted: Option<bool>,
    /// Status of each process of the host.
    pub processes: Vec<ProcessStatus>,
}

/// The status of one process of a lab.
#[derive(Debug, Clone, Serialize)]
pub struct ProcessStatus {
    /// Name of the process, such as `storage`.
    pub name: String,
    /// Process id.
    pub pid: u32,
    /// Whether the process still runs.
    pub runs: bool,
}

/// Returns the status of a lab.
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
    /// Whether the host exists, and all its processes and its mount are running.
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
