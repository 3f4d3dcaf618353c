//! What a cluster on this host says about itself: what runs where, room, what to try, how to stop.

use super::layout::Layout;
use crate::access::ClusterArgs;
use crate::output::{render, table};
use crate::view;
use skep_types::{ClusterMap, NodeKind, Result};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// The text.
pub(crate) async fn of(
    layout: &Layout,
    mount_point: Option<&Path>,
    in_foreground: bool,
) -> Result<String> {
    let cluster = Some(layout.data.display().to_string());
    let map = ClusterArgs { cluster, token_file: None }.access(None)?.map().await?;
    let mut text = format!("Skep {} is up.\n\n", env!("CARGO_PKG_VERSION"));
    let _ = writeln!(text, "Cluster:     {}", map.cluster);
    let _ = writeln!(text, "Data:        {}", layout.data.display());
    if let Some(mount_point) = mount_point {
        let transport = transport(layout).map(|it| format!(" (transport {it})"));
        let _ = writeln!(
            text,
            "Mounted on:  {}{}",
            mount_point.display(),
            transport.unwrap_or_default()
        );
    }
    let _ = writeln!(text, "\n{}", services(&map, &layout.processes()));
    let _ = writeln!(text, "{}", view::df(&view::targets(&map)));
    text.push_str(&hints(layout, mount_point, in_foreground));
    Ok(text)
}

fn services(map: &ClusterMap, processes: &BTreeMap<String, u32>) -> String {
    let mut shown = table(&["Service", ">Process", "Address", "Targets"]);
    let process = |name: &str| processes.get(name).map_or("-".to_owned(), u32::to_string);
    for node in map.nodes.iter().filter(|node| node.kind != NodeKind::Client) {
        // Management's node is called management-1, its directory management.
        let local = if node.kind == NodeKind::Management { "management" } else { &node.name };
        let targets = map.targets.iter().filter(|target| target.node == node.id);
        let targets: Vec<String> = targets.map(|target| target.id.raw().to_string()).collect();
        shown.add_row([
            node.name.clone(),
            process(local),
            node.addresses.join(", "),
            targets.join(","),
        ]);
    }
    render(&shown)
}

/// Which transport the mount took, as its log says.
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
            let _ = writeln!(text, "  {program} mount --cluster {data} --detach /mnt");
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

/// How this program was called.
fn program() -> String {
    let called = std::env::args().next().unwrap_or_default();
    if called.is_empty() { "skep".into() } else { quoted(called) }
}

/// A path as a shell takes it.
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
