//! The systemd units of the services, and the user that runs them, as files of a host.
//!
//! The texts belong to the program that deploys. The module does no I/O. [`crate::actions`] owns
//! the unit files that depend on the disks of a host.

use crate::hosts::{Host, Role};
use crate::text_hash::text_hash;

/// The user that the units need, for `systemd-sysusers`.
const USER: (&str, &str) =
    ("/etc/sysusers.d/skep.conf", include_str!("../../../packaging/sysusers/skep.conf"));
/// The systemd units that all hosts get.
const UNITS: [(&str, &str); 4] = [
    (
        "/etc/systemd/system/skep-management@.service",
        include_str!("../../../packaging/systemd/skep-management@.service"),
    ),
    (
        "/etc/systemd/system/skep-metadata@.service",
        include_str!("../../../packaging/systemd/skep-metadata@.service"),
    ),
    (
        "/etc/systemd/system/skep-storage@.service",
        include_str!("../../../packaging/systemd/skep-storage@.service"),
    ),
    ("/etc/systemd/system/skep.target", include_str!("../../../packaging/systemd/skep.target")),
];
/// The systemd unit of the monitor. Only the host of the monitor gets it.
const MONITOR_UNIT: (&str, &str) = (
    "/etc/systemd/system/skep-monitor.service",
    include_str!("../../../packaging/systemd/skep-monitor.service"),
);

/// Returns the paths and the texts of the files that a host with systemd gets.
pub(crate) fn files(host: &Host) -> impl Iterator<Item = (&'static str, &'static str)> {
    let monitor = Some(MONITOR_UNIT).filter(|_| host.has(Role::Monitor));
    [USER].into_iter().chain(UNITS).chain(monitor)
}

/// Returns the SHA-256 of all files of a host, one after the other.
pub fn units_hash(host: &Host) -> String {
    text_hash(&files(host).map(|(_, text)| text).collect::<String>())
}
