//! The cluster map: everything that management knows and servers and clients cache.
//!
//! Data only. What changes it is the state machine in `skep-cluster`.

use crate::byte_enum;
use crate::codec::record;
use crate::pattern::{Chooser, MAX_CHUNK_BYTES, MAX_STRIPE_WIDTH, MIN_CHUNK_BYTES};
use crate::{ClusterId, Epoch, GroupId, MapVersion, NodeId, ShardId, TargetId};
use std::collections::BTreeMap;

byte_enum! {
    /// What a node is.
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
    /// What a target stores.
    pub enum TargetKind {
        /// Part of the namespace.
        Metadata = 1,
        /// Chunk files.
        Storage = 2,
    }
}

byte_enum! {
    /// Whether a node or target answers, as management sees it from heartbeats.
    pub enum Reachability {
        /// Heartbeats arrive.
        Online = 1,
        /// None for one lease.
        ProbablyOffline = 2,
        /// None for three leases.
        Offline = 3,
    }
}

byte_enum! {
    /// Whether what a target holds may be trusted.
    pub enum Consistency {
        /// All of it.
        Good = 1,
        /// It has to catch up from another member.
        NeedsResync = 2,
        /// It must not serve.
        Bad = 3,
    }
}

byte_enum! {
    /// How much space a target has, computed from free space and free inodes.
    pub enum CapacityPool {
        /// Enough.
        Normal = 1,
        /// Chosen only when no `Normal` target is left.
        Low = 2,
        /// Chosen last.
        Emergency = 3,
    }
}

byte_enum! {
    /// A member's part in its group.
    pub enum MemberState {
        /// Holds all data and serves.
        Serving = 1,
        /// Catches up.
        Syncing = 2,
        /// Knows that it lags and waits to catch up.
        Waiting = 3,
        /// Not reachable.
        Offline = 4,
    }
}

record! {
    /// Room on a target's file system.
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
        /// Which file system it is, of all that any host has mounted: targets on the same one have
        /// the same number. Zero: not known.
        pub file_system: u128,
    }
}

impl Capacity {
    /// Room on several targets together. A file system on which several of them lie counts once, as
    /// the one that says the least is free has it.
    pub fn together(of: impl IntoIterator<Item = Self>) -> Self {
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
        /// What it is.
        pub kind: NodeKind,
        /// Name for people, unique within its kind: `storage-1`.
        pub name: String,
        /// Where it listens, `host:port`, best first; empty for clients.
        pub addresses: Vec<String>,
        /// Failure domain: servers of one domain fail together, as those of a rack do. Empty: it is
        /// one by itself. Clients have none.
        pub domain: String,
        /// Whether it answers.
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
        /// What it stores.
        pub kind: TargetKind,
        /// The node that serves it.
        pub node: NodeId,
        /// Where it lies on that node, for people.
        pub path: String,
        /// Whether it answers.
        pub reachability: Reachability,
        /// Whether it may be trusted.
        pub consistency: Consistency,
        /// Room, as last reported.
        pub capacity: Capacity,
        /// Room, as a class.
        pub capacity_pool: CapacityPool,
    }
}

record! {
    /// A target's membership in a group.
    pub struct GroupMember {
        /// The target.
        pub target: TargetId,
        /// Its part.
        pub state: MemberState,
    }
}

record! {
    /// An ordered list of targets that hold the same data; the first serving one is the primary.
    pub struct Group {
        /// Its id.
        pub id: GroupId,
        /// What its targets store.
        pub kind: TargetKind,
        /// Raised by each change of membership.
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
    /// Which stripe patterns users may set who aren't root, on what they own.
    pub enum UserPatterns {
        /// None.
        No = 1,
        /// How many targets, how large chunks, and by which rule they are chosen.
        Sizes = 2,
        /// All that, and which targets.
        Targets = 3,
    }
}

record! {
    /// Settings of the whole cluster, changed live at management.
    pub struct Policy {
        /// How long a silent client keeps its session, and a silent node counts as online.
        pub lease_ms: u32,
        /// How often nodes report.
        pub heartbeat_ms: u32,
        /// Chunk size of files whose directory says nothing else.
        pub default_chunk_bytes: u64,
        /// Stripe width of files whose directory says nothing else, from `stripe_from` on.
        pub default_width: u16,
        /// First byte that is striped; what comes before lies on one target. Zero: all is striped.
        pub stripe_from: u64,
        /// How many bytes of files lie in metadata whose directory says nothing else: a multiple of
        /// 4 KiB. Zero: none.
        pub inline_bytes: u64,
        /// How often storage looks for chunk files that no inode owns.
        pub cleanup_interval_ms: u32,
        /// How the targets of files are chosen whose directory says nothing else.
        pub default_chooser: Chooser,
        /// Which patterns users may set who aren't root.
        pub user_patterns: UserPatterns,
        /// Most targets that they may ask for.
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
    /// Everything that management knows and others cache.
    pub struct ClusterMap {
        /// Which file system.
        pub cluster: ClusterId,
        /// Raised by each change.
        pub version: MapVersion,
        /// In which version records are written, whatever a connection could speak.
        pub feature_level: u32,
        /// Whether all shards have a group: before that nothing can be mounted.
        pub formatted: bool,
        /// Nodes by id.
        pub nodes: Vec<Node>,
        /// The highest id that a node has had. Ids are given in rising order, and never again.
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
    /// The map of a new, empty cluster.
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

    /// Whether a node was a member and is no more. `false` for one that joined after this map was
    /// made, and for the zero of those that are no members.
    pub fn has_removed(&self, node: NodeId) -> bool {
        node.raw() != 0 && node <= self.newest_node && self.node(node).is_none()
    }

    /// Whether any server has a failure domain that it may share with others.
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

    /// Room for files: each storage group counts once, as its primary has it, since its members
    /// hold the same data, and each file system counts once. `capacity` tells that of a target.
    pub fn total_capacity(&self, capacity: impl Fn(&Target) -> Capacity) -> Capacity {
        let storage = self.groups.iter().filter(|group| group.kind == TargetKind::Storage);
        let primaries = storage.filter_map(|group| self.primary(group.id));
        Capacity::together(primaries.map(capacity))
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
    fn a_file_system_counts_once_however_many_targets_lie_on_it() {
        let total_capacity = |file_system, free_bytes| Capacity {
            total_bytes: 100,
            free_bytes,
            total_inodes: 10,
            free_inodes: 5,
            file_system,
        };
        let check = |of: &[Capacity], total_bytes, free_bytes, free_inodes| {
            let sum = Capacity::together(of.iter().copied());
            let found = (sum.total_bytes, sum.free_bytes, sum.free_inodes);
            assert_eq!(found, (total_bytes, free_bytes, free_inodes), "{of:?}");
        };
        check(&[], 0, 0, 0);
        check(&[total_capacity(7, 50), total_capacity(7, 40), total_capacity(7, 45)], 100, 40, 5);
        check(&[total_capacity(7, 50), total_capacity(8, 40)], 200, 90, 10);
        check(&[total_capacity(0, 50), total_capacity(0, 40), total_capacity(8, 1)], 300, 91, 15);
    }
}
