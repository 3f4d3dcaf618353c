//! Chooses the names and addresses of all parts of a lab. The names of namespaces, directories and
//! mounts contain the name of the lab, so `down` can find these parts even if the state file is
//! missing.
//!
//! The network of a lab can be reached only from the network namespaces of this lab. So all labs
//! can use the same addresses.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

/// Directory that contains a directory for each lab. This directory has the state, the logs and the
/// mount points of the lab.
pub const STATE_ROOT: &str = "/run/skep-lab";
/// Directory that contains the data directories of labs, if the user names no other directory.
pub const DATA_ROOT: &str = "/var/tmp/skep-lab";
/// Directory that contains a file for each named network namespace.
pub const NAMESPACES: &str = "/run/netns";
/// Environment variable of all processes of a lab. The value of the variable is the name of the
/// lab.
pub const PROCESS_VARIABLE: &str = "SKEP_LAB_PROCESS";
/// Name of the marker file in a data directory. The file contains the name of the lab to which the
/// directory belongs.
pub(crate) const MARKER_FILE: &str = "skep-lab-data";
/// Prefix of the names of a lab's network namespaces and in-memory file system.
const PREFIX: &str = "skep-lab-";
/// Port of the management service. The ports of services are fixed, because each host has its own
/// network namespace and runs at most one service of each kind.
pub(crate) const MANAGEMENT_PORT: u16 = 7400;
pub(crate) const METADATA_PORT: u16 = 7410;
pub(crate) const STORAGE_PORT: u16 = 7420;
/// Length in bits of the network part of each host's address.
pub(crate) const ADDRESS_BITS: u8 = 16;

/// Returns the directory with a lab's state.
pub(crate) fn state_directory(lab: &str) -> PathBuf {
    Path::new(STATE_ROOT).join(lab)
}

/// Returns the name of a network namespace of a lab. `host` is the name of a host, or of the
/// network that connects the hosts.
pub(crate) fn namespace(lab: &str, host: &str) -> String {
    format!("{PREFIX}{lab}-{host}")
}

/// Returns the name of the lab in the name of a network namespace. `None` means that the namespace
/// does not belong to a lab.
pub(crate) fn lab_of_namespace(namespace: &str) -> Option<&str> {
    namespace.strip_prefix(PREFIX)?.split_once('-').map(|(lab, _)| lab)
}

/// Returns the name of a lab's in-memory file system in the mount table.
pub(crate) fn memory_name(lab: &str) -> String {
    format!("{PREFIX}{lab}")
}

/// The role of a host in a lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The host runs a metadata service. The first of these hosts also runs the management
    /// service.
    Metadata,
    /// The host runs a storage service.
    Server,
    /// The host has a mount of the cluster's file system.
    Client,
}

/// Returns the name and the address of the host with this role and number. Numbers start at 1. The
/// addresses are in a range that is reserved for tests of networks (RFC 2544).
pub(crate) fn host(role: Role, number: u16) -> (String, Ipv4Addr) {
    let last = u8::try_from(number).expect("limits.rs allows fewer hosts than addresses");
    match role {
        Role::Metadata => (format!("m{number}"), Ipv4Addr::new(198, 18, 0, last)),
        Role::Server => (format!("s{number}"), Ipv4Addr::new(198, 18, 1, last)),
        Role::Client => (format!("c{number}"), Ipv4Addr::new(198, 18, 2, last)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{MAX_HOSTS, MAX_METADATA_SERVERS, MAX_NAME};
    use std::collections::BTreeSet;

    /// Maximum length in bytes of the name of a network interface in Linux.
    const MAX_INTERFACE: usize = 15;

    #[test]
    fn lab_names_and_addresses_are_unique_and_short_enough() {
        let mut names = BTreeSet::new();
        let mut addresses = BTreeSet::new();
        let hosts = [
            (Role::Metadata, MAX_METADATA_SERVERS),
            (Role::Server, MAX_HOSTS),
            (Role::Client, MAX_HOSTS),
        ];
        for (role, count) in hosts {
            for number in 1..=count {
                let (name, address) = host(role, number);
                assert!(name.len() <= MAX_INTERFACE, "{name}");
                assert!(names.insert(name) && addresses.insert(address), "{role:?} {number}");
            }
        }
        assert_eq!(names.len(), usize::from(MAX_METADATA_SERVERS + 2 * MAX_HOSTS));
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
