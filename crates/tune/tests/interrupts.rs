//! Tests of the CPUs that handle the interrupts of devices, on a directory with artificial files.

use skep_tune::check::{Finding, Scope};
use skep_tune::{Role, Tree, interrupts};
use std::fs;
use std::path::Path;

fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().expect("a parent")).expect("made");
    fs::write(path, text).expect("written");
}

/// Creates a host with four CPUs. Two disks have one controller with three interrupts, and one of
/// the interrupts is not in use. A network interface has two interrupts. `disk` and `network` are
/// the CPUs that handle the interrupts of the disks and of the network interface.
fn host(disk: [&str; 2], network: [&str; 2]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let root = directory.path();
    put(root, "sys/devices/system/cpu/online", "0-3\n");
    for (class, bus, name) in
        [("block", "0", "sda"), ("block", "0", "sdb"), ("class/net", "1", "eth0")]
    {
        put(root, &format!("sys/devices/pci/{bus}/{name}/uevent"), "");
        fs::create_dir_all(root.join("sys").join(class)).expect("made");
        let target = root.join(format!("sys/devices/pci/{bus}/{name}"));
        std::os::unix::fs::symlink(target, root.join("sys").join(class).join(name)).expect("link");
    }
    let all = [("0", 30, disk[0]), ("0", 31, disk[1]), ("0", 32, ""), ("1", 40, network[0])];
    for (bus, number, cpus) in all.into_iter().chain([("1", 41, network[1])]) {
        put(root, &format!("sys/devices/pci/{bus}/msi_irqs/{number}"), "msix\n");
        put(root, &format!("proc/irq/{number}/effective_affinity_list"), &format!("{cpus}\n"));
        put(root, &format!("proc/irq/{number}/smp_affinity_list"), "0-3\n");
    }
    directory
}

fn findings(root: &Path, role: Role) -> Vec<Finding> {
    let scope = Scope {
        roles: vec![role],
        devices: vec!["sda".into(), "sdb".into()],
        interfaces: vec!["eth0".into()],
        mounts: Vec::new(),
    };
    interrupts::findings(&Tree::new(root), &scope)
}

#[test]
fn device_with_all_interrupts_on_one_cpu_is_reported() {
    let host = host(["1", "3"], ["2", "2"]);
    let found = findings(host.path(), Role::Storage);
    let shown: Vec<_> = found.iter().map(|it| (it.file.as_str(), it.passes)).collect();
    assert_eq!(shown, [("/sys/block/sda", true), ("/sys/class/net/eth0", false)]);
    assert_eq!(found[0].is, "2 interrupts on CPUs 1,3");
    assert_eq!(found[1].is, "2 interrupts on CPUs 2");
    assert!(found.iter().all(|it| it.rule == "interrupt-spread" && !it.can_apply));
}

#[test]
fn device_with_one_queue_has_no_finding() {
    let host = host(["1", "1"], ["2", "2"]);
    let bus = |path: &str| host.path().join("sys/devices/pci").join(path);
    for path in ["0/sda/mq/0", "0/sdb/mq/0", "1/eth0/queues/rx-0", "1/eth0/queues/tx-0"] {
        fs::create_dir_all(bus(path)).expect("made");
    }
    assert_eq!(findings(host.path(), Role::Storage).len(), 0);
    for path in ["0/sda/mq/1", "1/eth0/queues/rx-1"] {
        fs::create_dir_all(bus(path)).expect("made");
    }
    assert_eq!(findings(host.path(), Role::Storage).len(), 2);
}

#[test]
fn disks_of_hosts_without_targets_are_not_checked() {
    let host = host(["1", "1"], ["0", "3"]);
    let found = findings(host.path(), Role::Client);
    assert!(found.len() == 1 && found[0].passes, "{found:?}");
}

#[test]
fn permitted_cpus_are_checked_if_effective_cpus_are_unknown() {
    let host = host(["1", "1"], ["0", "0"]);
    for number in [40, 41] {
        let path = host.path().join(format!("proc/irq/{number}/effective_affinity_list"));
        fs::remove_file(path).expect("removed");
    }
    let found = findings(host.path(), Role::Client);
    assert!(found.len() == 1 && found[0].passes, "{found:?}");
    assert_eq!(found[0].is, "2 interrupts on CPUs 0-3");
}

#[test]
fn host_with_one_cpu_or_unknown_interrupts_has_no_finding() {
    let one = host(["0", "0"], ["0", "0"]);
    put(one.path(), "sys/devices/system/cpu/online", "0\n");
    assert!(findings(one.path(), Role::Storage).is_empty());
    let unknown = host(["0", "0"], ["0", "0"]);
    for bus in ["0", "1"] {
        let path = unknown.path().join(format!("sys/devices/pci/{bus}/msi_irqs"));
        fs::remove_dir_all(path).expect("removed");
    }
    assert!(findings(unknown.path(), Role::Storage).is_empty());
}
