//! The check returns each rule that applies to a host, with the current value.

use crate::rules::{DeviceKind, Keep, Role, Rule, Rules, Test};
use crate::tree::Tree;
use serde::Serialize;

/// The part of a host that is checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// Roles of the host.
    pub roles: Vec<Role>,
    /// Block devices of the host's targets, such as `sdb`. Only hosts with metadata or storage have
    /// targets.
    pub devices: Vec<String>,
    /// Network interfaces that carry the file system, such as `eth0`.
    pub interfaces: Vec<String>,
    /// Mount points of the file systems of the host's targets.
    pub mounts: Vec<String>,
}

/// A rule and the current value of one file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// Name of the rule.
    pub rule: String,
    /// The file, or the mount point.
    pub file: String,
    /// The current value.
    pub is: String,
    /// How the value is compared.
    pub test: Test,
    /// The value that it should have.
    pub should_be: String,
    /// Whether the value is as it should be.
    pub passes: bool,
    /// Whether `apply` can change the value.
    pub can_apply: bool,
    /// The risk of a change. A rule with a risk is applied only on request. Empty means no risk.
    pub risk: String,
    /// The reason for the rule.
    pub why: String,
    /// The source of the value.
    pub source: String,
    /// Text that sets the value, and the method that preserves the value over a reboot.
    #[serde(skip)]
    pub(crate) setting: Option<(String, Keep)>,
}

/// A command that makes a file system for targets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// Name of the rule.
    pub rule: String,
    /// The command.
    pub command: String,
    /// The reason for the rule.
    pub why: String,
    /// The source of the options.
    pub source: String,
}

/// Returns the block device below a directory, by the table of mounts. `None` means that the
/// directory is on no block device of the tree.
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
    let is_whole = |device: &String| {
        source == **device || tree.real(&format!("/sys/block/{device}/{source}")).exists()
    };
    tree.names("/sys/block").into_iter().find(is_whole)
}

/// Returns the mount point of the file system of a directory.
pub fn mount_point_of(tree: &Tree, directory: &str) -> Option<String> {
    mount_of(tree, directory).map(|it| it.point)
}

/// Returns all block devices except loop, RAM and optical devices.
pub fn disks(tree: &Tree) -> Vec<String> {
    let is_disk = |name: &String| {
        ["loop", "ram", "zram", "sr", "fd", "dm-"].iter().all(|it| !name.starts_with(it))
    };
    tree.names("/sys/block").into_iter().filter(is_disk).collect()
}

/// Returns the network interfaces that belong to a hardware device.
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
    // Of two mounts at the same mount point, the later mount hides the earlier mount.
    mounts.max_by_key(|it| it.point.len())
}

/// Checks all rules that apply to the host.
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

/// Returns the commands that make file systems for the targets of a host.
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
    let rotates = tree.read(&format!("/sys/block/{device}/queue/rotational"));
    if device.starts_with("nvme") {
        return DeviceKind::Nvme;
    }
    if device.starts_with("vd") || device.starts_with("xvd") {
        return DeviceKind::Virtual;
    }
    if rotates.is_some_and(|it| it.trim() == "1") { DeviceKind::Hdd } else { DeviceKind::Ssd }
}

/// Returns the finding of a file. `None` if the kernel does not support the wanted value in this
/// file.
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
    // The kernel counts a little less than the installed memory.
    kib.unwrap_or(0).saturating_add(1 << 20) >> 20
}
