//! The cached cluster map: a service persists its newest map, so that it can start while management
//! is down.
//!
//! This module owns the file `kept-map` in a node's directory. The module decides when to write the
//! file, and whether a service may start with the map in the file.
//! `docs/design/0004-serving-without-management.md` gives the reasons.
//!
//! # When the map is written
//! Changes of nodes, targets, groups, shards and settings affect the destinations of requests. The
//! service writes these changes without delay, but at most once a second. Reachability and free
//! space change with nearly every heartbeat of a busy cluster. So if only free space has changed,
//! the service writes the map at most once a minute. A change of reachability alone causes no
//! write.

use crate::directory::NodeDirectory;
use crate::known_management;
use crate::known_map::{self, without_reachability, without_soft_state};
use skep_env::Mailbox;
use skep_env::local::Notify;
use skep_format::cached_map::CachedMap;
use skep_rpc::{MapCell, management_addresses};
use skep_store::atomic::replace_atomically;
use skep_types::map::Capacity;
use skep_types::{ClusterId, ClusterMap, Error, ErrorCode, Result, Timestamp, utc};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Name of the cached map's file in a service's directory.
pub const CACHED_MAP_FILE: &str = "kept-map";

/// Minimum pause between two writes. Each mount changes the map, so without this pause, many
/// simultaneous mounts would cause many writes.
const PAUSE: Duration = Duration::from_secs(1);
/// Minimum pause between two writes if only free space has changed. Free space only affects the
/// placement of new files.
const FREE_SPACE_WRITE_PAUSE: Duration = Duration::from_secs(60);

/// Returns the log line of a node that starts with its cached map `map`, because management does
/// not answer.
pub(crate) fn start_line(directory: &Path, map: &ClusterMap) -> String {
    let written = std::fs::metadata(directory.join(CACHED_MAP_FILE)).map(|file| {
        let time = Timestamp { seconds: file.mtime(), nanoseconds: 0 };
        format!(", written at {}", utc(time))
    });
    format!(
        "management does not answer: this node starts with the cluster map that it has stored \
         (version {}{}), and serves files; take-overs and changes of the cluster wait for \
         management",
        map.version,
        written.unwrap_or_default()
    )
}

/// Reads the cached map of a node, and marks all nodes and targets in the map as unreachable.
/// Returns `None` if there is no cached map. If the cached map cannot be used, logs a warning and
/// returns `None`.
pub(crate) fn read(node: &NodeDirectory) -> Option<ClusterMap> {
    let path = node.directory.path().join(CACHED_MAP_FILE);
    let identity = node.directory.identity();
    match read_file(&path, identity.cluster, identity.node_uuid) {
        Ok(map) => map,
        Err(error) => {
            tracing::warn!(
                "cannot use the cached cluster map {}: {error}; this node waits for management",
                path.display()
            );
            None
        }
    }
}

fn read_file(path: &Path, cluster: ClusterId, node_uuid: u128) -> Result<Option<ClusterMap>> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let CachedMap { node_uuid: found, map } = CachedMap::from_file(&bytes)?;
    if found != node_uuid || map.cluster != cluster {
        let problem =
            format!("the file belongs to another node ({found:032x} of cluster {})", map.cluster);
        return Err(Error::new(ErrorCode::Configuration, problem));
    }
    Ok(Some(without_reachability(map)))
}

/// Returns the minimum pause between the last write of a map and a write of the newest map. `None`
/// means that the newest map need not be written.
fn pause(cached: Option<&ClusterMap>, newest: &ClusterMap) -> Option<Duration> {
    let Some(cached) = cached else { return Some(Duration::ZERO) };
    if without_soft_state(cached) != without_soft_state(newest) {
        return Some(PAUSE);
    }
    let free_space = |map: &ClusterMap| -> Vec<Capacity> {
        map.targets.iter().map(|target| target.capacity).collect()
    };
    (free_space(cached) != free_space(newest)).then_some(FREE_SPACE_WRITE_PAUSE)
}

/// Persists the newest map whenever it changes. Also stores the map, and the addresses of
/// management in the map, for the commands of this host ([`known_map`], [`known_management`]). The
/// caller must notify `changed` when `cell` contains a different map, and must spawn this function
/// as a task. `given` are the addresses in the service's token.
pub(crate) async fn keep(
    directory: PathBuf,
    node_uuid: u128,
    given: Vec<String>,
    cell: Arc<MapCell>,
    changed: Rc<Notify>,
) {
    let path = directory.join(CACHED_MAP_FILE);
    let mut cached: Option<Arc<ClusterMap>> = None;
    let mut written_at: Option<Duration> = None;
    let mut has_warned = false;
    // Retry: after an error, the service writes the cached map again after `PAUSE`, without limit.
    loop {
        let change = changed.wait();
        let newest = cell.load();
        let Some(pause) = pause(cached.as_deref(), &newest) else {
            change.await;
            continue;
        };
        let left =
            written_at.map_or(Duration::ZERO, |at| (at + pause).saturating_sub(skep_env::now()));
        if !left.is_zero() {
            skep_env::timeout(left, change).await;
            continue;
        }
        let cached_map = CachedMap { node_uuid, map: (*newest).clone() };
        let result = write(path.clone(), cached_map, given.clone()).await;
        written_at = Some(skep_env::now());
        match result {
            Ok(()) => {
                cached = Some(newest);
                has_warned = false;
            }
            Err(error) => {
                if !has_warned {
                    tracing::warn!(
                        "this service cannot write its cached cluster map, and retries: {error}; \
                         the service needs this map if it starts while management does not answer"
                    );
                }
                has_warned = true;
                // Without this pause, the next attempt would start immediately if no write has
                // succeeded yet.
                skep_env::sleep(PAUSE).await;
            }
        }
    }
}

/// Writes the map on a separate thread, because a write blocks its thread for two syncs. On a busy
/// disk, these syncs can take longer than a lease lasts.
async fn write(path: PathBuf, cached: CachedMap, given: Vec<String>) -> Result<()> {
    let (sender, done) = Mailbox::new(1)?;
    let body = move || {
        // Ignore an error: the receiver no longer exists if the service has ended.
        let _ = sender.send(replace_atomically(&path, &cached.to_file()));
        let learned = management_addresses(&cached.map);
        known_management::remember(cached.map.cluster, &given, &learned);
        known_map::remember(&cached.map);
    };
    skep_env::spawn_thread("kept-map".into(), None, body)?;
    done.receive().await?
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::map::{CapacityPool, Consistency, Reachability};
    use skep_types::{MapVersion, Node, NodeId, NodeKind, Target, TargetId, TargetKind};

    fn map() -> ClusterMap {
        let mut map = ClusterMap::empty(ClusterId::new([1; 16]));
        map.version = MapVersion::new(7);
        map.nodes.push(Node {
            id: NodeId::new(1),
            kind: NodeKind::Storage,
            name: "storage-1".into(),
            addresses: vec!["host:1".into()],
            domain: String::new(),
            reachability: Reachability::Online,
            version: "1".into(),
        });
        map.targets.push(Target {
            id: TargetId::new(1),
            kind: TargetKind::Storage,
            node: NodeId::new(1),
            path: "/t".into(),
            reachability: Reachability::Offline,
            consistency: Consistency::Good,
            health: skep_types::map::TargetHealth::default(),
            capacity: Capacity { total_bytes: 100, free_bytes: 50, ..Capacity::default() },
            capacity_pool: CapacityPool::Normal,
        });
        map
    }

    fn changed(change: impl FnOnce(&mut ClusterMap)) -> ClusterMap {
        let mut map = map();
        map.version = MapVersion::new(8);
        change(&mut map);
        map
    }

    #[test]
    fn map_with_only_new_free_space_is_cached_after_a_longer_pause() {
        let check = |newest: ClusterMap, expected| {
            assert_eq!(pause(Some(&map()), &newest), expected, "{newest:?}");
        };
        assert_eq!(pause(None, &map()), Some(Duration::ZERO));
        check(changed(|_| ()), None);
        check(changed(|map| map.nodes[0].reachability = Reachability::Offline), None);
        check(changed(|map| map.targets[0].reachability = Reachability::Online), None);
        check(changed(|map| map.targets[0].capacity.free_bytes = 40), Some(FREE_SPACE_WRITE_PAUSE));
        check(changed(|map| map.nodes[0].addresses[0] = "host:2".into()), Some(PAUSE));
        check(changed(|map| map.targets[0].consistency = Consistency::Bad), Some(PAUSE));
        check(changed(|map| map.policy.lease_ms += 1), Some(PAUSE));
        check(changed(|map| map.formatted = true), Some(PAUSE));
    }

    #[test]
    fn cached_map_is_read_back_unless_foreign_or_damaged() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(CACHED_MAP_FILE);
        let cluster = map().cluster;
        assert_eq!(read_file(&path, cluster, 5).unwrap(), None);
        let file = path.clone();
        skep_env::block_on(async move {
            let cell = MapCell::new(map(), NodeId::new(1));
            let change = Rc::new(Notify::default());
            let parent = file.parent().unwrap().to_owned();
            let _keeping =
                skep_env::spawn(keep(parent, 5, Vec::new(), Arc::clone(&cell), Rc::clone(&change)));
            let until = async |version: u64| {
                let deadline = skep_env::now() + Duration::from_secs(20);
                loop {
                    let found = read_file(&file, cluster, 5).unwrap();
                    if found.is_some_and(|it| it.version == MapVersion::new(version)) {
                        break;
                    }
                    assert!(skep_env::now() < deadline, "version {version} is written");
                    skep_env::sleep(Duration::from_millis(5)).await;
                }
            };
            until(7).await;
            cell.update(changed(|map| map.formatted = true));
            change.notify();
            until(8).await;
        })
        .unwrap();
        let found = read_file(&path, cluster, 5).unwrap().unwrap();
        assert_eq!(found, without_reachability(changed(|map| map.formatted = true)));
        assert!(read_file(&path, cluster, 6).is_err());
        assert!(read_file(&path, ClusterId::new([2; 16]), 5).is_err());
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[40] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(read_file(&path, cluster, 5).unwrap_err().code(), ErrorCode::Corrupt);
    }

    #[test]
    fn start_without_management_logs_map_age_and_waiting_operations() {
        let directory = tempfile::tempdir().unwrap();
        let map = ClusterMap::empty(ClusterId::new([1; 16]));
        let without_file = start_line(directory.path(), &map);
        assert!(!without_file.contains("written at"), "{without_file}");
        std::fs::write(directory.path().join(CACHED_MAP_FILE), "a map").unwrap();
        let line = start_line(directory.path(), &map);
        assert!(line.contains(", written at 20"), "{line}");
        assert!(
            line.contains("serves files; take-overs and changes of the cluster wait"),
            "{line}"
        );
    }
}
