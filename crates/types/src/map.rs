//! The cluster map: nodes, targets, groups, shards and settings. Management owns the map; servers
//! and clients cache it.
//!
//! Contains data types only. The state machine in `skep-cluster` changes the map.

mod capacity;
mod known_reason;
mod online;

pub use known_reason::KnownReason;

use crate::byte_enum;
use crate::codec::record;
use crate::pattern::{Chooser, MAX_CHUNK_BYTES, MAX_STRIPE_WIDTH, MIN_CHUNK_BYTES};
use crate::{ClusterId, Epoch, GroupId, MapVersion, NodeId, ShardId, TargetId};

byte_enum! {
    /// Role of a node.
    pub enum NodeKind {
        /// Owns the cluster map.
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
    /// Kind of a target, by the data that it stores.
    pub enum TargetKind {
        /// A part of the namespace.
        Metadata = 1,
        /// Chunk files.
        Storage = 2,
    }
}

byte_enum! {
    /// Reachability of a node or target. Management derives it from heartbeats.
    pub enum Reachability {
        /// The last heartbeat is less than one lease old.
        Online = 1,
        /// Management has received no heartbeat for at least one lease, or since its start.
        ProbablyOffline = 2,
        /// The server has sent no heartbeat for at least three leases, or has shut down cleanly.
        Offline = 3,
    }
}

byte_enum! {
    /// Whether the data of a target can be trusted.
    pub enum Consistency {
        /// All data is valid.
        Good = 1,
        /// The target lacks data and needs a resync from another member of its group.
        NeedsResync = 2,
        /// The data is lost, because an administrator has marked the target as lost for ever.
        /// Requests to the target fail with `TargetLost`, without a connection.
        Bad = 3,
    }
}

byte_enum! {
    /// Class of a target by its free space and free inodes. New files use targets of a better class
    /// first.
    pub enum CapacityPool {
        /// Enough free space and inodes.
        Normal = 1,
        /// Little free space or few free inodes are left. New files use the target only if there
        /// are too few `Normal` targets.
        Low = 2,
        /// Almost no free space or inodes are left. New files use the target only if there is no
        /// `Normal` and no `Low` target.
        Emergency = 3,
    }
}

byte_enum! {
    /// State of a member of a group.
    pub enum MemberState {
        /// The member has all data and serves requests.
        Serving = 1,
        /// The resync of the member is running.
        Syncing = 2,
        /// The member lacks data and waits for its resync to start.
        Waiting = 3,
        /// The member is unreachable.
        Offline = 4,
    }
}

record! {
    /// Size and free space of the local file system that stores a target.
    #[derive(Copy, Default)]
    pub struct Capacity {
        /// Size in bytes.
        pub total_bytes: u64,
        /// Free space that Skep may use, in bytes.
        pub free_bytes: u64,
        /// Limit of the number of inodes. Zero means that the file system has no such limit.
        pub total_inodes: u64,
        /// Number of free inodes.
        pub free_inodes: u64,
        /// Identifies the local file system: targets on the same file system report the same
        /// number. Zero means unknown.
        pub file_system: u128,
    }
}

byte_enum! {
    /// The ability of a target to execute requests. The node of the target reports the condition.
    pub enum Condition {
        /// The target serves reads and writes.
        Serving = 1,
        /// The target serves reads and refuses writes. Its device has failed or is read-only.
        ReadOnly = 2,
        /// The target does not answer its own node, perhaps because its device hangs.
        Hung = 3,
        /// The node does not serve the target, for example because it cannot open the target's
        /// directory.
        Down = 4,
        /// The target serves reads and writes of its files. The target gets no new files, because
        /// an administrator has closed the target. Management sets this condition.
        Closed = 5,
    }
}

record! {
    /// Condition of a target, with the reason.
    pub struct TargetHealth {
        /// The condition.
        pub condition: Condition,
        /// The last error, as text for people. With the condition `Serving`, the text describes a
        /// problem that only an administrator can solve.
        pub problem: String,
    }
}

impl Default for TargetHealth {
    fn default() -> Self {
        Self { condition: Condition::Serving, problem: String::new() }
    }
}

impl TargetHealth {
    /// Maximum length of `problem`, in characters. The cluster map contains a `problem` for each
    /// target.
    pub const MAX_PROBLEM_CHARS: usize = 240;

    /// Creates the health of a target that does not serve all requests. Shortens long problems, and
    /// escapes control characters.
    pub fn new(condition: Condition, problem: &str) -> Self {
        let escaped = problem.chars().flat_map(|c| match c.is_control() {
            true => c.escape_default().collect::<Vec<_>>(),
            false => vec![c],
        });
        let mut problem: String = escaped.take(Self::MAX_PROBLEM_CHARS + 1).collect();
        if problem.chars().count() > Self::MAX_PROBLEM_CHARS {
            problem =
                problem.chars().take(Self::MAX_PROBLEM_CHARS - 3).chain("...".chars()).collect();
        }
        Self { condition, problem }
    }
}

record! {
    /// A running server or a client.
    pub struct Node {
        /// Id of the node.
        pub id: NodeId,
        /// Role of the node.
        pub kind: NodeKind,
        /// Name of the node, unique among nodes of the same kind: `storage-1`.
        pub name: String,
        /// Addresses on which the node listens, as `host:port`, the preferred one first. Empty for
        /// clients.
        pub addresses: Vec<String>,
        /// Failure domain: servers in the same domain may fail together, for example the servers in
        /// one rack. If the name of the domain is empty, the server alone counts as a domain. Empty
        /// for clients.
        pub domain: String,
        /// Reachability of the node.
        pub reachability: Reachability,
        /// Version of the program that the node runs.
        pub version: String,
    }
}

record! {
    /// A directory tree on one node that stores metadata or chunk files.
    pub struct Target {
        /// Id of the target.
        pub id: TargetId,
        /// Kind of the target.
        pub kind: TargetKind,
        /// The node that serves the target.
        pub node: NodeId,
        /// Path of the target's directory on its node, for output only.
        pub path: String,
        /// Reachability of the target.
        pub reachability: Reachability,
        /// Consistency of the target's data.
        pub consistency: Consistency,
        /// Condition of the target, from the last heartbeat of its node.
        pub health: TargetHealth,
        /// Capacity from a recent report of the target. Management does not publish small changes.
        pub capacity: Capacity,
        /// Class of the target by its free space and free inodes.
        pub capacity_pool: CapacityPool,
    }
}

impl Target {
    /// Creates the entry of a target that has just registered, and whose node has sent no heartbeat
    /// yet.
    pub fn new(id: TargetId, kind: TargetKind, node: NodeId, path: impl Into<String>) -> Self {
        Self {
            id,
            kind,
            node,
            path: path.into(),
            reachability: Reachability::Offline,
            consistency: Consistency::Good,
            health: TargetHealth::default(),
            capacity: Capacity::default(),
            capacity_pool: CapacityPool::Normal,
        }
    }
}

record! {
    /// A target as a member of a group.
    pub struct GroupMember {
        /// The target.
        pub target: TargetId,
        /// State of the member.
        pub state: MemberState,
    }
}

record! {
    /// An ordered list of targets that store the same data. One of these targets is the primary,
    /// which serves the requests.
    pub struct Group {
        /// Id of the group.
        pub id: GroupId,
        /// Kind of all targets in the group.
        pub kind: TargetKind,
        /// Epoch of the group. Management raises it with each change of the primary or of the
        /// serving members, and when it drops or removes a member that does not serve.
        pub epoch: Epoch,
        /// The primary, which is a serving member.
        pub primary: TargetId,
        /// Epoch in which the current primary became the primary.
        pub primary_since: Epoch,
        /// The members in the order in which they were added.
        pub members: Vec<GroupMember>,
    }
}

impl Group {
    /// Returns a new group with one serving member.
    pub fn of_one(id: GroupId, kind: TargetKind, target: TargetId) -> Self {
        let member = GroupMember { target, state: MemberState::Serving };
        let first = Epoch::new(1);
        let members = vec![member];
        Self { id, kind, epoch: first, primary: target, primary_since: first, members }
    }
}

record! {
    /// A range of virtual shards that one metadata group serves.
    pub struct ShardRange {
        /// First shard of the range.
        pub first: ShardId,
        /// Last shard of the range (inclusive).
        pub last: ShardId,
        /// The metadata group that serves the range.
        pub group: GroupId,
    }
}

byte_enum! {
    /// Stripe patterns that users other than root may set on their own files and directories.
    pub enum UserPatterns {
        /// Users may not set patterns.
        No = 1,
        /// Users may set the number of targets, the chunk size and the chooser.
        Sizes = 2,
        /// Users may also list the targets of a file.
        Targets = 3,
    }
}

record! {
    /// Settings of the cluster. Administrators may change them while the cluster runs.
    pub struct Policy {
        /// Lease in milliseconds. A client keeps its sessions, and a node counts as online, for one
        /// lease after its last message.
        pub lease_ms: u32,
        /// Interval between heartbeats of a node, in milliseconds.
        pub heartbeat_ms: u32,
        /// Chunk size of new files in bytes, if neither request nor directory sets a chunk size.
        pub default_chunk_bytes: u64,
        /// Stripe width of new files, from offset `stripe_from` on, if neither the request nor the
        /// directory sets a stripe width.
        pub default_width: u16,
        /// File offset, rounded up to a multiple of the chunk size, at which striping over several
        /// groups starts. All bytes before this offset are stored on one group. With zero, the
        /// stripe width applies to the whole file.
        pub stripe_from: u64,
        /// Number of inline bytes of new files if neither the request nor the directory sets a
        /// pattern. A multiple of 4 KiB; zero means no inline bytes.
        pub inline_bytes: u64,
        /// Interval between searches of storage targets for chunk files without an inode, in
        /// milliseconds. A target removes a chunk file without an inode only if the last change of
        /// the file is at least this interval ago.
        pub cleanup_interval_ms: u32,
        /// Maximum number of chunk files without an inode that one search of a storage target may
        /// remove. A search that finds more than this number removes no chunk file.
        pub cleanup_limit: u32,
        /// Chooser of new files if neither the request nor the directory sets a chooser.
        pub default_chooser: Chooser,
        /// Stripe patterns that users other than root may set.
        pub user_patterns: UserPatterns,
        /// Maximum stripe width that users other than root may request.
        pub user_max_width: u16,
        /// Minimum chunk size that users other than root may request, in bytes.
        pub user_min_chunk_bytes: u64,
        /// Maximum chunk size that users other than root may request, in bytes.
        pub user_max_chunk_bytes: u64,
        /// Number of metadata targets in a group. With 1, each new metadata target gets a group of
        /// its own immediately. With more than 1, a new metadata target waits until a group
        /// contains the target.
        pub metadata_copies: u16,
        /// Maximum rate at which the primary of a metadata group sends a copy of its store to
        /// another member, in bytes per second.
        pub metadata_copy_rate: u64,
        /// Maximum number of bytes of log segments that a member of a metadata group keeps on disk
        /// only because members that do not serve may need them.
        pub metadata_log_kept: u64,
        /// Length of a lease in a metadata group, in milliseconds. A primary may reply to clients
        /// for this time after it has sent a request that the other members acknowledge.
        pub metadata_lease_ms: u32,
        /// Time in milliseconds after which a member of a metadata group takes over if it receives
        /// nothing from the primary.
        pub metadata_take_over_after_ms: u32,
        /// A target is `Low` if less than this percentage of its bytes is free, and also fewer
        /// bytes than `low_free_bytes`.
        pub low_percent: u8,
        /// Number of free bytes at or above which a target is never `Low` for lack of bytes.
        pub low_free_bytes: u64,
        /// Like `low_percent`, for `Emergency`.
        pub emergency_percent: u8,
        /// Like `low_free_bytes`, for `Emergency`.
        pub emergency_free_bytes: u64,
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
            inline_bytes: 16 << 10,
            cleanup_interval_ms: 3_600_000,
            cleanup_limit: 1_000,
            default_chooser: Chooser::Balanced,
            user_patterns: UserPatterns::Sizes,
            user_max_width: MAX_STRIPE_WIDTH as u16,
            user_min_chunk_bytes: MIN_CHUNK_BYTES,
            user_max_chunk_bytes: MAX_CHUNK_BYTES,
            metadata_copies: 1,
            metadata_copy_rate: 32 << 20,
            metadata_log_kept: 1 << 30,
            metadata_lease_ms: 2_000,
            metadata_take_over_after_ms: 2_500,
            low_percent: 10,
            // On a large disk array, ten percent of the space is enough for months.
            low_free_bytes: 512 << 30,
            emergency_percent: 2,
            emergency_free_bytes: 20 << 30,
        }
    }
}

record! {
    /// The cluster map. All lists are in ascending order.
    pub struct ClusterMap {
        /// Id of the file system.
        pub cluster: ClusterId,
        /// Version of the map. Management raises it with each change.
        pub version: MapVersion,
        /// Format version in which programs must write records. The feature level is independent of
        /// the protocol version of a connection.
        pub feature_level: u32,
        /// Whether all shards are assigned to groups. Clients cannot mount the file system while a
        /// shard has no group.
        pub formatted: bool,
        /// Nodes in ascending order of id.
        pub nodes: Vec<Node>,
        /// Highest node id assigned so far. Management assigns ids in ascending order and never
        /// reuses them.
        pub newest_node: NodeId,
        /// Targets in ascending order of id.
        pub targets: Vec<Target>,
        /// Groups in ascending order of id.
        pub groups: Vec<Group>,
        /// Shard ranges in ascending order. If `formatted` is set, they cover all shards without
        /// gaps.
        pub shards: Vec<ShardRange>,
        /// Settings of the cluster.
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

    /// Returns the node with this id.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        let index = self.nodes.binary_search_by_key(&id, |node| node.id).ok()?;
        self.nodes.get(index)
    }

    /// Whether a node was removed from the cluster. `false` for id zero, and for a node that joined
    /// after this version of the map.
    pub fn has_removed(&self, node: NodeId) -> bool {
        node.raw() != 0 && node <= self.newest_node && self.node(node).is_none()
    }

    /// Whether any server belongs to a named failure domain.
    pub fn has_domains(&self) -> bool {
        self.nodes.iter().any(|node| !node.domain.is_empty())
    }

    /// Returns the target with this id.
    pub fn target(&self, id: TargetId) -> Option<&Target> {
        let index = self.targets.binary_search_by_key(&id, |target| target.id).ok()?;
        self.targets.get(index)
    }

    /// Returns the group with this id.
    pub fn group(&self, id: GroupId) -> Option<&Group> {
        let index = self.groups.binary_search_by_key(&id, |group| group.id).ok()?;
        self.groups.get(index)
    }

    /// Returns the capacity of the cluster for file data. Each storage group counts once, with the
    /// capacity of its primary, because its members store the same data. Each local file system
    /// counts once. Lost targets do not count. `capacity` returns the capacity of a target.
    pub fn total_capacity(&self, capacity: impl Fn(&Target) -> Capacity) -> Capacity {
        let storage = self.groups.iter().filter(|group| group.kind == TargetKind::Storage);
        let primaries = storage.filter_map(|group| self.primary(group.id));
        Capacity::sum(primaries.filter(|it| it.consistency != Consistency::Bad).map(capacity))
    }

    /// Returns the target that serves the requests for a group.
    pub fn primary(&self, group: GroupId) -> Option<&Target> {
        self.target(self.group(group)?.primary)
    }

    /// Returns the group that a target leads as primary.
    pub fn group_led_by(&self, target: TargetId) -> Option<&Group> {
        self.group_of(target).filter(|group| group.primary == target)
    }

    /// Returns the group that has a target as a member. `None` means that the target waits for a
    /// group.
    pub fn group_of(&self, target: TargetId) -> Option<&Group> {
        self.groups.iter().find(|g| g.members.iter().any(|member| member.target == target))
    }

    /// Returns the metadata group that serves a shard.
    pub fn shard_group(&self, shard: ShardId) -> Option<GroupId> {
        let index = self.shards.partition_point(|range| range.last < shard);
        self.shards.get(index).filter(|range| range.first <= shard).map(|range| range.group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_of_targets_on_one_file_system_counts_once() {
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
