//! Checks whether more than one CPU handles the interrupts of each disk and network interface.
//! Reads `/proc` and `/sys` only.
//!
//! A finding needs a host with several CPUs, and a device with an interrupt for each of
//! several queues. `apply` does not move interrupts, because `irqbalance` and drivers move them
//! too.

use crate::check::{Finding, Scope};
use crate::rules::{Role, Test};
use crate::tree::Tree;
use skep_types::cpu_list;
use std::collections::BTreeSet;

/// Returns a finding for each disk and network interface of `scope` whose interrupts the kernel
/// shows. The function checks disks only on hosts with metadata or storage. Disks of one controller
/// share its interrupts, and have one finding.
pub fn findings(tree: &Tree, scope: &Scope) -> Vec<Finding> {
    let online = tree.read("/sys/devices/system/cpu/online");
    let cpus = online.and_then(|list| cpu_list::parse(list.trim()));
    if cpus.is_none_or(|cpus| cpus.len() < 2) {
        return Vec::new();
    }
    let has_targets = scope.roles.iter().any(|it| matches!(it, Role::Metadata | Role::Storage));
    let disks = scope.devices.iter().filter(|_| has_targets).map(|it| format!("/sys/block/{it}"));
    let interfaces = scope.interfaces.iter().map(|it| format!("/sys/class/net/{it}"));
    let mut seen: BTreeSet<Vec<String>> = BTreeSet::new();
    let mut findings = Vec::new();
    for device in disks.chain(interfaces).filter(|it| !has_one_queue(tree, it)) {
        let interrupts = tree.names_above(&device, "msi_irqs");
        if seen.insert(interrupts.clone()) {
            findings.extend(compare(tree, device, &interrupts));
        }
    }
    findings
}

/// Whether a device has only one queue of requests or of received packets, for example in a small
/// virtual machine. Its further interrupts, such as one for its configuration, are rare, so nothing
/// is gained if other CPUs handle them.
fn has_one_queue(tree: &Tree, device: &str) -> bool {
    let queues = tree.names(&format!("{device}/queues"));
    let receive_queues = queues.iter().filter(|it| it.starts_with("rx-")).count();
    receive_queues == 1 || tree.names(&format!("{device}/mq")).len() == 1
}

/// Compares the CPUs that handle the interrupts of a device. `None` means that fewer than two of
/// these interrupts are in use.
fn compare(tree: &Tree, device: String, interrupts: &[String]) -> Option<Finding> {
    let each: Vec<BTreeSet<usize>> = interrupts.iter().filter_map(|it| cpus_of(tree, it)).collect();
    if each.len() < 2 {
        return None;
    }
    let cpus: BTreeSet<usize> = each.iter().flatten().copied().collect();
    Some(Finding {
        rule: "interrupt-spread".into(),
        file: device,
        is: format!("{} interrupts on CPUs {}", each.len(), cpu_list::show(&cpus)),
        test: Test::Equal,
        should_be: "interrupts on several CPUs".into(),
        passes: cpus.len() > 1,
        can_apply: false,
        risk: String::new(),
        why: "one CPU handles all requests of the device and becomes the limit; the service \
              `irqbalance` spreads interrupts"
            .into(),
        source: "kernel documentation, core-api/irq/irq-affinity".into(),
        setting: None,
    })
}

/// Returns the CPUs that handle an interrupt. `None` means that the interrupt is not in use.
fn cpus_of(tree: &Tree, interrupt: &str) -> Option<BTreeSet<usize>> {
    let read = |name: &str| tree.read(&format!("/proc/irq/{interrupt}/{name}"));
    // Usually all CPUs are permitted, and the kernel selects one CPU. For a kernel that does not
    // show the selected CPU, compare the permitted CPUs.
    let list = read("effective_affinity_list").or_else(|| read("smp_affinity_list"))?;
    cpu_list::parse(list.trim())
}
