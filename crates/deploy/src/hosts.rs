//! The hosts file, which has the roles of each host, its disks and directories for data, and the
//! mount point of clients.
//!
//! The module owns the form of the file, and all checks that need no access to the hosts. The
//! module reports all problems of a file together. `rules` has the checks that concern several
//! settings or several hosts.

mod disk_settings;
mod monitor_settings;
mod rules;

pub use disk_settings::DiskSettings;

use rules::{check_binding, check_domain, check_places, place_monitor};
use serde::{Deserialize, Serialize};
use skep_types::{Error, ErrorCode, Result};
use std::fmt::{self, Display};
use std::path::{Path, PathBuf};

/// A role of a host: a service that runs on it, or the mount of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The host runs management.
    Management,
    /// The host serves a part of the namespace.
    Metadata,
    /// The host stores the data of files.
    Storage,
    /// The host runs the monitor, which stores the history of the cluster's load and serves a web
    /// page.
    Monitor,
    /// The host mounts the cluster.
    Client,
}

impl Role {
    /// All roles that are services, in the order of their start.
    pub const SERVICES: [Self; 4] =
        [Self::Management, Self::Metadata, Self::Storage, Self::Monitor];

    /// Returns the word for the role. For a service, it is also the subcommand of `skep` that runs
    /// it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Management => "management",
            Self::Metadata => "metadata",
            Self::Storage => "storage",
            Self::Monitor => "monitor",
            Self::Client => "client",
        }
    }

    /// Returns the port on which the service listens. `None` means that the role has no port.
    pub fn port(self) -> Option<u16> {
        match self {
            Self::Management => Some(7400),
            Self::Metadata => Some(7410),
            Self::Storage => Some(7420),
            Self::Monitor => Some(7480),
            Self::Client => None,
        }
    }

    /// Whether the service is a node of the cluster. The monitor is no node, because it only sends
    /// requests to the nodes, and only programs on its own host can open its web page.
    pub fn is_node(self) -> bool {
        matches!(self, Self::Management | Self::Metadata | Self::Storage)
    }

    /// Returns the path of the service's configuration file.
    pub fn config_path(self, cluster: &str) -> String {
        match self {
            Self::Monitor => "/etc/skep/monitor.toml".into(),
            _ => format!("/etc/skep/{self}-{cluster}.toml"),
        }
    }

    fn parse(word: &str) -> Option<Self> {
        Self::SERVICES.into_iter().chain([Self::Client]).find(|role| role.word() == word)
    }
}

impl Display for Role {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.word())
    }
}

/// Options of the ssh client.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SshSettings {
    /// User name on the hosts. Empty means that the ssh client decides.
    pub user: String,
    /// Port of sshd. Zero means that the ssh client decides.
    pub port: u16,
    /// Path of the private key. Empty means that the ssh client decides.
    pub identity: String,
    /// Further options of the ssh client, as `Name=value`.
    pub options: Vec<String>,
}

/// How clients mount the cluster.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MountSettings {
    /// Mount point.
    pub point: String,
    /// Mount options, separated by commas.
    pub options: String,
}

impl Default for MountSettings {
    fn default() -> Self {
        Self { point: "/mnt/skep".into(), options: "_netdev,retry=80,nosuid,nodev".into() }
    }
}

/// A disk that the deployment formats for a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// The block device to format.
    pub device: String,
    /// The service that gets the target.
    pub role: Role,
}

impl Disk {
    /// Returns the directory on which the disk will be mounted.
    pub fn mount_point(&self) -> String {
        let name = self.device.trim_start_matches("/dev/").replace('/', "-");
        format!("{DISKS}/{name}")
    }
}

/// A target: a directory on a host.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Name of the host.
    pub host: String,
    /// Directory of the target.
    pub path: String,
}

impl Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.host, self.path)
    }
}

/// Directory in which the mount points of disks are.
pub const DISKS: &str = "/srv/skep/disks";

/// One host of the hosts file.
#[derive(Debug, Clone)]
pub struct Host {
    /// Name of the host and of its services.
    pub name: String,
    /// Address that ssh uses.
    pub address: String,
    /// The addresses at which other hosts reach the services of this host, best first.
    pub network: Vec<String>,
    /// Roles of the host, in the order of [`Role`]. A host without roles can only be removed.
    pub roles: Vec<Role>,
    /// Failure domain of the host. Empty means that the host is a domain by itself.
    pub domain: String,
    /// Disks that the deployment formats for targets.
    pub disks: Vec<Disk>,
    /// Directories for targets, each with the service that gets the target. These directories may
    /// exist already.
    pub directories: Vec<(Role, String)>,
    /// Whether `skep tune apply` changes the settings of the host's kernel for its roles.
    pub tune: bool,
    /// CPUs on which the services of the host run. Empty means all of them.
    pub cpus: String,
    /// NUMA node on which the services of the host run. `None` means all nodes.
    pub numa_node: Option<u32>,
}

impl Host {
    /// Whether the host has the role `role`.
    pub fn has(&self, role: Role) -> bool {
        self.roles.contains(&role)
    }

    /// Returns the host's services, in the order of their start.
    pub fn services(&self) -> impl Iterator<Item = Role> {
        Role::SERVICES.into_iter().filter(|role| self.has(*role))
    }

    /// Returns the directories of all targets of a service: first the directories on disks, then
    /// the directories that the hosts file names.
    pub fn targets(&self, role: Role) -> Vec<String> {
        let disks = self.disks.iter().filter(|disk| disk.role == role);
        let named = self.directories.iter().filter(|(of, _)| *of == role);
        let disks = disks.map(|disk| format!("{}/target", disk.mount_point()));
        disks.chain(named.map(|(_, directory)| directory.clone())).collect()
    }
}

/// A checked hosts file.
#[derive(Debug, Clone)]
pub struct Deployment {
    /// Name of the cluster.
    pub cluster: String,
    /// Options of the ssh client.
    pub ssh: SshSettings,
    /// How clients mount the cluster.
    pub mount: MountSettings,
    /// Options for the file systems on disks.
    pub disks: DiskSettings,
    /// Number of copies of metadata. `None` means that a new cluster has one copy, and that the
    /// deployment does not change the number in an existing cluster.
    pub copies: Option<u32>,
    /// Whether programs on other hosts, such as Prometheus, can read the pages of metrics of the
    /// services.
    pub metrics: bool,
    /// Settings of the monitor, as in its configuration file. Empty if the file has none.
    pub monitor: toml::Table,
    /// The hosts, in the order of the file.
    pub hosts: Vec<Host>,
    /// Directory that contains the hosts file. Relative paths in the file are relative to this
    /// directory.
    pub directory: PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default = "default_cluster")]
    cluster: String,
    #[serde(default)]
    ssh: SshSettings,
    #[serde(default)]
    mount: MountSettings,
    #[serde(default)]
    disks: DiskSettings,
    /// Either a Boolean, which is true if the cluster has a monitor, or a table with the settings
    /// of the monitor.
    monitor: Option<toml::Value>,
    copies: Option<u32>,
    #[serde(default)]
    metrics: bool,
    /// The value of `tune` for all hosts that do not set it themselves.
    #[serde(default)]
    tune: bool,
    #[serde(default)]
    host: Vec<HostEntry>,
}

fn default_cluster() -> String {
    "skep".into()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HostEntry {
    name: String,
    #[serde(default)]
    address: String,
    #[serde(default)]
    network: Vec<String>,
    roles: Vec<String>,
    #[serde(default)]
    domain: String,
    #[serde(default)]
    metadata_disks: Vec<String>,
    #[serde(default)]
    metadata_directories: Vec<String>,
    #[serde(default)]
    storage_disks: Vec<String>,
    #[serde(default)]
    storage_directories: Vec<String>,
    tune: Option<bool>,
    #[serde(default)]
    cpus: String,
    numa_node: Option<u32>,
}

impl Deployment {
    /// Reads and checks a hosts file.
    ///
    /// # Errors
    /// - `NotFound` if the file cannot be read.
    /// - `Configuration` if the file has problems. The error lists all of them.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            let what = format!(
                "cannot read the hosts file {}: {error}; name a hosts file with --hosts",
                path.display()
            );
            Error::new(ErrorCode::NotFound, what)
        })?;
        let mut read = Self::parse(&text).map_err(|error| {
            error.within(format_args!("cannot use the hosts file {}", path.display()))
        })?;
        read.directory = path.parent().map(Path::to_path_buf).unwrap_or_default();
        Ok(read)
    }

    /// Parses and checks the text of a hosts file.
    ///
    /// # Errors
    /// Returns `Configuration` if the file has problems. The error lists all of them.
    pub fn parse(text: &str) -> Result<Self> {
        let file: File = toml::from_str(text)
            .map_err(|error| Error::new(ErrorCode::Configuration, error.to_string()))?;
        let mut problems = Vec::new();
        let mut hosts: Vec<Host> =
            file.host.into_iter().map(|entry| host(entry, file.tune, &mut problems)).collect();
        let (has_monitor, monitor) = monitor_settings::read(file.monitor, &mut problems);
        place_monitor(has_monitor, &mut hosts, &mut problems);
        let read = Self {
            cluster: file.cluster,
            ssh: file.ssh,
            mount: file.mount,
            disks: file.disks,
            copies: file.copies,
            metrics: file.metrics,
            monitor,
            hosts,
            directory: PathBuf::new(),
        };
        rules::check(&read, &mut problems);
        match problems.is_empty() {
            true => Ok(read),
            false => Err(Error::new(ErrorCode::Configuration, problems.join("\n"))),
        }
    }

    /// Returns the hosts of management, in the order of the file. A checked file has one, three or
    /// five of them.
    pub fn managers(&self) -> impl Iterator<Item = &Host> {
        self.hosts.iter().filter(|host| host.has(Role::Management))
    }

    /// Whether the cluster has several management nodes.
    pub fn has_several_managers(&self) -> bool {
        self.managers().nth(1).is_some()
    }

    /// Returns the host with the name `name`.
    ///
    /// # Errors
    /// Returns `NotFound` if there is no such host. The error lists the names of all hosts.
    pub fn host(&self, name: &str) -> Result<&Host> {
        let found = self.hosts.iter().find(|host| host.name == name);
        found.ok_or_else(|| {
            let names: Vec<_> = self.hosts.iter().map(|host| host.name.as_str()).collect();
            let what =
                format!("cannot find host {name}: the hosts of the file are {}", names.join(", "));
            Error::new(ErrorCode::NotFound, what)
        })
    }

    /// Returns the addresses of all management nodes, with their port, in the order of the file.
    /// Tokens and mounts contain them in this form.
    pub fn management_addresses(&self) -> Vec<String> {
        let port = Role::Management.port().unwrap_or_default();
        let addresses = self.managers().flat_map(|host| &host.network);
        let with_port = |address: &String| match address.contains(':') {
            true => format!("[{address}]:{port}"),
            false => format!("{address}:{port}"),
        };
        addresses.map(with_port).collect()
    }
}

/// Converts an entry of the file to a host. `tune` is the value for hosts whose entries do not set
/// this field.
fn host(entry: HostEntry, tune: bool, problems: &mut Vec<String>) -> Host {
    let name = entry.name;
    if !is_name(&name) {
        problems
            .push(format!("invalid host name '{name}': expected letters a to z, digits and '-'"));
    }
    let address = if entry.address.is_empty() { name.clone() } else { entry.address };
    let network = match entry.network.is_empty() {
        true => vec![address.clone()],
        false => entry.network,
    };
    for it in network.iter().chain([&address]) {
        if !is_address(it) {
            problems.push(format!(
                "host {name}: invalid address '{it}': expected a name or an IP address"
            ));
        }
    }
    let mut roles = Vec::new();
    for word in &entry.roles {
        match Role::parse(word) {
            Some(role) if roles.contains(&role) => {
                problems.push(format!("host {name}: the role {role} appears twice; name it once"));
            }
            Some(role) => roles.push(role),
            None => problems.push(format!(
                "host {name}: unknown role '{word}': expected management, metadata, storage, \
                 monitor or client"
            )),
        }
    }
    roles.sort();
    let mut disks = Vec::new();
    let mut directories = Vec::new();
    for (role, devices, named) in [
        (Role::Metadata, entry.metadata_disks, entry.metadata_directories),
        (Role::Storage, entry.storage_disks, entry.storage_directories),
    ] {
        let is_empty = devices.is_empty() && named.is_empty();
        match (roles.contains(&role), is_empty) {
            (true, true) => problems.push(format!(
                "host {name}: the role {role} has no target; set {role}_disks or {role}_directories"
            )),
            (false, false) => problems.push(format!(
                "host {name}: {role}_disks or {role}_directories is set, but the role {role} is \
                 missing; add the role or remove the setting"
            )),
            _ => {}
        }
        disks.extend(devices.into_iter().map(|device| Disk { device, role }));
        directories.extend(named.into_iter().map(|directory| (role, directory)));
    }
    check_places(&name, &disks, &directories, problems);
    let (cpus, numa_node) = (entry.cpus, entry.numa_node);
    check_binding(&name, &cpus, numa_node, problems);
    check_domain(&name, &entry.domain, problems);
    let (domain, tune) = (entry.domain, entry.tune.unwrap_or(tune));
    Host { name, address, network, roles, domain, disks, directories, tune, cpus, numa_node }
}

/// Whether a text is a host name or an IP address. Scripts can contain such a text without quotes.
pub(crate) fn is_address(text: &str) -> bool {
    let letters = |it: char| it.is_ascii_alphanumeric() || ".:-_".contains(it);
    !text.is_empty() && !text.starts_with('-') && text.chars().all(letters)
}

pub(crate) fn is_name(name: &str) -> bool {
    let letters = |it: char| it.is_ascii_lowercase() || it.is_ascii_digit() || it == '-';
    !name.is_empty() && name.len() <= 40 && !name.starts_with('-') && name.chars().all(letters)
}

/// Whether a text is a path that scripts can contain without quotes.
pub(crate) fn is_path(path: &str) -> bool {
    let parts = path.strip_prefix('/').map(|rest| rest.split('/').collect::<Vec<_>>());
    let letters = |it: char| it.is_ascii_alphanumeric() || "._+@:-".contains(it);
    parts.is_some_and(|parts| {
        let good = |part: &&str| {
            !part.is_empty() && *part != "." && *part != ".." && part.chars().all(letters)
        };
        parts.iter().all(good)
    })
}

#[cfg(test)]
pub(crate) mod tests;
