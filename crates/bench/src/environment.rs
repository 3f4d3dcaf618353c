//! The environment of a host: its distribution, kernel, hardware, settings and mount. A run stores
//! this record with its results, so that a reader can judge the results.

mod machine;

pub use machine::{Disk, Instance, Interface};

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The part of the description of a host that comes from the program `skep`.
#[derive(Debug, Clone, Default)]
pub struct ProgramReport {
    /// Version of the program, with the commit from which it was built.
    pub version: String,
    /// The value of [`Environment::deviating_rules`] for this host.
    pub deviating_rules: BTreeMap<String, Vec<String>>,
}

/// Description of a host, and of the mount on which the benchmark works.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Environment {
    /// Host name, as the kernel reports it.
    pub host_name: String,
    /// Name and release of the distribution. Empty if no file of the host names the distribution.
    pub distribution: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Model of the CPU.
    pub cpu: String,
    /// Number of CPUs that the agent may use.
    pub cpus: usize,
    /// Size of the memory in bytes.
    pub memory_bytes: u64,
    /// Version of the `skep` program on the host, with the commit from which it was built.
    pub skep_version: String,
    /// The kernel's boot id. Agents on the same kernel have the same id, for example in different
    /// network namespaces.
    pub boot_id: String,
    /// Whether the agent runs as root. Only root can drop the caches of the kernel.
    pub is_root: bool,
    /// The network interfaces, without the loopback interface.
    pub interfaces: Vec<Interface>,
    /// The disks.
    pub disks: Vec<Disk>,
    /// Settings of the kernel that affect storage, by their names, such as `vm/swappiness`.
    pub tuning: BTreeMap<String, String>,
    /// For each role of a host in a cluster, the names of the rules of `skep tune check` from which
    /// this host deviates. The agent has no information about the roles of the host.
    pub deviating_rules: BTreeMap<String, Vec<String>>,
    /// The type, region and image of a virtual machine. `None` if the host does not report these
    /// facts.
    pub instance: Option<Instance>,
    /// The mount on which the benchmark works. `None` if the benchmark uses no path, or if the path
    /// is in no mount.
    pub mount: Option<Mount>,
}

/// An entry of the mount table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// The mount point of the mount.
    pub point: String,
    /// Type of the file system.
    pub kind: String,
    /// The source of the mount.
    pub source: String,
    /// Options of the mount and of the file system.
    pub options: String,
}

impl Environment {
    /// Describes this host and the mount that contains `path`. Accesses no file below `path`,
    /// because the mount may hang.
    pub(crate) fn of_this_host(path: Option<&Path>, program: &ProgramReport) -> Self {
        let root = Path::new("/");
        let line = |file: &str| fs::read_to_string(file).unwrap_or_default().trim().to_owned();
        let cpu_info = line("/proc/cpuinfo");
        let value = |text: &str, name: &str| {
            let found = text.lines().find(|line| line.starts_with(name));
            let value = found.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim());
            value.unwrap_or_default().to_owned()
        };
        let memory = value(&line("/proc/meminfo"), "MemTotal");
        let memory_kib = memory.split(' ').next().and_then(|number| number.parse::<u64>().ok());
        let mounts = line("/proc/self/mountinfo");
        Self {
            host_name: line("/proc/sys/kernel/hostname"),
            distribution: machine::distribution(root),
            kernel: line("/proc/sys/kernel/osrelease"),
            cpu: value(&cpu_info, "model name"),
            cpus: skep_env::available_cpus().len(),
            memory_bytes: memory_kib.unwrap_or(0) * 1024,
            skep_version: program.version.clone(),
            boot_id: boot_id(),
            is_root: rustix::process::geteuid().is_root(),
            interfaces: machine::interfaces(root),
            disks: machine::disks(root),
            tuning: machine::tuning(root),
            deviating_rules: program.deviating_rules.clone(),
            instance: machine::instance(root),
            mount: path.and_then(|path| mount_of(&mounts, path)),
        }
    }
}

/// Returns the boot id of this host's kernel. Empty if the id cannot be read.
pub(crate) fn boot_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.unwrap_or_default().trim().to_owned()
}

/// Returns the mount that contains an absolute path, from the contents of `/proc/self/mountinfo`.
fn mount_of(mounts: &str, path: &Path) -> Option<Mount> {
    let found = mounts.lines().filter_map(parse).filter(|mount| path.starts_with(&mount.point));
    // Among the mount points that contain the path, the function uses the longest mount point. If
    // several mounts have this mount point, the last mount hides the earlier mounts.
    found.max_by_key(|mount| mount.point.len())
}

fn parse(line: &str) -> Option<Mount> {
    let (own, of_file_system) = line.split_once(" - ")?;
    let mut own = own.split(' ').skip(4);
    let (point, options) = (own.next()?, own.next()?);
    let mut rest = of_file_system.split(' ');
    let (kind, source) = (rest.next()?, rest.next()?);
    let more = rest.next().unwrap_or_default();
    let plain = |text: &str| text.replace("\\040", " ");
    Some(Mount {
        point: plain(point),
        kind: kind.to_owned(),
        source: plain(source),
        options: format!("{options};{more}"),
    })
}

/// Returns the CPU ticks of this host since boot, summed over all CPUs: first the busy ticks, and
/// then all ticks.
pub(crate) fn cpu_ticks() -> (u64, u64) {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let first = stat.lines().next().unwrap_or_default();
    // The first eight numbers of this line are user, nice, system, idle, iowait, irq, softirq and
    // steal.
    let ticks: Vec<u64> = first.split_whitespace().skip(1).flat_map(str::parse).take(8).collect();
    let all: u64 = ticks.iter().sum();
    let idle: u64 = ticks.iter().skip(3).take(2).sum();
    (all - idle, all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn innermost_mount_point_of_a_path_is_found() {
        let mounts = "1 0 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n\
                      2 1 0:5 / /mnt/a\\040b rw,nosuid - fuse.skep /srv/x rw,user_id=0\n";
        let inner = mount_of(mounts, Path::new("/mnt/a b/c")).unwrap();
        assert_eq!(
            (&*inner.point, &*inner.kind, &*inner.source),
            ("/mnt/a b", "fuse.skep", "/srv/x")
        );
        assert_eq!(inner.options, "rw,nosuid;rw,user_id=0");
        assert_eq!(mount_of(mounts, Path::new("/mnt/a")).unwrap().kind, "ext4");
        assert_eq!(mount_of("", Path::new("/")), None);
    }

    #[test]
    fn environment_record_has_kernel_release_and_cpus() {
        let deviating_rules = BTreeMap::from([("client".to_owned(), vec!["mtu".to_owned()])]);
        let program = ProgramReport { version: "1.2+abc".to_owned(), deviating_rules };
        let here = Environment::of_this_host(Some(Path::new("/")), &program);
        assert_eq!(here.skep_version, "1.2+abc");
        assert_eq!(here.deviating_rules["client"], ["mtu"]);
        assert!(here.cpus > 0 && here.memory_bytes > 0 && !here.kernel.is_empty());
        assert_eq!(here.mount.unwrap().point, "/");
        let (busy, all) = cpu_ticks();
        assert!(busy > 0 && busy < all);
    }
}
