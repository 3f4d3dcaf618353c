//! Tests of the NUMA nodes of services and of their devices, on a directory with artificial files.

use skep_tune::check::{Finding, Scope};
use skep_tune::{Role, Tree, numa};
use std::fs;
use std::path::Path;

fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().expect("a parent")).expect("made");
    fs::write(path, text).expect("written");
}

/// Creates a host with two nodes of four CPUs. Its NVMe disk and its network interface are on node
/// 1. The storage service runs on the CPUs `cpus`.
fn host(cpus: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let root = directory.path();
    put(root, "sys/devices/system/node/node0/cpulist", "0-3\n");
    put(root, "sys/devices/system/node/node1/cpulist", "4-7\n");
    put(root, "sys/devices/system/node/online", "0-1\n");
    for (class, bus, name) in [("block", "0", "nvme0n1"), ("class/net", "1", "eth0")] {
        put(root, &format!("sys/devices/pci/{bus}/numa_node"), "1\n");
        put(root, &format!("sys/devices/pci/{bus}/{name}/uevent"), "");
        fs::create_dir_all(root.join("sys").join(class)).expect("made");
        let target = root.join(format!("sys/devices/pci/{bus}/{name}"));
        std::os::unix::fs::symlink(target, root.join("sys").join(class).join(name)).expect("link");
    }
    put(root, "proc/71/cmdline", "/usr/bin/skep\0storage\0--config\0a.toml\0");
    put(root, "proc/71/status", &format!("Name:\tskep\nCpus_allowed_list:\t{cpus}\n"));
    put(root, "proc/72/cmdline", "/usr/bin/other\0storage\0");
    put(root, "proc/72/status", "Cpus_allowed_list:\t0\n");
    directory
}

fn findings(root: &Path) -> Vec<Finding> {
    let scope = Scope {
        roles: vec![Role::Storage],
        devices: vec!["nvme0n1".into()],
        interfaces: vec!["eth0".into()],
        mounts: Vec::new(),
    };
    numa::findings(&Tree::new(root), &scope)
}

#[test]
fn service_on_another_node_than_its_devices_is_reported() {
    let far = host("0-3");
    let found = findings(far.path());
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found.iter().all(|it| !it.passes && !it.can_apply), "{found:?}");
    assert_eq!(found[0].file, "/proc/71/status");
    assert_eq!(found[0].is, "storage on NUMA node 0");
    assert_eq!(found[0].should_be, "NUMA node 1 of disks nvme0n1");
    assert_eq!(found[1].should_be, "NUMA node 1 of network interfaces eth0");
}

#[test]
fn numa_check_accepts_a_service_on_the_node_of_its_devices() {
    for cpus in ["4-7", "5", "0-7"] {
        let found = findings(host(cpus).path());
        assert!(found.len() == 2 && found.iter().all(|it| it.passes), "{cpus}: {found:?}");
    }
}

#[test]
fn host_with_one_node_or_unknown_devices_has_no_finding() {
    let one = host("0-3");
    fs::remove_dir_all(one.path().join("sys/devices/system/node/node1")).expect("removed");
    assert_eq!(findings(one.path()).len(), 0);
    let unknown = host("0-3");
    for bus in ["0", "1"] {
        put(unknown.path(), &format!("sys/devices/pci/{bus}/numa_node"), "-1\n");
    }
    assert_eq!(findings(unknown.path()).len(), 0);
}
