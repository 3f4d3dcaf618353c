//! The systemd units of the services, and the user that runs them, as files of a host.
//!
//! The texts belong to this version of the program. A deployment may install another version. So
//! the program that is installed on a host prints the units of this host (`skep deploy units`).
//! Only the drop-in files that depend on the disks of a host come from the program that deploys.
//! The module does no I/O.

use crate::hosts::{Host, Role};
use crate::text_hash::text_hash;
use std::fmt::Write;

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

/// The shell functions that compare and write the files of a host.
pub(crate) const FUNCTIONS: &str = include_str!("scripts/units.sh");

fn files() -> impl Iterator<Item = (&'static str, &'static str)> {
    [USER].into_iter().chain(UNITS).chain([MONITOR_UNIT])
}

/// Returns the paths of the files on a host with systemd. `has_monitor` includes the unit of the
/// monitor.
pub fn paths(has_monitor: bool) -> impl Iterator<Item = &'static str> {
    files().map(|(path, _)| path).filter(move |path| has_monitor || *path != MONITOR_UNIT.0)
}

/// Returns the text of the file with this path. `None` means that this program has no such file.
pub fn text(path: &str) -> Option<&'static str> {
    files().find(|(known, _)| *known == path).map(|(_, text)| text)
}

/// Returns the options of `skep deploy units` for a host.
pub(crate) fn options(host: &Host) -> &'static str {
    if host.has(Role::Monitor) { "--monitor" } else { "" }
}

/// Returns the path of the drop-in file with the disks of a service.
pub(crate) fn drop_in_path(cluster: &str, role: Role) -> String {
    format!("/etc/systemd/system/skep-{role}@{cluster}.service.d/disks.conf")
}

/// Returns the drop-in file for the unit of a service. At boot, systemd starts the service after it
/// has tried to mount the disks of the service. `None` means that the service has no disks.
///
/// The unit does not require the mounts, so a service with a missing disk serves its other targets.
/// The directory of the target on the missing disk does not exist. The service serves only a
/// directory that has the identity of a target. So the service reports this target as failed, and
/// opens the target when the disk is mounted. The unit does not start the mounts either (`Wants=`).
/// A restart of the service would otherwise wait 90 s for the device of a missing disk. At boot,
/// `local-fs.target` starts the mounts of `/etc/fstab`.
pub(crate) fn drop_in(host: &Host, role: Role) -> Option<String> {
    let disks = host.disks.iter().filter(|disk| disk.role == role);
    let mounts: Vec<_> = disks.map(|disk| mount_unit(&disk.mount_point())).collect();
    (!mounts.is_empty()).then(|| format!("[Unit]\nAfter={}\n", mounts.join(" ")))
}

/// Returns the name of the systemd unit that mounts a file system on a directory, as
/// `systemd-escape --path --suffix=mount` prints it.
fn mount_unit(point: &str) -> String {
    let mut name = String::new();
    for letter in point.trim_matches('/').chars() {
        match letter {
            '/' => name.push('-'),
            _ if letter.is_ascii_alphanumeric() || ":_.".contains(letter) => name.push(letter),
            _ => {
                let mut bytes = [0; 4];
                for byte in letter.encode_utf8(&mut bytes).bytes() {
                    let _ = write!(name, "\\x{byte:02x}");
                }
            }
        }
    }
    name + ".mount"
}

/// Returns the hash of [`drop_in`].
pub(crate) fn drop_in_hash(host: &Host, role: Role) -> Option<String> {
    drop_in(host, role).map(|text| text_hash(&text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::Deployment;
    use crate::hosts::tests::GOOD;

    /// systemd does not start a service whose user does not exist.
    #[test]
    fn units_name_only_the_user_that_a_deployment_creates() {
        let all: Vec<_> = paths(true).filter_map(text).collect();
        assert_eq!(all.len(), paths(false).count() + 1);
        let mut users = all.iter().flat_map(|it| it.lines()).filter(|it| it.starts_with("User="));
        assert!(users.clone().count() >= 3 && users.all(|line| line == "User=skep"));
        assert!(USER.1.contains("\nu skep - "), "{}", USER.1);
        assert!(FUNCTIONS.contains("systemd-sysusers skep.conf\n"));
        assert_eq!(text("/etc/passwd"), None);
    }

    /// With `RequiresMountsFor=`, a service with several disks did not start while one was missing.
    #[test]
    fn missing_disk_does_not_prevent_the_start_of_a_service() {
        let deployment = Deployment::parse(GOOD).unwrap();
        let drop_in = drop_in(deployment.host("s1").unwrap(), Role::Storage).unwrap();
        // `systemd-escape --path --suffix=mount` prints these names.
        let mounts = "srv-skep-disks-nvme1n1.mount srv-skep-disks-mapper\\x2ddata.mount";
        assert_eq!(drop_in, format!("[Unit]\nAfter={mounts}\n"));
        assert_eq!(mount_unit("/srv/a+b@c:d_e.f"), "srv-a\\x2bb\\x40c:d_e.f.mount");
    }

    /// Runs `body` with the shell functions [`FUNCTIONS`] on a host whose program has the units `a`
    /// and `b`. Both units have the text `wanted`. Returns the exit status and the output.
    fn run(place: &std::path::Path, body: &str) -> (Option<i32>, String) {
        let at = place.display();
        let functions = FUNCTIONS.replace("/usr/bin/skep ", "fake_skep ");
        let functions = functions.replace("/run/skep/unit", &format!("{at}/unit"));
        let script = format!(
            "set -eu\ndie() {{ echo \"$*\"; exit 1; }}\nid() {{ true; }}\n\
             write_file() {{ cat >\"$1\"; }}\n\
             fake_skep() {{ case \"$*\" in\n\
             *' --file '*) echo wanted ;;\n\
             'deploy units') printf '%s\\n' {at}/a {at}/b ;;\n\
             *) echo 'no such command' >&2; return 2 ;;\n\
             esac; }}\n{functions}{body}"
        );
        let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.code(), text)
    }

    #[test]
    fn units_that_differ_from_the_program_are_found_and_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path();
        let compare = "if has_old_units; then echo old; else echo same; fi\n";
        let check = |words: &str| assert_eq!(run(place, compare), (Some(0), format!("{words}\n")));
        check("old");
        assert_eq!(run(place, "write_units\n"), (Some(0), String::new()));
        check("same");
        std::fs::write(place.join("b"), "of an earlier version\n").unwrap();
        check("old");
        // An earlier version of the program has no such command.
        let unknown = compare.replace("has_old_units", "has_old_units --unknown");
        assert_eq!(run(place, &unknown), (Some(0), "same\n".into()));
        let (status, text) = run(place, "write_units --unknown\n");
        assert!(status == Some(1) && text.contains("--program"), "{text}");
    }
}
