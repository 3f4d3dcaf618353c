//! Changes of management's leader. In some runs, management has several members, and this module
//! simulates the contract of their replicated log (`docs/design/0018-replicated-management.md`).
//!
//! # Contract
//! - The leader proposes a command for each request. The command takes effect when a majority has
//!   stored the command (`commit`). The leader carries out the command only after this moment. The
//!   command changes the group only if it contains the current epoch of the group
//!   (compare-and-set). Then the leader sends its reply, and publishes a map.
//! - A leader that has lost its majority commits nothing. The successor of this leader inherits a
//!   random number of the uncommitted proposals, the oldest proposals first. The senders of these
//!   proposals get no reply. All other uncommitted proposals are lost. Members send a request again
//!   if they get no reply.
//! - Until the previous leader notices its loss, it still replies to processes that ask for a map,
//!   and publishes maps with changes of its soft state, such as free space. These maps contain no
//!   change that was committed after this loss. Requests to this leader get a refusal or no reply.
//!   At the same time, its successor may already serve.
//! - The versions of a leader's maps contain the number of its own start.
//! - Loss reports of members are soft state, and a new leader begins without reports.
//!
//! The module has its own random numbers. So runs without changes of the leader do not depend on
//! these numbers.

use super::authority::Authority;
use super::cluster::{Cluster, GroupEvent};
use super::knobs::GroupBug;
use super::messages::{Ask, Message, Place, Process};
use crate::random::Random;
use skep_cluster::versions::VersionSequence;
use skep_types::map::CapacityPool;
use skep_types::{ClusterMap, ErrorCode, MapVersion, TargetKind};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Longest time in microseconds for which a leader serves after it has lost its majority
/// (`crates/management/src/leadership.rs`).
const LONGEST_TRUST_MICROS: u64 = 1_200_000;
/// Shortest and longest time in microseconds between the loss of a leader and the first map of its
/// successor. A successor may begin while the previous leader still serves.
const ELECTION_MICROS: (u64, u64) = (200_000, 2_500_000);
/// Longest time in microseconds until a majority has stored a command. The first constant is for
/// usual disks, the second for slow disks.
const USUAL_COMMIT_MICROS: u64 = 20_000;
const SLOW_COMMIT_MICROS: u64 = 400_000;
/// Time after which a process that has not received the newest map asks again for a map.
const ASK_AGAIN: Duration = Duration::from_millis(1_300);

/// A command that no majority has stored yet.
#[derive(Debug)]
struct Proposal {
    number: u64,
    from: Process,
    /// The id of the request.
    request: u64,
    ask: Ask,
    /// For a planted bug: the map before the command took effect.
    map_before: Option<Arc<ClusterMap>>,
}

/// A leader that has lost its majority and has not noticed its loss yet.
#[derive(Debug)]
struct FormerLeader {
    /// The newest map that this leader has published.
    map: Arc<ClusterMap>,
    starts: u64,
    versions: VersionSequence,
    /// Time at which the previous leader stops serving.
    until: Duration,
}

/// The leaders of management.
#[derive(Debug)]
pub(super) struct Leaders {
    random: Random,
    /// Whether the newest leader serves. `false` means that the next leader has not begun yet.
    is_serving: bool,
    /// Sequence number of the newest leader's start.
    starts: u64,
    /// Assigns the versions of the newest leader's maps.
    versions: VersionSequence,
    /// The commands of the newest leader that no majority has stored yet. The oldest is first.
    proposals: VecDeque<Proposal>,
    last_commit: Duration,
    /// The oldest proposals of the previous leader, which the log of the next leader contains.
    inherited: Vec<Proposal>,
    former: Option<FormerLeader>,
    /// For a planted bug: the state of the next leader, which lacks published changes.
    reverted: Option<Arc<ClusterMap>>,
    /// Number of times that the leader has changed.
    pub(super) changes: u64,
}

impl Leaders {
    /// Creates the first leader, which has published the map with the version `first`.
    pub(super) fn new(random: Random, first: MapVersion) -> Self {
        let mut versions = VersionSequence::default();
        let version = versions.next(0);
        assert_eq!(version, first, "the first map has the first version");
        Self {
            random,
            is_serving: true,
            starts: 0,
            versions,
            proposals: VecDeque::new(),
            last_commit: Duration::ZERO,
            inherited: Vec::new(),
            former: None,
            reverted: None,
            changes: 0,
        }
    }

    /// Whether the newest leader serves.
    pub(super) fn is_serving(&self) -> bool {
        self.is_serving
    }

    /// Returns the version of the next map.
    pub(super) fn next_version(&mut self) -> MapVersion {
        self.versions.next(self.starts)
    }

    /// Ends the previous leader.
    pub(super) fn end_former(&mut self) {
        self.former = None;
    }

    /// Removes and returns the oldest proposal, if its number is at most `last`.
    fn next_stored(&mut self, last: u64) -> Option<Proposal> {
        let is_stored = self.proposals.front().is_some_and(|next| next.number <= last);
        if is_stored { self.proposals.pop_front() } else { None }
    }

    /// Returns the previous leader, if this leader still serves and a process reaches it instead of
    /// the newest leader. While the two leaders serve, a random number decides which leader the
    /// process reaches.
    fn former_reached(&mut self, now: Duration) -> Option<&FormerLeader> {
        let former = self.former.as_ref().filter(|it| now < it.until)?;
        (!self.is_serving || self.random.percent(40)).then_some(former)
    }
}

impl Authority {
    /// Returns the map that a process gets when it asks management. `None` means that no leader
    /// replies.
    fn map_for_process(&mut self, now: Duration) -> Option<Arc<ClusterMap>> {
        if let Some(former) = self.leaders.former_reached(now) {
            return Some(Arc::clone(&former.map));
        }
        self.leaders.is_serving.then(|| Arc::clone(&self.map))
    }
}

impl Cluster {
    /// Whether management's leader changes in this run.
    fn has_leader_changes(&self) -> bool {
        self.knobs.faults.leader_changes
    }

    /// Returns the map that a starting process gets from management. `None` means that no leader
    /// replies.
    pub(super) fn ask_map(&mut self) -> Option<Arc<ClusterMap>> {
        self.authority.map_for_process(self.now)
    }

    /// Sends a map of management to a process that asks for the newest map.
    pub(super) fn send_map(&mut self, to: Place) {
        let found = self.ask_map();
        let newest = self.map().version;
        if found.as_ref().is_none_or(|map| map.version < newest) {
            self.after(ASK_AGAIN, GroupEvent::SendMap { to });
        }
        if let Some(map) = found {
            self.post(Message::Map { to, map });
        }
    }

    /// Handles the arrival of a member's request at management.
    pub(super) fn receive_ask(&mut self, from: Process, request: u64, ask: Ask) {
        if !self.has_leader_changes() {
            return self.decide(from, request, &ask);
        }
        if self.authority.leaders.former_reached(self.now).is_some() {
            if self.authority.leaders.random.percent(50) {
                let error = Some(ErrorCode::NotLeader);
                self.post(Message::FromManagement { to: from, number: request, error });
            }
            return;
        }
        if !self.authority.leaders.is_serving {
            return;
        }
        let number = self.new_number();
        let is_planted = self.knobs.plant == Some(GroupBug::AnswerBeforeCommit);
        let map_before = is_planted.then(|| Arc::clone(self.map()));
        if is_planted {
            self.decide(from, request, &ask);
        }
        let leaders = &mut self.authority.leaders;
        leaders.proposals.push_back(Proposal { number, from, request, ask, map_before });
        let is_slow = leaders.random.percent(5);
        let most = if is_slow { SLOW_COMMIT_MICROS } else { USUAL_COMMIT_MICROS };
        let stored = self.now + leaders.random.micros(100, most);
        // The log has an order, so no command commits before an earlier command.
        leaders.last_commit = stored.max(leaders.last_commit);
        let at = leaders.last_commit;
        // A random fault rarely occurs between the proposal of a command and its commit, so some
        // faults are planned for this time.
        let lost = self.now + leaders.random.micros(1, most);
        let is_aimed_at = leaders.random.percent(5);
        self.at(at, GroupEvent::Commit { proposal: number });
        if is_aimed_at {
            self.at(lost, GroupEvent::LeaderLoss);
        }
    }

    /// Lets the proposals up to `proposal` take effect, unless the leader has lost its majority.
    pub(super) fn commit(&mut self, proposal: u64) {
        if self.now < self.authority.is_back {
            return self.at(self.authority.is_back, GroupEvent::Commit { proposal });
        }
        while let Some(next) = self.authority.leaders.next_stored(proposal) {
            if self.knobs.plant != Some(GroupBug::AnswerBeforeCommit) {
                self.decide(next.from, next.request, &next.ask);
            }
        }
    }

    /// Plans the next fault of a leader.
    pub(super) fn schedule_leader_fault(&mut self) {
        if self.has_leader_changes() {
            let pause = self.authority.leaders.random.micros(500_000, 6_000_000);
            self.after(pause, GroupEvent::LeaderFault);
        }
    }

    /// Lets the leader stall, or lets the leader lose its majority.
    pub(super) fn leader_fault(&mut self) {
        if !self.is_busy {
            return;
        }
        self.schedule_leader_fault();
        if self.authority.leaders.random.percent(75) {
            return self.lose_leader();
        }
        self.faults += 1;
        let stall = self.authority.leaders.random.micros(50_000, 800_000);
        self.authority.is_back = self.authority.is_back.max(self.now + stall);
    }

    /// In some cases, takes the majority from the leader between two commands of one decision.
    pub(super) fn may_lose_leader(&mut self) {
        if self.has_leader_changes() && self.authority.leaders.random.percent(10) {
            self.lose_leader();
        }
    }

    /// Takes the majority from the leader, if there is a leader. The leader then either serves for
    /// a short time, or no longer replies, like a killed or stopped process.
    pub(super) fn lose_leader(&mut self) {
        if !self.is_busy || !self.authority.leaders.is_serving {
            return;
        }
        self.faults += 1;
        self.note(|| "the leader of management loses its majority".to_owned());
        let now = self.now;
        let Authority { leaders, map, .. } = &mut self.authority;
        let kept = leaders.random.index(leaders.proposals.len() + 1);
        leaders.inherited = leaders.proposals.drain(..kept).collect();
        leaders.reverted = leaders.proposals.pop_front().and_then(|lost| lost.map_before);
        leaders.proposals.clear();
        leaders.is_serving = false;
        let versions = std::mem::take(&mut leaders.versions);
        let (starts, map) = (leaders.starts, Arc::clone(map));
        let serves_on = leaders.random.percent(70);
        let until = now + leaders.random.micros(1, LONGEST_TRUST_MICROS);
        leaders.former = serves_on.then_some(FormerLeader { map, starts, versions, until });
        let published = now + leaders.random.micros(1, LONGEST_TRUST_MICROS);
        let (least, most) = ELECTION_MICROS;
        let begun = now + leaders.random.micros(least, most);
        if serves_on {
            self.at(published, GroupEvent::FormerLeaderPublishes);
        }
        self.at(begun, GroupEvent::NewLeader);
    }

    /// Lets the previous leader publish a map with a change of its soft state, if this leader still
    /// serves.
    pub(super) fn publish_as_former(&mut self) {
        let now = self.now;
        let former = self.authority.leaders.former.as_mut();
        let Some(former) = former.filter(|it| now < it.until) else { return };
        let mut map = ClusterMap::clone(&former.map);
        map.version = former.versions.next(former.starts);
        for target in map.targets.iter_mut().filter(|it| it.kind == TargetKind::Storage) {
            target.capacity_pool = match target.capacity_pool {
                CapacityPool::Normal => CapacityPool::Low,
                CapacityPool::Low | CapacityPool::Emergency => CapacityPool::Normal,
            };
        }
        let map = Arc::new(map);
        former.map = Arc::clone(&map);
        self.note(|| format!("the previous leader publishes {}", map.version));
        self.announce(&map);
    }

    /// Lets the next leader begin: this leader carries out its inherited commands, and publishes
    /// its first map.
    pub(super) fn begin_leader(&mut self) {
        if self.now < self.authority.is_back {
            return self.at(self.authority.is_back, GroupEvent::NewLeader);
        }
        self.authority.forget_reports();
        let is_planted = self.knobs.plant == Some(GroupBug::ShareVersions);
        let Authority { leaders, map, .. } = &mut self.authority;
        leaders.is_serving = true;
        leaders.changes += 1;
        if is_planted {
            // With the planted bug, the leader continues with the start number of its predecessor.
            while leaders.versions.next(leaders.starts) < map.version {}
        } else {
            leaders.starts += 1;
        }
        if let Some(reverted) = leaders.reverted.take() {
            *map = reverted;
        }
        let (starts, inherited) = (leaders.starts, std::mem::take(&mut leaders.inherited));
        self.note(|| format!("start {starts} of management, {} inherited", inherited.len()));
        for proposal in inherited {
            let is_report = matches!(&proposal.ask, Ask::TakeOver(it) if it.lacks_records);
            if !is_report && self.knobs.plant != Some(GroupBug::AnswerBeforeCommit) {
                // Send no reply, because the sender waits for a reply of the previous leader.
                let _ = self.carry_out(&proposal.ask);
            }
        }
        let map = ClusterMap::clone(self.map());
        self.publish(map);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::group_change::{GroupChange, MemberChange};
    use skep_types::{Epoch, GroupId, TargetId};

    fn leaders() -> Leaders {
        Leaders::new(Random::new(1), MapVersion::new(1))
    }

    fn proposal(number: u64) -> Proposal {
        let epoch = Epoch::new(1);
        let (group, target) = (GroupId::new(1), TargetId::new(2));
        let change = GroupChange { group, epoch, change: MemberChange::TakeOver, target };
        let ask = Ask::Change(change, epoch);
        Proposal { number, from: (0, 1), request: number, ask, map_before: None }
    }

    #[test]
    fn commands_take_effect_in_the_order_of_the_log() {
        let mut leaders = leaders();
        leaders.proposals.extend([3, 5, 8].map(proposal));
        let mut stored = |last| {
            let next = std::iter::from_fn(|| leaders.next_stored(last));
            next.map(|it| it.number).collect::<Vec<_>>()
        };
        // A majority that has stored a command has also stored all earlier commands.
        assert_eq!(stored(2), Vec::<u64>::new());
        assert_eq!(stored(5), [3, 5]);
        assert_eq!(stored(3), Vec::<u64>::new());
        assert_eq!(stored(8), [8]);
    }

    #[test]
    fn previous_leader_is_reached_only_before_its_end_time() {
        let mut leaders = leaders();
        let map = Arc::new(ClusterMap::empty(skep_types::ClusterId::new([1; 16])));
        let until = Duration::from_secs(1);
        let versions = VersionSequence::default();
        leaders.former = Some(FormerLeader { map, starts: 0, versions, until });
        let early = Duration::from_millis(999);
        leaders.is_serving = false;
        assert!((0..100).all(|_| leaders.former_reached(early).is_some()));
        assert!(leaders.former_reached(until).is_none());
        leaders.is_serving = true;
        let reached = (0..100).filter(|_| leaders.former_reached(early).is_some()).count();
        assert!((1..100).contains(&reached), "previous leader reached by {reached} of 100");
        assert!(leaders.former_reached(until).is_none());
    }
}
