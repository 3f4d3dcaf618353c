//! The newest cluster map of a process, which all its threads share. The cell also has the
//! process's node id, and the map version that receivers of its requests must have.
//!
//! # Lost targets
//! A target that an administrator has marked as lost never serves again. But management may be
//! restored from a backup that is older than the mark. A process that has seen the mark also marks
//! the target in all later maps of the cell. So requests of the process for this target still fail,
//! and do not read old bytes. Servers also report such a target to management
//! (`MapCell::unmarked_losses`).
//!
//! Does not own the requests to management that get newer maps ([`crate::membership`]).

use crate::idle_peers;
use crate::limits::EARLY_HEARTBEAT_INTERVAL;
use skep_env::{SharedNotify, SharedWait};
use skep_types::map::Consistency;
use skep_types::{ClusterMap, Error, ErrorCode, GroupId, MapVersion, NodeId, TargetId};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The newest cluster map of a process, shared by its threads.
#[derive(Debug)]
pub struct MapCell {
    version: AtomicU64,
    /// The newest map version that peers have named in their replies, or in which a target was
    /// marked as lost.
    needed: AtomicU64,
    /// The node id of this process in the cluster; zero means that the process has no node id.
    node: AtomicU32,
    /// The mutex protects only the pointer. Threads lock it to clone or replace the `Arc`.
    map: Mutex<Arc<ClusterMap>>,
    /// The mutex protects only the ids. A thread locks it while it holds the mutex of the map, or
    /// without another lock. No thread waits while it holds the mutex.
    losses: Mutex<Losses>,
    /// Notifies waiting tasks after each change of the map.
    changed: SharedNotify,
    early_heartbeats: EarlyHeartbeats,
    traffic: Traffic,
}

/// Requests of targets for a heartbeat in addition to the regular heartbeats.
#[derive(Debug, Default)]
struct EarlyHeartbeats {
    /// Time of the last granted request.
    ///
    /// The mutex protects only this time. A thread that holds the mutex takes no other lock and
    /// does not wait.
    granted_at: Mutex<Option<Duration>>,
    /// Notifies the task that sends heartbeats.
    granted: SharedNotify,
}

impl EarlyHeartbeats {
    /// Returns whether a request at `now` is granted. [`EARLY_HEARTBEAT_INTERVAL`] limits the rate.
    fn grant(&self, now: Duration) -> bool {
        let mut granted_at = self.granted_at.lock().unwrap_or_else(PoisonError::into_inner);
        if granted_at.is_some_and(|at| now.saturating_sub(at) < EARLY_HEARTBEAT_INTERVAL) {
            return false;
        }
        *granted_at = Some(now);
        true
    }
}

/// The lost targets that a process has seen. Their number is limited by the number of marks that
/// administrators have set.
#[derive(Debug, Default)]
struct Losses {
    /// The targets that were marked as lost in any map of this process.
    known: BTreeSet<TargetId>,
    /// The targets in `known` that the newest map of management contains without the mark.
    unmarked: BTreeSet<TargetId>,
}

impl Losses {
    /// Records the lost targets in `map`, and marks the targets in `map` that an earlier map had
    /// marked as lost.
    fn note(&mut self, map: &mut ClusterMap) {
        self.known.extend(lost_targets(map));
        self.unmarked.clear();
        for target in &mut map.targets {
            if target.consistency != Consistency::Bad && self.known.contains(&target.id) {
                target.consistency = Consistency::Bad;
                self.unmarked.insert(target.id);
            }
        }
    }
}

/// Counts of rare events in the communication with targets, over all threads of a process.
#[derive(Debug, Default)]
struct Traffic {
    /// Number of request retries.
    retries: AtomicU64,
    /// Number of opened connections.
    connects: AtomicU64,
    /// Number of connections that were closed because no request used them.
    idle_closes: AtomicU64,
}

impl skep_metrics::Source for MapCell {
    fn collect(&self, snapshot: &mut skep_metrics::Snapshot) {
        use skep_metrics::catalog::{
            CONNECTIONS, CONNECTS, IDLE_CLOSES, IDLE_PEERS, NODE_MAP_VERSION, RETRIES,
        };
        let idle_closes = self.traffic.idle_closes.load(Ordering::Relaxed);
        snapshot.count(&RETRIES, Vec::new(), self.traffic.retries.load(Ordering::Relaxed));
        snapshot.count(&CONNECTS, Vec::new(), self.traffic.connects.load(Ordering::Relaxed));
        snapshot.count(&IDLE_CLOSES, Vec::new(), idle_closes);
        snapshot.count(&IDLE_PEERS, Vec::new(), idle_peers::ended());
        snapshot.count(&CONNECTIONS, Vec::new(), skep_env::open_streams());
        snapshot.count(&NODE_MAP_VERSION, Vec::new(), self.version().raw());
    }
}

impl MapCell {
    /// Creates a cell with an initial map and the process's node id.
    ///
    /// At first, the cell requires no map version from its peers. A lost target in the initial map
    /// is no exception, because the map does not show in which version the target was lost. If the
    /// cell required the version of its own map, services with older cached maps would have to
    /// refuse the process's requests while management does not reply.
    pub fn new(map: ClusterMap, node: NodeId) -> Arc<Self> {
        let known = lost_targets(&map).collect();
        Arc::new(Self {
            losses: Mutex::new(Losses { known, unmarked: BTreeSet::new() }),
            version: AtomicU64::new(map.version.raw()),
            needed: AtomicU64::new(0),
            node: AtomicU32::new(node.raw()),
            map: Mutex::new(Arc::new(map)),
            changed: SharedNotify::default(),
            early_heartbeats: EarlyHeartbeats::default(),
            traffic: Traffic::default(),
        })
    }

    /// Returns the newest map.
    pub fn load(&self) -> Arc<ClusterMap> {
        Arc::clone(&self.map.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the version of the newest map.
    pub fn version(&self) -> MapVersion {
        MapVersion::new(self.version.load(Ordering::Acquire))
    }

    /// Returns the map version that a target must have before it executes a request of this
    /// process: see docs/design/0006-fencing.md.
    pub fn needed(&self) -> MapVersion {
        MapVersion::new(self.needed.load(Ordering::Acquire))
    }

    /// Raises the needed map version to `version`, because a peer relies on a map of that version.
    pub fn need(&self, version: MapVersion) {
        self.needed.fetch_max(version.raw(), Ordering::AcqRel);
    }

    /// Returns the node id of this process in the cluster. Zero means that the process has no node
    /// id.
    pub fn node(&self) -> NodeId {
        NodeId::new(self.node.load(Ordering::Acquire))
    }

    /// Sets the node id of this process. Routers close connections that authenticated with the
    /// previous id.
    pub fn set_node(&self, node: NodeId) {
        self.node.store(node.raw(), Ordering::Release);
    }

    /// Requests a heartbeat immediately, with the current free space of this node's targets. A
    /// target calls this method after the target has refused a write for lack of space. A request
    /// within [`EARLY_HEARTBEAT_INTERVAL`] after a granted request has no effect, and the next
    /// regular heartbeat reports the free space.
    pub(crate) fn request_heartbeat(&self, now: Duration) {
        if self.early_heartbeats.grant(now) {
            self.early_heartbeats.granted.notify();
        }
    }

    /// Waits until a [`Self::request_heartbeat`] after this call is granted.
    pub(crate) fn wait_for_heartbeat_request(&self) -> SharedWait<'_> {
        self.early_heartbeats.granted.wait()
    }

    /// Counts a retry of a request.
    pub(crate) fn count_retry(&self) {
        self.traffic.retries.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a connection that was opened.
    pub(crate) fn count_connect(&self) {
        self.traffic.connects.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a connection that was closed because no request used it.
    pub(crate) fn count_idle_close(&self) {
        self.traffic.idle_closes.fetch_add(1, Ordering::Relaxed);
    }

    /// Stores `map` if it is newer than the current map.
    pub fn update(&self, map: ClusterMap) {
        let held = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        if map.version > held.version {
            self.put(held, map);
        }
    }

    /// Replaces a cached map by management's map, even if management's map is older. An
    /// administrator may have restored management to an older state, and the map of this state is
    /// then the valid map. The needed version then falls to the version of the restored map.
    /// Otherwise, all servers would refuse the requests of this process for ever, because no server
    /// could get a map of the needed version.
    pub(crate) fn replace(&self, map: ClusterMap) {
        let held = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        if map.version < held.version {
            self.needed.fetch_min(map.version.raw(), Ordering::AcqRel);
        }
        self.put(held, map);
    }

    /// Keeps the targets that are lost in `former` marked in all maps of this cell. `former` is a
    /// map that an earlier process of the node has stored. The caller calls this function once,
    /// before the first change of the map.
    pub(crate) fn remember_losses(&self, former: &ClusterMap) {
        let held = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        self.losses().known.extend(lost_targets(former));
        let map = ClusterMap::clone(&held);
        self.put(held, map);
    }

    /// Returns the targets that this process has seen as lost, and that are not marked in the
    /// newest map of management, because management was restored from a backup.
    pub(crate) fn unmarked_losses(&self) -> Vec<TargetId> {
        self.losses().unmarked.iter().copied().collect()
    }

    fn losses(&self) -> MutexGuard<'_, Losses> {
        self.losses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, mut held: MutexGuard<'_, Arc<ClusterMap>>, mut map: ClusterMap) {
        self.losses().note(&mut map);
        // A target that was marked as lost may still serve under its older map. Such a target must
        // get the new map before it executes another request of this process.
        if lost_targets(&map).any(|lost| lost_targets(&held).all(|known| known != lost)) {
            self.need(map.version);
        }
        self.version.store(map.version.raw(), Ordering::Release);
        *held = Arc::new(map);
        drop(held);
        self.changed.notify();
    }

    /// Waits for the next change of the map after this call.
    pub(crate) fn wait_for_change(&self) -> SharedWait<'_> {
        self.changed.wait()
    }
}

/// Returns the error of a request for a group that the cluster map does not have. The router
/// repeats the request, because the service of the group's target can register again with its ids.
/// An immediate error would also concern programs that run during a restore of management.
pub(crate) fn group_not_in_map(group: GroupId) -> Error {
    let what = format!(
        "group {group} is not in the cluster map: its target was removed, or management was \
         restored from a backup that is older than the target; start the service of the target, \
         which then joins again with its ids"
    );
    Error::new(ErrorCode::StaleMap, what)
}

/// Returns the targets that were marked as lost.
fn lost_targets(map: &ClusterMap) -> impl Iterator<Item = TargetId> {
    let lost = map.targets.iter().filter(|target| target.consistency == Consistency::Bad);
    lost.map(|target| target.id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{ClusterId, Target, TargetKind};

    fn map(version: u64, consistency: Consistency) -> ClusterMap {
        let mut map = ClusterMap::empty(ClusterId::new([1; 16]));
        map.version = MapVersion::new(version);
        map.targets.push(Target {
            id: TargetId::new(3),
            kind: TargetKind::Storage,
            node: NodeId::new(2),
            path: "/disk".into(),
            reachability: skep_types::map::Reachability::Online,
            consistency,
            health: Default::default(),
            capacity: Default::default(),
            capacity_pool: skep_types::map::CapacityPool::Normal,
        });
        map
    }

    #[test]
    fn requests_require_the_map_in_which_a_target_is_marked_lost() {
        let cell = MapCell::new(map(4, Consistency::Good), NodeId::new(1));
        cell.update(map(5, Consistency::Good));
        assert_eq!(cell.needed(), MapVersion::new(0));
        cell.update(map(6, Consistency::Bad));
        cell.update(map(7, Consistency::Bad));
        assert_eq!(cell.needed(), MapVersion::new(6));
        // Management was restored from a backup, so no server can have version 6.
        cell.replace(map(3, Consistency::Bad));
        assert_eq!((cell.version(), cell.needed()), (MapVersion::new(3), MapVersion::new(3)));
        // Services with different cached maps must work with each other without management.
        let cell = MapCell::new(map(8, Consistency::Bad), NodeId::new(1));
        assert_eq!(cell.needed(), MapVersion::new(0));
    }

    /// Management was restored from a backup that is older than the mark of the lost target.
    #[test]
    fn target_stays_lost_under_the_map_of_a_restored_management() {
        let target = TargetId::new(3);
        let consistency = |cell: &MapCell| cell.load().target(target).unwrap().consistency;
        let cell = MapCell::new(map(4, Consistency::Good), NodeId::new(1));
        cell.update(map(5, Consistency::Bad));
        assert!(cell.unmarked_losses().is_empty());
        let mut without = map(6, Consistency::Good);
        without.targets.clear();
        cell.update(without);
        assert!(cell.unmarked_losses().is_empty(), "the target was removed");
        for version in [70, 71] {
            cell.update(map(version, Consistency::Good));
            assert_eq!(consistency(&cell), Consistency::Bad);
            assert_eq!(cell.unmarked_losses(), [target]);
        }
        cell.update(map(72, Consistency::Bad));
        assert!(cell.unmarked_losses().is_empty(), "management has the mark again");

        // The node has restarted, and its stored map has the mark.
        let cell = MapCell::new(map(70, Consistency::Good), NodeId::new(1));
        assert_eq!(consistency(&cell), Consistency::Good);
        cell.remember_losses(&map(5, Consistency::Bad));
        assert_eq!((cell.version(), consistency(&cell)), (MapVersion::new(70), Consistency::Bad));
        assert_eq!(cell.unmarked_losses(), [target]);
        let started = MapCell::new(map(5, Consistency::Bad), NodeId::new(1));
        started.replace(map(3, Consistency::Good));
        assert_eq!(consistency(&started), Consistency::Bad);
    }

    #[test]
    fn at_most_one_early_heartbeat_is_sent_in_a_second() {
        let early = EarlyHeartbeats::default();
        let granted_at = |ms| early.grant(Duration::from_millis(ms));
        assert!(granted_at(5_000));
        assert!(!granted_at(5_999));
        assert!(granted_at(6_000));
        assert!(!granted_at(6_100));
    }
}
