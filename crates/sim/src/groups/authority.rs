//! The model of management: the cluster map, decisions about the members of the group, and the
//! requests of administrators.
//!
//! The model calls the functions of the real management. [`skep_cluster::groups`] changes a group
//! by compare-and-set on its epoch. [`skep_cluster::losses`] chooses a primary when all serving
//! members may lack records. The model handles requests like `crates/management`
//! (`handlers/ask_take_over.rs`, `handlers/change_group.rs`, `loss_reports.rs`).
//!
//! The state of the model is durable, so a stop of management only delays replies and maps. In some
//! runs, management's leader changes: `leaders` owns the replies and the maps of the leaders, and
//! the log of their commands. `published` checks the maps.

use super::cluster::Cluster;
use super::knobs::GroupKnobs;
use super::leaders::Leaders;
use super::messages::{Ask, Message, Place, Process};
use super::published::PublishedMaps;
use crate::management::{node, target};
use crate::random::Random;
use skep_cluster::lease_times::LeaseTimes;
use skep_cluster::losses::LogEnd;
use skep_cluster::{groups, losses};
use skep_types::group_change::{GroupChange, MemberChange};
use skep_types::map::{Policy, ShardRange};
use skep_types::{
    ClusterId, ClusterMap, Epoch, ErrorCode, Group, GroupId, MapVersion, MemberState, NodeId,
    NodeKind, Result, ShardId, TargetId, TargetKind,
};
use skep_wire::management::AskTakeOver;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Id of the metadata group. The id of the storage group is this id plus one.
pub(super) const GROUP: GroupId = GroupId::new(1);
/// Id of the only storage target. The ids of all members of the metadata group are lower.
const STORAGE: TargetId = TargetId::new(1000);
/// Node id of the first client.
pub(super) const FIRST_CLIENT: u32 = 2000;
/// Time after which management ignores a member's report that it may lack records.
const REPORT_VALID: Duration = Duration::from_secs(10);

/// The state of the simulated management.
#[derive(Debug)]
pub(super) struct Authority {
    /// The newest map of the newest leader. The map contains the state of management.
    pub(super) map: Arc<ClusterMap>,
    /// Time at which management begins to reply again after its newest stop.
    pub(super) is_back: Duration,
    /// The epoch of the group, and the loss reports that members have sent in this epoch. Each
    /// report contains the end of the member's log, and the arrival time of the report.
    reports: (Epoch, BTreeMap<TargetId, (LogEnd, Duration)>),
    pub(super) leaders: Leaders,
    published: PublishedMaps,
}

impl Authority {
    /// Creates management with its first map. `random` has the random numbers for its leaders.
    pub(super) fn new(map: Arc<ClusterMap>, random: Random) -> Self {
        let leaders = Leaders::new(random, map.version);
        let mut published = PublishedMaps::default();
        published.add(&map).expect("the first map contradicts no other map");
        Self { map, is_back: Duration::ZERO, reports: Default::default(), leaders, published }
    }

    /// Removes all loss reports, because a new leader begins without reports.
    pub(super) fn forget_reports(&mut self) {
        self.reports = Default::default();
    }
}

/// Returns the metadata group of a map.
pub(super) fn group_of(map: &ClusterMap) -> &Group {
    map.group(GROUP).expect("the simulation never removes the group")
}

/// Whether a target is a serving member in a map.
pub(super) fn serves(map: &ClusterMap, target: TargetId) -> bool {
    let members = &group_of(map).members;
    members.iter().any(|it| it.target == target && it.state == MemberState::Serving)
}

/// Whether a map names a member other than `target`. If `serving_only` is true, counts only serving
/// members.
pub(super) fn has_others(map: &ClusterMap, target: TargetId, serving_only: bool) -> bool {
    let members = group_of(map).members.iter().filter(|it| it.target != target);
    members.into_iter().any(|it| !serving_only || it.state == MemberState::Serving)
}

impl Cluster {
    /// Decides on a request of a member, and sends the reply.
    pub(super) fn decide(&mut self, from: Process, number: u64, ask: &Ask) {
        let error = self.carry_out(ask).err().map(|error| error.code());
        self.post(Message::FromManagement { to: from, number, error });
    }

    /// Decides on a request of a member.
    pub(super) fn carry_out(&mut self, ask: &Ask) -> Result<()> {
        match ask {
            Ask::Change(change, sender_epoch) => {
                if *sender_epoch < group_of(self.map()).primary_since {
                    return Err(ErrorCode::Deposed.into());
                }
                self.change(change)
            }
            Ask::TakeOver(request) => self.decide_take_over(request),
        }
    }

    /// Decides on a member's request to become the primary. A member sends this request when it
    /// receives nothing from the primary.
    fn decide_take_over(&mut self, request: &AskTakeOver) -> Result<()> {
        let AskTakeOver { group, epoch, target, lacks_records, last_epoch, last, .. } = *request;
        if !lacks_records {
            let change = MemberChange::TakeOver;
            return self.change(&GroupChange { group, epoch, change, target });
        }
        let found = group_of(self.map()).clone();
        if found.epoch != epoch || found.members.iter().all(|it| it.target != target) {
            return Err(ErrorCode::StaleMap.into());
        }
        let now = self.now;
        let (of_epoch, ends) = &mut self.authority.reports;
        if *of_epoch != epoch {
            *of_epoch = epoch;
            ends.clear();
        }
        ends.insert(target, ((last_epoch, last), now));
        ends.retain(|_, (_, at)| now < *at + REPORT_VALID);
        let ends = ends.iter().map(|(target, (end, _))| (*target, *end)).collect();
        let epochs = (epoch.raw()..).map(Epoch::new);
        for ((change, target), epoch) in losses::changes(&found, &ends).into_iter().zip(epochs) {
            if !self.authority.leaders.is_serving() {
                return Err(ErrorCode::NotLeader.into());
            }
            self.change(&GroupChange { group, epoch, change, target })?;
            self.may_lose_leader();
        }
        Ok(())
    }

    /// Changes the group by compare-and-set on its epoch, and publishes the map.
    pub(super) fn change(&mut self, change: &GroupChange) -> Result<()> {
        let group = group_of(self.map());
        let next = groups::apply(group, change)?;
        groups::check_invariants(&next);
        if next == *group {
            return Ok(());
        }
        let is_excused = self.all_serving_lost_power();
        let has_new_primary = next.primary != group.primary;
        self.note(|| format!("{change:?} -> {next:?}"));
        let mut map = ClusterMap::clone(self.map());
        for group in map.groups.iter_mut().filter(|it| it.id == GROUP) {
            group.clone_from(&next);
        }
        if has_new_primary {
            self.take_overs += 1;
            self.ledger.note_term(next.primary_since, is_excused);
        }
        if change.change == MemberChange::MarkInSync {
            self.check_marked(change.target);
        }
        self.plan_restart(change.change);
        self.publish(map);
        Ok(())
    }

    /// Publishes a map as the newest leader.
    pub(super) fn publish(&mut self, mut map: ClusterMap) {
        map.version = self.authority.leaders.next_version();
        let map = Arc::new(map);
        self.authority.map = Arc::clone(&map);
        self.announce(&map);
    }

    /// Checks a map that a leader publishes, and sends it to all processes.
    pub(super) fn announce(&mut self, map: &Arc<ClusterMap>) {
        let checked = self.authority.published.add(map);
        self.check(checked);
        let members = (0..self.members.len()).map(Place::Member);
        let places: Vec<_> = members.chain((0..self.clients.len()).map(Place::Client)).collect();
        for to in places {
            self.post(Message::Map { to, map: Arc::clone(map) });
        }
    }

    /// An administrator makes a change. Management refuses the change if the state of the group
    /// does not permit it, or if no leader can commit it.
    pub(super) fn administrate(&mut self, change: MemberChange, target: TargetId) -> bool {
        if !self.authority.leaders.is_serving() {
            return false;
        }
        let epoch = group_of(self.map()).epoch;
        let is_done = self.change(&GroupChange { group: GROUP, epoch, change, target }).is_ok();
        // An administrator who drops a member gives up the changes that only this member has.
        self.excuse_losses();
        is_done
    }
}

/// Adds a target, on a separate node, to a map.
pub(super) fn add_target(map: &mut ClusterMap, id: TargetId, kind: TargetKind) {
    let node_kind = match kind {
        TargetKind::Metadata => NodeKind::Metadata,
        TargetKind::Storage => NodeKind::Storage,
    };
    map.nodes.push(node(id.raw(), node_kind));
    map.nodes.sort_by_key(|it| it.id);
    map.targets.push(target(id.raw(), kind));
    map.targets.sort_by_key(|it| it.id);
}

/// Returns the map of a formatted cluster with one metadata group and one storage target.
pub(super) fn first_map(knobs: &GroupKnobs) -> ClusterMap {
    let mut map = ClusterMap::empty(ClusterId::new(*b"simulated group!"));
    let members: Vec<_> = (1..=knobs.members as u32).map(TargetId::new).collect();
    for member in &members {
        add_target(&mut map, *member, TargetKind::Metadata);
    }
    add_target(&mut map, STORAGE, TargetKind::Storage);
    let group = groups::create(GROUP, TargetKind::Metadata, &members);
    map.groups.push(group.expect("a few different members"));
    map.groups.push(Group::of_one(GroupId::new(2), TargetKind::Storage, STORAGE));
    for client in 0..knobs.clients as u32 {
        map.nodes.push(node(FIRST_CLIENT + client, NodeKind::Client));
    }
    let last = ShardId::new((skep_types::SHARD_COUNT - 1) as u16);
    map.shards.push(ShardRange { first: ShardId::new(0), last, group: GROUP });
    let LeaseTimes { lease, take_over_after } = knobs.leases;
    map.policy = Policy {
        lease_ms: 60_000,
        default_chunk_bytes: 64 << 10,
        default_width: 1,
        stripe_from: 64 << 10,
        inline_bytes: 0,
        metadata_copy_rate: knobs.copy_rate,
        metadata_log_kept: knobs.log_kept as u64,
        metadata_lease_ms: lease.as_millis() as u32,
        metadata_take_over_after_ms: take_over_after.as_millis() as u32,
        ..Policy::default()
    };
    map.newest_node = map.nodes.last().map_or(NodeId::default(), |node| node.id);
    map.version = MapVersion::new(1);
    map.formatted = true;
    map
}
