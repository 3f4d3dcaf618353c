//! The primary's part of shipping: it keeps the records that are not safe, and decides which
//! request each other serving member gets next.
//!
//! Does not own the gates that wait for the members (`target::gates`). The caller sends the
//! requests after it has appended their records to its own log: a primary that is killed continues
//! in the same epoch after its restart, and must still have each record that it has shipped.
//!
//! # Invariants
//! - The kept records end with the last record of the log and begin after a safe record, so every
//!   record that a member may lack is kept.
//! - The progress of a member belongs to the current epoch: a member that has lost power has less
//!   than it reported in an earlier one.

use super::member_link::{GroupLog, MemberLink};
use super::record_window::RecordWindow;
use super::standing::LinkRole;
use super::{MemberMessage, MemberRequest, Progress};
use crate::limits::{KEPT_BYTES, KEPT_FOR_ABSENT_BYTES, Limits, OWN_PAUSE};
use skep_format::log::Record;
use skep_types::group_change::MemberChange;
use skep_types::{Epoch, Lsn, Result, TargetId};
use skep_wire::log_shipping::{LogHeld, MemberProgress};
use std::collections::BTreeMap;
use std::time::Duration;

/// The primary's part of shipping.
#[derive(Debug)]
pub(crate) struct Shipper {
    epoch: Epoch,
    window: RecordWindow,
    /// The other members.
    links: BTreeMap<TargetId, MemberLink>,
    next_number: u64,
    /// Time of the last batch.
    handled_at: Duration,
    /// The primary replies to nothing before this time, since the former one may still reply.
    answers_from: Duration,
}

impl Shipper {
    /// Creates the shipper of a primary with these records. All records before the first of them
    /// are safe.
    pub(crate) fn new(epoch: Epoch, window: RecordWindow) -> Self {
        let (handled_at, answers_from) = (Duration::ZERO, Duration::ZERO);
        let links = BTreeMap::new();
        Self { epoch, window, links, next_number: 1, handled_at, answers_from }
    }

    /// Notes the epoch of the record before the first kept one.
    pub(crate) fn set_epoch_before(&mut self, epoch: Epoch) {
        self.window.set_epoch_before(epoch);
    }

    /// Begins an epoch: forgets the progress of all members.
    pub(crate) fn begin_epoch(&mut self, epoch: Epoch) {
        self.epoch = epoch;
        let last = self.window.last();
        self.links.values_mut().for_each(|link| *link = MemberLink::new(last, LinkRole::Absent));
    }

    /// Replaces the other members: `serving` are the serving ones, and `absent` all others.
    pub(crate) fn set_members(&mut self, serving: &[TargetId], absent: &[TargetId]) {
        self.links.retain(|member, _| serving.contains(member) || absent.contains(member));
        let last = self.window.last();
        for (members, role) in [(serving, LinkRole::Serving), (absent, LinkRole::Absent)] {
            for member in members {
                let new = || MemberLink::new(last, role);
                let link = self.links.entry(*member).or_insert_with(new);
                // A member that this primary counts stays counted until it serves.
                if !(role == LinkRole::Absent && link.standing.role == LinkRole::Counted) {
                    link.standing.role = role;
                }
            }
        }
    }

    /// Returns the members for which replies wait.
    pub(crate) fn counted(&self) -> Vec<TargetId> {
        let counted = self.links.iter().filter(|(_, link)| link.standing.role != LinkRole::Absent);
        counted.map(|(member, _)| *member).collect()
    }

    /// Makes the primary reply to nothing before this time.
    pub(crate) fn answer_from(&mut self, at: Duration) {
        self.answers_from = at;
    }

    /// Returns the time before which the primary replies to nothing.
    pub(crate) fn answers_from(&self) -> Duration {
        self.answers_from
    }

    /// Whether the primary may answer at `now`: each counted member has acknowledged a request that
    /// was sent within the lease. The longest duration means that there are no leases.
    pub(crate) fn holds_lease(&self, lease: Duration, now: Duration) -> bool {
        if now < self.answers_from {
            return false;
        }
        if lease == Duration::MAX {
            return true;
        }
        let mut counted = self.links.values().filter(|link| link.standing.role != LinkRole::Absent);
        counted.all(|link| link.standing.acknowledged().is_some_and(|sent| now < sent + lease))
    }

    /// Notes the time of a batch. If this process was stopped, gives the members time to reply.
    pub(crate) fn begin_batch(&mut self, now: Duration) {
        if now > self.handled_at + OWN_PAUSE {
            self.links.values_mut().for_each(|link| link.standing.restart_wait(now));
        }
        self.handled_at = now;
    }

    /// Begins to count the members to which little is missing. Returns them with their progress.
    pub(crate) fn begin_to_count(&mut self) -> Vec<(TargetId, Progress)> {
        let last = self.window.last();
        let is_ready =
            |link: &MemberLink| link.standing.role == LinkRole::Absent && link.is_close_to(last);
        let ready = self.links.iter_mut().filter(|(_, link)| is_ready(link));
        let begun = ready.map(|(member, link)| {
            link.standing.role = LinkRole::Counted;
            (*member, link.progress())
        });
        begun.collect()
    }

    /// No longer counts the members that have stopped to follow before the primary asked
    /// management to mark them as in sync. Returns whether there are any.
    pub(crate) fn end_counting(&mut self, limits: &Limits, now: Duration) -> bool {
        let mut has_any = false;
        for link in self.links.values_mut() {
            let is_failing = link.standing.is_failing(limits.leases.lease, now);
            if link.standing.role == LinkRole::Counted && is_failing && !link.standing.may_serve {
                link.standing.role = LinkRole::Absent;
                has_any = true;
            }
        }
        has_any
    }

    /// Returns the changes of the group for which the primary asks management now: members that
    /// have everything up to `held` are in sync, and members that do not follow are dropped.
    pub(crate) fn changes(
        &mut self,
        held: Lsn,
        limits: &Limits,
        now: Duration,
    ) -> Vec<(MemberChange, TargetId)> {
        let mut changes = Vec::new();
        for (member, link) in &mut self.links {
            let change = match link.standing.role {
                LinkRole::Serving if link.standing.is_failing(limits.leases.lease, now) => {
                    MemberChange::Drop
                }
                LinkRole::Counted if link.progress().appended >= held => MemberChange::MarkInSync,
                _ => continue,
            };
            if link.standing.may_change(now) {
                if change == MemberChange::MarkInSync {
                    link.standing.may_serve = true;
                }
                changes.push((change, *member));
            }
        }
        changes
    }

    /// Returns the progress of the other members, for administrators.
    pub(crate) fn members(&self, now: Duration) -> Vec<MemberProgress> {
        let of = |(member, link): (&TargetId, &MemberLink)| {
            let Progress { appended, synced } = link.progress();
            let silent =
                link.standing.acknowledged().map(|sent| now.saturating_sub(sent).as_millis());
            MemberProgress {
                target: *member,
                appended,
                synced,
                silent_ms: silent.map(|it| u64::try_from(it).unwrap_or(u64::MAX)),
                is_counted: link.standing.role != LinkRole::Absent,
                needs_copy: link.standing.needs_copy,
            }
        };
        self.links.iter().map(of).collect()
    }

    /// Returns the bytes of the records that the primary keeps for other members.
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.window.bytes() as u64
    }

    /// Adds the record that the primary appends next. A group of one member keeps it too, until
    /// it is synced: a second member that joins in between needs the record.
    pub(crate) fn append(&mut self, epoch: Epoch, lsn: Lsn, synced: Lsn, payload: &[u8]) {
        self.window.push(Record { epoch, lsn, synced, payload: payload.to_vec() });
    }

    /// Drops the records up to `safe`. Keeps some of them for members that do not serve.
    pub(crate) fn release(&mut self, safe: Lsn) {
        let has_absent = self.links.values().any(|link| link.standing.role != LinkRole::Serving);
        let most = if has_absent { KEPT_FOR_ABSENT_BYTES } else { 0 };
        if safe > self.window.before() {
            self.window.trim(safe, most);
        }
    }

    /// Returns whether the records that wait for a member have reached their bound. The primary
    /// then accepts no more requests.
    pub(crate) fn is_full(&self) -> bool {
        self.window.bytes() >= KEPT_BYTES
    }

    /// Handles the reply of a member, or the failure of the request. Returns the member's progress
    /// if the reply belongs to the current epoch.
    pub(crate) fn on_reply(
        &mut self,
        member: TargetId,
        number: u64,
        result: &Result<LogHeld>,
        now: Duration,
    ) -> Option<Progress> {
        let link = self.links.get_mut(&member)?;
        link.on_reply((number, result), (self.epoch, &self.window), self.next_number, now)
    }

    /// Returns the requests to send now.
    pub(crate) fn requests(&mut self, log: &GroupLog, now: Duration) -> Vec<MemberRequest> {
        let mut requests = Vec::new();
        // An operation may wait for a record that this batch does not end yet.
        let log = &GroupLog { sync_wanted: log.sync_wanted.min(self.window.last()), ..*log };
        for (member, link) in &mut self.links {
            let made = link.requests(log, &self.window, &mut self.next_number, now);
            let addressed = |(number, message): (u64, MemberMessage)| MemberRequest {
                member: *member,
                number,
                message,
            };
            requests.extend(made.into_iter().map(addressed));
        }
        requests
    }

    /// Returns the time at which [`Self::requests`] has something to send even if no event arrives.
    pub(crate) fn next_due(&self, safe: Lsn) -> Option<Duration> {
        self.links.values().filter_map(|link| link.next_due(safe)).min()
    }

    /// Panics if an invariant of the type is violated.
    pub(crate) fn check_invariants(&self, safe: Lsn, last: Lsn) {
        assert_eq!(self.window.last(), last, "the kept records end with the last record");
        let before = self.window.before();
        assert!(before <= safe, "records after {safe} are kept, not only those after {before}");
        self.links.values().for_each(|link| link.check_invariants(&self.window));
    }
}
