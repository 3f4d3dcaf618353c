//! One member of the group: its disk, its process, and its behavior as a backup member.
//!
//! The rules come from `metadata/src/shipping/backup.rs`, `metadata/src/shipping/own_group.rs`,
//! `metadata/src/shipping/completeness.rs` and `metadata/src/service/roles.rs`. The module
//! [`crate::primary`] owns the role of the primary.

use crate::bugs::PlantedBug;
use crate::group::Group;
use crate::log::{Index, Log, Members, Progress};
use crate::messages::{Reply, Request};
use crate::primary::Primary;

/// A member of the group.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Member {
    /// The records that the member has appended, including those in its store.
    pub log: Log,
    /// Last record that the member has synced.
    pub synced: u8,
    /// Last record in the store. All records of the store are safe.
    pub stored: u8,
    /// Whether the host has lost its page cache, and with it possibly records that the member has
    /// confirmed.
    pub lacks_records: bool,
    /// The member mark on the device. The number is the newest epoch in which this member was the
    /// primary or has confirmed records. The set has the members that this member has asked
    /// management to mark as in sync in this epoch.
    pub counted: (u8, Members),
    /// The newest epoch in which this member has sent a request to management that may make it the
    /// only serving member. Zero means that management can no longer carry out any such request.
    /// This value is on the device.
    pub asked: u8,
    /// Whether a promise of the member not to reply as a primary has not ended yet. The promise
    /// also binds a later process.
    pub has_promised: bool,
    /// The group in the newest cluster map that the process has.
    pub map: Group,
    /// The group in the map on the device, which may be older. The next process may start with this
    /// map, because a service stores a cluster map a moment after it has received the map.
    pub stored_map: Group,
    /// The group in a newer map, which a killed process had received and not stored. The present
    /// process may receive this map, even if management has changed the group since then.
    pub unstored_map: Option<Group>,
    /// The present role of the process.
    pub role: Role,
}

/// The role of a process.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Role {
    /// A backup member, a member that does not serve, or a primary that may not lead.
    Backup(Backup),
    /// The primary.
    Primary(Primary),
}

/// The memory of a backup member.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Backup {
    /// Last record that equals the primary's record with the same index. In this epoch, the member
    /// has compared this record, or has received it.
    pub matched: u8,
    /// Last record that a primary has reported as safe.
    pub safe: u8,
    /// Last record of the primary's log, according to the primary's first request of this epoch to
    /// this process. `None` means that this process has received no such request.
    pub goal: Option<u8>,
    /// The term of the last request that this process has received.
    pub received: Option<ReceivedTerm>,
}

/// The term of the primary from which a backup member has received its last request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReceivedTerm {
    /// The primary whose term this is.
    pub primary: Index,
    /// First epoch of the term.
    pub since: u8,
    /// Epoch of the request.
    pub epoch: u8,
    /// Whether a request of this term has reported that the leases of all primaries before this
    /// term have ended.
    pub has_no_wait: bool,
}

impl Role {
    /// Forgets all leases.
    pub fn forget_leases(&mut self) {
        match self {
            Self::Backup(backup) => backup.received = None,
            Self::Primary(primary) => {
                primary.former = None;
                primary.links.iter_mut().for_each(|it| it.is_leased = false);
            }
        }
    }
}

impl Member {
    /// Returns the epoch of the last record.
    pub fn log_epoch(&self) -> u8 {
        self.log.epoch_of(self.log.last())
    }

    /// Returns the highest epoch in which this member has records, has confirmed records, or was
    /// the primary.
    pub fn newest_epoch(&self) -> u8 {
        self.log_epoch().max(self.counted.0)
    }

    /// Returns the state of the primary. `None` means that the process is not the primary.
    pub fn as_primary(&self) -> Option<&Primary> {
        match &self.role {
            Role::Primary(primary) => Some(primary),
            Role::Backup(_) => None,
        }
    }

    /// Returns the members that do not serve in the map of this process, but that management may
    /// have marked as in sync at the request of an earlier process.
    pub fn may_serve(&self) -> Members {
        let (epoch, counted) = self.counted;
        let of_epoch = if epoch == self.map.epoch { counted } else { Members::default() };
        of_epoch.minus(self.map.serving)
    }

    /// Stores durably that this member sends a request to management. The request may make this
    /// member the only serving member. If `is_known` is false, the member forgets the request (a
    /// planted bug). If the map is older than the epoch in the member mark, management will refuse
    /// the request, so the method changes nothing.
    pub fn ask(&mut self, is_known: bool, bug: Option<PlantedBug>) {
        let epoch = self.map.epoch;
        if epoch < self.counted.0 && bug != Some(PlantedBug::ForgetLaterEpoch) {
            return;
        }
        if self.counted.0 != epoch {
            self.counted = (epoch, Members::default());
        }
        if is_known {
            self.asked = epoch;
        }
    }

    /// Returns the last record that the member confirms. `appended` is the last record that the
    /// member has appended or compared. While management may carry out a request that makes the
    /// member the only serving member, the member confirms only synced records.
    pub fn confirmed(&self, appended: u8) -> u8 {
        if self.asked == self.map.epoch { appended.min(self.synced) } else { appended }
    }

    /// Whether this process may act as the primary, according to its map, its log and its member
    /// mark.
    pub fn may_lead(&self, own: Index, bug: Option<PlantedBug>) -> bool {
        let ignores_counted = bug == Some(PlantedBug::LeadDespiteCounted);
        let is_alone = self.map.other_serving(own).is_empty()
            && (ignores_counted || self.may_serve().is_empty());
        let is_whole =
            !self.lacks_records || is_alone || bug == Some(PlantedBug::LeadAfterPowerLoss);
        let has_old_map = self.newest_epoch() > self.map.epoch;
        self.map.primary == own && is_whole && !has_old_map
    }

    /// Begins the role of a backup member in a new process.
    pub fn begin_backup(&mut self) {
        let (matched, safe) = (self.stored, self.stored);
        self.role = Role::Backup(Backup { matched, safe, goal: None, received: None });
    }

    /// Moves to the store the safe records that this backup member has synced.
    pub fn store(&mut self) {
        if let Role::Backup(backup) = &self.role {
            self.stored = self.stored.max(backup.safe.min(self.synced).min(backup.matched));
        }
    }

    /// Handles a request of the primary. Returns the reply. `None` means that the member refuses
    /// the request, or that the process is the primary.
    pub fn receive(
        &mut self,
        own: Index,
        request: &Request,
        bug: Option<PlantedBug>,
    ) -> Option<Reply> {
        let (map, newest_epoch) = (self.map, self.newest_epoch());
        let accepts_older = bug == Some(PlantedBug::AcceptOlderEpoch);
        let is_current = request.epoch == map.epoch && map.primary == request.primary;
        let is_newer = newest_epoch > map.epoch && bug != Some(PlantedBug::IgnoreNewerLog);
        let is_older = accepts_older && request.epoch <= map.epoch;
        let Role::Backup(backup) = &mut self.role else { return None };
        if !is_older && (!is_current || map.primary == own || is_newer) {
            return None;
        }
        backup.note_term(request, map.since);
        if self.counted.0 < map.epoch && bug != Some(PlantedBug::ForgetConfirmed) {
            self.counted = (map.epoch, Members::default());
        }
        let trusts_all = bug == Some(PlantedBug::TrustLateRequest);
        if request.names_process || trusts_all {
            backup.goal.get_or_insert(request.last);
        }
        self.has_promised = true;
        let differs = request.before > self.log.last()
            || request.before > backup.matched
                && self.log.epoch_of(request.before) != request.log.epoch_of(request.before);
        if differs {
            return Some(self.reply(request, true));
        }
        backup.matched = backup.matched.max(request.before);
        for number in request.before + 1..=request.log.last() {
            if number <= backup.matched {
                continue;
            }
            let record = request.log.record(number);
            let has_other = number <= self.log.last() && self.log.epoch_of(number) != record.epoch;
            if has_other {
                self.log = self.log.up_to(number - 1);
                self.synced = self.synced.min(number - 1);
            }
            if number > self.log.last() {
                self.log = self.log.with(record);
            }
            backup.matched = number;
        }
        backup.safe = backup.safe.max(request.safe);
        if backup.goal.is_some_and(|goal| backup.matched >= goal) {
            self.lacks_records = false;
        }
        self.store();
        Some(self.reply(request, false))
    }

    /// Returns the reply to a request. `is_behind` means that the member lacks the record before
    /// the first record of the request.
    fn reply(&self, request: &Request, is_behind: bool) -> Reply {
        let appended = match &self.role {
            Role::Backup(backup) => backup.matched,
            Role::Primary(_) => 0,
        };
        let appended = self.confirmed(appended);
        Reply {
            epoch: request.epoch,
            has_sender: true,
            progress: Progress { appended, synced: self.synced.min(appended) },
            is_behind,
            grants: request.is_fresh,
        }
    }
}

impl Backup {
    fn note_term(&mut self, request: &Request, since: u8) {
        let (primary, epoch) = (request.primary, request.epoch);
        let same = |it: &ReceivedTerm| (it.primary, it.since) == (primary, since);
        let had_no_wait = self.received.filter(same).is_some_and(|it| it.has_no_wait);
        let has_no_wait = had_no_wait || !request.waits;
        self.received = Some(ReceivedTerm { primary, since, epoch, has_no_wait });
    }

    /// Forgets values that no longer affect the member, so that the checker has fewer different
    /// states.
    pub fn forget_unused(&mut self, lacks_records: bool, epoch: u8, bug: Option<PlantedBug>) {
        if !lacks_records {
            self.goal = None;
        }
        if bug != Some(PlantedBug::ReleaseAll) {
            self.received = self.received.filter(|it| it.epoch == epoch);
        }
    }

    /// Returns the previous primary whose confirmation ends the wait of this backup member, which
    /// becomes the primary in `epoch` (`metadata/src/shipping/succession.rs`).
    pub fn former_primary(&self, epoch: u8, bug: Option<PlantedBug>) -> Option<Index> {
        let is_direct = |it: &ReceivedTerm| it.has_no_wait && it.epoch + 1 == epoch;
        let releases = |it: &ReceivedTerm| is_direct(it) || bug == Some(PlantedBug::ReleaseAll);
        self.received.filter(releases).map(|it| it.primary)
    }
}
