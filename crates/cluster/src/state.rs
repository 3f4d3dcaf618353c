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

use crate::command::{ClientRegistration, Command, Outcome};
use crate::limits::{
    MAX_ADDRESSES, MAX_CLIENTS, MAX_SERVERS, MAX_TARGETS_PER_NODE, MAX_TEXT_BYTES,
    NEWEST_FEATURE_LEVEL,
};
use crate::settings;
use skep_types::codec::{Codec, record};
use skep_types::map::{CapacityPool, Consistency, Policy, Reachability, ShardRange};
use skep_types::registration::{ServerRegistration, TargetClaim, domain_problem};
use skep_types::{
    ClusterId, ClusterMap, Epoch, Error, ErrorCode, Group, GroupId, GroupMember, MapVersion,
    MemberState, Node, NodeId, NodeKind, Result, SHARD_COUNT, ShardId, Target, TargetId,
    TargetKind, Timestamp,
};

/// Bits of a map version that count changes within one start: at a thousand changes a second they
/// last for 34 years. The other bits are enough for sixteen million starts.
const CHANGE_BITS: u32 = 40;

record! {
    /// Details of a client that only management stores. The map, which all nodes get, has only its
    /// node.
    pub struct ClientDetails {
        /// The client.
        pub node: NodeId,
        /// Name of its host.
        pub host: String,
        /// Where it mounts.
        pub mount_point: String,
        /// Process id on its host.
        pub pid: u32,
        /// When it registered, by management's clock.
        pub registered: Timestamp,
    }
}

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

/// Whether keys rise strictly: sorted, without duplicates.
fn rises<K: Ord>(keys: impl IntoIterator<Item = K>) -> bool {
    keys.into_iter().is_sorted_by(|first, second| first < second)
}

impl Durable {
    fn check_ids(&self) {
        let map = &self.map;
        assert!(rises(map.nodes.iter().map(|node| node.id)), "nodes are sorted");
        assert!(rises(map.targets.iter().map(|target| target.id)), "targets are sorted");
        assert!(rises(map.groups.iter().map(|group| group.id)), "groups are sorted");
        let next_node = NodeId::new(self.next_node);
        assert!(map.newest_node < next_node, "node ids are given once");
        assert!(map.nodes.iter().all(|node| node.id <= map.newest_node), "no node is newer");
        assert!(map.targets.iter().all(|it| it.id.raw() < self.next_target), "no target is newer");
        assert!(map.groups.iter().all(|it| it.id.raw() < self.next_group), "no group is newer");
        let is_client = |node: &&Node| node.kind == NodeKind::Client;
        let servers = map.nodes.iter().filter(|node| !is_client(node)).map(|node| node.id);
        assert!(servers.eq(self.node_uuids.iter().map(|(id, _)| *id)), "each server has a uuid");
        let clients = map.nodes.iter().filter(is_client).map(|node| node.id);
        assert!(clients.eq(self.clients.iter().map(|it| it.node)), "each client has details");
        let targets = map.targets.iter().map(|target| target.id);
        assert!(targets.eq(self.target_uuids.iter().map(|(id, _)| *id)), "each target has a uuid");
        let uuids = |all: &mut dyn Iterator<Item = u128>| {
            let mut uuids: Vec<_> = all.collect();
            uuids.sort_unstable();
            uuids
        };
        let nodes = uuids(&mut self.node_uuids.iter().map(|(_, uuid)| *uuid));
        let targets = uuids(&mut self.target_uuids.iter().map(|(_, uuid)| *uuid));
        assert!(rises(nodes) && rises(targets), "no uuid has two ids");
    }

    fn check_groups(&self) {
        let map = &self.map;
        let mut members = Vec::with_capacity(map.targets.len());
        for group in &map.groups {
            for member in &group.members {
                let kind = map.target(member.target).map(|target| target.kind);
                assert_eq!(kind, Some(group.kind), "group {} has targets of its kind", group.id);
                members.push(member.target);
            }
        }
        members.sort_unstable();
        let targets = map.targets.iter().map(|target| target.id);
        assert!(targets.eq(members), "each target belongs to exactly one group");
        for target in &map.targets {
            assert!(map.node(target.node).is_some(), "target {} has a node", target.id);
        }
        let mut next_shard = 0;
        for range in &map.shards {
            assert_eq!(u32::from(range.first.raw()), next_shard, "shard ranges have no gaps");
            next_shard = u32::from(range.last.raw()) + 1;
            let kind = map.group(range.group).map(|group| group.kind);
            assert_eq!(kind, Some(TargetKind::Metadata), "metadata groups serve shards");
        }
        let expected = if map.formatted { SHARD_COUNT } else { 0 };
        assert_eq!(next_shard, expected, "a formatted map has all shards");
    }

    fn raise_version(&mut self) {
        self.map.version = MapVersion::new(self.map.version.raw() + 1);
    }

    fn start(&mut self) -> Outcome {
        let starts = (self.map.version.raw() >> CHANGE_BITS) + 1;
        self.map.version = MapVersion::new(starts << CHANGE_BITS);
        Outcome::default()
    }

    fn register_server(&mut self, registration: &ServerRegistration) -> Result<Outcome> {
        check_registration(registration)?;
        let node = self.node_identity(registration)?;
        let name = self.node_name(node, registration)?;
        let before = || self.map.node(node).map(|node| node.domain.clone());
        let domain = registration.domain.clone().or_else(before).unwrap_or_default();
        let new = Node {
            id: node,
            kind: registration.kind,
            name,
            addresses: registration.addresses.clone(),
            domain,
            reachability: Reachability::Offline,
            version: registration.version.clone(),
        };
        insert_sorted(&mut self.map.nodes, new, |node| node.id);
        let mut targets = Vec::with_capacity(registration.targets.len());
        for claim in &registration.targets {
            targets.push(self.register_target(node, claim)?);
        }
        Ok(Outcome { changed: true, node, targets })
    }

    /// Returns the id of a server. A new server gets a new id.
    fn node_identity(&mut self, registration: &ServerRegistration) -> Result<NodeId> {
        let ServerRegistration { node: claimed, uuid, kind, .. } = registration;
        let known = self.node_uuids.iter().find(|(_, known)| known == uuid).map(|(id, _)| *id);
        if let Some(id) = known {
            if claimed.raw() != 0 && *claimed != id {
                return Err(foreign(format!(
                    "a {} service says it is {claimed}, but its uuid is registered as {id}; \
                     its directory was changed by hand",
                    kind_word(*kind)
                )));
            }
            if let Some(node) = self.map.node(id).filter(|node| node.kind != *kind) {
                return Err(foreign(format!(
                    "node {id} ({}) is a {} service and cannot become a {} service",
                    node.name,
                    kind_word(node.kind),
                    kind_word(*kind)
                )));
            }
            return Ok(id);
        }
        if claimed.raw() != 0 {
            let owner =
                self.map.node(*claimed).map_or("no node that is known here".to_owned(), |n| {
                    format!("'{}', which has another uuid", n.name)
                });
            return Err(foreign(format!(
                "a {} service says it is {claimed}, but {claimed} is {owner}; its directory is of \
                 another cluster, or management's directory is an old copy",
                kind_word(*kind)
            )));
        }
        let servers = self.node_uuids.len();
        if servers >= MAX_SERVERS {
            return Err(limit(format!("the cluster has {servers} servers, the most there can be")));
        }
        let id = self.take_node_id();
        insert_sorted(&mut self.node_uuids, (id, *uuid), |(id, _)| *id);
        Ok(id)
    }

    fn take_node_id(&mut self) -> NodeId {
        let id = NodeId::new(self.next_node);
        self.next_node += 1;
        self.map.newest_node = id;
        id
    }

    /// Returns the name of a server: the one that it asks for, or the one that it has, or the first
    /// free one of `storage-1`, `storage-2`, ...
    fn node_name(&self, id: NodeId, registration: &ServerRegistration) -> Result<String> {
        let kind = registration.kind;
        let taken = |name: &str| {
            self.map.nodes.iter().find(|n| n.id != id && n.kind == kind && n.name == name)
        };
        if !registration.name.is_empty() {
            return match taken(&registration.name) {
                None => Ok(registration.name.clone()),
                Some(other) => Err(Error::new(
                    ErrorCode::Exists,
                    format!(
                        "the name '{}' belongs to {} service {}; choose another `name`",
                        registration.name,
                        kind_word(kind),
                        other.id
                    ),
                )),
            };
        }
        if let Some(node) = self.map.node(id) {
            return Ok(node.name.clone());
        }
        let free =
            (1_u32..).map(|k| format!("{}-{k}", kind_word(kind))).find(|n| taken(n).is_none());
        Ok(free.expect("fewer names are taken than there are numbers"))
    }

    fn register_target(&mut self, node: NodeId, claim: &TargetClaim) -> Result<TargetId> {
        let known = self.target_uuids.iter().find(|(_, known)| *known == claim.uuid);
        let id = match known.map(|(id, _)| *id) {
            Some(id) if claim.target.raw() != 0 && claim.target != id => {
                return Err(foreign(format!(
                    "the directory {} says it is target {}, but its uuid is registered as {id}; it \
                     was changed by hand",
                    claim.path, claim.target
                )));
            }
            Some(id) => id,
            None if claim.target.raw() != 0 => {
                let owner = self
                    .map
                    .target(claim.target)
                    .map_or("which isn't known here".to_owned(), |t| {
                        format!("which is {} on {} and has another uuid", t.path, t.node)
                    });
                return Err(foreign(format!(
                    "the directory {} says it is target {}, {owner}; it is of another cluster, or \
                     management's directory is an old copy",
                    claim.path, claim.target
                )));
            }
            None => self.add_target(node, claim),
        };
        let index = self.map.targets.binary_search_by_key(&id, |target| target.id);
        let target = &mut self.map.targets[index.expect("a known uuid has its target")];
        if target.kind != claim.kind {
            return Err(foreign(format!("target {id} ({}) is of another kind", target.path)));
        }
        target.node = node;
        target.path.clone_from(&claim.path);
        Ok(id)
    }

    /// Adds a target, with a group of its own.
    fn add_target(&mut self, node: NodeId, claim: &TargetClaim) -> TargetId {
        let id = TargetId::new(self.next_target);
        self.next_target += 1;
        insert_sorted(&mut self.target_uuids, (id, claim.uuid), |(id, _)| *id);
        let target = Target {
            id,
            kind: claim.kind,
            node,
            path: claim.path.clone(),
            reachability: Reachability::Offline,
            consistency: Consistency::Good,
            capacity: skep_types::map::Capacity::default(),
            capacity_pool: CapacityPool::Normal,
        };
        insert_sorted(&mut self.map.targets, target, |target| target.id);
        let group = Group {
            id: GroupId::new(self.next_group),
            kind: claim.kind,
            epoch: Epoch::new(1),
            members: vec![GroupMember { target: id, state: MemberState::Serving }],
        };
        self.next_group += 1;
        insert_sorted(&mut self.map.groups, group, |group| group.id);
        id
    }

    fn register_client(&mut self, registration: &ClientRegistration) -> Result<Outcome> {
        let ClientRegistration { host, mount_point, version, pid, registered } = registration;
        let name = match mount_point.is_empty() {
            true => host.clone(),
            false => format!("{host}:{mount_point}"),
        };
        check_text("the name", &name)?;
        check_text("the version", version)?;
        let clients = self.map.nodes.iter().filter(|node| node.kind == NodeKind::Client);
        if clients.clone().count() >= MAX_CLIENTS {
            return Err(limit(format!(
                "the cluster has {MAX_CLIENTS} clients, the most there can be"
            )));
        }
        let taken = clients.clone().any(|node| node.name == name);
        let id = self.take_node_id();
        let name = match taken {
            true => format!("{name}#{}", id.raw()),
            false => name,
        };
        let node = Node {
            id,
            kind: NodeKind::Client,
            name,
            addresses: Vec::new(),
            domain: String::new(),
            reachability: Reachability::Offline,
            version: version.clone(),
        };
        insert_sorted(&mut self.map.nodes, node, |node| node.id);
        let details = ClientDetails {
            node: id,
            host: host.clone(),
            mount_point: mount_point.clone(),
            pid: *pid,
            registered: *registered,
        };
        insert_sorted(&mut self.clients, details, |client| client.node);
        Ok(Outcome { node: id, ..Outcome::default() })
    }

    fn remove_client(&mut self, id: NodeId) -> Result<Outcome> {
        match self.map.node(id) {
            Some(node) if node.kind != NodeKind::Client => Err(Error::new(
                ErrorCode::NotPermitted,
                format!("node {id} ({}) is a server; servers are not forgotten", node.name),
            )),
            _ => {
                self.map.nodes.retain(|node| node.id != id);
                self.clients.retain(|client| client.node != id);
                Ok(Outcome { node: id, ..Outcome::default() })
            }
        }
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

fn check_registration(registration: &ServerRegistration) -> Result<()> {
    let wrong = |what: String| Err(Error::new(ErrorCode::InvalidArgument, what));
    let ServerRegistration { uuid, kind, name, addresses, domain, version, targets, .. } =
        registration;
    if *uuid == 0 || targets.iter().any(|claim| claim.uuid == 0) {
        return wrong("a registration without a uuid: the directory was not initialised".into());
    }
    if addresses.is_empty() || addresses.len() > MAX_ADDRESSES {
        return wrong(format!("a server has 1 to {MAX_ADDRESSES} addresses"));
    }
    if targets.len() > MAX_TARGETS_PER_NODE {
        return wrong(format!("a node has at most {MAX_TARGETS_PER_NODE} targets"));
    }
    check_text("the name", name)?;
    check_text("the version", version)?;
    let domain = domain.as_deref().filter(|domain| !domain.is_empty());
    if let Some(problem) = domain.and_then(domain_problem) {
        return wrong(problem);
    }
    addresses.iter().try_for_each(|address| check_text("an address", address))?;
    let allowed = match kind {
        NodeKind::Metadata => Some(TargetKind::Metadata),
        NodeKind::Storage => Some(TargetKind::Storage),
        NodeKind::Management => None,
        NodeKind::Client => return wrong("a client does not register as a server".into()),
    };
    for (index, claim) in targets.iter().enumerate() {
        check_text("a target's path", &claim.path)?;
        if Some(claim.kind) != allowed {
            return wrong(format!(
                "a {} service has no {:?} target ({})",
                kind_word(*kind),
                claim.kind,
                claim.path
            ));
        }
        if let Some(twin) = targets[..index].iter().find(|other| other.uuid == claim.uuid) {
            return wrong(format!(
                "{} and {} are the same target: one is a copy of the other",
                twin.path, claim.path
            ));
        }
    }
    Ok(())
}

fn check_text(what: &str, text: &str) -> Result<()> {
    if text.len() <= MAX_TEXT_BYTES {
        return Ok(());
    }
    let problem = format!("{what} of a node or target is longer than {MAX_TEXT_BYTES} bytes");
    Err(Error::new(ErrorCode::InvalidArgument, problem))
}

fn foreign(what: String) -> Error {
    Error::new(ErrorCode::NotPermitted, what)
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
