//! The facts about a host: its state, as the script `scripts/facts.sh` prints it.
//!
//! The module owns the script's parameters and the parser of its output. The script changes nothing
//! on the host.

use crate::hosts::{Deployment, Disk, Host, Role};
use crate::ssh::Output;
use crate::text_hash::text_hash;
use crate::units;
use skep_types::{Error, ErrorCode, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const SCRIPT: &str = include_str!("scripts/facts.sh");
/// The shell functions that find the data of a deployment on its host.
pub(crate) const STORED: &str = include_str!("scripts/stored.sh");
/// The shell functions that check the disks of a host.
pub(crate) const DISKS: &str = include_str!("scripts/disks.sh");

/// The contents of a disk or directory for a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Contents {
    /// The path does not exist.
    Missing,
    /// The disk or directory has no data.
    Empty,
    /// The disk or directory belongs to this deployment.
    Ours,
    /// The disk belongs to this deployment and is mounted.
    Mounted,
    /// The disk belongs to this deployment, and its mounted file system does not work any more. The
    /// text has the reason.
    Failed(String),
    /// This deployment has initialised a target in the directory, and the directory does not have
    /// the target any more, for example because its disk is not mounted.
    Lost,
    /// The disk or directory contains data, or is in use. The text describes this.
    Data(String),
}

/// The program that a running service executes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Running {
    /// The program that is installed on the host now.
    Current,
    /// A program that has been replaced since the service started.
    Old,
}

/// Whether the settings of a host's kernel were changed by `skep tune apply`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Tuning {
    /// No settings were changed.
    #[default]
    Unchanged,
    /// An administrator has changed settings with `skep tune apply`.
    ByHand,
    /// This deployment has changed settings. The text has the roles and the directories of targets
    /// for which the deployment has changed settings. After an interruption, the text is
    /// `unfinished`.
    Ours(String),
}

/// The kernel, hardware and installed programs of a host.
#[derive(Debug, Clone, Default)]
pub struct Platform {
    /// Release of the kernel, such as `6.1.0`.
    pub kernel: String,
    /// Machine architecture.
    pub machine: String,
    /// Memory, in KiB.
    pub memory_kib: u64,
    /// The value of the kernel setting `kernel.io_uring_disabled`.
    pub uring_disabled: u32,
    /// Whether systemd manages the services of the host.
    pub has_systemd: bool,
    /// Whether the host has systemd, and its systemd units of Skep differ from the units of its
    /// program.
    pub has_old_units: bool,
    /// Hashes of the drop-in files with the disks of the services, on a host with systemd.
    pub drop_ins: BTreeMap<Role, String>,
    /// Whether FUSE is available.
    pub has_fuse: bool,
    /// Required programs that are not installed.
    pub missing: Vec<String>,
}

/// The facts about one host.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// The kernel, hardware and installed programs.
    pub platform: Platform,
    /// SHA-256 of the installed program. `None` means that the program is not installed.
    pub program: Option<String>,
    /// Whether `skep deploy` has installed the program.
    pub program_is_ours: bool,
    /// Version line of the installed program. Empty if the program does not run.
    pub version: String,
    /// The contents of each disk and each directory of the hosts file.
    pub places: BTreeMap<String, Contents>,
    /// SHA-256 of each service's configuration file.
    pub configs: BTreeMap<Role, String>,
    /// Services whose directories this deployment has initialised on the host. Also management, if
    /// an administrator has restored a copy of its directory.
    pub initialised: BTreeSet<Role>,
    /// The data that a removal of the deployment would delete from the host: paths of directories
    /// with files, and mount points, each followed by its device. The word `not-mounted` follows
    /// the device of a disk that is not mounted.
    pub stored: Vec<String>,
    /// Services whose directory on the host belongs to another cluster or another installation.
    pub foreign: BTreeSet<Role>,
    /// Services of the deployment that run on the host, each with the program that it executes.
    pub running: BTreeMap<Role, Running>,
    /// Whether this deployment wrote the token file on the host. `None` means that the host has no
    /// token file.
    pub token: Option<bool>,
    /// The addresses of management in the token file.
    pub token_addresses: Vec<String>,
    /// SHA-256 of the lines of the deployment in `/etc/fstab`.
    pub fstab: String,
    /// Whether the cluster is formatted. Only the host that has formatted it records this.
    pub is_formatted: bool,
    /// Name of the cluster that was deployed to the host. `None` means that no cluster was deployed
    /// to it.
    pub deployed: Option<String>,
    /// Whether the file system at the mount point is Skep. `None` means that nothing is mounted at
    /// the mount point.
    pub mount: Option<bool>,
    /// Whether the settings of the kernel were changed for the host's roles.
    pub tuning: Tuning,
    /// TCP ports on which programs listen.
    pub listening: BTreeSet<u16>,
    /// How far the host's clock is ahead of the clock of the host that deploys, in seconds.
    /// Negative if it is behind. The error is at most the duration of the ssh session.
    pub clock_offset: f64,
}

/// Returns the script that prints the facts of a host.
pub fn script(deployment: &Deployment, host: &Host) -> String {
    let disk = |disk: &Disk| {
        let uuid = disk_uuid(deployment, host, &disk.device);
        format!("{}={uuid}={}", disk.device, disk.mount_point())
    };
    let disks: Vec<String> = host.disks.iter().map(disk).collect();
    let directories: Vec<String> =
        host.directories.iter().map(|(role, path)| format!("{role}:{path}")).collect();
    format!(
        "CLUSTER='{}' DISKS='{}' DIRECTORIES='{}' MOUNT='{}' UNITS_OPTIONS='{}'\n\
         {}{STORED}{DISKS}{SCRIPT}",
        deployment.cluster,
        disks.join(" "),
        directories.join(" "),
        deployment.mount.point,
        units::options(host),
        units::FUNCTIONS
    )
}

impl Facts {
    /// Parses the output of the script. `deployment` and `host` must be the arguments that the
    /// caller has passed to [`script`].
    ///
    /// # Errors
    /// Returns `Protocol` if the output is incomplete, for example because the login shell of the
    /// host is not a POSIX shell.
    pub fn parse(deployment: &Deployment, host: &Host, output: &Output) -> Result<Self> {
        let mut facts = Self::default();
        let mut uuids = BTreeMap::new();
        let mut clock = None;
        for (name, value) in output.text.lines().filter_map(|line| line.split_once('\t')) {
            let (first, rest) = value.split_once(' ').unwrap_or((value, ""));
            let role = Role::SERVICES.into_iter().find(|role| role.word() == first);
            match name {
                "program" => facts.program = Some(value.to_owned()),
                "program_is_ours" => facts.program_is_ours = true,
                "version" => value.clone_into(&mut facts.version),
                "disk_uuid" => drop(uuids.insert(first.to_owned(), rest.to_owned())),
                "disk" => {
                    let own = disk_uuid(deployment, host, first);
                    let contents = disk(rest, uuids.get(first) == Some(&own));
                    facts.places.insert(first.to_owned(), contents);
                }
                "directory" => drop(facts.places.insert(first.to_owned(), directory(rest))),
                "config" => facts.configs.extend(role.map(|role| (role, rest.to_owned()))),
                "drop_in" => {
                    facts.platform.drop_ins.extend(role.map(|role| (role, rest.to_owned())));
                }
                "initialised" => facts.initialised.extend(role),
                // A restored copy of the directory of management becomes the only management node.
                // If the hosts file has several management nodes, the copy counts as foreign, and
                // an administrator must first decide which nodes to use.
                "restored" if deployment.has_several_managers() => facts.foreign.extend(role),
                "restored" => facts.initialised.extend(role),
                "stored" => facts.stored.push(value.to_owned()),
                "foreign" => facts.foreign.extend(role),
                "running" => {
                    let state = if rest == "old" { Running::Old } else { Running::Current };
                    facts.running.extend(role.map(|role| (role, state)));
                }
                "token" => facts.token = Some(value == "ours"),
                "token_addresses" => {
                    facts.token_addresses = value.split(',').map(str::to_owned).collect();
                }
                "fstab" => value.clone_into(&mut facts.fstab),
                "formatted" => facts.is_formatted = true,
                "deployed" => facts.deployed = Some(value.to_owned()),
                "tuned" => facts.tuning = Tuning::Ours(value.to_owned()),
                "tuned_by_hand" => facts.tuning = Tuning::ByHand,
                "mount" => facts.mount = Some(value == "skep"),
                "listening" => facts.listening.extend(value.parse::<u16>()),
                "clock" => clock = value.parse().ok(),
                _ => facts.platform.take(name, value),
            }
        }
        let clock = clock.ok_or_else(|| {
            let what = format!(
                "cannot read the state of host {}: the script's output is incomplete; the login \
                 shell must be a POSIX shell",
                host.name
            );
            Error::new(ErrorCode::Protocol, what)
        })?;
        facts.clock_offset = offset(clock, output.began, output.ended);
        Ok(facts)
    }

    /// Whether a service of the deployment runs.
    pub fn runs(&self, role: Role) -> bool {
        self.running.contains_key(&role)
    }
}

impl Platform {
    fn take(&mut self, name: &str, value: &str) {
        match name {
            "kernel" => value.clone_into(&mut self.kernel),
            "machine" => value.clone_into(&mut self.machine),
            "memory_kib" => self.memory_kib = value.parse().unwrap_or_default(),
            "uring_disabled" => self.uring_disabled = value.parse().unwrap_or_default(),
            "systemd" => self.has_systemd = true,
            "old_units" => self.has_old_units = true,
            "fuse" => self.has_fuse = true,
            "missing" => self.missing.push(value.to_owned()),
            _ => {}
        }
    }
}

/// Returns the UUID that the deployment gives to the file system on a disk. The UUID depends only
/// on the cluster, the host and the name in the hosts file. So a run recognises a disk that an
/// earlier run has formatted, even if the kernel has renamed the disk.
pub fn disk_uuid(deployment: &Deployment, host: &Host, device: &str) -> String {
    let hex = text_hash(&format!("skep deploy\n{}\n{}\n{device}", deployment.cluster, host.name));
    // This is a UUID of version 8 (RFC 9562), whose content each program can define.
    format!("{}-{}-8{}-8{}-{}", &hex[..8], &hex[8..12], &hex[13..16], &hex[17..20], &hex[20..32])
}

fn disk(state: &str, is_own: bool) -> Contents {
    if let Some(reason) = state.strip_prefix("failed ") {
        return Contents::Failed(reason.to_owned());
    }
    match state {
        "missing" => Contents::Missing,
        "mounted" if is_own => Contents::Mounted,
        _ if is_own => Contents::Ours,
        "empty" => Contents::Empty,
        "mounted" => Contents::Data("the disk is mounted".into()),
        "in-use" => Contents::Data("another device, such as RAID or LVM, uses the disk".into()),
        other => {
            Contents::Data(format!("the disk {}", other.replace("unknown-data", "unknown data")))
        }
    }
}

fn directory(state: &str) -> Contents {
    match state {
        "missing" => Contents::Missing,
        "empty" => Contents::Empty,
        "ours" => Contents::Ours,
        "lost" => Contents::Lost,
        "target" => Contents::Data(
            "the directory is a target of another cluster, or of an installation without `skep \
             deploy`"
                .into(),
        ),
        "no-directory" => Contents::Data("this path is not a directory".into()),
        _ => Contents::Data("the directory is not empty".into()),
    }
}

/// Returns how far a host's clock is ahead, in seconds. The host has read its clock at some time
/// between `began` and `ended`, so a `clock` between these two times gives zero.
fn offset(clock: f64, began: Duration, ended: Duration) -> f64 {
    let (began, ended) = (began.as_secs_f64(), ended.as_secs_f64());
    (clock - ended).max(0.0) + (clock - began).min(0.0)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::hosts::tests::GOOD;

    /// Returns the facts of a host on which nothing of Skep exists.
    pub(crate) fn fresh(deployment: &Deployment, host: &Host) -> Facts {
        let mut text =
            "kernel\t6.1.0\nmachine\tx86_64\nmemory_kib\t8000000\nfuse\tyes\n".to_owned();
        for disk in &host.disks {
            text += &format!("disk\t{} empty\n", disk.device);
        }
        for (_, directory) in &host.directories {
            text += &format!("directory\t{directory} missing\n");
        }
        parse(deployment, host, &(text + "clock\t1005.5\n"))
    }

    fn parse(deployment: &Deployment, host: &Host, text: &str) -> Facts {
        let (began, ended) = (Duration::from_secs(1000), Duration::from_secs(1010));
        Facts::parse(deployment, host, &Output { text: text.to_owned(), began, ended }).unwrap()
    }

    #[test]
    fn facts_about_a_host_are_parsed_from_lines() {
        let deployment = Deployment::parse(GOOD).unwrap();
        let host = deployment.host("s1").unwrap();
        let own = disk_uuid(&deployment, host, "/dev/nvme1n1");
        let text = format!(
            "noise of a login shell\nkernel\t5.14.0-427.el9\nmemory_kib\t1024\nmissing\tflock\n\
             disk_uuid\t/dev/nvme1n1 {own}\ndisk\t/dev/nvme1n1 mounted\n\
             disk\t/dev/mapper/data holds xfs\ndirectory\t/data/skep data\n\
             config\tstorage abc\ndrop_in\tstorage def\ninitialised\tstorage\n\
             stored\t/data/skep\nstored\t/srv/skep/disks/sdb /dev/sdb\n\
             running\tstorage old\ntoken\tforeign\n\
             token_addresses\t10.0.0.1:7400,[2001:db8::1]:7400\nfstab\tdef\n\
             tuned\tstorage /data/skep, client\nmount\tskep\nlistening\t7420\n\
             listening\t22\nclock\t1020.0\n"
        );
        let facts = parse(&deployment, host, &text);
        assert_eq!(facts.platform.kernel, "5.14.0-427.el9");
        assert_eq!(facts.platform.missing, ["flock"]);
        assert_eq!(facts.platform.drop_ins[&Role::Storage], "def");
        assert_eq!(facts.places["/dev/nvme1n1"], Contents::Mounted);
        assert_eq!(facts.places["/dev/mapper/data"], Contents::Data("the disk holds xfs".into()));
        assert_eq!(facts.places["/data/skep"], Contents::Data("the directory is not empty".into()));
        let failed = Contents::Failed("a read fails".into());
        assert_eq!(disk("failed a read fails", false), failed, "blkid cannot read the UUID");
        assert_eq!(facts.stored, ["/data/skep", "/srv/skep/disks/sdb /dev/sdb"]);
        assert_eq!(facts.running[&Role::Storage], Running::Old);
        assert_eq!((facts.token, facts.mount), (Some(false), Some(true)));
        assert_eq!(facts.token_addresses, ["10.0.0.1:7400", "[2001:db8::1]:7400"]);
        assert_eq!(facts.fstab, "def");
        assert_eq!(facts.tuning, Tuning::Ours("storage /data/skep, client".into()));
        assert!(facts.listening.contains(&7420));
        assert_eq!(facts.clock_offset, 10.0);
    }

    /// After `skep target add` and `skep target replace`, the hosts file must name the new target.
    #[test]
    fn target_of_skep_target_add_can_enter_the_hosts_file() {
        let place = tempfile::tempdir().unwrap();
        let at = place.path().display();
        for name in ["metadata", "added", "other"] {
            std::fs::create_dir(place.path().join(name)).unwrap();
            std::fs::write(place.path().join(name).join("skep-identity"), "id").unwrap();
        }
        std::fs::write(place.path().join("metadata/added-targets"), format!("{at}/added\n"))
            .unwrap();
        let from = SCRIPT.find("for item in $DIRECTORIES").unwrap();
        let part = &SCRIPT[from..SCRIPT.find("for kind in management").unwrap()];
        let part = part.replace("/srv/skep/", &format!("{at}/"));
        let script = format!(
            "fact() {{ echo \"$2\"; }}\nrecorded() {{ false; }}\n\
             DIRECTORIES='metadata:{at}/added metadata:{at}/other storage:{at}/added'\n{part}"
        );
        let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        let expected = format!("{at}/added ours\n{at}/other target\n{at}/added target\n");
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    }

    #[test]
    fn restored_copy_of_the_only_management_node_is_used() {
        let restored = |text: &str, name: &str| {
            let deployment = Deployment::parse(text).unwrap();
            let host = deployment.host(name).unwrap();
            parse(&deployment, host, "restored\tmanagement\nclock\t1005.0\n")
        };
        let only = restored(GOOD, "m1");
        assert!(only.initialised.contains(&Role::Management) && only.foreign.is_empty());
        // The other management nodes may still run, so a copy must not start beside them.
        let several = restored(crate::hosts::tests::SEVERAL, "a1");
        assert!(several.foreign.contains(&Role::Management) && several.initialised.is_empty());
    }

    #[test]
    fn incomplete_output_of_the_facts_script_is_refused() {
        let deployment = Deployment::parse(GOOD).unwrap();
        let host = deployment.host("s1").unwrap();
        let output =
            Output { text: "kernel\t6.1\n".into(), began: Duration::ZERO, ended: Duration::ZERO };
        let error = Facts::parse(&deployment, host, &output).unwrap_err();
        assert!(error.context().contains("host s1"), "{error}");
    }

    #[test]
    fn uuids_of_new_disks_differ_by_host_and_device() {
        let deployment = Deployment::parse(GOOD).unwrap();
        let uuid =
            |host: &str, device| disk_uuid(&deployment, deployment.host(host).unwrap(), device);
        assert_eq!(uuid("s1", "/dev/sdb").len(), 36);
        assert_eq!(uuid("s1", "/dev/sdb"), uuid("s1", "/dev/sdb"));
        assert_ne!(uuid("s1", "/dev/sdb"), uuid("m1", "/dev/sdb"));
        assert_ne!(uuid("s1", "/dev/sdb"), uuid("s1", "/dev/sdc"));
    }

    #[test]
    fn clock_within_the_measurement_interval_has_no_offset() {
        let at = |clock| offset(clock, Duration::from_secs(10), Duration::from_secs(12));
        assert_eq!((at(11.0), at(15.0), at(4.0)), (0.0, 3.0, -6.0));
    }
}
