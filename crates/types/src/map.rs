//! The cluster map: nodes, targets, groups, shards and settings. Management owns it; servers and
//! clients cache it.
//!
//! Data only. The state machine in `skep-cluster` changes it.

use crate::byte_enum;
use crate::codec::record;
use crate::pattern::{Chooser, MAX_CHUNK_BYTES, MAX_STRIPE_WIDTH, MIN_CHUNK_BYTES};
use crate::{ClusterId, Epoch, GroupId, MapVersion, NodeId, ShardId, TargetId};
use std::collections::BTreeMap;

byte_enum! {
    /// Kind of a node.
    pub enum NodeKind {
        /// Authority for the cluster map.
        Management = 1,
        /// Serves the namespace.
        Metadata = 2,
        /// Serves chunk files.
        Storage = 3,
        /// Mounts the file system.
        Client = 4,
    }
}

byte_enum! {
    /// Kind of a target.
    pub enum TargetKind {
        /// Part of the namespace.
        Metadata = 1,
        /// Chunk files.
        Storage = 2,
    }
}

byte_enum! {
    /// Reachability of a node or target, which management derives from heartbeats.
    pub enum Reachability {
        /// Heartbeats arrive.
        Online = 1,
        /// No heartbeat arrived for one lease.
        ProbablyOffline = 2,
        /// No heartbeat arrived for three leases.
        Offline = 3,
    }
}

byte_enum! {
    /// Consistency of a target's data.
    pub enum Consistency {
        /// All data are valid.
        Good = 1,
        /// The target must catch up from another member.
        NeedsResync = 2,
        /// The target must not serve.
        Bad = 3,
    }
}

byte_enum! {
    /// Class of a target by its free space and free inodes.
    pub enum CapacityPool {
        /// It has enough.
        Normal = 1,
        /// New files use it only after all `Normal` targets.
        Low = 2,
        /// New files use it last.
        Emergency = 3,
    }
}

byte_enum! {
    /// State of a member in its group.
    pub enum MemberState {
        /// It has all data and serves.
        Serving = 1,
        /// It catches up.
        Syncing = 2,
        /// It lacks data and waits to catch up.
        Waiting = 3,
        /// It is not reachable.
        Offline = 4,
    }
}

record! {
    /// Size and free space of a target's file system.
    #[derive(Copy, Default)]
    pub struct Capacity {
        /// Size in bytes.
        pub total_bytes: u64,
        /// Free for Skep, in bytes.
        pub free_bytes: u64,
        /// Inodes of the file system (metadata targets: zero, they have no limit of their own).
        pub total_inodes: u64,
        /// Free inodes.
        pub free_inodes: u64,
        /// Number of the file system. Targets on the same file system have the same number. Zero
        /// means unknown.
        pub file_system: u128,
    }
}

impl Capacity {
    /// Sums the capacities of several targets. A file system with several targets counts once, with
    /// the smallest free space that one of them reports.
    pub fn sum(of: impl IntoIterator<Item = Self>) -> Self {
        let mut found: BTreeMap<u128, Self> = BTreeMap::new();
        let mut sum = Self::default();
        for one in of {
            match one.file_system {
                0 => sum = sum.and(one),
                id => {
                    let least = found.entry(id).or_insert(one);
                    least.free_bytes = least.free_bytes.min(one.free_bytes);
                    least.free_inodes = least.free_inodes.min(one.free_inodes);
                }
            }
        }
        let sum = found.into_values().fold(sum, Self::and);
        Self { file_system: 0, ..sum }
    }

    /// Adds two capacities. Targets report these numbers, so a sum may not overflow: it saturates.
    fn and(self, other: Self) -> Self {
        Self {
            total_bytes: self.total_bytes.saturating_add(other.total_bytes),
            free_bytes: self.free_bytes.saturating_add(other.free_bytes),
            total_inodes: self.total_inodes.saturating_add(other.total_inodes),
            free_inodes: self.free_inodes.saturating_add(other.free_inodes),
            file_system: 0,
        }
    }
}

record! {
    /// One running service instance or client.
    pub struct Node {
        /// Its id.
        pub id: NodeId,
        /// Its kind.
        pub kind: NodeKind,
        /// Its name, unique within its kind: `storage-1`.
        pub name: String,
        /// Addresses on which it listens, `host:port`, best first. Empty for clients.
        pub addresses: Vec<String>,
        /// Failure domain: servers of one domain fail together, for example those of a rack. A
        /// server with an empty domain is one by itself. Empty for clients.
        pub domain: String,
        /// Its reachability.
        pub reachability: Reachability,
        /// Version of its program.
        pub version: String,
    }
}

record! {
    /// One directory tree on one node that stores data.
    pub struct Target {
        /// Its id.
        pub id: TargetId,
        /// Its kind.
        pub kind: TargetKind,
        /// The node that serves it.
        pub node: NodeId,
        /// Its directory on that node, for output.
        pub path: String,
        /// Its reachability.
        pub reachability: Reachability,
        /// Its consistency.
        pub consistency: Consistency,
        /// Its capacity from the last report.
        pub capacity: Capacity,
        /// The class of its free space.
        pub capacity_pool: CapacityPool,
    }
}

record! {
    /// A target's membership in a group.
    pub struct GroupMember {
        /// The target.
        pub target: TargetId,
        /// Its state.
        pub state: MemberState,
    }
}

record! {
    /// An ordered list of targets that store the same data. The first serving one is the primary.
    pub struct Group {
        /// Its id.
        pub id: GroupId,
        /// Kind of its targets.
        pub kind: TargetKind,
        /// Management raises it with each change of membership.
        pub epoch: Epoch,
        /// Members, primary first.
        pub members: Vec<GroupMember>,
    }
}

record! {
    /// A run of virtual shards that one metadata group serves.
    pub struct ShardRange {
        /// First shard.
        pub first: ShardId,
        /// Last shard, included.
        pub last: ShardId,
        /// The metadata group.
        pub group: GroupId,
    }
}

byte_enum! {
    /// Stripe patterns that users other than root may set on their own files and directories.
    pub enum UserPatterns {
        /// No patterns.
        No = 1,
        /// Number of targets, chunk size and chooser.
        Sizes = 2,
        /// The same, and lists of targets.
        Targets = 3,
    }
}

record! {
    /// Settings of the cluster. Management changes them while the cluster runs.
    pub struct Policy {
        /// The lease: time in which a silent client keeps its sessions and a silent node counts as
        /// online, in milliseconds.
        pub lease_ms: u32,
        /// Time between two heartbeats of a node, in milliseconds.
        pub heartbeat_ms: u32,
        /// Chunk size of files if neither request nor directory sets one.
        pub default_chunk_bytes: u64,
        /// Stripe width of files, from `stripe_from` on, if neither request nor directory sets one.
        pub default_width: u16,
        /// First byte that is striped. The bytes before it lie on one target. Zero stripes all.
        pub stripe_from: u64,
        /// Number of bytes of files that lie in metadata if neither request nor directory sets a
        /// pattern: a multiple of 4 KiB, or zero.
        pub inline_bytes: u64,
        /// Time between two searches of storage for chunk files without an inode, in milliseconds.
        pub cleanup_interval_ms: u32,
        /// Chooser of files if neither request nor directory sets one.
        pub default_chooser: Chooser,
        /// Patterns that users other than root may set.
        pub user_patterns: UserPatterns,
        /// Largest width that they may ask for.
        pub user_max_width: u16,
        /// Smallest chunk size that they may ask for.
        pub user_min_chunk_bytes: u64,
        /// Largest chunk size that they may ask for.
        pub user_max_chunk_bytes: u64,
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            lease_ms: 5_000,
            heartbeat_ms: 1_000,
            default_chunk_bytes: 512 << 10,
            default_width: 32,
            stripe_from: 4 << 20,
            inline_bytes: 0,
            cleanup_interval_ms: 3_600_000,
            default_chooser: Chooser::Balanced,
            user_patterns: UserPatterns::Sizes,
            user_max_width: MAX_STRIPE_WIDTH as u16,
            user_min_chunk_bytes: MIN_CHUNK_BYTES,
            user_max_chunk_bytes: MAX_CHUNK_BYTES,
        }
    }
}

record! {
    /// The cluster map.
    pub struct ClusterMap {
        /// The file system.
        pub cluster: ClusterId,
        /// Management raises it with each change.
        pub version: MapVersion,
        /// Version in which programs write records, whatever version a connection supports.
        pub feature_level: u32,
        /// Whether all shards have a group. Clients cannot mount before.
        pub formatted: bool,
        /// Nodes by id.
        pub nodes: Vec<Node>,
        /// The highest id of a node until now. Management gives ids in rising order, each one once.
        pub newest_node: NodeId,
        /// Targets by id.
        pub targets: Vec<Target>,
        /// Groups by id.
        pub groups: Vec<Group>,
        /// Shards by number, without gaps once `formatted`.
        pub shards: Vec<ShardRange>,
        /// Settings.
        pub policy: Policy,
    }
}

impl ClusterMap {
    /// Returns the map of a new, empty cluster.
    pub fn empty(cluster: ClusterId) -> Self {
        Self {
            cluster,
            version: MapVersion::new(0),
            feature_level: 1,
            formatted: false,
            nodes: Vec::new(),
            newest_node: NodeId::default(),
            targets: Vec::new(),
            groups: Vec::new(),
            shards: Vec::new(),
            policy: Policy::default(),
        }
    }

    /// The node of an id.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        let index = self.nodes.binary_search_by_key(&id, |node| node.id).ok()?;
        self.nodes.get(index)
    }

    /// Whether a node was removed from the cluster. `false` for a node that joined after this map,
    /// and for id zero.
    pub fn has_removed(&self, node: NodeId) -> bool {
        node.raw() != 0 && node <= self.newest_node && self.node(node).is_none()
    }

    /// Whether any server has a named failure domain.
    pub fn has_domains(&self) -> bool {
        self.nodes.iter().any(|node| !node.domain.is_empty())
    }

    /// The target of an id.
    pub fn target(&self, id: TargetId) -> Option<&Target> {
        let index = self.targets.binary_search_by_key(&id, |target| target.id).ok()?;
        self.targets.get(index)
    }

    /// The group of an id.
    pub fn group(&self, id: GroupId) -> Option<&Group> {
        let index = self.groups.binary_search_by_key(&id, |group| group.id).ok()?;
        self.groups.get(index)
    }

    /// Returns the capacity for files. Each storage group counts once, with its primary, since its
    /// members store the same data. Each file system counts once. `capacity` returns that of a
    /// target.
    pub fn total_capacity(&self, capacity: impl Fn(&Target) -> Capacity) -> Capacity {
        let storage = self.groups.iter().filter(|group| group.kind == TargetKind::Storage);
        let primaries = storage.filter_map(|group| self.primary(group.id));
        Capacity::sum(primaries.map(capacity))
    }

    /// The target that serves requests for a group: its first serving member.
    pub fn primary(&self, group: GroupId) -> Option<&Target> {
        let members = &self.group(group)?.members;
        let primary = members.iter().find(|member| member.state == MemberState::Serving)?;
        self.target(primary.target)
    }

    /// The group that has a target as a member.
    pub fn group_of(&self, target: TargetId) -> Option<&Group> {
        self.groups.iter().find(|g| g.members.iter().any(|member| member.target == target))
    }

    /// The metadata group that serves a shard.
    pub fn shard_group(&self, shard: ShardId) -> Option<GroupId> {
        let index = self.shards.partition_point(|range| range.last < shard);
        self.shards.get(index).filter(|range| range.first <= shard).map(|range| range.group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_system_with_several_targets_counts_once() {
        let total_capacity = |file_system, free_bytes| Capacity {
            total_bytes: 100,
            free_bytes,
            total_inodes: 10,
            free_inodes: 5,
            file_system,
        };
        let check = |of: &[Capacity], total_bytes, free_bytes, free_inodes| {
            let sum = Capacity::sum(of.iter().copied());
            let found = (sum.total_bytes, sum.free_bytes, sum.free_inodes);
            assert_eq!(found, (total_bytes, free_bytes, free_inodes), "{of:?}");
        };
        check(&[], 0, 0, 0);
        check(&[total_capacity(7, 50), total_capacity(7, 40), total_capacity(7, 45)], 100, 40, 5);
        check(&[total_capacity(7, 50), total_capacity(8, 40)], 200, 90, 10);
        check(&[total_capacity(0, 50), total_capacity(0, 40), total_capacity(8, 1)], 300, 91, 15);
    }
}
