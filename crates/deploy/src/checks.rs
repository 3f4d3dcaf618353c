//! Finds problems and warnings: facts about the hosts that prevent a deployment, or that an
//! administrator should check.
//!
//! The module does no I/O. Its input is the facts of the hosts. A problem stops `skep deploy apply`
//! before it changes a host. A warning does not stop it. Each text names the fact and the remedy.
//! [`crate::plan::judge_cluster`] checks the running cluster.

use crate::config::config_hash;
use crate::facts::{Contents, Facts, Tuning, disk_uuid};
use crate::hosts::{Deployment, Disk, Host, Role};
use crate::ssh::HostProblem;
use std::collections::BTreeMap;

/// Oldest kernel version that has the io_uring operations of the services.
const OLDEST_KERNEL: (u32, u32) = (5, 19);
/// Memory below which a service cannot work, in KiB.
const LEAST_MEMORY_KIB: u64 = 512 * 1024;
/// Memory below which a server is slow, in KiB.
const GOOD_MEMORY_KIB: u64 = 2 * 1024 * 1024;
/// Difference between two clocks, in seconds, beyond which a check gives a warning. The difference
/// matters because the times of files come from the clocks of metadata servers.
const CLOCK_WARNING: f64 = 1.0;
/// Difference between two clocks, in seconds, beyond which a check reports a problem.
const CLOCK_PROBLEM: f64 = 60.0;
/// Maximum number of connections to other hosts that a host tries at the same time. Each connection
/// is a process, and takes at most five seconds. With this number, a host tries 3500 services
/// within the time limit of an observation, even if no service answers.
const MOST_CONNECTIONS: u32 = 100;

/// The result of all checks.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Facts that stop the command before its first step.
    pub problems: Vec<HostProblem>,
    /// Facts that an administrator should check. Warnings do not stop the command.
    pub warnings: Vec<HostProblem>,
}

impl Verdict {
    /// Adds a problem of a host.
    pub(crate) fn problem(&mut self, host: &Host, problem: String) {
        self.problems.push(HostProblem { host: host.name.clone(), problem });
    }

    /// Adds a warning about a host.
    pub(crate) fn warning(&mut self, host: &Host, problem: String) {
        self.warnings.push(HostProblem { host: host.name.clone(), problem });
    }
}

/// The program that a deployment installs.
#[derive(Debug, Clone)]
pub struct Program {
    /// Path of the program on the host that deploys.
    pub path: std::path::PathBuf,
    /// SHA-256 of the program.
    pub hash: String,
    /// Machine architecture that the program is built for.
    pub machine: &'static str,
}

/// Checks the facts of all hosts.
pub fn judge(
    deployment: &Deployment,
    program: &Program,
    facts: &BTreeMap<String, Facts>,
) -> Verdict {
    let mut verdict = Verdict::default();
    for host in &deployment.hosts {
        let Some(facts) = facts.get(&host.name) else { continue };
        judge_platform(host, program, facts, &mut verdict);
        judge_installation(deployment, program, host, facts, &mut verdict);
        judge_places(deployment, host, facts, &mut verdict);
        judge_lost_targets(deployment, host, facts, &mut verdict);
        judge_clock(host, facts, &mut verdict);
    }
    verdict
}

fn judge_platform(host: &Host, program: &Program, facts: &Facts, verdict: &mut Verdict) {
    let platform = &facts.platform;
    let (major, minor) = OLDEST_KERNEL;
    let is_old = kernel(&platform.kernel).is_some_and(|found| found < OLDEST_KERNEL);
    if is_old && platform.kernel.contains(".el9") {
        verdict.warning(
            host,
            format!(
                "the kernel is {}, older than Linux {major}.{minor}: kernels of RHEL 9 have many \
                 features of newer kernels, but services stop at their start if io_uring lacks a \
                 feature that they need (docs/operations/installing.md)",
                platform.kernel
            ),
        );
    } else if is_old {
        verdict.problem(
            host,
            format!(
                "the kernel is {}, and Skep needs Linux {major}.{minor} or later; install a newer \
                 kernel (docs/operations/installing.md lists distributions)",
                platform.kernel
            ),
        );
    }
    if platform.uring_disabled == 2 {
        verdict.problem(
            host,
            "io_uring is disabled; run `sysctl -w kernel.io_uring_disabled=0` on this host".into(),
        );
    }
    if platform.machine != program.machine {
        verdict.problem(
            host,
            format!(
                "the processor is {}, and the program is for {}; name a program for {} with \
                 --program",
                platform.machine, program.machine, platform.machine
            ),
        );
    }
    if platform.memory_kib < LEAST_MEMORY_KIB {
        verdict.problem(
            host,
            format!(
                "the host has {} MiB of memory, and Skep needs 512 MiB; use a host with more \
                 memory",
                platform.memory_kib / 1024
            ),
        );
    } else if platform.memory_kib < GOOD_MEMORY_KIB && host.services().next().is_some() {
        verdict.warning(
            host,
            format!(
                "the host has {} MiB of memory, and servers need 2 GiB; use a host with more \
                 memory",
                platform.memory_kib / 1024
            ),
        );
    }
    if host.has(Role::Client) && !platform.has_fuse {
        verdict.problem(
            host,
            "/dev/fuse is missing, which a mount needs; load the kernel module fuse".into(),
        );
    }
    if !platform.missing.is_empty() {
        let package = |tool: &String| match tool.as_str() {
            "mkfs.xfs" => "mkfs.xfs (package xfsprogs)".to_owned(),
            "awk" => "awk (package gawk)".to_owned(),
            "sha256sum" => "sha256sum (package coreutils)".to_owned(),
            other => format!("{other} (package util-linux)"),
        };
        let missing: Vec<_> = platform.missing.iter().map(package).collect();
        verdict.problem(host, format!("programs are missing; install {}", missing.join(", ")));
    }
}

fn judge_installation(
    deployment: &Deployment,
    program: &Program,
    host: &Host,
    facts: &Facts,
    verdict: &mut Verdict,
) {
    if let Some(other) = facts.deployed.as_ref().filter(|it| **it != deployment.cluster) {
        verdict.problem(
            host,
            format!(
                "the host belongs to the cluster '{other}' of another hosts file; destroy that \
                 cluster first (`skep deploy destroy`), or remove the host from this file"
            ),
        );
    }
    let is_other = facts.program.as_ref().is_some_and(|hash| *hash != program.hash);
    if is_other && !facts.program_is_ours {
        verdict.problem(
            host,
            format!(
                "another /usr/bin/skep is installed ({}), not by `skep deploy`; remove this \
                 program, or install the same version on the deploying host",
                if facts.version.is_empty() { "this program does not run" } else { &facts.version }
            ),
        );
    }
    if facts.token == Some(false) {
        verdict.problem(
            host,
            "the file /etc/skep/token was not written by `skep deploy`: the host belongs to \
             another cluster; remove the file, or remove the host from the hosts file"
                .into(),
        );
    }
    for role in &facts.foreign {
        let text = match role {
            Role::Monitor if !host.has(Role::Monitor) => continue,
            Role::Monitor => "the file /etc/skep/monitor.toml was not written by `skep deploy`; \
                              write its settings into the table [monitor] of the hosts \
                              file and move the file away, or set `monitor = false` there"
                .to_owned(),
            _ => format!(
                "/srv/skep/{role} has the data of a {role} service that `skep deploy` did not \
                 initialise; move the directory away, or remove the host from the hosts file"
            ),
        };
        verdict.problem(host, text);
    }
    if host.tune && facts.tuning == Tuning::ByHand {
        verdict.problem(
            host,
            "the settings of the kernel were changed by `skep tune apply`, so `skep deploy \
             destroy` could not restore the original settings; run `skep tune undo` on this host, \
             or set `tune = false` for this host in the hosts file"
                .into(),
        );
    }
    for role in host.services() {
        let port = role.port().unwrap_or_default();
        if facts.listening.contains(&port) && !facts.runs(role) {
            verdict.problem(
                host,
                format!(
                    "another program listens on port {port}, which {role} needs; stop that program"
                ),
            );
        }
    }
    if host.has(Role::Client) && facts.mount == Some(false) {
        verdict.problem(
            host,
            format!(
                "another file system is mounted on {}; unmount that file system, or change \
                 mount.point in the hosts file",
                deployment.mount.point
            ),
        );
    }
}

/// Returns the problem of a disk whose mounted file system does not work. Scripts can contain the
/// text in single quotes.
pub(crate) fn failed_disk(
    deployment: &Deployment,
    host: &Host,
    disk: &Disk,
    reason: &str,
) -> String {
    let (device, role, point) = (&disk.device, disk.role, disk.mount_point());
    let uuid = disk_uuid(deployment, host, device);
    format!(
        "disk {device} [UUID {uuid}] is mounted on {point}, and its file system does not work: \
         {reason}. If the disk works again, run `umount {point}` on this host (if the file system \
         is in use, stop the {role} service first), and run this command again, which mounts the \
         disk. If the disk is lost, replace it (docs/operations/deploying.md)"
    )
}

fn judge_places(deployment: &Deployment, host: &Host, facts: &Facts, verdict: &mut Verdict) {
    for disk in &host.disks {
        let device = &disk.device;
        match facts.places.get(device) {
            Some(Contents::Missing) | None => verdict.problem(
                host,
                format!(
                    "the host has no block device {device}; attach the disk, or correct the hosts \
                     file (`lsblk` lists block devices)"
                ),
            ),
            Some(Contents::Failed(reason)) => {
                verdict.problem(host, failed_disk(deployment, host, disk, reason));
            }
            Some(Contents::Data(what)) => verdict.problem(
                host,
                format!(
                    "disk {device} holds data: {what}; a deployment formats empty disks only. If \
                     the data is not needed, erase the disk on this host: `wipefs --all {device}` \
                     and `blkdiscard --zeroout {device}`"
                ),
            ),
            Some(Contents::Empty | Contents::Ours | Contents::Mounted | Contents::Lost) => {}
        }
    }
    for (_, directory) in &host.directories {
        if let Some(Contents::Data(what)) = facts.places.get(directory) {
            verdict.problem(
                host,
                format!(
                    "directory {directory} cannot be a target: {what}; name a new or empty \
                     directory"
                ),
            );
        }
    }
}

/// Reports directories that no longer contain their targets. The report is a problem if the plan
/// would initialise the directories of the service, because the initialisation would create new,
/// empty targets in place of the lost targets. Otherwise the report is a warning.
fn judge_lost_targets(deployment: &Deployment, host: &Host, facts: &Facts, verdict: &mut Verdict) {
    for (role, directory) in &host.directories {
        if facts.places.get(directory) != Some(&Contents::Lost) {
            continue;
        }
        let text = format!(
            "directory {directory} does not have its target any more: mount the disk of the \
             target. If the disk is lost, stop {role} and run `skep {role} --init --config {}`, \
             which makes a new target in this directory, or remove the directory from the hosts \
             file",
            role.config_path(&deployment.cluster)
        );
        match facts.configs.get(role) == Some(&config_hash(deployment, host, *role)) {
            true => verdict.warning(host, text),
            false => verdict.problem(host, text),
        }
    }
}

fn judge_clock(host: &Host, facts: &Facts, verdict: &mut Verdict) {
    let seconds = facts.clock_offset;
    let direction = if seconds > 0.0 { "ahead of" } else { "behind" };
    let text = || {
        format!(
            "the clock is {:.1} s {direction} the clock of the deploying host; start a time \
             service (chrony) on both hosts",
            seconds.abs()
        )
    };
    if seconds.abs() > CLOCK_PROBLEM {
        verdict.problem(host, text());
    } else if seconds.abs() > CLOCK_WARNING {
        verdict.warning(host, text());
    }
}

/// Returns the first two numbers of a kernel release. `None` means that the release does not begin
/// with two numbers.
fn kernel(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|it: char| !it.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// A service on another host that a host must be able to reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Name of the host on which the service runs.
    pub name: String,
    /// Role of the service.
    pub role: Role,
    /// First address of the host.
    pub address: String,
    /// Port of the service.
    pub port: u16,
}

/// Returns all services on other hosts that the host `host` must be able to reach.
pub fn peers(deployment: &Deployment, host: &Host) -> Vec<Peer> {
    let others = deployment.hosts.iter().filter(|other| other.name != host.name);
    let of = |other: &Host| {
        let address = other.network.first().cloned().unwrap_or_default();
        let peer = |role: Role| Peer {
            name: other.name.clone(),
            role,
            address: address.clone(),
            port: role.port().unwrap_or_default(),
        };
        other.services().filter(|role| role.is_node()).map(peer).collect::<Vec<_>>()
    };
    others.flat_map(of).collect()
}

/// Returns the script that connects to all peers, in rounds of [`MOST_CONNECTIONS`]. A refused
/// connection is not a problem, because the refusal shows that the network and the firewalls let
/// packets through.
pub fn reach_script(peers: &[Peer]) -> String {
    let words: Vec<_> =
        peers.iter().map(|peer| format!("{} {}", peer.address, peer.port)).collect();
    format!(
        "command -v bash >/dev/null || exit 0\n\
         started=0\n\
         while read -r address port; do\n\
         (text=$(timeout 5 bash -c \"exec 3<>/dev/tcp/$address/$port\" 2>&1); code=$?\n\
         case \"$code $text\" in\n\
         0*|*refused*) ;;\n\
         124*) echo \"$address $port no answer within 5 s\" ;;\n\
         *) echo \"$address $port ${{text##*: }}\" ;;\n\
         esac) &\n\
         started=$((started + 1))\n\
         if [ $((started % {MOST_CONNECTIONS})) = 0 ]; then wait; fi\n\
         done <<END\n{}\nEND\nwait\n",
        words.join("\n")
    )
}

/// Returns the problems that the output of [`reach_script`] shows.
pub fn judge_reach(host: &Host, peers: &[Peer], output: &str) -> Vec<HostProblem> {
    let mut problems = Vec::new();
    for line in output.lines() {
        let mut words = line.splitn(3, ' ');
        let (Some(address), Some(port), Some(text)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        let is_this = |peer: &&Peer| peer.address == address && peer.port.to_string() == port;
        let Some(peer) = peers.iter().find(is_this) else { continue };
        problems.push(HostProblem {
            host: host.name.clone(),
            problem: format!(
                "the host cannot reach {} on {} ({address}:{port}): {text}; check routes, and open \
                 the port in the firewalls",
                peer.role, peer.name
            ),
        });
    }
    problems
}

#[cfg(test)]
#[path = "checks/tests.rs"]
pub(crate) mod tests;
