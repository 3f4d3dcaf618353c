//! The durable state of management (nodes, targets, groups, shards, settings), and how commands
//! change it. A pure state machine: the same commands in the same order give the same state.
//!
//! Owns the identity of nodes and targets (an id belongs to one uuid for ever) and the map version.
//! Does not own reachability and free space: they are soft ([`crate::reachability`]), and
//! management adds them to the map before it publishes it.
//!
//! # Invariants
//! - All lists are sorted by id without duplicates, and every id is below the next one of its kind.
//! - Every server in the map has a uuid, every target has a uuid, and no uuid has two ids.
//! - The details of clients are those of the client nodes in the map.
//! - Every target belongs to exactly one group of its kind, and to a node in the map.
//! - A formatted map has each shard in exactly one range, of a metadata group.
//!
//! [`ClusterState::check_invariants`] asserts them.
//!
//! # Map versions
//! A version is `starts << 40 | changes`. `starts` counts the `Start` commands in the log, so it is
//! durable; `changes` counts every change since the last start, logged or soft. Soft changes are
//! lost at a restart, and that is harmless: the restart logs a `Start`, and every version after it
//! is higher than every version before it. Within one start a version rises by one per change.

mod clients;
mod invariants;
mod servers;

pub use clients::ClientDetails;

use crate::command::{Command, Outcome};
use crate::limits::{MAX_TEXT_BYTES, NEWEST_FEATURE_LEVEL};
use crate::settings;
use skep_types::codec::{Codec, record};
use skep_types::map::{Policy, ShardRange};
use skep_types::{
    ClusterId, ClusterMap, Error, ErrorCode, GroupId, MapVersion, NodeId, NodeKind, Result,
    SHARD_COUNT, ShardId, TargetId, TargetKind,
};

/// Bits of a map version that count changes within one start: at a thousand changes a second they
/// last for 34 years. The other bits are enough for sixteen million starts.
const CHANGE_BITS: u32 = 40;

record! {
    /// Everything in a snapshot of the state.
    pub struct Durable {
        /// The map. Its soft fields are meaningless.
        pub map: ClusterMap,
        /// The uuid of each server, by id. Clients have no uuid.
        pub node_uuids: Vec<(NodeId, u128)>,
        /// The uuid of each target, by id.
        pub target_uuids: Vec<(TargetId, u128)>,
        /// The details of the clients that are in the map, by id.
        pub clients: Vec<ClientDetails>,
        /// The next node gets this id.
        pub next_node: u32,
        /// The next target gets this id.
        pub next_target: u32,
        /// The next group gets this id.
        pub next_group: u32,
    }
}

/// The state machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterState {
    durable: Durable,
}

impl ClusterState {
    /// A new, empty cluster.
    pub fn new(cluster: ClusterId) -> Self {
        Self {
            durable: Durable {
                map: ClusterMap::empty(cluster),
                node_uuids: Vec::new(),
                target_uuids: Vec::new(),
                clients: Vec::new(),
                next_node: 1,
                next_target: 1,
                next_group: 1,
            },
        }
    }

    /// Returns the state as bytes.
    pub fn snapshot(&self) -> Vec<u8> {
        self.durable.to_bytes()
    }

    /// Reads the state from the bytes of a snapshot.
    ///
    /// # Errors
    /// `Corrupt` if the bytes are not a snapshot.
    pub fn from_snapshot(bytes: &[u8]) -> Result<Self> {
        Ok(Self { durable: Durable::from_bytes(bytes)? })
    }

    /// Returns the map without soft state: every node in it is `Offline`, without free space.
    pub fn map(&self) -> &ClusterMap {
        &self.durable.map
    }

    /// Returns the details of the clients that are in the map, by id.
    pub fn clients(&self) -> &[ClientDetails] {
        &self.durable.clients
    }

    /// Raises the map version for a change of soft state.
    pub fn note_soft_change(&mut self) {
        self.durable.raise_version();
    }

    /// Applies a command. A command that fails or changes nothing leaves the state and the version
    /// as they were.
    ///
    /// # Errors
    /// `InvalidArgument` for malformed commands; `Exists`, `Stale` or `NotPermitted` if a
    /// registration claims the id or name of another node; `LimitReached` at a limit. The context
    /// names the object and the way out.
    pub fn apply(&mut self, command: &Command) -> Result<Outcome> {
        let mut next = self.durable.clone();
        let mut outcome = match command {
            Command::Start => next.start(),
            Command::RegisterServer(registration) => next.register_server(registration)?,
            Command::RegisterClient(registration) => next.register_client(registration)?,
            Command::RemoveClient { node } => next.remove_client(*node)?,
            Command::Format => next.format()?,
            Command::SetPolicy(policy) => next.set_policy(policy)?,
            Command::SetFeatureLevel { level } => next.set_feature_level(*level)?,
        };
        outcome.changed = next != self.durable;
        if outcome.changed {
            if *command != Command::Start {
                next.raise_version();
            }
            self.durable = next;
            if cfg!(debug_assertions) {
                self.check_invariants();
            }
        }
        Ok(outcome)
    }

    /// Asserts the invariants of the module.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn check_invariants(&self) {
        self.durable.check_ids();
        self.durable.check_groups();
    }
}

impl Durable {
    fn raise_version(&mut self) {
        self.map.version = MapVersion::new(self.map.version.raw() + 1);
    }

    fn start(&mut self) -> Outcome {
        let starts = (self.map.version.raw() >> CHANGE_BITS) + 1;
        self.map.version = MapVersion::new(starts << CHANGE_BITS);
        Outcome::default()
    }

    fn take_node_id(&mut self) -> NodeId {
        let id = NodeId::new(self.next_node);
        self.next_node += 1;
        self.map.newest_node = id;
        id
    }

    fn format(&mut self) -> Result<Outcome> {
        if self.map.formatted {
            return Err(Error::new(
                ErrorCode::Exists,
                "the cluster is formatted already, and can be mounted; this is done only once",
            ));
        }
        let groups = self.map.groups.iter().filter(|group| group.kind == TargetKind::Metadata);
        let groups: Vec<GroupId> = groups.map(|group| group.id).collect();
        if groups.is_empty() {
            return Err(Error::new(
                ErrorCode::NotReady,
                "the cluster has no metadata target yet; start a metadata service first",
            ));
        }
        let count = groups.len() as u64;
        let bound = |index: usize| index as u64 * u64::from(SHARD_COUNT) / count;
        let range = |(index, group): (usize, &GroupId)| ShardRange {
            first: ShardId::new(bound(index) as u16),
            last: ShardId::new((bound(index + 1) - 1) as u16),
            group: *group,
        };
        self.map.shards = groups.iter().enumerate().map(range).collect();
        self.map.formatted = true;
        Ok(Outcome::default())
    }

    fn set_policy(&mut self, policy: &Policy) -> Result<Outcome> {
        let problems = settings::problems(policy);
        if !problems.is_empty() {
            return Err(Error::new(ErrorCode::InvalidArgument, problems.join("; ")));
        }
        self.map.policy = policy.clone();
        Ok(Outcome::default())
    }

    fn set_feature_level(&mut self, level: u32) -> Result<Outcome> {
        let now = self.map.feature_level;
        if level < now || level > NEWEST_FEATURE_LEVEL {
            return Err(Error::new(
                ErrorCode::InvalidArgument,
                format!(
                    "feature level {level} is not possible: it is {now}, never falls, and this \
                     program knows levels up to {NEWEST_FEATURE_LEVEL}"
                ),
            ));
        }
        self.map.feature_level = level;
        Ok(Outcome::default())
    }
}

/// A kind of node as a word: `storage`.
pub fn kind_word(kind: NodeKind) -> &'static str {
    match kind {
        NodeKind::Management => "management",
        NodeKind::Metadata => "metadata",
        NodeKind::Storage => "storage",
        NodeKind::Client => "client",
    }
}

fn check_text(what: &str, text: &str) -> Result<()> {
    if text.len() <= MAX_TEXT_BYTES {
        return Ok(());
    }
    let problem = format!("{what} of a node or target is longer than {MAX_TEXT_BYTES} bytes");
    Err(Error::new(ErrorCode::InvalidArgument, problem))
}

fn limit(what: String) -> Error {
    Error::new(ErrorCode::LimitReached, what)
}

/// Inserts an item at the position of its key. Replaces an item with the same key.
fn insert_sorted<T, K: Ord>(items: &mut Vec<T>, item: T, key: impl Fn(&T) -> K) {
    match items.binary_search_by_key(&key(&item), &key) {
        Ok(index) => items[index] = item,
        Err(index) => items.insert(index, item),
    }
}

#[cfg(test)]
pub(crate) mod tests;
