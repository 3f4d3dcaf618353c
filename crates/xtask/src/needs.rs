//! The requirements of tests that a machine must meet: programs (listed by Debian package), root,
//! and `/dev/fuse`.

use crate::repository::Outcome;
use std::path::Path;
use std::process::{Command, Stdio};

/// The required programs, each with the Debian package that contains it.
const PROGRAMS: &[(&str, &str)] = &[
    ("apt-ftparchive", "apt-utils"),
    ("createrepo_c", "createrepo-c"),
    ("curl", "curl"),
    ("dnf", "dnf"),
    ("fio", "fio"),
    ("fusermount3", "fuse3"),
    ("gcc", "gcc"),
    ("git", "git"),
    ("gpg", "gnupg"),
    ("ip", "iproute2"),
    ("losetup", "mount"),
    ("make", "make"),
    ("mkfs.ext4", "e2fsprogs"),
    ("node", "nodejs"),
    ("mkfs.xfs", "xfsprogs"),
    ("openssl", "openssl"),
    ("python3", "python3"),
    ("rpmbuild", "rpm"),
    ("rsync", "rsync"),
    ("setfacl", "acl"),
    ("setfattr", "attr"),
    ("ssh", "openssh-client"),
    ("sshd", "openssh-server"),
    ("strip", "binutils"),
    ("systemd-analyze", "systemd"),
    ("unshare", "util-linux"),
];

pub(crate) fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Debian installs programs for administrators in directories that are not in other users' PATH.
    let system = ["/usr/sbin", "/sbin"].map(Into::into);
    // Debian installs the servers of PostgreSQL in a separate directory for each version.
    let servers = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let servers = servers.map(|version| version.path().join("bin"));
    let mut places = std::env::split_paths(&path).chain(system).chain(servers);
    places.any(|place| place.join(program).is_file())
}

/// Whether `rustup` can run this command of the nightly toolchain. The output is discarded.
pub(crate) fn has_nightly(command: &[&str]) -> bool {
    let mut rustup = Command::new("rustup");
    rustup.args(["run", "nightly"]).args(command).stdout(Stdio::null()).stderr(Stdio::null());
    rustup.status().is_ok_and(|status| status.success())
}

pub(crate) fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    uids.and_then(|uids| uids.split_whitespace().nth(1)) == Some("0")
}

/// Checks that the machine meets all requirements.
///
/// # Errors
/// One sentence that lists all missing requirements, and how to install them.
pub(crate) fn check() -> Outcome {
    let mut problems = Vec::new();
    let missing: Vec<_> = PROGRAMS.iter().filter(|(program, _)| !is_installed(program)).collect();
    if !missing.is_empty() {
        let programs: Vec<_> = missing.iter().map(|(program, _)| *program).collect();
        let packages: Vec<_> = missing.iter().map(|(_, package)| *package).collect();
        problems.push(format!(
            "{} not found: run `apt-get install {}`",
            programs.join(", "),
            packages.join(" ")
        ));
    }
    // The templates in `deploy/` are YAML files, so their test needs a YAML parser.
    let yaml = Command::new("python3").args(["-c", "import yaml"]).stderr(Stdio::null()).status();
    if !yaml.is_ok_and(|status| status.success()) {
        problems.push("python3 has no module yaml: run `apt-get install python3-yaml`".into());
    }
    if !is_root() {
        problems.push(
            "tests mount file systems and simulate power loss on loop devices: run as root".into(),
        );
    }
    if !Path::new("/dev/fuse").exists() {
        problems.push("/dev/fuse is missing: load the kernel module with `modprobe fuse`".into());
    }
    if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
}
