//! The durable state of management (nodes, targets, groups, shards, settings) and its changes by
//! commands. The state machine is deterministic, so the same commands in the same order give the
//! same state.
//!
//! Owns the identity of nodes and targets, because an id belongs to one uuid for ever. Does not own
//! reachability and free space. Reachability and free space are soft state
//! ([`crate::reachability`]), which management adds to the map before it publishes the map. Does
//! not own the map version either. Management assigns a version to each published map
//! ([`crate::versions`]).
//!
//! # Invariants
//! - All lists are in strictly ascending order of their ids. Every id is below the next id of its
//!   kind.
//! - Every server and every target in the map has a uuid, and no uuid belongs to two ids.
//! - Each client node in the map has client details, and no other node has client details.
//! - Every target belongs to a node in the map and to at most one group. The group has the kind of
//!   the target. A target without a group waits for one.
//! - Every group meets the invariants of [`crate::groups`].
//! - The map has version zero.
//! - At most [`MAX_OUTCOMES`](crate::limits::MAX_OUTCOMES) outcomes are stored, one for each
//!   request.
//! - At most [`MAX_EVICTIONS`](crate::limits::MAX_EVICTIONS) evictions are stored.
//! - The skipped ids meet the invariants of `skipped_ids`.
//! - In a formatted map, each shard belongs to exactly one range, which a metadata group serves.
//!
//! [`ClusterState::check_invariants`] asserts these invariants.
//!

mod clients;
mod continuation;
mod evictions;
mod groups;
mod invariants;
mod names;
mod new_group;
mod outcomes;
mod retirement;
mod servers;
mod skipped_ids;
mod writers;

pub use clients::ClientDetails;
pub use continuation::check_report;
pub use names::check_new_name;
pub use retirement::{ClosedGroup, closed_groups};
pub use writers::versions_in_snapshot;

use crate::command::{Command, Outcome, Proposal};
use crate::limits::{MAX_MAP_BYTES, MAX_TEXT_BYTES};
use crate::settings::{self, Changed, Setting};
use evictions::RecentEvictions;
use names::ServerNames;
use outcomes::RecentOutcomes;
use skep_types::codec::{Codec, Reader, Writer, record};
use skep_types::map::{Policy, ShardRange};
use skep_types::{
    ClusterId, ClusterMap, Error, ErrorCode, Eviction, GroupId, NEWEST_FEATURE_LEVEL, NodeId,
    NodeKind, Result, SHARD_COUNT, ShardId, Target, TargetId, TargetKind,
};
use skipped_ids::SkippedIds;

/// Encoded length of a node without its texts.
const NODE_BYTES: usize = 24;
/// Encoded length of a target without its path, plus the length of a group whose only member is
/// this target.
const TARGET_BYTES: usize = 108;

record! {
    /// The part of the state that commands change.
    pub struct Durable {
        /// The cluster map. Its version and its soft fields (reachability, capacity) have no
        /// meaning.
        pub map: ClusterMap,
        /// The uuid of each server, in ascending order of id. Clients have no uuid.
        pub node_uuids: Vec<(NodeId, u128)>,
        /// The uuid of each target, in ascending order of id.
        pub target_uuids: Vec<(TargetId, u128)>,
        /// Details of the clients in the map, in ascending order of id.
        pub clients: Vec<ClientDetails>,
        /// Id of the next new node.
        pub next_node: u32,
        /// Id of the next new target.
        pub next_target: u32,
        /// Id of the next new group.
        pub next_group: u32,
        /// The storage targets that an administrator has closed to new files, in ascending order.
        pub closed: Vec<TargetId>,
        /// Number of `Start` commands. `ContinueAbove`, the command after a restore from a backup,
        /// raises the number further.
        pub starts: u64,
    }
}

/// The state machine of management.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterState {
    durable: Durable,
    outcomes: RecentOutcomes,
    evictions: RecentEvictions,
    names: ServerNames,
    skipped: SkippedIds,
}

impl ClusterState {
    /// Creates the state of a new, empty cluster.
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
                closed: Vec::new(),
                starts: 0,
            },
            outcomes: RecentOutcomes::default(),
            evictions: RecentEvictions::default(),
            names: ServerNames::default(),
            skipped: SkippedIds::default(),
        }
    }

    /// Encodes the state as a snapshot.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut w = Writer::new();
        self.durable.encode(&mut w);
        self.outcomes.encode(&mut w);
        self.evictions.encode(&mut w);
        self.names.encode(&mut w);
        self.skipped.encode(&mut w);
        w.finish()
    }

    /// Decodes a snapshot. Versions of the program without the lists of evictions, names and
    /// skipped ids wrote snapshots without these lists. For such a snapshot, the lists are empty.
    ///
    /// # Errors
    /// Returns `Corrupt` if the bytes are not a snapshot.
    pub fn from_snapshot(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new(bytes);
        let (durable, outcomes): (Durable, _) = (Codec::decode(&mut r)?, Codec::decode(&mut r)?);
        let evictions = match r.left() {
            0 => RecentEvictions::default(),
            _ => Codec::decode(&mut r)?,
        };
        let mut names = match r.left() {
            0 => ServerNames::default(),
            _ => Codec::decode(&mut r)?,
        };
        names.follow(&durable.map);
        let skipped = match r.left() {
            0 => SkippedIds::default(),
            _ => Codec::decode(&mut r)?,
        };
        let state = Self { durable, outcomes, evictions, names, skipped };
        r.finish()?;
        Ok(state)
    }

    /// Returns the map without a version and without soft state. In this map every node is
    /// `Offline` and no target has free space.
    pub fn map(&self) -> &ClusterMap {
        &self.durable.map
    }

    /// Returns the details of the clients in the map, in ascending order of id.
    pub fn clients(&self) -> &[ClientDetails] {
        &self.durable.clients
    }

    /// Returns the last evictions of clients, the oldest first.
    pub fn evictions(&self) -> impl Iterator<Item = &Eviction> {
        self.evictions.all()
    }

    /// Returns the host name of each server that has reported it, in ascending order of server id.
    pub fn hosts(&self) -> &[(NodeId, String)] {
        &self.names.hosts
    }

    /// Returns the id of the server with this uuid. `None` means that no server with this uuid has
    /// registered.
    pub fn server_with_uuid(&self, uuid: u128) -> Option<NodeId> {
        let uuids = &self.durable.node_uuids;
        uuids.iter().find(|(_, known)| *known == uuid).map(|(id, _)| *id)
    }

    /// Marks the targets that are closed to new files in `map`, which must already have the soft
    /// state.
    pub fn mark_closed(&self, map: &mut ClusterMap) {
        self.durable.mark_closed(map);
    }

    /// Returns the number of starts, the upper part of map versions ([`crate::versions`]).
    pub fn starts(&self) -> u64 {
        self.durable.starts
    }

    /// Applies the command of a proposal. If an earlier proposal of the same request has changed
    /// the state, changes nothing and returns the outcome of the earlier proposal.
    ///
    /// # Errors
    /// The errors of [`Self::apply`].
    pub fn execute(&mut self, proposal: &Proposal) -> Result<Outcome> {
        if let Some(first) = self.outcomes.of(proposal.id) {
            return Ok(Outcome { changed: false, ..first.clone() });
        }
        let outcome = self.apply(&proposal.command)?;
        if outcome.changed {
            self.outcomes.keep(proposal.id, &outcome);
        }
        Ok(outcome)
    }

    /// Applies a command. If the command fails or changes nothing, the state stays the same.
    ///
    /// # Errors
    /// - `InvalidArgument` if the command is malformed.
    /// - `NotPermitted` if a registration claims the id of another node or target, if the client to
    ///   remove is a server, or if the state of a member or target does not allow the change.
    /// - `Exists` if the name of a server is in use, if a target has a group already, or if the
    ///   cluster is formatted already.
    /// - `NotReady` if the cluster to format has no metadata group.
    /// - `NotFound` if a node, target or group does not exist.
    /// - `Unsupported` if the new group would have several storage targets.
    /// - `StaleMap` if the group to change has another epoch than the command.
    /// - `InUse` if a target or server to remove is still in use.
    /// - `LimitReached` if the cluster has the maximum number of servers or clients, if a group has
    ///   the maximum number of members, if the map would be too long for a message, or if no ids of
    ///   a kind would be left.
    ///
    /// The context names the object and how to fix the problem.
    pub fn apply(&mut self, command: &Command) -> Result<Outcome> {
        let mut next = self.durable.clone();
        let (mut names, mut skipped) = (self.names.clone(), self.skipped.clone());
        let mut outcome = match command {
            Command::Start => next.start(),
            Command::RegisterServer(registration) => {
                next.register_server(registration, (&names, &skipped))?
            }
            Command::RegisterClient(registration) => next.register_client(registration)?,
            Command::RemoveClient { node } => next.remove_client(*node)?,
            Command::EvictClient(eviction) => next.remove_client(eviction.client)?,
            Command::Format => next.format()?,
            Command::SetPolicy(policy) => next.set_policy(policy)?,
            Command::ChangeSetting { name, value } => next.change_setting(name, *value)?,
            Command::SetFeatureLevel { level } => next.set_feature_level(*level)?,
            Command::CreateGroup { targets } => next.create_group(targets)?,
            Command::ChangeGroup(change) => next.change_group(change)?,
            Command::ReviseGroup(revision) => next.revise_group(revision)?,
            Command::CloseTarget { target, is_closed } => next.close_target(*target, *is_closed)?,
            Command::RemoveTarget { target } => {
                skipped.forget_target(*target);
                next.remove_target(*target)?
            }
            Command::GiveUpTarget { target } => next.give_up_target(*target)?,
            Command::RemoveServer { node } => {
                skipped.forget_node(*node);
                next.remove_server(*node)?
            }
            Command::RenameServer { node, name } => next.rename_server(*node, name)?,
            Command::NoteHost { node, host } => next.note_host(*node, host, &mut names)?,
            Command::ContinueAbove { version } => next.continue_above(*version, &mut skipped)?,
            Command::ReturnToGroup { target, group } => {
                next.return_to_group(*target, *group, &skipped)
            }
        };
        names.follow(&next.map);
        outcome.changed = next != self.durable || names != self.names || skipped != self.skipped;
        if matches!(command, Command::RegisterServer(_) | Command::RegisterClient(_)) {
            next.check_size()?;
        }
        if outcome.changed {
            if let Command::EvictClient(eviction) = command {
                let node = self.durable.map.node(eviction.client);
                let name = node.map(|node| node.name.clone()).unwrap_or_default();
                self.evictions.add(Eviction { name, ..eviction.clone() });
            }
            self.durable = next;
            self.names = names;
            self.skipped = skipped;
            if cfg!(debug_assertions) {
                self.check_invariants();
            }
        }
        Ok(outcome)
    }

    /// Asserts the invariants of the module.
    ///
    /// # Panics
    /// Panics if an invariant does not hold.
    pub fn check_invariants(&self) {
        self.durable.check_ids();
        self.durable.check_groups();
        self.durable.check_closed();
        self.outcomes.check_invariants();
        self.evictions.check_invariants();
        self.names.check_invariants(&self.durable.map);
        self.skipped.check_invariants();
    }
}

impl Durable {
    /// Checks that the map fits into a message.
    fn check_size(&self) -> Result<()> {
        let nodes = self.map.nodes.iter().map(|node| {
            let addresses = node.addresses.iter().map(|address| address.len() + 4).sum::<usize>();
            NODE_BYTES + node.name.len() + node.domain.len() + node.version.len() + addresses
        });
        let targets = self.map.targets.iter().map(|target| TARGET_BYTES + target.path.len());
        let bytes = nodes.chain(targets).sum::<usize>();
        if bytes <= MAX_MAP_BYTES {
            return Ok(());
        }
        Err(limit(format!(
            "cannot change the cluster map: it would have about {bytes} bytes, and nodes accept at \
             most {MAX_MAP_BYTES} bytes; unmount unused clients, or mount on shorter paths"
        )))
    }

    fn start(&mut self) -> Outcome {
        self.starts += 1;
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
                "cannot format the cluster: it is formatted already, and clients can mount it",
            ));
        }
        let groups = self.map.groups.iter().filter(|group| group.kind == TargetKind::Metadata);
        let groups: Vec<GroupId> = groups.map(|group| group.id).collect();
        if groups.is_empty() {
            let is_metadata = |target: &Target| target.kind == TargetKind::Metadata;
            let context = match self.map.targets.iter().find(|target| is_metadata(target)) {
                None => {
                    "cannot format the cluster: it has no metadata target yet; start a metadata \
                    service first"
                        .into()
                }
                Some(target) => format!(
                    "cannot format the cluster: metadata target {} waits for a group; {}",
                    target.id,
                    new_group::advice(&self.map)
                ),
            };
            return Err(Error::new(ErrorCode::NotReady, context));
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

    fn change_setting(&mut self, name: &str, value: u64) -> Result<Outcome> {
        let setting = Setting::named(name)?;
        let before = setting.value(&self.map);
        match setting.put(&self.map.policy, value)? {
            Changed::Policy(policy) => self.set_policy(&policy)?,
            Changed::FeatureLevel(level) => self.set_feature_level(level)?,
        };
        Ok(Outcome { before, ..Outcome::default() })
    }

    fn set_feature_level(&mut self, level: u32) -> Result<Outcome> {
        let now = self.map.feature_level;
        if level < now || level > NEWEST_FEATURE_LEVEL {
            return Err(Error::new(
                ErrorCode::InvalidArgument,
                format!(
                    "cannot set feature level {level}: expected {now} (the level never falls) to \
                     {NEWEST_FEATURE_LEVEL} (the newest of this program)"
                ),
            ));
        }
        self.map.feature_level = level;
        Ok(Outcome::default())
    }
}

/// Returns the name of a node kind, such as `storage`.
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
    let problem = format!(
        "cannot register {what} of a node or target: it is longer than {MAX_TEXT_BYTES} bytes"
    );
    Err(Error::new(ErrorCode::InvalidArgument, problem))
}

fn limit(what: String) -> Error {
    Error::new(ErrorCode::LimitReached, what)
}

/// Inserts an item in ascending order of its key. Replaces an item with an equal key.
fn insert_sorted<T, K: Ord>(items: &mut Vec<T>, item: T, key: impl Fn(&T) -> K) {
    match items.binary_search_by_key(&key(&item), &key) {
        Ok(index) => items[index] = item,
        Err(index) => items.insert(index, item),
    }
}

#[cfg(test)]
pub(crate) mod tests;
