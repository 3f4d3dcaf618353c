//! Returns the configuration files of the services and of the monitor, and the lines of
//! `/etc/fstab`, as texts. The module does no I/O.

use crate::facts::disk_uuid;
use crate::hosts::{Deployment, Host, Role};
use crate::text_hash::text_hash;
use std::fmt::Write;

/// Directory of the monitor on its host.
pub(crate) const MONITOR_DIRECTORY: &str = "/srv/skep/monitor";

/// Returns the settings in the configuration file of the monitor.
pub fn monitor_settings(deployment: &Deployment) -> toml::Table {
    let mut settings = deployment.monitor.clone();
    settings.insert("directory".into(), MONITOR_DIRECTORY.into());
    settings
}

/// Returns the configuration file of a service.
///
/// # Panics
/// Does not panic, because the settings of the monitor come from a TOML file.
pub fn config(deployment: &Deployment, host: &Host, role: Role) -> String {
    let list = |items: &[String]| {
        let quoted: Vec<_> = items.iter().map(|item| format!("\"{item}\"")).collect();
        format!("[{}]", quoted.join(", "))
    };
    let mut text = format!(
        "# Written by `skep deploy` for the cluster '{}'. The next `skep deploy apply` replaces\n\
         # changes of this file by those of the hosts file.\n",
        deployment.cluster
    );
    if role == Role::Monitor {
        // The file needs no token and no addresses, because the unit of the monitor names the token
        // file, and the token contains the addresses of management.
        let settings = toml::to_string(&monitor_settings(deployment));
        return text + &settings.expect("settings of a TOML file can be written as TOML");
    }
    if role != Role::Management {
        let _ = writeln!(text, "targets = {}", list(&host.targets(role)));
    }
    let _ = writeln!(
        text,
        "[node]\ndirectory = \"/srv/skep/{role}\"\nname = \"{}\"\nadvertise = {}",
        host.name,
        list(&host.network)
    );
    let has_ipv6 = host.network.iter().any(|address| address.contains(':'));
    let port = role.port().unwrap_or_default();
    if has_ipv6 {
        let _ = writeln!(text, "listen = \"[::]:{port}\"");
    }
    if deployment.metrics {
        let any = if has_ipv6 { "[::]" } else { "0.0.0.0" };
        let _ = writeln!(text, "metrics = \"{any}:{}\"", port + 1);
    }
    if !host.domain.is_empty() {
        let _ = writeln!(text, "domain = \"{}\"", host.domain);
    }
    if !host.cpus.is_empty() {
        let _ = writeln!(text, "cpus = \"{}\"", host.cpus);
    }
    if let Some(node) = host.numa_node {
        let _ = writeln!(text, "numa_node = \"{node}\"");
    }
    text
}

/// Returns the SHA-256 of the text that [`config`] returns.
pub fn config_hash(deployment: &Deployment, host: &Host, role: Role) -> String {
    text_hash(&config(deployment, host, role))
}

/// Returns the source of the mounts: the addresses of all management nodes.
pub fn mount_source(deployment: &Deployment) -> String {
    deployment.management_addresses().join(",")
}

/// Returns the lines of `/etc/fstab` for the disks and the mount of a host. Empty if the host has
/// neither.
pub fn fstab(deployment: &Deployment, host: &Host) -> String {
    let mut text = String::new();
    for disk in &host.disks {
        let uuid = disk_uuid(deployment, host, &disk.device);
        let (point, options) = (disk.mount_point(), deployment.disks.mount(disk.role));
        let _ = writeln!(text, "UUID={uuid} {point} xfs {options},nofail 0 0");
    }
    if host.has(Role::Client) {
        let (source, mount) = (mount_source(deployment), &deployment.mount);
        let _ = writeln!(
            text,
            "{source} {} skep {},token_file=/etc/skep/token 0 0",
            mount.point, mount.options
        );
    }
    text
}

/// Returns the SHA-256 of the text that [`fstab`] returns.
pub fn fstab_hash(deployment: &Deployment, host: &Host) -> String {
    text_hash(&fstab(deployment, host))
}
