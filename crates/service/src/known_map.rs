//! The newest cluster map that this host has received, for `skep health check` and `skep stats`
//! while management has no leader.
//!
//! Services, mounts and commands write each changed map to a file of this host. These two commands
//! use only the names and addresses of the services in this file. No service and no mount uses this
//! file: a service starts with the map in its own directory ([`crate::cached_map`]), because a
//! service must not start with a map from before its registration.
//!
//! [`crate::known_management`] has the directory of the file, and the addresses of management.
//!
//! # Format
//! A host has one file for each cluster, named by the id of the cluster. The file has the format of
//! a cached map (`docs/format/cached-map.md`), with the node id zero. The map in the file has no
//! clients, because the clients of a busy cluster change all the time.

use crate::known_management::{is_loopback, places, read_regular};
use skep_format::cached_map::CachedMap;
use skep_rpc::management_addresses;
use skep_store::atomic::replace_atomically;
use skep_types::map::{Capacity, CapacityPool, Reachability};
use skep_types::{ClusterId, ClusterMap, Error, MapVersion, NodeId, NodeKind, Result};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Suffix of the file name, after the id of the cluster.
const ENDING: &str = ".map";

/// A cluster map from a file.
#[derive(Debug)]
pub struct KnownMap {
    /// The map. Reachability and free space in it are out of date.
    pub map: ClusterMap,
    /// The file that contains the map.
    pub file: PathBuf,
    /// Time at which the file was last written. `None` means that the file system does not report
    /// this time.
    pub written_at: Option<SystemTime>,
}

/// Writes the newest cluster map to the file of this host, if the host may need the file. Writes
/// nothing if the new map differs from the map in the file only by reachability and free space.
///
/// Blocks for the write. The process logs failures only at the level debug, since many users cannot
/// write the file.
pub fn remember(map: &ClusterMap) {
    let Some(place) = places().into_iter().next() else { return };
    if let Err(error) = remember_in(&place, map) {
        tracing::debug!("cannot write the cluster map of this host: {error}");
    }
}

/// Returns the newest map of a cluster that this host has received. `None` if the host has no
/// readable file for the cluster.
pub fn read(cluster: ClusterId) -> Option<KnownMap> {
    let files = places().into_iter().map(|place| file_in(&place, cluster));
    files.filter_map(|file| read_file(&file, cluster)).max_by_key(|it| it.map.version)
}

/// Reads a cluster map from a file in the format of a cached map. Returns `None` if the file does
/// not exist, or if its content is invalid.
pub fn read_file(file: &Path, cluster: ClusterId) -> Option<KnownMap> {
    let CachedMap { map, .. } = CachedMap::from_file(&read_regular(file).ok()?).ok()?;
    let written_at = std::fs::metadata(file).and_then(|it| it.modified()).ok();
    (map.cluster == cluster).then(|| KnownMap { map, file: file.to_owned(), written_at })
}

/// Returns the part of a map that changes only when an administrator changes the cluster. Omits the
/// version, the clients, the reachability and the free space.
pub fn lasting_part(map: &ClusterMap) -> ClusterMap {
    ClusterMap { newest_node: NodeId::default(), ..without_soft_state(&without_clients(map)) }
}

fn without_clients(map: &ClusterMap) -> ClusterMap {
    let mut map = map.clone();
    map.nodes.retain(|node| node.kind != NodeKind::Client);
    map
}

/// Sets the reachability of all nodes and targets to `ProbablyOffline`, because the reachability in
/// a cached map is out of date.
pub(crate) fn without_reachability(mut map: ClusterMap) -> ClusterMap {
    map.nodes.iter_mut().for_each(|node| node.reachability = Reachability::ProbablyOffline);
    map.targets.iter_mut().for_each(|target| target.reachability = Reachability::ProbablyOffline);
    map
}

/// Returns a copy of `map` without reachability, free space and version. Omits the version, because
/// changes of reachability and free space also raise the version.
pub(crate) fn without_soft_state(map: &ClusterMap) -> ClusterMap {
    let mut map = without_reachability(map.clone());
    map.version = MapVersion::new(0);
    for target in &mut map.targets {
        target.capacity = Capacity::default();
        target.capacity_pool = CapacityPool::Normal;
    }
    map
}

fn file_in(directory: &Path, cluster: ClusterId) -> PathBuf {
    directory.join(format!("{cluster}{ENDING}"))
}

fn remember_in(place: &Path, map: &ClusterMap) -> Result<()> {
    // If management has only loopback addresses, the commands of this host find the cluster by its
    // directory, which contains the cached maps of the services. So these commands do not need this
    // file.
    if management_addresses(map).iter().all(|address| is_loopback(address)) {
        return Ok(());
    }
    // In a cluster with one management node, a missing leader always means that this node does not
    // answer, so the file would not help. Also, the cluster of a batch job has one management node,
    // and no file of such a cluster must remain on the host.
    if map.nodes.iter().filter(|node| node.kind == NodeKind::Management).count() < 2 {
        return Ok(());
    }
    let file = file_in(place, map.cluster);
    if let Some(present) = read_file(&file, map.cluster) {
        let is_older = map.version < present.map.version;
        if is_older || lasting_part(&present.map) == lasting_part(map) {
            return Ok(());
        }
    }
    std::fs::create_dir_all(place).map_err(|error| Error::from(error).within(place.display()))?;
    let cached = CachedMap { node_uuid: 0, map: without_clients(map) };
    replace_atomically(&file, &cached.to_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::Node;

    const CLUSTER: ClusterId = ClusterId::new([7; 16]);

    fn node(id: u32, kind: NodeKind, address: &str) -> Node {
        Node {
            id: NodeId::new(id),
            kind,
            name: format!("node-{id}"),
            addresses: vec![address.into()],
            domain: String::new(),
            reachability: Reachability::Online,
            version: String::new(),
        }
    }

    fn map(version: u64, nodes: Vec<Node>) -> ClusterMap {
        let version = MapVersion::new(version);
        ClusterMap { version, nodes, ..ClusterMap::empty(CLUSTER) }
    }

    #[test]
    fn stored_map_has_the_newest_servers_and_no_clients() {
        let place = tempfile::tempdir().unwrap();
        let file = file_in(place.path(), CLUSTER);
        let known = || read_file(&file, CLUSTER).map(|it| (it.map.version.raw(), it.map.nodes));
        let management = node(1, NodeKind::Management, "10.0.0.1:7400");
        let storage = node(2, NodeKind::Storage, "10.0.0.2:7420");
        let client = node(3, NodeKind::Client, "10.0.0.9:1");
        let second = node(4, NodeKind::Management, "10.0.0.4:7400");
        let remember = |version, nodes: &[&Node]| {
            let nodes: Vec<_> = nodes.iter().map(|node| (*node).clone()).collect();
            remember_in(place.path(), &map(version, nodes)).unwrap();
        };
        let of_host = node(1, NodeKind::Management, "127.0.0.1:7400");
        remember(4, &[&of_host, &of_host]);
        assert!(known().is_none(), "the cluster is on this host only");
        remember(4, &[&management]);
        assert!(known().is_none(), "the cluster has one management node");
        remember(5, &[&management, &second]);
        assert_eq!(known(), Some((5, vec![management.clone(), second.clone()])));
        remember(6, &[&management, &second, &client]);
        assert_eq!(
            known(),
            Some((5, vec![management.clone(), second.clone()])),
            "clients come and go"
        );
        let offline = Node { reachability: Reachability::Offline, ..management.clone() };
        remember(7, &[&offline, &second]);
        assert_eq!(
            known(),
            Some((5, vec![management.clone(), second.clone()])),
            "reachability is not kept"
        );
        remember(8, &[&management, &second, &storage, &client]);
        let all = vec![management.clone(), second.clone(), storage];
        assert_eq!(known(), Some((8, all.clone())));
        remember(7, &[&management, &second]);
        assert_eq!(known(), Some((8, all)), "an older map changes nothing");
        assert!(read_file(&file, ClusterId::new([8; 16])).is_none());
        std::fs::write(&file, "damaged").unwrap();
        assert!(known().is_none());
        remember(9, &[&management, &second]);
        assert_eq!(known(), Some((9, vec![management, second])));
    }
}
