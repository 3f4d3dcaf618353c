//! The machine of a host: its network interfaces, disks, settings that affect storage, and the type
//! of a virtual machine of a cloud.
//!
//! All values come from files of the kernel and of cloud-init. This module neither uses the network
//! nor starts a program. The description of the machine omits values that no file contains.

use crate::limits::MAX_DEVICES;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A network interface of a host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Name of the interface.
    pub name: String,
    /// Maximum number of bytes of a packet.
    pub mtu: u32,
    /// Rate of the link in Mbit/s. `None` if the interface does not report its speed, as for most
    /// virtual interfaces.
    pub speed_mbit: Option<u32>,
    /// Name of the kernel's driver. `None` for interfaces without a device.
    pub driver: Option<String>,
}

/// A disk of a host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// Name of the block device.
    pub name: String,
    /// The model, as the device reports it. Empty if the device reports no model.
    pub model: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Whether the disk rotates.
    pub is_rotational: bool,
    /// The kernel's I/O scheduler for the disk.
    pub scheduler: String,
    /// Read-ahead in KiB.
    pub read_ahead_kib: Option<u32>,
}

/// A virtual machine of a cloud.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    /// Maker of the machine, as its firmware reports it, such as `Amazon EC2`.
    pub vendor: String,
    /// Type of the machine, such as `c5n.18xlarge`. The type is the product name of the firmware.
    /// On clouds whose firmware does not have the type, it is the type that cloud-init has stored.
    pub kind: String,
    /// Region of the cloud. `None` if cloud-init has not stored this value.
    pub region: Option<String>,
    /// Availability zone. `None` if cloud-init has not stored this value.
    pub zone: Option<String>,
    /// Image from which the machine was started. `None` if cloud-init has not stored this value.
    pub image: Option<String>,
}

/// The settings that are recorded, as paths below `/proc/sys` or `/sys`.
const SETTINGS: [&str; 12] = [
    "proc/sys/vm/swappiness",
    "proc/sys/vm/dirty_ratio",
    "proc/sys/vm/dirty_background_ratio",
    "proc/sys/vm/vfs_cache_pressure",
    "proc/sys/vm/min_free_kbytes",
    "proc/sys/kernel/numa_balancing",
    "proc/sys/net/core/rmem_max",
    "proc/sys/net/core/wmem_max",
    "proc/sys/net/ipv4/tcp_congestion_control",
    "sys/kernel/mm/transparent_hugepage/enabled",
    "sys/devices/system/cpu/smt/control",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
];

/// Data of cloud-init that all users may read.
const CLOUD_DATA: &str = "run/cloud-init/instance-data.json";
/// JSON pointer to the provider's own metadata in [`CLOUD_DATA`].
const META: &str = "/ds/meta_data";

/// Returns the text of a file below `root`. `None` if the file does not exist or cannot be read.
fn text(root: &Path, path: &str) -> Option<String> {
    let text = fs::read_to_string(root.join(path)).ok()?;
    Some(text.trim().to_owned())
}

/// Returns the names of the entries of a directory below `root`, in alphabetical order.
fn names(root: &Path, path: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(root.join(path)) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// Returns the word in brackets of a list such as `none [mq-deadline] kyber`. Returns the whole
/// text if no word is in brackets.
fn chosen(text: &str) -> String {
    let marked = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    marked.map_or(text, |(word, _)| word).to_owned()
}

/// Returns the name of the distribution with its release, such as `Debian GNU/Linux 12 (bookworm)`.
/// Empty if no file of the host names the distribution.
pub(super) fn distribution(root: &Path) -> String {
    let text = text(root, "etc/os-release").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.unwrap_or_default().trim_matches('"').to_owned()
}

/// Returns the network interfaces of the host, without the loopback interface.
pub(super) fn interfaces(root: &Path) -> Vec<Interface> {
    let names = names(root, "sys/class/net").into_iter().filter(|name| name != "lo");
    let interface = |name: String| {
        let value = |key: &str| text(root, &format!("sys/class/net/{name}/{key}"));
        let driver = fs::read_link(root.join(format!("sys/class/net/{name}/device/driver"))).ok();
        let driver = driver.and_then(|it| it.file_name()?.to_str().map(str::to_owned));
        Some(Interface {
            mtu: value("mtu")?.parse().ok()?,
            // An interface without a known rate reports -1, or its file cannot be read.
            speed_mbit: value("speed").and_then(|it| it.parse::<u32>().ok()).filter(|it| *it > 0),
            driver,
            name,
        })
    };
    names.filter_map(interface).take(MAX_DEVICES).collect()
}

/// Returns the disks of the host, without loop devices, memory disks and empty drives.
pub(super) fn disks(root: &Path) -> Vec<Disk> {
    let is_virtual = |name: &String| ["loop", "ram", "zram"].iter().any(|it| name.starts_with(it));
    let names = names(root, "sys/block").into_iter().filter(|name| !is_virtual(name));
    let disk = |name: String| {
        let value = |key: &str| text(root, &format!("sys/block/{name}/{key}"));
        // The kernel counts in units of 512 bytes, independently of the size of a block.
        let sectors = value("size")?.parse::<u64>().ok().filter(|it| *it > 0)?;
        Some(Disk {
            model: value("device/model").unwrap_or_default(),
            size_bytes: sectors.saturating_mul(512),
            is_rotational: value("queue/rotational")? == "1",
            scheduler: chosen(&value("queue/scheduler").unwrap_or_default()),
            read_ahead_kib: value("queue/read_ahead_kb").and_then(|it| it.parse().ok()),
            name,
        })
    };
    names.filter_map(disk).take(MAX_DEVICES).collect()
}

/// Returns the settings of the host that affect storage. The name of a setting is its path without
/// `proc/sys` or `sys`.
pub(super) fn tuning(root: &Path) -> BTreeMap<String, String> {
    let setting = |path: &&str| {
        let name = path.strip_prefix("proc/sys/").or(path.strip_prefix("sys/")).unwrap_or(path);
        Some((name.to_owned(), chosen(&text(root, path)?)))
    };
    SETTINGS.iter().filter_map(setting).collect()
}

/// Returns the cloud's description of the host. `None` if the firmware names no maker and
/// cloud-init has stored nothing, as on most machines without firmware and in containers.
pub(super) fn instance(root: &Path) -> Option<Instance> {
    let firmware = |key: &str| text(root, &format!("sys/class/dmi/id/{key}"));
    let stored = text(root, CLOUD_DATA).and_then(|text| serde_json::from_str::<Value>(&text).ok());
    if stored.is_none() && firmware("sys_vendor").is_none() {
        return None;
    }
    let stored = stored.unwrap_or_default();
    let first = |pointers: &[&str]| {
        let words = pointers.iter().filter_map(|it| stored.pointer(it)?.as_str());
        words.map(str::to_owned).find(|it| !it.is_empty())
    };
    let kind = first(&[
        &format!("{META}/instance-type"),
        &format!("{META}/instance_type"),
        &format!("{META}/imds/compute/vmSize"),
    ]);
    Some(Instance {
        vendor: firmware("sys_vendor").unwrap_or_default(),
        kind: kind.or(firmware("product_name")).unwrap_or_default(),
        region: first(&["/v1/region", &format!("{META}/imds/compute/location")]),
        zone: first(&["/v1/availability_zone", &format!("{META}/imds/compute/zone")]),
        image: first(&[
            &format!("{META}/ami-id"),
            &format!("{META}/image-id"),
            &format!("{META}/imds/compute/storageProfile/imageReference/id"),
            &format!("{META}/imds/compute/storageProfile/imageReference/sku"),
        ]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a directory tree with the given files, and returns this tree.
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn distribution_is_reported_by_its_readable_name() {
        let root = tree(&[("etc/os-release", "NAME=Debian\nPRETTY_NAME=\"Debian 12\"\n")]);
        assert_eq!(distribution(root.path()), "Debian 12");
        assert_eq!(distribution(&root.path().join("none")), "");
    }

    #[test]
    fn network_interfaces_are_recorded_with_rate_and_mtu() {
        let root = tree(&[
            ("sys/class/net/lo/mtu", "65536\n"),
            ("sys/class/net/eth1/mtu", "9000\n"),
            ("sys/class/net/eth1/speed", "25000\n"),
            ("sys/class/net/eth0/mtu", "1500\n"),
            ("sys/class/net/eth0/speed", "-1\n"),
        ]);
        let device = root.path().join("sys/class/net/eth1/device");
        fs::create_dir(&device).unwrap();
        std::os::unix::fs::symlink("../../drivers/ena", device.join("driver")).unwrap();
        let found = interfaces(root.path());
        let names: Vec<&str> = found.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["eth0", "eth1"]);
        assert_eq!((found[0].mtu, found[0].speed_mbit, &found[0].driver), (1500, None, &None));
        let driver = found[1].driver.as_deref();
        assert_eq!((found[1].mtu, found[1].speed_mbit, driver), (9000, Some(25_000), Some("ena")));
    }

    #[test]
    fn disks_are_recorded_with_size_and_io_scheduler() {
        let root = tree(&[
            ("sys/block/loop0/size", "8\n"),
            ("sys/block/sr0/size", "0\n"),
            ("sys/block/nvme0n1/size", "2048\n"),
            ("sys/block/nvme0n1/device/model", "Fast disk   \n"),
            ("sys/block/nvme0n1/queue/rotational", "0\n"),
            ("sys/block/nvme0n1/queue/scheduler", "none [mq-deadline] kyber\n"),
            ("sys/block/nvme0n1/queue/read_ahead_kb", "128\n"),
        ]);
        let expected = Disk {
            name: "nvme0n1".into(),
            model: "Fast disk".into(),
            size_bytes: 1 << 20,
            is_rotational: false,
            scheduler: "mq-deadline".into(),
            read_ahead_kib: Some(128),
        };
        assert_eq!(disks(root.path()), [expected]);
    }

    #[test]
    fn only_existing_kernel_settings_are_recorded() {
        let root = tree(&[
            ("proc/sys/vm/swappiness", "10\n"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n"),
        ]);
        let found = tuning(root.path());
        assert_eq!(found.len(), 2);
        assert_eq!(found["vm/swappiness"], "10");
        assert_eq!(found["kernel/mm/transparent_hugepage/enabled"], "never");
    }

    #[test]
    fn cloud_instance_is_read_from_firmware_and_cloud_init() {
        let amazon = tree(&[
            ("sys/class/dmi/id/sys_vendor", "Amazon EC2\n"),
            ("sys/class/dmi/id/product_name", "c5n.18xlarge\n"),
        ]);
        let found = instance(amazon.path()).expect("an instance");
        assert_eq!((found.vendor.as_str(), found.kind.as_str()), ("Amazon EC2", "c5n.18xlarge"));
        assert_eq!((found.region, found.zone, found.image), (None, None, None));
        let compute = serde_json::json!({
            "vmSize": "Standard_DS14_v2", "location": "westeurope", "zone": "2",
            "storageProfile": { "imageReference": { "id": "", "sku": "22_04-lts" } },
        });
        let data = serde_json::json!({
            "v1": { "region": "westeurope", "availability_zone": null },
            "ds": { "meta_data": { "imds": { "compute": compute } } },
        });
        let azure = tree(&[
            ("sys/class/dmi/id/sys_vendor", "Microsoft Corporation\n"),
            ("sys/class/dmi/id/product_name", "Virtual Machine\n"),
            (CLOUD_DATA, &data.to_string()),
        ]);
        let expected = Instance {
            vendor: "Microsoft Corporation".into(),
            kind: "Standard_DS14_v2".into(),
            region: Some("westeurope".into()),
            zone: Some("2".into()),
            image: Some("22_04-lts".into()),
        };
        assert_eq!(instance(azure.path()), Some(expected));
        assert_eq!(instance(tree(&[]).path()), None);
    }
}
