//! Tests of the drivers of network interfaces, on a directory with artificial files.

use skep_tune::check::{Finding, Scope};
use skep_tune::{Role, Tree, acceleration};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Creates a network interface with a driver.
fn add_interface(root: &Path, name: &str, driver: &str) {
    let drivers = root.join("sys/bus/drivers").join(driver);
    let device = root.join("sys/class/net").join(name).join("device");
    fs::create_dir_all(&drivers).expect("made");
    fs::create_dir_all(&device).expect("made");
    symlink(drivers, device.join("driver")).expect("link");
}

fn findings(root: &Path, interfaces: &[&str]) -> Vec<Finding> {
    let interfaces = interfaces.iter().map(|name| (*name).to_owned()).collect();
    let scope = Scope { roles: vec![Role::Client], interfaces, ..Scope::default() };
    acceleration::findings(&Tree::new(root), &scope)
}

#[test]
fn interfaces_that_pass_through_the_hypervisor_are_reported() {
    let host = tempfile::tempdir().expect("a directory");
    add_interface(host.path(), "eth0", "vif");
    add_interface(host.path(), "eth1", "hv_netvsc");
    let found = findings(host.path(), &["eth0", "eth1"]);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found.iter().all(|it| !it.passes && !it.can_apply), "{found:?}");
    assert!(found[0].should_be.contains("enhanced networking"), "{found:?}");
    assert!(found[1].should_be.contains("accelerated networking"), "{found:?}");
}

#[test]
fn interface_with_a_virtual_function_passes_the_check() {
    let host = tempfile::tempdir().expect("a directory");
    add_interface(host.path(), "eth1", "hv_netvsc");
    add_interface(host.path(), "enP1s1", "mlx5_core");
    let function = host.path().join("sys/class/net/enP1s1");
    symlink(function, host.path().join("sys/class/net/eth1/lower_enP1s1")).expect("link");
    let found = findings(host.path(), &["eth1", "enP1s1"]);
    assert!(found.len() == 1 && found[0].passes, "{found:?}");
}

#[test]
fn interfaces_that_bypass_the_hypervisor_have_no_finding() {
    let host = tempfile::tempdir().expect("a directory");
    for (name, driver) in [("eth0", "ena"), ("eth1", "ixgbevf"), ("eth2", "mlx5_core")] {
        add_interface(host.path(), name, driver);
    }
    assert!(findings(host.path(), &["eth0", "eth1", "eth2", "eth9"]).is_empty());
}
