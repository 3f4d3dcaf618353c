//! The summary of a running cluster on this host: its processes, its free space, and the commands
//! that use and stop the cluster.

use super::layout::Layout;
use crate::access::ClusterArgs;
use crate::output::{self, render, table};
use crate::view;
use serde::Serialize;
use skep_types::{ClusterMap, Node, NodeKind, Result};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// The JSON output: a running cluster.
#[derive(Debug, Serialize)]
struct Summary {
    cluster: String,
    data_dir: String,
    mount_point: Option<String>,
    transport: Option<String>,
    /// Address of the monitor's web page. `None` means that no monitor runs.
    monitor: Option<String>,
    services: Vec<Service>,
}

#[derive(Debug, Serialize)]
struct Service {
    name: String,
    process_id: Option<u32>,
    addresses: Vec<String>,
    targets: Vec<u32>,
}

/// Prints the summary.
pub(crate) async fn print(
    layout: &Layout,
    mount_point: Option<&Path>,
    has_monitor: bool,
    in_foreground: bool,
) -> Result<()> {
    let cluster = Some(layout.data.display().to_string());
    let map = ClusterArgs { cluster, token_file: None }.access(None)?.map().await?;
    let summary = Summary {
        cluster: map.cluster.to_string(),
        data_dir: layout.data.display().to_string(),
        mount_point: mount_point.map(|path| path.display().to_string()),
        transport: mount_point.and_then(|_| transport(layout)),
        monitor: monitor(layout).filter(|_| has_monitor),
        services: services(&map, &layout.processes()),
    };
    output::print(&summary, |summary| {
        let mut text = as_text(summary, &map);
        if has_monitor && summary.monitor.is_none() {
            let log = layout.log("monitor");
            let _ = writeln!(text, "Warning: the monitor did not start; see {}\n", log.display());
        }
        text + &hints(layout, mount_point, in_foreground)
    })
}

/// Returns the address of the monitor's web page.
fn monitor(layout: &Layout) -> Option<String> {
    let file = layout.service("monitor").join(skep_service::listen::ADDRESS_FILE);
    let address = skep_service::listen::read_address(&file)?;
    Some(format!("http://{address}/"))
}

fn as_text(summary: &Summary, map: &ClusterMap) -> String {
    let mut text = format!("Skep {} is up.\n\n", skep_service::PROGRAM_VERSION);
    let _ = writeln!(text, "Cluster:     {}", summary.cluster);
    let _ = writeln!(text, "Data:        {}", summary.data_dir);
    if let Some(mount_point) = &summary.mount_point {
        let transport = summary.transport.as_ref().map(|it| format!(" (transport {it})"));
        let _ = writeln!(text, "Mounted on:  {mount_point}{}", transport.unwrap_or_default());
    }
    if let Some(page) = &summary.monitor {
        let _ = writeln!(text, "Monitor:     {page}");
    }
    let mut shown = table(&["Service", ">Process", "Address", "Targets"]);
    for service in &summary.services {
        let targets: Vec<String> = service.targets.iter().map(u32::to_string).collect();
        shown.add_row([
            service.name.clone(),
            service.process_id.map_or("-".to_owned(), |process| process.to_string()),
            service.addresses.join(", "),
            targets.join(","),
        ]);
    }
    let _ = writeln!(text, "\n{}", render(&shown));
    let _ = writeln!(text, "{}", view::df(&view::targets(map), map.policy.heartbeat_ms));
    text
}

fn services(map: &ClusterMap, processes: &BTreeMap<String, u32>) -> Vec<Service> {
    let servers = map.nodes.iter().filter(|node| node.kind != NodeKind::Client);
    let service = |node: &Node| {
        // A node has the name of its directory, except for the first management node. The directory
        // of the first management node is `management`.
        let is_listed = processes.contains_key(&node.name);
        let is_first = node.kind == NodeKind::Management && !is_listed;
        let local = if is_first { "management" } else { &node.name };
        let targets = map.targets.iter().filter(|target| target.node == node.id);
        Service {
            name: node.name.clone(),
            process_id: processes.get(local).copied(),
            addresses: node.addresses.clone(),
            targets: targets.map(|target| target.id.raw()).collect(),
        }
    };
    servers.map(service).collect()
}

/// Returns the transport of the mount. Reads the transport from the log of the mount.
fn transport(layout: &Layout) -> Option<String> {
    let newest = layout.log("mount");
    let mut logs = [newest.clone(), newest.with_extension("log.old")].into_iter();
    logs.find_map(|path| {
        let log = std::fs::read(path).ok()?;
        let log = String::from_utf8_lossy(&log);
        let (_, after) = log.rsplit_once("is mounted, transport ")?;
        Some(after.split_whitespace().next()?.to_owned())
    })
}

fn hints(layout: &Layout, mount_point: Option<&Path>, in_foreground: bool) -> String {
    let program = program();
    let data = quoted(layout.data.display().to_string());
    let mut text = String::from("Try:\n");
    match mount_point {
        Some(mount_point) => {
            let at = quoted(mount_point.display().to_string());
            let _ = writeln!(text, "  dd if=/dev/zero of={at}/zeros bs=1M count=256");
            let _ = writeln!(text, "  {program} entry info {at}/zeros");
            let _ = writeln!(text, "  {program} health check --cluster {data}");
        }
        None => {
            let _ = writeln!(text, "  {program} mount --cluster {data} /mnt");
            let _ = writeln!(text, "  {program} health check --cluster {data}");
            let _ = writeln!(text, "  {program} health df --cluster {data}");
        }
    }
    let stop = format!("{program} down --data-dir {data}");
    match in_foreground {
        true => text + &format!("Stop: Ctrl-C here, or `{stop}`\n"),
        false => text + &format!("Stop: {stop}\n"),
    }
}

/// Returns the name of this program that the user has typed.
fn program() -> String {
    let called = std::env::args().next().unwrap_or_default();
    if called.is_empty() { "skep".into() } else { quoted(called) }
}

/// Returns a path, quoted for a shell if necessary.
fn quoted(path: String) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+:@,".contains(c);
    if path.chars().all(is_plain) { path } else { format!("'{}'", path.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted_for_a_shell() {
        assert_eq!(quoted("/a/b-c".into()), "/a/b-c");
        assert_eq!(quoted("/a b".into()), "'/a b'");
        assert_eq!(quoted("it's".into()), r"'it'\''s'");
    }
}
