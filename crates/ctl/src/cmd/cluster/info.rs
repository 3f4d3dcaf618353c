//! `skep cluster info`: identifies a cluster: its id, the addresses of management, the state of its
//! format, and the numbers of its nodes and targets.

use crate::access::{ClusterArgs, block_on};
use crate::help::{Example, examples};
use crate::output::{counted, print, size};
use serde::Serialize;
use skep_types::{ClusterMap, NEWEST_FEATURE_LEVEL, NodeKind, Result, TargetKind};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

const EXAMPLES: &[Example] = &[
    (
        "identify the cluster that is mounted here, or the cluster in ./skep-data",
        "skep cluster info",
    ),
    (
        "print the id of another cluster, for a script",
        "skep cluster info --cluster 10.0.0.1 --token-file token --output json",
    ),
];

/// Identify the cluster: id, addresses of management, state, numbers of nodes and targets
///
/// The output has no secret. `skep cluster token` prints the token that nodes need to join.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct InfoArgs {
    #[command(flatten)]
    query: ClusterArgs,
}

/// The JSON output: a cluster.
#[derive(Debug, Serialize)]
struct ClusterInfo {
    cluster_id: String,
    management: Vec<Endpoint>,
    /// The file with the token that this command used.
    token_file: String,
    /// Whether the cluster is formatted. Clients can mount only a formatted cluster.
    is_formatted: bool,
    /// Version of the record formats on disk.
    feature_level: u32,
    /// The highest feature level of this program.
    newest_feature_level: u32,
    map_version: u64,
    nodes: NodeCounts,
    targets: TargetCounts,
    /// Size of all storage targets.
    total_bytes: u64,
    free_bytes: u64,
    /// The versions of the program that services and clients run.
    programs: Vec<ProgramVersion>,
}

/// A management node.
#[derive(Debug, Serialize)]
struct Endpoint {
    name: String,
    addresses: Vec<String>,
}

#[derive(Debug, Serialize)]
struct NodeCounts {
    management: usize,
    metadata: usize,
    storage: usize,
    clients: usize,
}

#[derive(Debug, Serialize)]
struct TargetCounts {
    metadata: usize,
    storage: usize,
}

#[derive(Debug, Serialize)]
struct ProgramVersion {
    version: String,
    nodes: usize,
}

pub(crate) fn run(args: &InfoArgs) -> Result<()> {
    let access = args.query.access(None)?;
    let token_file = access.token_file.clone();
    let map = block_on(async move { access.map().await })?;
    print(&info(&token_file, &map), as_text)
}

fn info(token_file: &Path, map: &ClusterMap) -> ClusterInfo {
    let of_kind = |kind| map.nodes.iter().filter(move |node| node.kind == kind);
    let targets = |kind| map.targets.iter().filter(|target| target.kind == kind).count();
    let mut versions = BTreeMap::<&str, usize>::new();
    for node in &map.nodes {
        *versions.entry(&node.version).or_default() += 1;
    }
    let capacity = map.total_capacity(|target| target.capacity);
    ClusterInfo {
        cluster_id: map.cluster.to_string(),
        management: of_kind(NodeKind::Management)
            .map(|node| Endpoint { name: node.name.clone(), addresses: node.addresses.clone() })
            .collect(),
        token_file: token_file.display().to_string(),
        is_formatted: map.formatted,
        feature_level: map.feature_level,
        newest_feature_level: NEWEST_FEATURE_LEVEL,
        map_version: map.version.raw(),
        nodes: NodeCounts {
            management: of_kind(NodeKind::Management).count(),
            metadata: of_kind(NodeKind::Metadata).count(),
            storage: of_kind(NodeKind::Storage).count(),
            clients: of_kind(NodeKind::Client).count(),
        },
        targets: TargetCounts {
            metadata: targets(TargetKind::Metadata),
            storage: targets(TargetKind::Storage),
        },
        total_bytes: capacity.total_bytes,
        free_bytes: capacity.free_bytes,
        programs: versions
            .into_iter()
            .map(|(version, nodes)| ProgramVersion { version: version.to_owned(), nodes })
            .collect(),
    }
}

fn as_text(info: &ClusterInfo) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{:15}{value}", format!("{name}:"));
    };
    line("Cluster id", info.cluster_id.clone());
    for node in &info.management {
        line("Management", format!("{} ({})", node.addresses.join(", "), node.name));
    }
    line("Token file", info.token_file.clone());
    line(
        "Formatted",
        if info.is_formatted { "yes" } else { "no; run `skep cluster format`" }.into(),
    );
    let newest = info.newest_feature_level;
    line(
        "Feature level",
        format!("{} (this program reads levels up to {newest})", info.feature_level),
    );
    line("Map version", info.map_version.to_string());
    let NodeCounts { management, metadata, storage, clients } = &info.nodes;
    let services = format!("{management} management, {metadata} metadata, {storage} storage");
    line("Services", services);
    let TargetCounts { metadata, storage } = &info.targets;
    line("Targets", format!("{metadata} metadata, {storage} storage"));
    line("Clients", clients.to_string());
    let (free, total) = (size(info.free_bytes), size(info.total_bytes));
    line("Space", format!("{free} of {total} free"));
    for program in &info.programs {
        let nodes = counted(program.nodes as u64, "node", "nodes");
        line("Program", format!("{} ({nodes})", program.version));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::map::Reachability;
    use skep_types::{ClusterId, MapVersion, Node, NodeId};

    fn node(id: u32, kind: NodeKind, name: &str) -> Node {
        Node {
            id: NodeId::new(id),
            kind,
            name: name.into(),
            addresses: vec![format!("h{id}:7400")],
            domain: String::new(),
            reachability: Reachability::Online,
            version: if kind == NodeKind::Client { "1.1" } else { "1.0" }.into(),
        }
    }

    #[test]
    fn cluster_info_counts_nodes_by_kind_and_program() {
        let mut map = ClusterMap::empty(ClusterId::new([0xab; 16]));
        map.version = MapVersion::new(77);
        map.nodes = vec![
            node(1, NodeKind::Management, "management-1"),
            node(2, NodeKind::Metadata, "metadata-1"),
            node(3, NodeKind::Storage, "storage-1"),
            node(4, NodeKind::Client, "h4:/mnt"),
            node(5, NodeKind::Client, "h5:/mnt"),
        ];
        let found = info(Path::new("/etc/skep/token"), &map);
        let NodeCounts { management, metadata, storage, clients } = &found.nodes;
        assert_eq!((*management, *metadata, *storage, *clients), (1, 1, 1, 2));
        let text = as_text(&found);
        for line in [
            &*format!("Cluster id:    {}\n", "ab".repeat(16)),
            "Management:    h1:7400 (management-1)\n",
            "Token file:    /etc/skep/token\n",
            "Formatted:     no; run `skep cluster format`\n",
            "Map version:   77\n",
            "Program:       1.0 (3 nodes)\n",
            "Program:       1.1 (2 nodes)\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }
}
