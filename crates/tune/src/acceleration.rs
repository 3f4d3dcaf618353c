//! Checks whether the network interfaces of a virtual machine bypass the hypervisor. Clouds offer
//! this as enhanced networking (AWS) and accelerated networking (Azure). Reads `/sys` only.
//!
//! `skep tune apply` cannot enable this bypass, because the bypass is a setting of the cloud
//! provider for this machine.

use crate::check::{Finding, Scope};
use crate::rules::Test;
use crate::tree::Tree;

/// Driver of the interfaces of Xen without enhanced networking.
const XEN: &str = "vif";
/// Driver of the interfaces of Hyper-V. With accelerated networking, such an interface has a
/// virtual function below it, which is another interface of the host.
const HYPER_V: &str = "hv_netvsc";

/// Returns a finding for each interface of `scope` with a driver of Xen or Hyper-V. Empty on
/// hosts without such interfaces.
pub fn findings(tree: &Tree, scope: &Scope) -> Vec<Finding> {
    scope.interfaces.iter().filter_map(|name| finding(tree, name)).collect()
}

fn finding(tree: &Tree, name: &str) -> Option<Finding> {
    let directory = format!("/sys/class/net/{name}");
    let driver = tree.link_name(&format!("{directory}/device/driver"))?;
    let has_function = tree.names(&directory).iter().any(|it| it.starts_with("lower_"));
    let (is, should_be, passes) = match driver.as_str() {
        XEN => ("driver vif", "driver ena or ixgbevf (enhanced networking)", false),
        HYPER_V if has_function => ("a virtual function", "a virtual function", true),
        HYPER_V => ("no virtual function", "a virtual function (accelerated networking)", false),
        _ => return None,
    };
    Some(Finding {
        rule: "accelerated-network".into(),
        file: directory,
        is: is.into(),
        test: Test::Equal,
        should_be: should_be.into(),
        passes,
        can_apply: false,
        risk: String::new(),
        why: "each packet passes through the hypervisor, which costs processor time and latency; \
              enable enhanced or accelerated networking for this machine in the settings of its \
              cloud"
            .into(),
        source: "Alces 2016, appendix; AzureCAT 2017".into(),
        setting: None,
    })
}
