//! The stop of a primary: before its process ends, the primary hands its group over to another
//! serving member.
//!
//! Without this module, another member would first have to wait for the end of the primary's lease,
//! and programs would wait meanwhile. So a stopping primary continues to serve, and asks management
//! to make another member the primary. The cluster map with the new primary ends the thread of the
//! target. The service then opens the target once more as a backup member, which releases the lease
//! and then stops serving in its group ([`super::leaving`]).
//!
//! Chooses the member and the time. Management makes the change, by compare-and-set on the epoch of
//! the group.
//!
//! # Members that stop at the same time
//! If all services of a cluster stop, no member should take over. So the primary waits for
//! [`SETTLE`] after the beginning of its own stop, and then sends each member a request. The
//! primary hands the group over only to a member that confirms the whole log in reply to this or a
//! later request. A stopping backup member refuses the primary's request. A stopping previous
//! primary confirms only requests without the id of its process, and a confirmation of a request
//! without this id does not count. So two stopping members never hand a group back and forth.
//!
//! # Invariants
//! - The primary serves until it gets the map with another primary, or until [`STOP_LIMIT`].
//! - The primary proposes only a member that can act as the primary: one with all records and a
//!   disk with free space.
//!
//! The invariants concern the messages of a member over time, which no state shows.
//!
//! Held by the tests `stopping_primary_serves_at_most_until_its_time_limit`,
//! `stopping_primary_hands_over_to_a_member_with_the_whole_log` and
//! `stopping_primary_exits_immediately_without_a_successor`, and over sockets by the test
//! `primary_that_stops_cleanly_pauses_its_group_only_briefly`.

use super::hand_over::successor;
use crate::term::Membership;
use skep_types::TargetId;
use skep_types::group_change::{GroupChange, MemberChange};
use std::collections::BTreeSet;
use std::time::Duration;

/// Maximum time for which a stopping primary waits until another member is the primary. This time
/// is long enough for an election among the management members. Meanwhile the primary serves, so
/// programs do not notice the wait.
const STOP_LIMIT: Duration = Duration::from_secs(2);
/// Time after which the primary asks whether the other members stop too. A service manager and
/// `skep down` send the signal to all services of a host within some milliseconds.
const SETTLE: Duration = Duration::from_millis(100);
/// Pause before the primary repeats its request to management, for example because of an election.
const ASK_PAUSE: Duration = Duration::from_millis(100);
/// Interval at which a stopping primary decides again, even if no event arrives.
const LOOK: Duration = Duration::from_millis(20);

/// The progress of a stop of a primary.
#[derive(Debug, Default)]
pub(super) struct PrimaryStop {
    began: Option<Duration>,
    /// Time at which the primary last decided the next step of its stop.
    looked: Duration,
    /// Whether the primary has asked the other members whether they stop too.
    has_asked_members: bool,
    /// Earliest time of the next request to management.
    ask_at: Duration,
}

/// The other members of the group, according to their replies to the stopping primary.
#[derive(Debug, Default)]
pub(super) struct OtherMembers {
    /// The members whose newest reply is that their service stops.
    pub(super) stopping: BTreeSet<TargetId>,
    /// The members that have confirmed the whole log after a request that the primary sent at
    /// [`PrimaryStop::settled_at`] or later.
    pub(super) complete: Vec<TargetId>,
}

/// The next step of a stopping primary.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum StopStep {
    /// The primary serves until the next decision.
    Serve,
    /// The primary asks management for this change, and serves until the next decision.
    HandOver(GroupChange),
    /// The role ends now.
    End,
}

impl PrimaryStop {
    /// Begins the stop at the time `now`, unless it has already begun. Returns the time [`SETTLE`]
    /// after the beginning. Confirmations of earlier requests do not count.
    pub(super) fn settled_at(&mut self, now: Duration) -> Duration {
        *self.began.get_or_insert(now) + SETTLE
    }

    /// Returns whether the primary must send each other member a request now. Returns `true` only
    /// once.
    pub(super) fn must_ask_members(&mut self, now: Duration) -> bool {
        let is_due = now >= self.settled_at(now) && !self.has_asked_members;
        self.has_asked_members |= is_due;
        is_due
    }

    /// Returns the time of the next decision. `tick` is the time at which the target needs its next
    /// batch.
    pub(super) fn next_due(&self, tick: Duration) -> Duration {
        if self.began.is_some() { tick.min(self.looked + LOOK) } else { tick }
    }

    /// Returns the next step at the time `now`. `membership` contains the newest cluster map.
    pub(super) fn step(
        &mut self,
        membership: &Membership,
        others: &OtherMembers,
        now: Duration,
    ) -> StopStep {
        self.looked = now;
        let began = *self.began.get_or_insert(now);
        let own = membership.target;
        let Some(group) = membership.map.group(membership.group) else { return StopStep::End };
        let may_serve = |member: TargetId| member != own && !others.stopping.contains(&member);
        let has_any = successor(&membership.map, group, may_serve).is_some();
        if !has_any || now >= began + STOP_LIMIT {
            return StopStep::End;
        }
        let is_complete = |member: TargetId| may_serve(member) && others.complete.contains(&member);
        match successor(&membership.map, group, is_complete) {
            Some(target) if now >= self.ask_at => {
                self.ask_at = now + ASK_PAUSE;
                let (group, epoch) = (group.id, group.epoch);
                let change = MemberChange::HandOver;
                StopStep::HandOver(GroupChange { group, epoch, change, target })
            }
            _ => StopStep::Serve,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::map::{Capacity, CapacityPool, Reachability};
    use skep_types::{
        ClusterId, ClusterMap, Epoch, Group, GroupId, GroupMember, MemberState, NodeId, Target,
        TargetKind,
    };
    use std::sync::Arc;

    const NOW: Duration = Duration::from_secs(9);
    const PRIMARY: TargetId = TargetId::new(1);
    const SECOND: TargetId = TargetId::new(2);
    const THIRD: TargetId = TargetId::new(3);

    fn others(stopping: &[TargetId], complete: &[TargetId]) -> OtherMembers {
        OtherMembers { stopping: stopping.iter().copied().collect(), complete: complete.to_vec() }
    }

    /// Returns the membership of target 1, the primary of a group of three serving members. Target
    /// 3 has the most free space.
    fn membership() -> Membership {
        let target = |id: TargetId| Target {
            reachability: Reachability::Online,
            capacity_pool: CapacityPool::Normal,
            capacity: Capacity { free_bytes: u64::from(id.raw()) << 30, ..Capacity::default() },
            ..Target::new(id, TargetKind::Metadata, NodeId::new(id.raw()), "/t")
        };
        let ids = [PRIMARY, SECOND, THIRD];
        let member = |target| GroupMember { target, state: MemberState::Serving };
        let group = Group {
            members: ids.into_iter().map(member).collect(),
            epoch: Epoch::new(4),
            ..Group::of_one(GroupId::new(5), TargetKind::Metadata, PRIMARY)
        };
        let map = ClusterMap {
            targets: ids.into_iter().map(target).collect(),
            groups: vec![group],
            ..ClusterMap::empty(ClusterId::default())
        };
        Membership { group: GroupId::new(5), target: PRIMARY, map: Arc::new(map) }
    }

    fn hand_over(target: TargetId) -> StopStep {
        let (group, epoch) = (GroupId::new(5), Epoch::new(4));
        StopStep::HandOver(GroupChange { group, epoch, change: MemberChange::HandOver, target })
    }

    #[test]
    fn stopping_primary_hands_over_to_a_member_with_the_whole_log() {
        let (mut stop, membership) = (PrimaryStop::default(), membership());
        assert_eq!(stop.step(&membership, &others(&[], &[]), NOW), StopStep::Serve);
        let found = stop.step(&membership, &others(&[], &[SECOND]), NOW + LOOK);
        assert_eq!(found, hand_over(SECOND), "target 3 has more free space, but may be silent");
        let again = stop.step(&membership, &others(&[], &[SECOND, THIRD]), NOW + 2 * LOOK);
        assert_eq!(again, StopStep::Serve, "the primary pauses before its next request");
        let later = NOW + LOOK + ASK_PAUSE;
        let found = stop.step(&membership, &others(&[], &[SECOND, THIRD]), later);
        assert_eq!(found, hand_over(THIRD));
    }

    #[test]
    fn stopping_primary_does_not_hand_over_to_a_stopping_member() {
        let (mut stop, membership) = (PrimaryStop::default(), membership());
        let both = [SECOND, THIRD];
        assert_eq!(stop.step(&membership, &others(&[THIRD], &both), NOW), hand_over(SECOND));
        let later = NOW + ASK_PAUSE;
        assert_eq!(stop.step(&membership, &others(&both, &both), later), StopStep::End);
    }

    #[test]
    fn stopping_primary_serves_at_most_until_its_time_limit() {
        let (mut stop, membership) = (PrimaryStop::default(), membership());
        assert_eq!(stop.step(&membership, &others(&[], &[]), NOW), StopStep::Serve);
        let nearly = NOW + STOP_LIMIT - LOOK;
        assert_eq!(stop.step(&membership, &others(&[], &[]), nearly), StopStep::Serve);
        let late = NOW + STOP_LIMIT;
        assert_eq!(stop.step(&membership, &others(&[], &[SECOND]), late), StopStep::End);
    }

    #[test]
    fn stopping_primary_exits_immediately_without_a_successor() {
        fn unfit(change: fn(&mut ClusterMap)) -> StopStep {
            let mut membership = membership();
            change(Arc::make_mut(&mut membership.map));
            let both = others(&[], &[SECOND, THIRD]);
            PrimaryStop::default().step(&membership, &both, NOW)
        }
        let ends = [
            unfit(|map| map.groups[0].members.truncate(1)),
            unfit(|map| {
                let members = map.groups[0].members.iter_mut().skip(1);
                members.for_each(|it| it.state = MemberState::Waiting);
            }),
            unfit(|map| {
                map.targets.iter_mut().for_each(|it| it.reachability = Reachability::Offline);
            }),
            unfit(|map| {
                map.targets.iter_mut().for_each(|it| it.capacity_pool = CapacityPool::Emergency);
            }),
            unfit(|map| map.groups.clear()),
        ];
        assert!(ends.iter().all(|it| *it == StopStep::End), "{ends:?}");
    }

    #[test]
    fn stopping_primary_queries_each_member_once_after_a_short_wait() {
        let mut stop = PrimaryStop::default();
        assert_eq!(stop.next_due(2 * NOW), 2 * NOW, "no stop has begun");
        assert_eq!(stop.settled_at(NOW), NOW + SETTLE);
        assert!(!stop.must_ask_members(NOW + SETTLE / 2));
        assert_eq!(
            stop.settled_at(NOW + SETTLE),
            NOW + SETTLE,
            "the time counts from the beginning of the stop"
        );
        assert!(stop.must_ask_members(NOW + SETTLE));
        assert!(!stop.must_ask_members(NOW + 2 * SETTLE));
        stop.step(&membership(), &others(&[], &[]), NOW + SETTLE);
        assert_eq!(stop.next_due(2 * NOW), NOW + SETTLE + LOOK);
    }
}
