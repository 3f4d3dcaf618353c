//! The replies that clients have received, and the records that power losses have removed. Only the
//! properties of the model use this history. The protocol does not.

use crate::GroupModel;
use crate::bugs::PlantedBug;
use crate::log::{Index, Record, Records};
use crate::member::Member;
use crate::primary::{MOST_MEMBERS, Primary};

/// The events of a run on which the properties depend.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct History {
    /// Number of records that were created in this run.
    made: u8,
    /// Acknowledged records. For each of these records, a client has received a reply that relies
    /// on the record.
    pub acknowledged: Records,
    /// Records that a reply has reported to a client as durable.
    pub durable: Records,
    /// Records that all serving members have lost with their page caches, and that were not
    /// durable. Clients may lose these records. A previous primary may still send replies that rely
    /// on these records, until its lease ends.
    forgiven: Records,
    /// Acknowledged records that each member has lost with its page cache.
    pub lost: [Records; MOST_MEMBERS],
    /// First epoch of the newest term in which a client has received a reply.
    pub answered_term: u8,
    /// Newest epoch in which a client has received a reply, and the member that has replied.
    answered_last: (u8, Index),
    /// Whether two members have replied in one epoch.
    pub has_two_primaries: bool,
    /// Whether a member has continued the group after all serving members had lost their page
    /// caches.
    pub has_recovered: bool,
    /// Whether management has carried out a late request of a member whose host has lost its page
    /// cache.
    pub has_late_change: bool,
}

impl History {
    /// Returns the history of a new group, which has one record.
    pub fn new() -> Self {
        Self {
            made: 1,
            acknowledged: Records::default(),
            durable: Records::default(),
            forgiven: Records::default(),
            lost: Default::default(),
            answered_term: 0,
            answered_last: (0, 0),
            has_two_primaries: false,
            has_recovered: false,
            has_late_change: false,
        }
    }

    /// Creates a new record of a primary in the epoch `epoch`.
    pub fn make(&mut self, epoch: u8) -> Record {
        self.made += 1;
        Record { epoch, identity: self.made }
    }

    /// Notes that clients have received all replies that the primary may send now.
    pub fn answer(&mut self, own: Index, member: &Member, primary: &Primary, model: &GroupModel) {
        let bug = model.bug;
        let log = member.log;
        let held = match bug {
            Some(PlantedBug::ReplyBeforeHeld) => log.last(),
            _ => primary.held,
        };
        let safe = match bug {
            Some(PlantedBug::ReplyDurableBeforeSafe) => primary.held,
            _ => primary.safe,
        };
        let acknowledged = log.up_to(held).records().without(self.forgiven);
        self.durable = self.durable.or(log.up_to(safe).records());
        self.acknowledged = self.acknowledged.or(acknowledged).or(self.durable);
        if !model.bounds.leases {
            return;
        }
        self.answered_term = self.answered_term.max(primary.since);
        let (epoch, last) = (member.map.epoch, self.answered_last);
        self.has_two_primaries |= epoch == last.0 && own != last.1;
        if epoch > last.0 {
            self.answered_last = (epoch, own);
        }
    }

    /// Notes that a power loss has removed the records `lost` from a member.
    pub fn note_loss(&mut self, member: Index, lost: Records) {
        self.lost[member] = self.lost[member].or(lost);
    }

    /// Notes that all serving members have lost their page caches. `left` are the records that at
    /// least one serving member still has. Clients may lose all other records, unless these are
    /// durable.
    pub fn forgive(&mut self, left: Records) {
        let lost = self.made_records().without(left).without(self.durable);
        self.forgiven = self.forgiven.or(lost);
        self.acknowledged = self.acknowledged.without(lost);
    }

    fn made_records(&self) -> Records {
        Records::first(self.made)
    }

    /// Removes from `lost` the records that a member has received since the loss, and the records
    /// on which no reply relies.
    pub fn forget_regained(&mut self, members: &[Member]) {
        for (member, lost) in members.iter().zip(&mut self.lost) {
            *lost = lost.and(self.acknowledged).without(member.log.records());
        }
    }
}

impl Default for History {
    fn default() -> Self {
        Self::new()
    }
}
