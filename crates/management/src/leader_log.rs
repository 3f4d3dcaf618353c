//! Log lines about the leader of management: which node leads, and for how long management has had
//! no leader.
//!
//! The Raft library would log each lost message between members, so its log is off. In its place,
//! these lines report each change once. `skep_consensus` runs the elections, and
//! [`crate::leadership`] begins and ends a leadership.

use crate::limits::NO_LEADER_AFTER;
use skep_types::NodeId;
use std::time::Duration;

/// The leader according to this member, and the last log line about it.
#[derive(Debug, Default)]
pub(crate) struct LeaderLog {
    /// The last leader according to this member.
    last: Option<NodeId>,
    /// Time at which this member lost its leader. `None` while the member has a leader.
    lost_at: Option<Duration>,
    is_reported: bool,
}

/// A log line about the leader of management.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Line {
    /// The node is the leader now.
    Leads(NodeId),
    /// The node is the leader now. An earlier line has reported that there was no leader. The
    /// duration is the whole time without a leader.
    LeadsAgain(NodeId, Duration),
    /// Management has had no leader for this time.
    NoLeader(Duration),
}

impl LeaderLog {
    /// Records the leader at the time `now`. `None` means that the member has no leader. Returns a
    /// line that the caller must log, if any.
    pub(crate) fn observe(&mut self, leader: Option<NodeId>, now: Duration) -> Option<Line> {
        let Some(leader) = leader else {
            let since = now - *self.lost_at.get_or_insert(now);
            let is_due = since >= NO_LEADER_AFTER && !self.is_reported;
            self.is_reported |= is_due;
            return is_due.then_some(Line::NoLeader(since));
        };
        let (lost_at, was_reported) = (self.lost_at.take(), std::mem::take(&mut self.is_reported));
        let is_new = self.last.replace(leader) != Some(leader);
        match lost_at {
            Some(lost_at) if was_reported => Some(Line::LeadsAgain(leader, now - lost_at)),
            _ => is_new.then_some(Line::Leads(leader)),
        }
    }
}

impl Line {
    /// Writes the line to the log of the member `own`. `members` is the number of members of
    /// management.
    pub(crate) fn write(self, own: NodeId, members: usize) {
        let name = |leader: NodeId| match leader == own {
            true => "this node".to_owned(),
            false => format!("node {leader}"),
        };
        match self {
            Self::Leads(leader) => tracing::info!("{} leads management", name(leader)),
            Self::LeadsAgain(leader, time) => tracing::info!(
                "{} leads management; there was no leader for {:.1} s",
                name(leader),
                time.as_secs_f64()
            ),
            Self::NoLeader(time) => tracing::error!(
                "management has had no leader for {:.1} s: this node reaches no majority of the \
                 {members} management nodes. I/O to servers that answer continues; registrations, \
                 settings and take-overs wait. Start the other management nodes, or repair the \
                 network to them",
                time.as_secs_f64()
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_new_leader_is_reported_once() {
        let mut log = LeaderLog::default();
        let (one, two) = (NodeId::new(1), NodeId::new(2));
        let at = Duration::from_secs;
        assert_eq!(log.observe(None, at(1)), None);
        assert_eq!(log.observe(Some(one), at(2)), Some(Line::Leads(one)));
        assert_eq!(log.observe(Some(one), at(3)), None);
        // Each election causes a short time without a leader, so management logs no line about such
        // a short time.
        assert_eq!(log.observe(None, at(4)), None);
        assert_eq!(log.observe(Some(two), at(5)), Some(Line::Leads(two)));
        assert_eq!(log.observe(None, at(6)), None);
        assert_eq!(log.observe(Some(two), at(7)), None);
    }

    #[test]
    fn long_absence_of_a_leader_is_logged_and_later_its_end() {
        let mut log = LeaderLog::default();
        let one = NodeId::new(1);
        let start = Duration::from_secs(100);
        log.observe(Some(one), start);
        assert_eq!(log.observe(None, start), None);
        let later = start + NO_LEADER_AFTER;
        assert_eq!(log.observe(None, later), Some(Line::NoLeader(NO_LEADER_AFTER)));
        assert_eq!(log.observe(None, later * 2), None);
        let end = Line::LeadsAgain(one, later * 3 - start);
        assert_eq!(log.observe(Some(one), later * 3), Some(end));
        assert_eq!(log.observe(Some(one), later * 4), None);
    }
}
