//! Tests of check, apply and undo, on directories with artificial files of `/proc`, `/sys` and
//! `/etc`.

use skep_tune::changes::{STATE, apply, planned, undo};
use skep_tune::check::{Finding, Scope, advice, check, device_of, disks, with_members};
use skep_tune::{Role, Rules, Tree};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// Files of the kernel that the rules for metadata and storage name. For each file: the path, a
/// text with the recommended value, and a text with another value.
const FILES: &[(&str, &str, &str)] = &[
    (
        "/sys/kernel/mm/transparent_hugepage/enabled",
        "always madvise [never]\n",
        "always [madvise] never\n",
    ),
    (
        "/sys/kernel/mm/transparent_hugepage/defrag",
        "always madvise [never]\n",
        "[always] madvise never\n",
    ),
    ("/sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n", "kvm-clock\n"),
    ("/sys/devices/system/cpu/smt/control", "off\n", "on\n"),
    ("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n", "powersave\n"),
    ("/sys/devices/system/cpu/cpu11/cpufreq/scaling_governor", "performance\n", "powersave\n"),
    ("/proc/sys/vm/dirty_background_ratio", "5\n", "10\n"),
    ("/proc/sys/vm/dirty_ratio", "20\n", "40\n"),
    ("/proc/sys/vm/min_free_kbytes", "262144\n", "67584\n"),
    ("/proc/sys/vm/vfs_cache_pressure", "50\n", "100\n"),
    ("/proc/sys/vm/swappiness", "10\n", "60\n"),
    ("/proc/sys/kernel/numa_balancing", "0\n", "1\n"),
    ("/proc/sys/vm/zone_reclaim_mode", "0\n", "1\n"),
    ("/sys/block/sda/queue/scheduler", "none [mq-deadline] bfq\n", "[none] mq-deadline bfq\n"),
    ("/sys/block/nvme0n1/queue/scheduler", "[none] mq-deadline\n", "none [mq-deadline]\n"),
    ("/sys/block/sda/queue/nr_requests", "2048\n", "64\n"),
    ("/sys/block/sda/queue/read_ahead_kb", "4096\n", "128\n"),
    ("/sys/class/net/eth0/mtu", "9001\n", "1500\n"),
    ("/proc/sys/net/core/rmem_max", "16777216\n", "212992\n"),
    ("/proc/sys/net/core/wmem_max", "16777216\n", "212992\n"),
    ("/proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t16777216\n", "4096\t131072\t6291456\n"),
    ("/proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t16777216\n", "4096\t16384\t4194304\n"),
    ("/proc/sys/net/core/somaxconn", "4096\n", "128\n"),
    ("/proc/sys/fs/file-max", "9223372036854775807\n", "100000\n"),
    ("/proc/sys/fs/nr_open", "1048576\n", "65536\n"),
];
/// Files that describe the hardware and the mounts of the host.
const FACTS: &[(&str, &str)] = &[
    ("/proc/meminfo", "MemTotal:       65000000 kB\nMemFree: 1 kB\n"),
    ("/sys/devices/system/clocksource/clocksource0/available_clocksource", "tsc kvm-clock\n"),
    ("/sys/block/sda/queue/rotational", "1\n"),
    ("/sys/block/nvme0n1/queue/rotational", "0\n"),
    ("/sys/block/loop0/queue/rotational", "1\n"),
    ("/sys/block/sda/sda1/dev", "8:1\n"),
    (
        "/proc/mounts",
        "/dev/nvme0n1 / ext4 rw,relatime 0 0\n\
         /dev/sda1 /data xfs rw,noatime,logbufs=8,logbsize=256k,largeio,swalloc,allocsize=131072k 0 0\n",
    ),
];

struct Host {
    directory: TempDir,
    tree: Tree,
}

impl Host {
    /// Creates the files of a host. If `is_good`, all values in the files are recommended values.
    /// Otherwise, no value is a recommended value.
    fn new(is_good: bool) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let host = Self { tree: Tree::new(directory.path()), directory };
        FACTS.iter().for_each(|(path, text)| host.put(path, text));
        for (path, good, wrong) in FILES {
            host.put(path, if is_good { good } else { wrong });
        }
        host
    }

    fn put(&self, path: &str, text: &str) {
        let real = self.tree.real(path);
        fs::create_dir_all(real.parent().expect("a parent")).expect("made");
        fs::write(real, text).expect("written");
    }

    fn get(&self, path: &str) -> String {
        fs::read_to_string(self.tree.real(path)).expect("a file")
    }

    fn check(&self) -> Vec<Finding> {
        check(&self.tree, &Rules::built_in(), &scope())
    }

    fn failing(&self) -> Vec<Finding> {
        self.check().into_iter().filter(|it| !it.passes).collect()
    }

    /// Applies all rules that do not pass, including rules with a risk.
    fn apply_all(&self) -> skep_tune::changes::Outcome {
        let findings = self.failing();
        let all: Vec<String> = findings.iter().map(|it| it.rule.clone()).collect();
        apply(&self.tree, &planned(&findings, &all)).expect("applied")
    }

    /// Returns the texts of all files of the host, by path.
    fn snapshot(&self) -> BTreeMap<String, String> {
        fn walk(directory: &Path, found: &mut BTreeMap<String, String>) {
            for entry in fs::read_dir(directory).expect("a directory").flatten() {
                let path = entry.path();
                match path.is_dir() {
                    true => walk(&path, found),
                    false => {
                        let text = fs::read_to_string(&path).expect("text");
                        found.insert(path.display().to_string(), text);
                    }
                }
            }
        }
        let mut found = BTreeMap::new();
        walk(self.directory.path(), &mut found);
        found
    }

    /// Simulates a reboot. First sets all kernel files to values that are not recommended. Then
    /// sets the values that the boot files in `/etc` contain.
    fn reboot(&self) {
        for (path, _, wrong) in FILES {
            self.put(path, wrong);
        }
        for line in self.get("/etc/sysctl.d/90-skep.conf").lines() {
            if let Some((name, value)) = line.split_once(" = ") {
                self.put(&format!("/proc/sys/{}", name.replace('.', "/")), value);
            }
        }
        for line in self.get("/etc/tmpfiles.d/skep.conf").lines() {
            if let Some((path, value)) =
                line.strip_prefix("w ").and_then(|it| it.split_once(" - - - - "))
            {
                self.put(path, value);
            }
        }
        for line in self.get("/etc/udev/rules.d/90-skep.rules").lines() {
            let part = |start: &str, end: &str| {
                line.split_once(start).and_then(|(_, rest)| rest.split_once(end)).map(|it| it.0)
            };
            let (Some(device), Some(attribute)) = (part("KERNEL==\"", "\""), part("ATTR{", "}"))
            else {
                continue;
            };
            let class = if line.contains("\"net\"") { "/sys/class/net" } else { "/sys/block" };
            let value = part("}=\"", "\"").expect("a value");
            self.put(&format!("{class}/{device}/{attribute}"), value);
        }
    }
}

fn scope() -> Scope {
    Scope {
        roles: vec![Role::Storage, Role::Metadata],
        devices: vec!["sda".into(), "nvme0n1".into()],
        interfaces: vec!["eth0".into()],
        mounts: vec!["/data".into()],
    }
}

#[test]
fn well_tuned_host_has_no_finding() {
    let host = Host::new(true);
    // Both roles have rules for the same files. Only the first rule for a file counts, so no later
    // rule may fail.
    assert!(host.failing().is_empty(), "{:?}", host.failing());
    let checked: Vec<String> = host.check().into_iter().map(|it| it.file).collect();
    for (path, ..) in FILES {
        assert!(checked.iter().any(|it| it == path), "{path} is not checked");
    }
}

#[test]
fn each_single_wrong_setting_is_reported() {
    let host = Host::new(true);
    for (path, good, wrong) in FILES {
        host.put(path, wrong);
        let failing = host.failing();
        assert_eq!(failing.len(), 1, "{path}: {failing:?}");
        assert_eq!((failing[0].file.as_str(), failing[0].passes), (*path, false));
        host.put(path, good);
    }
}

#[test]
fn metadata_hosts_have_their_own_recommended_values() {
    let host = Host::new(true);
    let scope = Scope { roles: vec![Role::Metadata], ..scope() };
    let failing = check(&host.tree, &Rules::built_in(), &scope);
    let failing: Vec<String> =
        failing.into_iter().filter(|it| !it.passes).map(|it| it.rule).collect();
    assert_eq!(failing, ["queue-depth-metadata", "read-ahead-metadata"]);
    let clients = Scope { roles: vec![Role::Client], ..scope.clone() };
    let rules: Vec<String> =
        check(&host.tree, &Rules::built_in(), &clients).into_iter().map(|it| it.rule).collect();
    assert!(rules.contains(&"mtu".to_owned()) && !rules.contains(&"dirty-ratio".to_owned()));
}

#[test]
fn missing_and_wrong_mount_options_are_reported() {
    let host = Host::new(true);
    let mounts = "/dev/sda1 /data xfs rw,nobarrier,logbufs=8,logbsize=32k,inode32 0 0\n";
    host.put("/proc/mounts", mounts);
    let failing = host.failing();
    let of = |rule: &str| {
        let found = failing.iter().find(|it| it.rule == rule);
        found.map(|it| it.is.clone()).unwrap_or_else(|| panic!("{rule}: {failing:?}"))
    };
    assert_eq!(of("access-times"), "lacks noatime");
    assert_eq!(of("write-barriers"), "has nobarrier");
    assert_eq!(of("xfs-log"), "lacks logbsize=256k");
    assert!(of("xfs-allocation").contains("allocsize=131072k"));
    assert_eq!(of("xfs-inodes"), "has inode32");
    assert!(failing.iter().all(|it| !it.can_apply));
    assert!(planned(&failing, &[]).is_empty());
    let commands: Vec<_> =
        advice(&Rules::built_in(), &scope()).into_iter().map(|it| it.rule).collect();
    assert_eq!(commands, ["make-xfs-metadata", "make-xfs-storage"]);
}

#[test]
fn devices_are_found_by_the_directory_of_a_target() {
    let host = Host::new(true);
    assert_eq!(device_of(&host.tree, "/data/target1"), Some("sda".into()));
    assert_eq!(device_of(&host.tree, "/database"), Some("nvme0n1".into()));
    assert_eq!(disks(&host.tree), ["nvme0n1", "sda"]);
}

/// The kernel refuses a scheduler and a queue depth for a RAID of Linux and for a logical volume,
/// and it uses the read-ahead of the uppermost device.
#[test]
fn disks_below_a_raid_or_a_logical_volume_are_checked() {
    let host = Host::new(true);
    // The logical volume `dm-0` is on the RAID `md0`, which is made of a partition and a disk.
    for link in ["dm-0/slaves/md0", "md0/slaves/sda1", "md0/slaves/sdb"] {
        fs::create_dir_all(host.tree.real(&format!("/sys/block/{link}"))).expect("made");
    }
    host.put("/sys/block/dm-0/dm/name", "vg0-target\n");
    for device in ["dm-0", "md0", "sdb"] {
        let queue = format!("/sys/block/{device}/queue");
        host.put(&format!("{queue}/rotational"), "1\n");
        host.put(&format!("{queue}/nr_requests"), "128\n");
        host.put(&format!("{queue}/scheduler"), "none\n");
        host.put(&format!("{queue}/read_ahead_kb"), "128\n");
    }
    host.put("/sys/block/sdb/queue/scheduler", "none [mq-deadline]\n");
    host.put("/proc/mounts", "/dev/mapper/vg0-target /data xfs rw,noatime 0 0\n");
    let device = device_of(&host.tree, "/data/target1").expect("a device");
    let devices = with_members(&host.tree, &device);
    assert_eq!(devices, ["dm-0", "md0", "sda", "sdb"]);
    let scope = Scope { devices, mounts: Vec::new(), ..scope() };
    let findings = check(&host.tree, &Rules::built_in(), &scope);
    let failing: Vec<&str> =
        findings.iter().filter(|it| !it.passes).map(|it| it.file.as_str()).collect();
    let expected = [
        "sdb/queue/nr_requests",
        "dm-0/queue/read_ahead_kb",
        "md0/queue/read_ahead_kb",
        "sdb/queue/read_ahead_kb",
    ];
    assert_eq!(failing, expected.map(|it| format!("/sys/block/{it}")));
    assert_eq!(with_members(&host.tree, "nvme0n1"), ["nvme0n1"]);
}

#[test]
fn unsupported_kernel_values_are_not_reported() {
    let host = Host::new(true);
    host.put("/sys/block/sda/queue/scheduler", "[none]\n");
    host.put("/sys/devices/system/cpu/smt/control", "notsupported\n");
    host.put("/sys/devices/system/clocksource/clocksource0/available_clocksource", "jiffies\n");
    host.put("/sys/devices/system/clocksource/clocksource0/current_clocksource", "jiffies\n");
    host.put("/proc/meminfo", "MemTotal: 4000000 kB\n");
    host.put("/proc/sys/vm/min_free_kbytes", "45056\n");
    assert!(host.failing().is_empty(), "{:?}", host.failing());
}

#[test]
fn apply_skips_risky_settings_unless_they_are_named() {
    let host = Host::new(false);
    let findings = host.failing();
    let rules: Vec<&str> = planned(&findings, &[]).iter().map(|it| it.rule.as_str()).collect();
    assert!(!rules.contains(&"mtu") && !rules.contains(&"smt") && rules.contains(&"dirty-ratio"));
    let only = planned(&findings, &["mtu".into()]);
    assert_eq!(only.len(), 1);
    assert_eq!(only[0].file, "/sys/class/net/eth0/mtu");
}

#[test]
fn undo_restores_every_file_exactly() {
    let host = Host::new(false);
    host.put("/etc/sysctl.d/90-skep.conf", "# of the administrator\nvm.max_map_count = 70000\n");
    let before = host.snapshot();
    let applied = host.apply_all();
    assert_eq!((applied.changed.len(), applied.failures.len()), (FILES.len(), 0));
    assert!(host.failing().is_empty(), "{:?}", host.failing());
    assert!(host.get("/etc/sysctl.d/90-skep.conf").contains("vm.max_map_count"));
    let undone = undo(&host.tree, false).expect("undone");
    assert_eq!((undone.changed.len(), undone.failures.len()), (FILES.len(), 0));
    assert_eq!(host.snapshot(), before);
}

#[test]
fn applied_values_survive_a_reboot_and_can_be_undone() {
    let host = Host::new(false);
    let before = host.snapshot();
    host.apply_all();
    host.reboot();
    assert!(host.failing().is_empty(), "{:?}", host.failing());
    undo(&host.tree, false).expect("undone");
    assert_eq!(host.snapshot(), before);
}

#[test]
fn second_apply_preserves_the_original_values_for_undo() {
    let host = Host::new(false);
    let before = host.snapshot();
    host.apply_all();
    host.put("/proc/sys/vm/swappiness", "77\n");
    let again = host.apply_all();
    assert_eq!(again.changed.len(), 1);
    assert!(host.failing().is_empty(), "{:?}", host.failing());
    undo(&host.tree, false).expect("undone");
    assert_eq!(host.snapshot(), before);
}

#[test]
fn undo_after_a_crash_of_apply_restores_everything() {
    let host = Host::new(false);
    let before = host.snapshot();
    host.apply_all();
    // This is the state if the host crashes after `apply` has synced the record and written the
    // first three values.
    for (path, _, wrong) in FILES.iter().skip(3) {
        host.put(path, wrong);
    }
    fs::remove_file(host.tree.real("/etc/tmpfiles.d/skep.conf")).expect("removed");
    undo(&host.tree, false).expect("undone");
    assert_eq!(host.snapshot(), before);
}

/// A new scheduler resets the depth of the queue, so the depth must be restored after the
/// scheduler.
#[test]
fn undo_restores_a_scheduler_before_its_queue_depth() {
    let host = Host::new(false);
    host.apply_all();
    let undone = undo(&host.tree, false).expect("undone");
    let position = |name: &str| {
        let path = format!("/sys/block/sda/queue/{name}");
        undone.changed.iter().position(|it| it.file == path).expect("restored")
    };
    assert!(position("scheduler") < position("nr_requests"), "{:?}", undone.changed);
}

/// `apply` may be interrupted after it has set all values and before it writes the boot files. The
/// next `apply` finds no wrong value.
#[test]
fn second_apply_completes_the_boot_files_of_the_first_apply() {
    let host = Host::new(false);
    let before = host.snapshot();
    host.apply_all();
    let (path, other) = ("/etc/tmpfiles.d/skep.conf", "/etc/udev/rules.d/90-skep.rules");
    let complete = host.get(path);
    fs::remove_file(host.tree.real(path)).expect("removed");
    fs::remove_file(host.tree.real(other)).expect("removed");
    assert!(host.failing().is_empty());
    let outcome = apply(&host.tree, &[]).expect("applied");
    assert_eq!(outcome.boot_files, [path, other]);
    assert_eq!(host.get(path), complete);
    assert_eq!(apply(&host.tree, &[]).expect("applied").boot_files, [""; 0]);
    undo(&host.tree, false).expect("undone");
    assert_eq!(host.snapshot(), before);
}

#[test]
fn value_refused_by_the_kernel_changes_no_other_value() {
    let host = Host::new(false);
    let findings = host.failing();
    // The file disappears between the check and `apply`, as if its device was removed.
    let path = host.tree.real("/sys/block/sda/queue/nr_requests");
    fs::remove_file(&path).expect("removed");
    let outcome = apply(&host.tree, &planned(&findings, &[])).expect("applied");
    assert_eq!(outcome.failures.len(), 1, "{:?}", outcome.failures);
    assert_eq!(outcome.failures[0].file, "/sys/block/sda/queue/nr_requests");
    assert!(!host.get(STATE).contains("nr_requests"));
    assert!(!host.get("/etc/udev/rules.d/90-skep.rules").contains("nr_requests"));
}

#[test]
fn undo_with_a_missing_or_damaged_record_is_refused() {
    let host = Host::new(false);
    assert!(undo(&host.tree, false).unwrap_err().context().contains("cannot undo"));
    host.put(STATE, "{\"version\": 1, \"chan");
    let before = host.snapshot();
    for error in [
        undo(&host.tree, false).unwrap_err(),
        apply(&host.tree, &planned(&host.failing(), &[])).unwrap_err(),
    ] {
        assert!(error.context().contains("cannot use the record"), "{}", error.context());
    }
    assert_eq!(host.snapshot(), before);
    host.put(STATE, "{\"version\": 9, \"changes\": [], \"files\": []}");
    assert!(undo(&host.tree, false).unwrap_err().context().contains("version 9"));
}

#[test]
fn files_that_undo_cannot_restore_stay_in_the_record() {
    let host = Host::new(false);
    let before = host.snapshot();
    host.apply_all();
    let path = "/sys/block/sda/queue/nr_requests";
    fs::remove_file(host.tree.real(path)).expect("removed");
    let outcome = undo(&host.tree, false).expect("undone");
    assert_eq!(outcome.failures.len(), 1, "{:?}", outcome.failures);
    host.put(path, "2048");
    undo(&host.tree, false).expect("undone");
    assert_eq!(host.snapshot(), before);
}

/// The kernel has forgotten the values of a removed device. If the device returns, it has the
/// values of a new device.
#[test]
fn undo_forgets_values_of_devices_that_were_removed() {
    let host = Host::new(false);
    host.apply_all();
    fs::remove_dir_all(host.tree.real("/sys/block/sda")).expect("removed");
    let outcome = undo(&host.tree, false).expect("undone");
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    let forgotten: Vec<_> = outcome.forgotten.iter().map(|it| it.file.as_str()).collect();
    let queue = "/sys/block/sda/queue";
    let files = ["scheduler", "nr_requests", "read_ahead_kb"].map(|it| format!("{queue}/{it}"));
    assert_eq!(forgotten, files);
    assert!(!host.tree.real(STATE).exists());
}

#[test]
fn forced_undo_forgets_values_that_it_cannot_restore() {
    let host = Host::new(false);
    host.apply_all();
    // The device exists, but the kernel does not have this file any more.
    fs::remove_file(host.tree.real("/sys/block/sda/queue/nr_requests")).expect("removed");
    assert_eq!(undo(&host.tree, false).expect("undone").failures.len(), 1);
    let outcome = undo(&host.tree, true).expect("undone");
    assert_eq!((outcome.failures.len(), outcome.forgotten.len()), (0, 1));
    assert!(undo(&host.tree, true).unwrap_err().context().contains("does not exist"));
}

#[test]
fn two_applies_at_the_same_time_record_the_values_of_both() {
    for _ in 0..20 {
        let host = Host::new(false);
        let before = host.snapshot();
        let findings = host.failing();
        let all: Vec<String> = findings.iter().map(|it| it.rule.clone()).collect();
        let changes = planned(&findings, &all);
        let (one, other) = changes.split_at(changes.len() / 2);
        let tree = &host.tree;
        std::thread::scope(|scope| {
            for part in [one, other] {
                scope.spawn(move || apply(tree, part).expect("applied"));
            }
        });
        let undone = undo(&host.tree, false).expect("undone");
        assert_eq!(undone.changed.len(), FILES.len());
        assert_eq!(host.snapshot(), before);
    }
}
