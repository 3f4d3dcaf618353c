//! The map that a service keeps over its restarts, so that it can start while management is down.
//!
//! Owns the file `kept-map` in a node's directory: when it is written, and whether what is found
//! there may be used. `docs/design/0004-serving-without-management.md` says why so.
//!
//! # When it is written
//! What places requests (nodes, targets, groups, shards, settings) is kept at once, at most once a
//! second. Who answers and how much space there is changes with nearly every heartbeat of a busy
//! cluster: room alone is kept once a minute, and who answers is not kept at all.

use crate::directory::NodeDirectory;
use skep_env::Mailbox;
use skep_env::local::Notify;
use skep_format::cached_map::CachedMap;
use skep_rpc::MapCell;
use skep_store::atomic::replace_atomically;
use skep_types::map::{Capacity, CapacityPool, Reachability};
use skep_types::{ClusterId, ClusterMap, Error, ErrorCode, Result};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// File in a service's directory.
pub const CACHED_MAP_FILE: &str = "kept-map";

/// Between two writes: clients that come in crowds change the map with each of them.
const PAUSE: Duration = Duration::from_secs(1);
/// Between two writes of nothing but room: it only weighs where new files go.
const FREE_SPACE_WRITE_PAUSE: Duration = Duration::from_secs(60);

/// The map that a node kept, as far as it may be trusted: nobody counts as heard. None if there is
/// none, or none that can be used, which is said in the log.
pub(crate) fn read(node: &NodeDirectory) -> Option<ClusterMap> {
    let path = node.directory.path().join(CACHED_MAP_FILE);
    let identity = node.directory.identity();
    match read_file(&path, identity.cluster, identity.node_uuid) {
        Ok(map) => map,
        Err(error) => {
            tracing::warn!("{}: {error}; waiting for management instead", path.display());
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
        let what = format!("kept by another node ({found:032x} of cluster {})", map.cluster);
        return Err(Error::new(ErrorCode::Configuration, what));
    }
    Ok(Some(without_reachability(map)))
}

/// Who answered when the map was kept says nothing about now.
fn without_reachability(mut map: ClusterMap) -> ClusterMap {
    map.nodes.iter_mut().for_each(|node| node.reachability = Reachability::ProbablyOffline);
    map.targets.iter_mut().for_each(|target| target.reachability = Reachability::ProbablyOffline);
    map
}

/// What must not be lost: all but who answers and how much space there is. The version counts those
/// too, so it tells nothing.
fn without_soft_fields(map: &ClusterMap) -> ClusterMap {
    let mut map = without_reachability(map.clone());
    map.version = skep_types::MapVersion::new(0);
    for target in &mut map.targets {
        target.capacity = Capacity::default();
        target.capacity_pool = CapacityPool::Normal;
    }
    map
}

/// How long after the last write the newest map is to be kept; none if it needs not be.
fn pause(kept: Option<&ClusterMap>, newest: &ClusterMap) -> Option<Duration> {
    let Some(kept) = kept else { return Some(Duration::ZERO) };
    if without_soft_fields(kept) != without_soft_fields(newest) {
        return Some(PAUSE);
    }
    let free_space = |map: &ClusterMap| -> Vec<Capacity> {
        map.targets.iter().map(|target| target.capacity).collect()
    };
    (free_space(kept) != free_space(newest)).then_some(FREE_SPACE_WRITE_PAUSE)
}

/// Keeps the newest map, for ever; spawn it. `changed` says that there is another one in the cell.
pub(crate) async fn keep(
    directory: PathBuf,
    node_uuid: u128,
    cell: Arc<MapCell>,
    changed: Rc<Notify>,
) {
    let path = directory.join(CACHED_MAP_FILE);
    let mut kept: Option<Arc<ClusterMap>> = None;
    let mut written_at: Option<Duration> = None;
    let mut has_complained = false;
    loop {
        let news = changed.wait();
        let newest = cell.load();
        let Some(pause) = pause(kept.as_deref(), &newest) else {
            news.await;
            continue;
        };
        let left =
            written_at.map_or(Duration::ZERO, |at| (at + pause).saturating_sub(skep_env::now()));
        if !left.is_zero() {
            skep_env::timeout(left, news).await;
            continue;
        }
        let result = write(path.clone(), CachedMap { node_uuid, map: (*newest).clone() }).await;
        written_at = Some(skep_env::now());
        match result {
            Ok(()) => {
                kept = Some(newest);
                has_complained = false;
            }
            Err(error) => {
                if !has_complained {
                    tracing::warn!("the cluster map can't be kept: {error}; trying on");
                }
                has_complained = true;
                // Even if nothing was kept yet, which would be due at once.
                skep_env::sleep(PAUSE).await;
            }
        }
    }
}

/// Writes on a thread of its own: two syncs can take longer than a lease on a busy disk.
async fn write(path: PathBuf, kept: CachedMap) -> Result<()> {
    let (sender, done) = Mailbox::new(1)?;
    let body = move || {
        // Nobody waits for it if the service has ended.
        let _ = sender.send(replace_atomically(&path, &kept.to_file()));
    };
    skep_env::spawn_thread("kept-map".into(), None, body)?;
    done.receive().await?
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::map::Consistency;
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
    fn what_places_requests_is_kept_soon_room_later_and_who_answers_never() {
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
    fn a_map_is_found_again_and_that_of_another_node_or_a_damaged_one_is_not_used() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(CACHED_MAP_FILE);
        let cluster = map().cluster;
        assert_eq!(read_file(&path, cluster, 5).unwrap(), None);
        let file = path.clone();
        skep_env::block_on(async move {
            let cell = MapCell::new(map(), NodeId::new(1));
            let news = Rc::new(Notify::default());
            let parent = file.parent().unwrap().to_owned();
            let _keeping = skep_env::spawn(keep(parent, 5, Arc::clone(&cell), Rc::clone(&news)));
            let until = async |version: u64| {
                let deadline = skep_env::now() + Duration::from_secs(20);
                loop {
                    let found = read_file(&file, cluster, 5).unwrap();
                    if found.is_some_and(|it| it.version == MapVersion::new(version)) {
                        break;
                    }
                    assert!(skep_env::now() < deadline, "version {version} is kept");
                    skep_env::sleep(Duration::from_millis(5)).await;
                }
            };
            until(7).await;
            cell.update(changed(|map| map.formatted = true));
            news.notify();
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
}
