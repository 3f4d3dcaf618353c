//! Requests that arrive at management only after a power loss of the member that has sent them.
//! After management has carried out such a request, this member may be the only serving member.
//!
//! Random faults rarely cause this order of events. So in some runs, the module delays a request to
//! take over or to drop a member. Until the request arrives, the links between all other processes
//! work, no member reaches management, and clients continue. The sender loses power right after a
//! client has received a reply. At this moment, the sender's disk may lack the newest record, and
//! the reply depends on this record. In some cases, the process of the sender is killed before the
//! power loss. The next process then finds in the member's durable mark that the member has sent a
//! request.
//!
//! The module has its own random numbers. So runs without late requests do not depend on these
//! numbers.

use super::cluster::{Cluster, GroupEvent};
use super::member::Role;
use super::messages::{Ask, Message, Place, Process};
use crate::random::Random;
use skep_types::group_change::MemberChange;
use std::time::Duration;

/// Percentage of the requests to take over or to drop a member that arrive late.
const LATE_PERCENT: u64 = 40;
/// Shortest and longest time in microseconds between the end of other faults and the arrival of the
/// late request.
const DELAY_MICROS: (u64, u64) = (300_000, 1_500_000);
/// Percentage of the late requests after which the process of the sender is killed.
const KILL_PERCENT: u64 = 30;
/// Percentage of the replies to clients after which the sender of a late request loses power.
const LOSS_PERCENT: u64 = 15;

/// The late request of a run.
#[derive(Debug)]
pub(super) struct LateRequests {
    random: Random,
    /// The member that has sent the late request, and the time of its arrival. `None` means that
    /// there is no late request whose sender may still lose power.
    sender: Option<(usize, Duration)>,
}

impl LateRequests {
    pub(super) fn new(random: Random) -> Self {
        Self { random, sender: None }
    }
}

/// Whether the sender of a request may be the only serving member after management has carried out
/// the request.
fn may_leave_alone(ask: &Ask) -> bool {
    match ask {
        Ask::Change(change, _) => change.change == MemberChange::Drop,
        Ask::TakeOver(request) => !request.lacks_records,
    }
}

impl Cluster {
    /// Sends a request of a member to management, or plans a late arrival of the request.
    pub(super) fn send_to_management(&mut self, from: Process, number: u64, ask: Ask) {
        let now = self.now;
        let may_delay = self.is_busy
            && self.knobs.faults.late_requests
            && self.late_requests.sender.is_none_or(|(_, arrival)| now >= arrival)
            && may_leave_alone(&ask);
        if !may_delay || !self.late_requests.random.percent(LATE_PERCENT) {
            return self.post(Message::ToManagement { from, number, ask });
        }
        self.faults += 1;
        self.links.heal();
        // A stopped primary continues before the request arrives.
        let begin = self.members.iter().map(|it| it.stopped_until).fold(now, Duration::max);
        let random = &mut self.late_requests.random;
        let arrival = begin + random.micros(DELAY_MICROS.0, DELAY_MICROS.1);
        let killed_at = begin + random.micros(1, DELAY_MICROS.0 / 2);
        let is_killed = random.percent(KILL_PERCENT);
        self.late_requests.sender = Some((from.0, arrival));
        for member in 0..self.members.len() {
            self.links.cut(Place::Member(member), Place::Management, arrival);
        }
        if is_killed {
            self.at(killed_at, GroupEvent::Restart { member: from.0 });
        }
        self.note(|| format!("{ask:?} arrives at {arrival:?}"));
        self.at(arrival, GroupEvent::Arrival(Message::ToManagement { from, number, ask }));
    }

    /// Handles the arrival of a reply at a client. In some cases, the sender of a late request
    /// loses power now.
    pub(super) fn lose_power_of_late_sender(&mut self) {
        let Some((member, arrival)) = self.late_requests.sender else { return };
        if !self.is_busy || self.now >= arrival {
            self.late_requests.sender = None;
            return;
        }
        let is_running = !matches!(self.members[member].role, Role::Down);
        if is_running && self.late_requests.random.percent(LOSS_PERCENT) {
            self.late_requests.sender = None;
            self.end_process(member, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::group_change::GroupChange;
    use skep_types::{Epoch, GroupId, GroupRecord, Lsn, TargetId};
    use skep_wire::management::AskTakeOver;

    #[test]
    fn request_is_delayed_only_if_it_may_leave_one_member() {
        let (group, epoch, target) = (GroupId::new(1), Epoch::new(2), TargetId::new(3));
        let change = |change| Ask::Change(GroupChange { group, epoch, change, target }, epoch);
        assert!(may_leave_alone(&change(MemberChange::Drop)));
        assert!(!may_leave_alone(&change(MemberChange::MarkInSync)));
        let take_over = |lacks_records| {
            Ask::TakeOver(AskTakeOver {
                group,
                epoch,
                target,
                lacks_records,
                last_epoch: epoch,
                last: Lsn::new(7),
                record: GroupRecord::default(),
            })
        };
        assert!(may_leave_alone(&take_over(false)));
        assert!(!may_leave_alone(&take_over(true)), "a report of a loss");
    }
}
