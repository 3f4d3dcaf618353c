//! The authority of a member of management: it proposes commands to the replicated log, and
//! publishes cluster maps from the state of the cluster and the information in heartbeats.
//!
//! This module is responsible for the order of the steps of a command. The authority checks the
//! command on a copy of the state, proposes the command, waits until the log has applied the
//! command, and publishes the new map under the next version. No reply and no map contains the
//! effect of a command before a majority has synced the command.
//!
//! If management has several members, each member has an authority. Only the leader's authority
//! replies to nodes ([`Authority::check_leader`]), publishes maps, and has the information from
//! heartbeats. The authorities of the other members have the leader's newest map.
//! [`crate::leadership`] begins and ends a leadership.
//!
//! # Invariants
//! A map that this member publishes has a version that belongs to the member's own leadership (see
//! [`Authority::check_invariants`]).

mod commands;
mod reports;

use crate::limits::{COLLECT_MARGIN, CONFIRMED_FOR};
use crate::log_level_changes::LogLevelChanges;
use crate::loss_reports::LossReports;
use crate::machine::Machine;
use crate::map_log;
use crate::reported_waits::ReportedWaits;
use skep_cluster::SoftState;
use skep_cluster::losses::LossReport;
use skep_cluster::state::ClientDetails;
use skep_cluster::versions::{VersionSequence, starts_of};
use skep_consensus::Member;
use skep_env::local::Notify;
use skep_types::codec::Codec;
use skep_types::map::Capacity;
use skep_types::{
    ClusterMap, Error, ErrorCode, Eviction, GroupId, MapVersion, NodeId, Result, TargetId,
};
use skep_wire::consensus::leader_text;
use skep_wire::management::{AskTakeOver, ClientEntry, MapUpdate};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

/// The authority of one member of management.
pub(crate) struct Authority {
    member: Rc<Member<Machine>>,
    own: NodeId,
    inner: RefCell<AuthorityState>,
    /// Notifies waiting tasks when a newer map is published, and when this member begins or ceases
    /// to lead.
    pub(crate) changed: Notify,
    /// Changes of clients' log levels that the clients have not confirmed yet.
    pub(crate) log_level_changes: LogLevelChanges,
    /// The requests that wait for a group, as nodes have reported them.
    pub(crate) waits: ReportedWaits,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authority(member {})", self.own)
    }
}

#[derive(Debug)]
struct AuthorityState {
    /// The state that only a leader has. `None` means that this member is not the leader.
    lead: Option<Lead>,
    /// The map that management sends to nodes. On a member that is not the leader, this field is
    /// the newest map of the leader.
    published: Rc<ClusterMap>,
    /// The published map, encoded as the body of a `MapUpdate` at the first request. This field
    /// caches the encoding, because management sends each new map to all nodes.
    encoded: Option<Rc<[u8]>>,
}

/// The state of a leader, from its election until the next election.
#[derive(Debug)]
pub(crate) struct Lead {
    /// The number of `Start` commands in the log, up to and including the command of this
    /// leadership. No other leadership has this number.
    starts: u64,
    /// Time at which the leader sent the newest request for a confirmation of its leadership
    /// (`CONFIRM_INTERVAL`) that a majority has confirmed.
    confirmed_at: Duration,
    soft: SoftState,
    /// Assigns the versions of the maps that this leader publishes.
    versions: VersionSequence,
    /// Free space of the whole cluster. The authority updates this value with each new map, and at
    /// each tick.
    total_capacity: Option<Capacity>,
    /// Time until which the leader collects heartbeats before it publishes its first map. `None`
    /// means that the leader does not collect heartbeats.
    collects_until: Option<Duration>,
    /// The value of [`Machine::changes`] when the map was published.
    published_changes: u64,
    /// Whether the soft state (the information from heartbeats) has changed since the map was
    /// published.
    is_soft_newer: bool,
    /// The reports of group members that they may lack records, as this leader has received them.
    losses: LossReports,
}

fn now_ms() -> u64 {
    skep_env::now().as_millis() as u64
}

impl Authority {
    /// Creates the authority of the member `own`, which is not the leader yet.
    pub(crate) fn new(member: Rc<Member<Machine>>, own: NodeId) -> Rc<Self> {
        let published = Rc::new(member.with_state(|it| it.state.map().clone()));
        Rc::new(Self {
            member,
            own,
            inner: RefCell::new(AuthorityState { lead: None, published, encoded: None }),
            changed: Notify::default(),
            log_level_changes: LogLevelChanges::default(),
            waits: ReportedWaits::default(),
        })
    }

    /// Returns this node's member of the replicated log.
    pub(crate) fn member(&self) -> &Rc<Member<Machine>> {
        &self.member
    }

    /// Returns the node id of this member.
    pub(crate) fn own(&self) -> NodeId {
        self.own
    }

    /// Whether the replicated log considers this member its leader.
    pub(crate) fn is_elected(&self) -> bool {
        self.member.leader() == Some(u64::from(self.own.raw()))
    }

    /// Returns the leader according to this member. `None` means that this member has found no
    /// leader, or that it is the leader itself but no majority has confirmed its leadership within
    /// [`CONFIRMED_FOR`].
    pub(crate) fn known_leader(&self) -> Option<NodeId> {
        if self.is_elected() {
            return self.check_leader().is_ok().then_some(self.own);
        }
        let leader = u32::try_from(self.member.leader()?).ok()?;
        Some(NodeId::new(leader))
    }

    /// Whether this member has begun to lead, and still leads.
    pub(crate) fn is_leading(&self) -> bool {
        self.inner.borrow().lead.is_some()
    }

    /// Checks that this member is the leader, and that a majority has confirmed its leadership
    /// within [`CONFIRMED_FOR`]. The only voter needs no confirmation.
    ///
    /// # Errors
    /// `NotLeader` with the addresses of the leader.
    pub(crate) fn check_leader(&self) -> Result<()> {
        let inner = self.inner.borrow();
        let is_confirmed = |lead: &Lead| skep_env::now() <= lead.confirmed_at + CONFIRMED_FOR;
        match &inner.lead {
            Some(lead) if is_confirmed(lead) || self.member.is_only_voter() => Ok(()),
            _ => Err(self.not_leader(&inner.published)),
        }
    }

    /// Like [`Self::check_leader`], and also checks that this leader has published a map.
    ///
    /// # Errors
    /// `NotLeader`, without addresses if this member will serve in a moment.
    pub(crate) fn check_serving(&self) -> Result<()> {
        self.check_leader()?;
        let inner = self.inner.borrow();
        match inner.lead.as_ref().is_some_and(|lead| lead.collects_until.is_none()) {
            true => Ok(()),
            false => Err(self.not_leader(&inner.published)),
        }
    }

    /// Returns the error of a member that is not the leader, with the addresses of the leader.
    fn not_leader(&self, map: &ClusterMap) -> Error {
        let leader = self.member.leader().filter(|id| *id != u64::from(self.own.raw()));
        let in_map = leader.and_then(|id| map.node(NodeId::new(u32::try_from(id).ok()?)));
        let addresses = match (leader, in_map) {
            (None, _) => Vec::new(),
            (Some(_), Some(node)) => node.addresses.clone(),
            (Some(_), None) => self.member.leader_addresses(),
        };
        Error::new(ErrorCode::NotLeader, leader_text(&addresses))
    }

    /// Begins to lead. `starts` becomes [`Lead::starts`]. `confirmed_at` is the time at which the
    /// leader sent the request that the majority confirmed. If this member does not have the
    /// previous leader's map and is not the only voter, the leader first collects heartbeats for a
    /// little more than one interval. If the leader did not collect heartbeats first, each election
    /// would show all nodes as unreachable for a moment.
    pub(crate) fn begin_lead(&self, starts: u64, confirmed_at: Duration) {
        let mut inner = self.inner.borrow_mut();
        let has_map = inner.published.version.raw() > 0;
        let last = has_map.then_some(&*inner.published);
        let soft = self.member.with_state(|it| match last {
            Some(last) => SoftState::of_map(now_ms(), &it.state, last),
            None => SoftState::new(now_ms(), &it.state),
        });
        let mut lead = Lead {
            starts,
            confirmed_at,
            soft,
            versions: VersionSequence::default(),
            total_capacity: None,
            collects_until: None,
            published_changes: 0,
            is_soft_newer: false,
            losses: LossReports::default(),
        };
        if !has_map && !self.member.is_only_voter() {
            let interval = u64::from(inner.published.policy.heartbeat_ms);
            let span = Duration::from_millis(interval) + COLLECT_MARGIN;
            lead.collects_until = Some(skep_env::now() + span);
        }
        inner.lead = Some(lead);
    }

    /// Ends the leadership, because another member leads or may lead.
    pub(crate) fn end_lead(&self) {
        self.inner.borrow_mut().lead = None;
        self.changed.notify();
    }

    /// Records that a majority has confirmed the leadership. The leader sent the request for this
    /// confirmation at `asked_at`.
    pub(crate) fn note_confirmed(&self, asked_at: Duration) {
        if let Some(lead) = &mut self.inner.borrow_mut().lead {
            lead.confirmed_at = lead.confirmed_at.max(asked_at);
        }
    }

    /// Publishes the changes from the time in which the leader could not publish, because the
    /// leader was collecting heartbeats or because no majority had confirmed its leadership.
    pub(crate) fn publish_what_waits(&self) {
        if let Some(lead) = &mut self.inner.borrow_mut().lead {
            lead.collects_until.take_if(|until| skep_env::now() >= *until);
        }
        self.publish_changes();
    }

    /// Records the newest map of the leader, if this member is not the leader itself.
    pub(crate) fn note_map(&self, map: &ClusterMap) {
        let mut inner = self.inner.borrow_mut();
        if inner.lead.is_none() && map.version > inner.published.version {
            inner.published = Rc::new(map.clone());
            inner.encoded = None;
            drop(inner);
            self.changed.notify();
        }
    }

    /// Records that a member of a group may lack records. Returns the reports that this leader has
    /// received from the members of that group. Reports to previous leaders do not count. Returns
    /// an empty map if this member is not the leader.
    pub(crate) fn note_loss(&self, report: &AskTakeOver) -> BTreeMap<TargetId, LossReport> {
        let mut inner = self.inner.borrow_mut();
        let note = |lead: &mut Lead| lead.losses.note(report, skep_env::now());
        inner.lead.as_mut().map(note).unwrap_or_default()
    }

    /// Notes that a group waits for reports of its members after a restore of management. Returns
    /// whether a log line about this wait is due.
    pub(crate) fn note_loss_wait(&self, group: GroupId) -> bool {
        let mut inner = self.inner.borrow_mut();
        inner.lead.as_mut().is_some_and(|lead| lead.losses.note_wait(group, skep_env::now()))
    }

    /// Returns the published map.
    pub(crate) fn map(&self) -> Rc<ClusterMap> {
        Rc::clone(&self.inner.borrow().published)
    }

    /// Returns the capacity of the whole cluster for file data. `None` means that this member is
    /// not the leader. It also means that some storage targets have not reported yet to a leader
    /// that has led for less than one lease of a node.
    pub(crate) fn total_capacity(&self) -> Option<Capacity> {
        self.inner.borrow().lead.as_ref()?.total_capacity
    }

    /// Returns the published map as the body of a `MapUpdate`. `None` means that the map is not
    /// newer than `known`, or that this leader has not published a map yet.
    pub(crate) fn newer(&self, known: MapVersion) -> Option<Rc<[u8]>> {
        let mut inner = self.inner.borrow_mut();
        let AuthorityState { published, encoded, lead } = &mut *inner;
        let is_own = lead.as_ref().is_some_and(|lead| lead.collects_until.is_none());
        // A node can have a newer map than management if management's directory was restored from
        // an older backup. The heartbeat of such a node raises the version (`continue_above`).
        (is_own && published.version > known).then(|| {
            let encode = || MapUpdate { map: Some((**published).clone()) }.to_bytes().into();
            Rc::clone(encoded.get_or_insert_with(encode))
        })
    }

    /// Returns the clients whose ids are above `after`, in ascending order of ids, but at most
    /// `most` clients.
    pub(crate) fn clients(&self, after: NodeId, most: usize) -> Vec<ClientEntry> {
        let inner = self.inner.borrow();
        let now = now_ms();
        let silent_ms =
            |node| inner.lead.as_ref().and_then(|lead| lead.soft.ms_since_heartbeat(now, node));
        let entry = |client: &ClientDetails| ClientEntry {
            node: client.node,
            host: client.host.clone(),
            mount_point: client.mount_point.clone(),
            pid: client.pid,
            registered: client.registered,
            silent_ms: silent_ms(client.node),
        };
        self.member.with_state(|it| {
            let clients = it.state.clients().iter().filter(|client| client.node > after);
            clients.take(most).map(entry).collect()
        })
    }

    /// Returns the host name of each server that has reported its host.
    pub(crate) fn hosts(&self) -> Vec<(NodeId, String)> {
        self.member.with_state(|it| it.state.hosts().to_vec())
    }

    /// Returns the last evictions of clients, the oldest first.
    pub(crate) fn evictions(&self) -> Vec<Eviction> {
        self.member.with_state(|it| it.state.evictions().cloned().collect())
    }

    /// Returns the id of the server with this uuid. `None` means that no server with this uuid has
    /// registered.
    pub(crate) fn server_with_uuid(&self, uuid: u128) -> Option<NodeId> {
        self.member.with_state(|it| it.state.server_with_uuid(uuid))
    }

    /// Whether a node is in the cluster.
    pub(crate) fn has_node(&self, node: NodeId) -> bool {
        self.member.with_state(|it| it.state.map().node(node).is_some())
    }

    /// Whether a node was removed from the cluster.
    pub(crate) fn has_removed(&self, node: NodeId) -> bool {
        self.member.with_state(|it| it.state.map().has_removed(node))
    }

    /// Checks that the published map is a map of this cluster. If this leader has published a map,
    /// also checks that its version belongs to this leadership.
    ///
    /// # Panics
    /// Panics if one of these conditions does not hold.
    pub(crate) fn check_invariants(&self) {
        let inner = self.inner.borrow();
        let (published, cluster) =
            (&inner.published, self.member.with_state(|it| it.state.map().cluster));
        assert_eq!(published.cluster, cluster, "the published map is of this cluster");
        if let Some(lead) = inner.lead.as_ref().filter(|lead| lead.published_changes > 0) {
            let starts = starts_of(published.version);
            assert_eq!(starts, lead.starts, "the version of the map belongs to this leadership");
        }
    }

    fn soft_change(&self, changed: bool) {
        if let Some(lead) = &mut self.inner.borrow_mut().lead {
            lead.is_soft_newer |= changed;
        }
        self.publish_changes();
    }

    /// Publishes a map if the state or the soft state has changed since the last map. Does nothing
    /// if this member is not the confirmed leader, or is still collecting heartbeats.
    fn publish_changes(&self) {
        if self.check_leader().is_err() {
            return;
        }
        let is_newer = {
            let inner = self.inner.borrow();
            let changes = self.member.with_state(|it| it.changes);
            inner.lead.as_ref().is_some_and(|lead| {
                lead.collects_until.is_none()
                    && (lead.is_soft_newer || lead.published_changes != changes)
            })
        };
        if is_newer {
            self.publish();
        }
    }

    fn publish(&self) {
        let mut inner = self.inner.borrow_mut();
        let AuthorityState { lead, published, encoded } = &mut *inner;
        let Some(lead) = lead else { return };
        let (mut map, changes) = self.member.with_state(|it| (it.state.map().clone(), it.changes));
        map.version = lead.versions.next(lead.starts);
        lead.soft.overlay(&mut map);
        self.member.with_state(|it| it.state.mark_closed(&mut map));
        lead.published_changes = changes;
        lead.is_soft_newer = false;
        for line in map_log::reachability_lines(published, &map, |node| lead.soft.last_outage(node))
        {
            line.write();
        }
        // Update the capacity here, and not only at each tick. A client that mounts right after the
        // first targets have registered must not get a capacity of zero.
        lead.total_capacity = lead.soft.total_capacity(&map);
        *published = Rc::new(map);
        *encoded = None;
        drop(inner);
        self.changed.notify();
        if cfg!(debug_assertions) {
            self.check_invariants();
        }
    }
}
