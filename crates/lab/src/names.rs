//! Names and addresses of all parts of a lab. Each name contains the name of the lab, so that the
//! remains of an incomplete lab can be found.
//!
//! A lab's network can be reached only from within the lab's namespaces, so all labs use the same
//! addresses.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

/// Directory that contains one directory for each lab, with the lab's state, logs and mounts.
pub const STATE_ROOT: &str = "/run/skep-lab";
/// Default parent of the data directories of labs.
pub const DATA_ROOT: &str = "/var/tmp/skep-lab";
/// Directory in which the system stores the names of network namespaces.
pub const NAMESPACES: &str = "/run/netns";
/// Environment variable that marks all processes of a lab. Its value is the lab's name.
pub const PROCESS_VARIABLE: &str = "SKEP_LAB_PROCESS";
/// Name of the file in a data directory that contains the name of the directory's lab.
pub(crate) const MARKER_FILE: &str = "skep-lab-data";
/// Prefix of all names that the lab gives to parts of the system.
const PREFIX: &str = "skep-lab-";
/// Ports of the services. The ports may be fixed, since two services of the same kind never share a
/// host.
pub(crate) const MANAGEMENT_PORT: u16 = 7400;
pub(crate) const METADATA_PORT: u16 = 7410;
pub(crate) const STORAGE_PORT: u16 = 7420;
/// Name of the metadata host.
pub(crate) const METADATA_HOST: &str = "m1";
/// Length in bits of the address prefix that all hosts share.
pub(crate) const ADDRESS_BITS: u8 = 16;

/// Returns the directory of a lab's state.
pub(crate) fn state_directory(lab: &str) -> PathBuf {
    Path::new(STATE_ROOT).join(lab)
}

/// Returns the name of a lab's network namespace for a host, or for the network that connects the
/// hosts.
pub(crate) fn namespace(lab: &str, host: &str) -> String {
    format!("{PREFIX}{lab}-{host}")
}

/// Returns the lab that the name of a namespace contains. `None` means that the namespace belongs
/// to no lab.
pub(crate) fn lab_of_namespace(namespace: &str) -> Option<&str> {
    namespace.strip_prefix(PREFIX)?.split_once('-').map(|(lab, _)| lab)
}

/// Returns the source that the mount table shows for a lab's in-memory file system.
pub(crate) fn memory_name(lab: &str) -> String {
    format!("{PREFIX}{lab}")
}

/// The role of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The host runs management and metadata.
    Metadata,
    /// The host runs a storage service.
    Server,
    /// The host has a mount of the cluster.
    Client,
}

/// Returns name and address of host `number` (from 1) of a role. The addresses are reserved for
/// tests of networks (RFC 2544).
pub(crate) fn host(role: Role, number: u16) -> (String, Ipv4Addr) {
    let last = u8::try_from(number).expect("fewer hosts than addresses: limits.rs");
    match role {
        Role::Metadata => (METADATA_HOST.into(), Ipv4Addr::new(198, 18, 0, last)),
        Role::Server => (format!("s{number}"), Ipv4Addr::new(198, 18, 1, last)),
        Role::Client => (format!("c{number}"), Ipv4Addr::new(198, 18, 2, last)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{MAX_HOSTS, MAX_NAME};
    use std::collections::BTreeSet;

    /// Maximum length of the name of a network interface in Linux, in bytes.
    const MAX_INTERFACE: usize = 15;

    #[test]
    fn names_and_addresses_are_different_and_short_enough() {
        let mut names = BTreeSet::new();
        let mut addresses = BTreeSet::new();
        let hosts = [(Role::Metadata, 1), (Role::Server, MAX_HOSTS), (Role::Client, MAX_HOSTS)];
        for (role, count) in hosts {
            for number in 1..=count {
                let (name, address) = host(role, number);
                assert!(name.len() <= MAX_INTERFACE, "{name}");
                assert!(names.insert(name) && addresses.insert(address), "{role:?} {number}");
            }
        }
        assert_eq!(names.len(), 1 + 2 * usize::from(MAX_HOSTS));
    }

    #[test]
    fn namespace_name_identifies_its_lab() {
        let name = "a".repeat(MAX_NAME);
        assert_eq!(lab_of_namespace(&namespace(&name, "s1")), Some(name.as_str()));
        assert_eq!(lab_of_namespace(&namespace("a", "net")), Some("a"));
        for other in ["skep-1-2", "skep-lab-", "blue", "skep-labx-s1"] {
            assert_eq!(lab_of_namespace(other), None, "{other}");
        }
    }
}
