//! Compares the settings of a host with the rules. Returns a finding for each setting to which a
//! rule applies.

use crate::rules::{DeviceKind, Keep, Role, Rule, Rules, Test};
use crate::tree::Tree;
use serde::Serialize;

/// The parts of a host to which the rules are applied.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// The roles of the host in the cluster.
    pub roles: Vec<Role>,
    /// Names of the block devices that contain the host's targets, such as `sdb`. The list is empty
    /// on hosts without metadata and storage targets.
    pub devices: Vec<String>,
    /// Names of the network interfaces that carry the traffic of the file system, such as `eth0`.
    pub interfaces: Vec<String>,
    /// Mount points of the local file systems that contain the host's targets.
    pub mounts: Vec<String>,
}

/// The comparison of a rule with the current value of one file, or with the options of one mount.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// Name of the rule that was compared.
    pub rule: String,
    /// Path of the kernel file, or the mount point.
    pub file: String,
    /// The current value, or a text about the mount options.
    pub is: String,
    /// How the current value is compared with the wanted value.
    pub test: Test,
    /// The wanted value, or the wanted mount options.
    pub should_be: String,
    /// Whether the current value satisfies the rule.
    pub passes: bool,
    /// Whether `apply` can change the value. `apply` cannot change mount options.
    pub can_apply: bool,
    /// The risk of the change. Empty means no risk. `apply` changes a value with a risk only if the
    /// user names the rule.
    pub risk: String,
    /// The reason for the wanted value.
    pub why: String,
    /// The publications on which the wanted value is based.
    pub source: String,
    /// Text that sets the wanted value, and the way in which the value is set again after a reboot.
    /// `None` for mount options.
    #[serde(skip)]
    pub(crate) setting: Option<(String, Keep)>,
}

/// A recommended command that creates a file system for targets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// Name of the rule that recommends the command.
    pub rule: String,
    /// The recommended command.
    pub command: String,
    /// The reason for the command's options.
    pub why: String,
    /// The publications on which the options are based.
    pub source: String,
}

/// Returns the name of the whole block device that contains the file system of a directory,
/// according to the mount table. `None` means that no block device of the host contains it. The
/// device may be made of other devices, which [`with_members`] finds.
pub fn device_of(tree: &Tree, directory: &str) -> Option<String> {
    let mount = mount_of(tree, directory)?;
    let source = mount.source.strip_prefix("/dev/")?;
    let source = match source.strip_prefix("mapper/") {
        Some(name) => {
            let is_name = |device: &String| {
                tree.read(&format!("/sys/block/{device}/dm/name"))
                    .is_some_and(|it| it.trim() == name)
            };
            tree.names("/sys/block").into_iter().find(is_name)?
        }
        None => source.to_owned(),
    };
    whole_device(tree, &source)
}

/// Returns a block device and all whole devices below it, such as the disks of a RAID of Linux or
/// of a logical volume. The device itself is first.
pub fn with_members(tree: &Tree, device: &str) -> Vec<String> {
    let mut found = vec![device.to_owned()];
    let mut next = 0;
    while let Some(above) = found.get(next).cloned() {
        for member in members_of(tree, &above) {
            if !found.contains(&member) {
                found.push(member);
            }
        }
        next += 1;
    }
    found
}

/// Returns the whole devices in the layer directly below a block device. Empty for a disk.
fn members_of(tree: &Tree, device: &str) -> Vec<String> {
    let parts = tree.names(&format!("/sys/block/{device}/slaves"));
    parts.iter().filter_map(|part| whole_device(tree, part)).collect()
}

/// Returns the whole block device that has this name, or that has a partition with this name.
fn whole_device(tree: &Tree, name: &str) -> Option<String> {
    let is_whole = |device: &String| {
        name == device.as_str() || tree.real(&format!("/sys/block/{device}/{name}")).exists()
    };
    tree.names("/sys/block").into_iter().find(is_whole)
}

/// Returns the mount point of the file system that contains a directory.
pub fn mount_point_of(tree: &Tree, directory: &str) -> Option<String> {
    mount_of(tree, directory).map(|it| it.point)
}

/// Returns the names of all block devices, except loop, RAM, optical, floppy and device-mapper
/// devices.
pub fn disks(tree: &Tree) -> Vec<String> {
    let is_disk = |name: &String| {
        ["loop", "ram", "zram", "sr", "fd", "dm-"].iter().all(|it| !name.starts_with(it))
    };
    tree.names("/sys/block").into_iter().filter(is_disk).collect()
}

/// Returns the names of the network interfaces that belong to a hardware device.
pub fn interfaces(tree: &Tree) -> Vec<String> {
    let is_real = |name: &String| tree.real(&format!("/sys/class/net/{name}/device")).exists();
    tree.names("/sys/class/net").into_iter().filter(is_real).collect()
}

struct Mount {
    source: String,
    point: String,
    kind: String,
    options: Vec<String>,
}

fn mount_of(tree: &Tree, directory: &str) -> Option<Mount> {
    let table = tree.read("/proc/mounts")?;
    let mounts = table.lines().filter_map(|line| {
        let mut words = line.split_whitespace().map(str::to_owned);
        let (source, point, kind) = (words.next()?, words.next()?, words.next()?);
        let options = words.next()?.split(',').map(str::to_owned).collect();
        let point = point.replace("\\040", " ");
        let is_above = directory == point
            || point == "/"
            || directory.strip_prefix(&point).is_some_and(|rest| rest.starts_with('/'));
        is_above.then_some(Mount { source, point, kind, options })
    });
    // If two file systems are mounted on the same directory, the later mount hides the earlier
    // mount. Their mount points have equal lengths, and `max_by_key` returns the last mount of
    // equal length.
    mounts.max_by_key(|it| it.point.len())
}

/// Compares the host with all rules that apply to it. If several rules apply to the same file, only
/// the first rule counts.
pub fn check(tree: &Tree, rules: &Rules, scope: &Scope) -> Vec<Finding> {
    let has_role = |roles: &[Role]| roles.iter().any(|role| scope.roles.contains(role));
    let mut findings: Vec<Finding> = Vec::new();
    for rule in rules.rule.iter().filter(|it| has_role(&it.roles)) {
        if rule.min_memory_gib > 0 && memory_gib(tree) < rule.min_memory_gib {
            continue;
        }
        for file in files(tree, rule, scope) {
            if findings.iter().any(|it| it.file == file) {
                continue;
            }
            findings.extend(check_file(tree, rule, file));
        }
    }
    for mount in &scope.mounts {
        findings.extend(check_mount(tree, rules, scope, mount));
    }
    findings
}

/// Returns the recommended commands that create file systems for targets of the host's roles.
pub fn advice(rules: &Rules, scope: &Scope) -> Vec<Advice> {
    let applies =
        rules.make.iter().filter(|it| it.roles.iter().any(|role| scope.roles.contains(role)));
    applies
        .map(|it| Advice {
            rule: it.id.clone(),
            command: it.command.clone(),
            why: it.why.clone(),
            source: it.source.clone(),
        })
        .collect()
}

fn files(tree: &Tree, rule: &Rule, scope: &Scope) -> Vec<String> {
    if rule.file.contains("{device}") {
        let is_kind = |device: &&String| rule.devices.contains(&kind_of(tree, device));
        let devices = scope.devices.iter().filter(is_kind);
        return devices.flat_map(|it| tree.matches(&rule.file.replace("{device}", it))).collect();
    }
    if rule.file.contains("{interface}") {
        let interfaces = scope.interfaces.iter();
        return interfaces
            .flat_map(|it| tree.matches(&rule.file.replace("{interface}", it)))
            .collect();
    }
    tree.matches(&rule.file)
}

fn kind_of(tree: &Tree, device: &str) -> DeviceKind {
    if !members_of(tree, device).is_empty() {
        return DeviceKind::Stacked;
    }
    let rotates = tree.read(&format!("/sys/block/{device}/queue/rotational"));
    if device.starts_with("nvme") {
        return DeviceKind::Nvme;
    }
    if device.starts_with("vd") || device.starts_with("xvd") {
        return DeviceKind::Virtual;
    }
    if rotates.is_some_and(|it| it.trim() == "1") { DeviceKind::Hdd } else { DeviceKind::Ssd }
}

/// Compares one file with a rule. `None` means that the file cannot be read, or that the rule does
/// not apply, for example because the kernel does not support the wanted value.
fn check_file(tree: &Tree, rule: &Rule, file: String) -> Option<Finding> {
    let text = tree.read(&file)?;
    let is = rule.form.value(&text);
    if !rule.only_if.is_empty() && is != rule.want && !rule.only_if.contains(&is) {
        return None;
    }
    if let Some(list) = &rule.available_in {
        let list = tree.read(list)?;
        if !list.split_whitespace().any(|word| word == rule.want) {
            return None;
        }
    }
    if !rule.form.supports(&text, &rule.want) {
        return None;
    }
    let passes = rule.test.passes(&is, &rule.want);
    let setting = (rule.form.text(&text, &rule.want), rule.keep);
    Some(Finding {
        rule: rule.id.clone(),
        file,
        is,
        test: rule.test,
        should_be: rule.want.clone(),
        passes,
        can_apply: true,
        risk: rule.risk.clone(),
        why: rule.why.clone(),
        source: rule.source.clone(),
        setting: Some(setting),
    })
}

fn check_mount(tree: &Tree, rules: &Rules, scope: &Scope, point: &str) -> Vec<Finding> {
    let Some(mount) = mount_of(tree, point) else { return Vec::new() };
    let applies = |rule: &&crate::rules::MountRule| {
        let has_role = rule.roles.iter().any(|role| scope.roles.contains(role));
        has_role && rule.types.contains(&mount.kind)
    };
    let find = |rule: &crate::rules::MountRule| {
        let has = |option: &&String| mount.options.contains(option);
        let missing: Vec<&str> =
            rule.needs.iter().filter(|it| !has(it)).map(String::as_str).collect();
        let wrong: Vec<&str> =
            rule.forbids.iter().filter(|it| has(it)).map(String::as_str).collect();
        let without = rule.forbids.iter().map(|it| format!("without {it}"));
        let wanted: Vec<String> = rule.needs.iter().cloned().chain(without).collect();
        let is = match (missing.is_empty(), wrong.is_empty()) {
            (true, true) => "as it should be".to_owned(),
            (false, _) => format!("lacks {}", missing.join(",")),
            (true, false) => format!("has {}", wrong.join(",")),
        };
        Finding {
            rule: rule.id.clone(),
            file: mount.point.clone(),
            is,
            test: Test::Equal,
            should_be: wanted.join(","),
            passes: missing.is_empty() && wrong.is_empty(),
            can_apply: false,
            risk: String::new(),
            why: rule.why.clone(),
            source: rule.source.clone(),
            setting: None,
        }
    };
    rules.mount.iter().filter(applies).map(find).collect()
}

fn memory_gib(tree: &Tree) -> u64 {
    let text = tree.read("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|it| it.split_whitespace().next()?.parse::<u64>().ok());
    // The kernel reports slightly less memory than is installed, so round up.
    kib.unwrap_or(0).saturating_add(1 << 20) >> 20
}
