//! Returns the configuration files of the services and of the monitor, as texts. The module does no
//! I/O.

use crate::hosts::{Deployment, Host, Role};
use std::fmt::Write;

/// Returns the configuration file of a service.
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
        text += "directory = \"/srv/skep/monitor\"\n";
        return text;
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
    if host.network.iter().any(|address| address.contains(':')) {
        let _ = writeln!(text, "listen = \"[::]:{}\"", role.port().unwrap_or_default());
    }
    if !host.domain.is_empty() {
        let _ = writeln!(text, "domain = \"{}\"", host.domain);
    }
    text
}

/// Returns the SHA-256 of the text that [`config`] returns.
pub fn config_hash(deployment: &Deployment, host: &Host, role: Role) -> String {
    use sha2::{Digest, Sha256};
    let hash = Sha256::digest(config(deployment, host, role).as_bytes());
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}
