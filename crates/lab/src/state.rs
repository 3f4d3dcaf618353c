//! The state of a lab, which is stored in a file. Other commands use the state to find the parts of
//! the lab, and `down` uses the state to remove these parts.
//!
//! `up` writes the file before it creates any part of the lab. So the file contains the names of
//! all parts that may exist. `up` writes the file again after the start of each process.

use crate::description::{Description, check_name};
use crate::names::{
    DATA_ROOT, MANAGEMENT_PORT, NAMESPACES, Role, STATE_ROOT, host, lab_of_namespace, namespace,
    state_directory,
};
use crate::process::Process;
use serde::{Deserialize, Serialize};
use skep_types::{Error, ErrorCode, Result};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Version of the format of the state file.
const VERSION: u32 = 1;
/// Name of the state file in the lab's state directory.
const STATE_FILE: &str = "lab.json";

/// The progress of the start of a lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// `up` is still starting the lab, or was interrupted.
    Starting,
    /// The lab is started: all services and mounts are ready.
    Up,
}

/// A host of a lab, which is a network namespace with one link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Name of the host within the lab: `m1` and so on for metadata, `s1` and so on for servers,
    /// `c1` and so on for clients.
    pub name: String,
    /// Role of the host in the lab.
    pub role: Role,
    /// Name of the host's network namespace.
    pub namespace: String,
    /// Address of the host in the lab's network.
    pub address: String,
    /// Maximum rate of the host's link, in each direction. `None` means no limit.
    pub link_bytes_per_second: Option<u64>,
    /// Directory on which the client mounts the cluster's file system. `None` means that the host
    /// is not a client.
    pub mount_point: Option<PathBuf>,
}

impl Host {
    /// Returns the words to put before a command so that the command runs on this host.
    pub fn enter(&self) -> Vec<String> {
        ["ip", "netns", "exec", &self.namespace].map(str::to_owned).to_vec()
    }
}

/// A storage target of a lab.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// Name of the server host that has the target.
    pub server: String,
    /// Path of the target's directory.
    pub directory: PathBuf,
    /// Maximum rate of the target, for reads and writes together. `None` means no limit.
    pub rate_bytes_per_second: Option<u64>,
    /// Standard deviation of the target's rate over time, in percent of the rate.
    pub variability_percent: u32,
}

/// The state of a lab, with the names of all its parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Version of the format of the state file.
    pub version: u32,
    /// Name of the lab.
    pub name: String,
    /// Whether the lab is still starting, or is up.
    pub phase: Phase,
    /// Description from which the lab was created.
    pub description: Description,
    /// Boot id of the kernel at the start of the lab. If the kernel has another boot id now, the
    /// processes of the lab no longer exist.
    pub boot: String,
    /// Name of the network namespace that contains the bridge.
    pub network: String,
    /// Address of the management service. Only the hosts of the lab can reach this address.
    pub cluster: String,
    /// Path of the file with the join token of the lab's cluster.
    pub token_file: PathBuf,
    /// Data directory of the lab, with the directories of all services and targets.
    pub directory: PathBuf,
    /// Directory with the logs of all services and mounts.
    pub log_directory: PathBuf,
    /// All hosts of the lab. The metadata hosts come first, then the servers, then the clients.
    pub hosts: Vec<Host>,
    /// All storage targets of the lab, ordered by server. Usually, the cluster numbers the targets
    /// in this order.
    pub targets: Vec<Target>,
    /// All service and mount processes that were started, even if they have ended. During the
    /// start, the list also contains the process that starts the lab.
    pub processes: Vec<Process>,
}

fn configuration(what: String) -> Error {
    Error::new(ErrorCode::Configuration, what)
}

impl State {
    /// Returns the state of a lab that will be started. The function creates nothing.
    pub(crate) fn plan(name: &str, description: &Description) -> Self {
        let run = state_directory(name);
        let directory = match &description.directory {
            Some(directory) => directory.clone(),
            None => Path::new(DATA_ROOT).join(name),
        };
        let new_host = |role, number, link: Option<crate::Rate>| {
            let (host_name, address) = host(role, number);
            Host {
                namespace: namespace(name, &host_name),
                address: address.to_string(),
                link_bytes_per_second: link.map(crate::Rate::bytes_per_second),
                mount_point: (role == Role::Client).then(|| run.join("mnt").join(&host_name)),
                name: host_name,
                role,
            }
        };
        let metadata = 1..=description.metadata_servers;
        let mut hosts: Vec<Host> = metadata
            .map(|number| new_host(Role::Metadata, number, description.metadata_link))
            .collect();
        let cluster = format!("{}:{MANAGEMENT_PORT}", hosts[0].address);
        let servers = 1..=description.servers;
        hosts.extend(servers.map(|number| new_host(Role::Server, number, description.link)));
        let clients = 1..=description.clients;
        hosts.extend(clients.map(|number| new_host(Role::Client, number, description.client_link)));
        let servers = hosts.iter().filter(|host| host.role == Role::Server);
        let targets = servers
            .flat_map(|server| (1..=description.targets).map(move |number| (server, number)))
            .map(|(server, number)| Target {
                server: server.name.clone(),
                directory: directory.join(&server.name).join(format!("t{number}")),
                rate_bytes_per_second: description.target_rate.map(crate::Rate::bytes_per_second),
                variability_percent: description.target_variability.map_or(0, |it| it.0),
            })
            .collect();
        Self {
            version: VERSION,
            name: name.to_owned(),
            phase: Phase::Starting,
            description: description.clone(),
            boot: this_boot(),
            network: namespace(name, "net"),
            cluster,
            token_file: run.join("token"),
            directory,
            log_directory: run.join("logs"),
            hosts,
            targets,
            processes: Vec::new(),
        }
    }

    /// Reads the state of a lab from the state file.
    ///
    /// # Errors
    /// - `NotFound`: this host has no lab with this name.
    /// - `Configuration`: the name is invalid, or the state file has invalid contents or another
    ///   version.
    /// - Another error: the state file cannot be read.
    pub fn load(name: &str) -> Result<Self> {
        check_name(name)?;
        let path = state_directory(name).join(STATE_FILE);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let others: Vec<String> = names().into_iter().collect();
                let what = match others.as_slice() {
                    [] => format!(
                        "cannot find lab '{name}': this host has no lab; `skep lab up` starts a lab"
                    ),
                    _ => format!(
                        "cannot find lab '{name}': the labs of this host are {}",
                        others.join(", ")
                    ),
                };
                return Err(Error::new(ErrorCode::NotFound, what));
            }
            Err(error) => return Err(Error::from(error).within(path.display())),
        };
        let state: Self = serde_json::from_slice(&bytes)
            .map_err(|error| configuration(format!("{}: {error}", path.display())))?;
        if state.version != VERSION || state.name != name {
            return Err(configuration(format!(
                "cannot use {}: another version of skep wrote this file; remove the lab with that \
                 version, or with `skep lab down --name {name}`",
                path.display()
            )));
        }
        Ok(state)
    }

    /// Writes the state file atomically, so that readers see either the old state or the new state.
    pub(crate) fn save(&self) -> Result<()> {
        let path = state_directory(&self.name).join(STATE_FILE);
        let temporary = path.with_extension("new");
        let text = serde_json::to_vec_pretty(self).expect("names and numbers can be written");
        let written =
            std::fs::write(&temporary, text).and_then(|()| std::fs::rename(&temporary, &path));
        written.map_err(|error| Error::from(error).within(path.display()))
    }

    /// Returns the hosts that have the role `role`.
    pub fn hosts_of(&self, role: Role) -> impl Iterator<Item = &Host> {
        self.hosts.iter().filter(move |host| host.role == role)
    }

    /// Returns the host with the name `name`.
    ///
    /// # Errors
    /// Returns `NotFound` with the names of all hosts if no host has this name.
    pub fn host(&self, name: &str) -> Result<&Host> {
        self.hosts.iter().find(|host| host.name == name).ok_or_else(|| {
            let names: Vec<_> = self.hosts.iter().map(|host| host.name.as_str()).collect();
            let what =
                format!("cannot find host '{name}': the hosts of the lab are {}", names.join(", "));
            Error::new(ErrorCode::NotFound, what)
        })
    }

    /// Whether this machine has not been rebooted since the start of the lab.
    pub(crate) fn is_of_this_boot(&self) -> bool {
        self.boot == this_boot()
    }
}

fn this_boot() -> String {
    skep_env::boot_id().map_or_else(|_| "unknown".into(), |id| format!("{id:032x}"))
}

/// Returns the names of the entries of a directory. The list is empty if the directory cannot be
/// read.
fn files_in(directory: &str) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

/// Returns the names of all labs that have at least one existing part.
pub fn names() -> BTreeSet<String> {
    let namespaces = files_in(NAMESPACES);
    let named = namespaces.iter().filter_map(|name| lab_of_namespace(name)).map(str::to_owned);
    let directories = [STATE_ROOT, DATA_ROOT].into_iter().flat_map(files_in);
    named.chain(directories).filter(|name| check_name(name).is_ok()).collect()
}

/// Returns the names of all network namespaces of a lab.
pub(crate) fn namespaces_of(lab: &str) -> Vec<String> {
    let mut found = files_in(NAMESPACES);
    found.retain(|name| lab_of_namespace(name) == Some(lab));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planned_state_names_all_hosts_and_targets_of_the_lab() {
        let text = "servers = 2\ntargets = 3\nclients = 2\nlink = \"400Mbit\"\n\
                    target_rate = \"30MB/s\"\ntarget_variability = \"10%\"\n";
        let plan = State::plan("x", &Description::parse(text).unwrap());
        let names: Vec<_> = plan.hosts.iter().map(|host| host.name.as_str()).collect();
        assert_eq!(names, ["m1", "s1", "s2", "c1", "c2"]);
        assert_eq!(plan.targets.len(), 6);
        assert_eq!(plan.targets[5].directory, Path::new("/var/tmp/skep-lab/x/s2/t3"));
        assert_eq!(plan.targets[5].variability_percent, 10);
        let client = plan.host("c2").unwrap();
        assert_eq!(client.mount_point.as_deref(), Some(Path::new("/run/skep-lab/x/mnt/c2")));
        assert_eq!(client.enter(), ["ip", "netns", "exec", "skep-lab-x-c2"]);
        assert_eq!(client.link_bytes_per_second, None);
        assert_eq!(plan.host("s1").unwrap().link_bytes_per_second, Some(50_000_000));
        assert!(plan.host("s3").unwrap_err().context().contains("the lab are m1, s1"));
        let text = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<State>(&text).unwrap(), plan);
    }

    #[test]
    fn first_metadata_host_has_the_address_of_the_cluster() {
        let text = "metadata_servers = 3\nmetadata_link = \"8Mbit\"\n";
        let plan = State::plan("x", &Description::parse(text).unwrap());
        let metadata: Vec<_> = plan.hosts_of(Role::Metadata).collect();
        let names: Vec<_> = metadata.iter().map(|host| host.name.as_str()).collect();
        assert_eq!(names, ["m1", "m2", "m3"]);
        assert!(metadata.iter().all(|host| host.link_bytes_per_second == Some(1_000_000)));
        assert_eq!(plan.cluster, format!("{}:{MANAGEMENT_PORT}", metadata[0].address));
    }

    #[test]
    fn state_file_of_an_earlier_version_has_one_metadata_host() {
        // An earlier version wrote state files without these keys.
        let plan = State::plan("x", &Description::default());
        let mut value = serde_json::to_value(&plan).unwrap();
        let description = value["description"].as_object_mut().unwrap();
        assert!(description.remove("metadata_servers").is_some());
        assert!(description.remove("metadata_link").is_some());
        assert_eq!(serde_json::from_value::<State>(value).unwrap(), plan);
    }
}
