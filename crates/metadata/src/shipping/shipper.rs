//! The primary's side of shipping. The shipper has the records in memory that are not *safe*, and
//! decides which request each other member gets next.
//!
//! The module `target::gates` owns the replies that wait for the members. The caller must append
//! the records to its own log before it sends the requests. In the opposite order, a primary that
//! is killed and restarted in the same epoch could lack a record that it has shipped.
//!
//! # Invariants
//! - The records in memory end with the last record of the log, and begin after a *safe* record. So
//!   the records in memory include every record that a serving member may lack.
//! - The progress of a member belongs to the current epoch. Progress from an earlier epoch is not
//!   used, because the member may have lost power since then and may have fewer records.

use super::copy_sender::{StorePage, WantedPart};
use super::member_link::{GroupLog, MemberLink};
use super::record_window::{RecordWindow, record_bytes};
use super::standing::LinkRole;
use super::succession::Succession;
use super::{FoundRecords, LogRead, MemberMessage, MemberRequest, Progress};
use crate::limits::{KEPT_BYTES, OWN_PAUSE};
use skep_format::log::Record;
use skep_types::group_change::MemberChange;
use skep_types::{Epoch, Lsn, Result, TargetId};
use skep_wire::log_shipping::{LogHeld, MemberProgress, StoreCopied};
use std::collections::BTreeMap;
use std::time::Duration;

/// The state of a primary that ships its log to the other members.
#[derive(Debug)]
pub(crate) struct Shipper {
    epoch: Epoch,
    window: RecordWindow,
    /// The links to the other members of the group.
    links: BTreeMap<TargetId, MemberLink>,
    /// Members that an earlier process of this target counted. The first call of
    /// [`Self::set_members`] uses and clears this list.
    counted_before: Vec<TargetId>,
    next_number: u64,
    /// Number of bytes of records that the primary has appended since its start.
    logged: u64,
    /// Time of the previous batch.
    handled_at: Duration,
    /// When the primary may reply to clients.
    succession: Succession,
    /// A serving member that has confirmed a later record than the primary's last record, in a
    /// reply of this epoch. Also the LSN of this later record.
    member_ahead: Option<(TargetId, Lsn)>,
}

impl Shipper {
    /// Creates the shipper of a primary that has the records of `window` in memory. All earlier
    /// records must be *safe*.
    pub(crate) fn new(epoch: Epoch, window: RecordWindow) -> Self {
        let (handled_at, succession) = (Duration::ZERO, Succession::default());
        let (links, counted_before) = (BTreeMap::new(), Vec::new());
        Self {
            epoch,
            window,
            links,
            counted_before,
            next_number: 1,
            logged: 0,
            handled_at,
            succession,
            member_ahead: None,
        }
    }

    /// Makes replies wait for `members`, even if they do not serve, because an earlier process of
    /// this target may have asked management to mark them as in sync. Call this function before the
    /// first [`Self::set_members`].
    pub(crate) fn continue_to_count(&mut self, members: Vec<TargetId>) {
        self.counted_before = members;
    }

    /// Sets the epoch of the record `lsn`, if this record directly precedes the records in memory.
    pub(crate) fn set_epoch_of(&mut self, lsn: Lsn, epoch: Epoch) {
        self.window.set_epoch_of(lsn, epoch);
    }

    /// Begins an epoch, and forgets the progress of all members.
    pub(crate) fn begin_epoch(&mut self, epoch: Epoch) {
        self.epoch = epoch;
        self.member_ahead = None;
        let last = self.window.last();
        for link in self.links.values_mut() {
            let standing = link.standing.of_next_epoch();
            *link = MemberLink::new(last, LinkRole::Absent);
            link.standing = standing;
        }
    }

    /// Replaces the list of the other members. `serving` are the members that serve, and `absent`
    /// are the members that do not.
    pub(crate) fn set_members(&mut self, serving: &[TargetId], absent: &[TargetId]) {
        self.links.retain(|member, _| serving.contains(member) || absent.contains(member));
        let last = self.window.last();
        for (members, role) in [(serving, LinkRole::Serving), (absent, LinkRole::Absent)] {
            for member in members {
                let new = || MemberLink::new(last, role);
                let link = self.links.entry(*member).or_insert_with(new);
                // If the primary counts a member that does not serve, keep counting it: management
                // may let it serve at any moment.
                if !(role == LinkRole::Absent && link.standing.role == LinkRole::Counted) {
                    link.standing.role = role;
                }
            }
        }
        for member in std::mem::take(&mut self.counted_before) {
            let Some(link) = self.links.get_mut(&member) else { continue };
            match link.standing.role {
                LinkRole::Absent => {
                    link.standing.role = LinkRole::Counted;
                    link.standing.may_serve = true;
                }
                // The earlier process has asked management to drop this member.
                LinkRole::Serving => link.standing.note_drop(self.handled_at),
                LinkRole::Counted => {}
            }
        }
    }

    /// Returns the members for which replies must wait.
    pub(crate) fn counted(&self) -> Vec<TargetId> {
        let counted = self.links.iter().filter(|(_, link)| link.standing.role != LinkRole::Absent);
        counted.map(|(member, _)| *member).collect()
    }

    /// Whether replies wait for a member that does not serve. A member that does not serve gets
    /// only records that the primary has synced.
    pub(crate) fn counts_nonserving_member(&self) -> bool {
        self.links.values().any(|link| link.standing.role == LinkRole::Counted)
    }

    /// Sets the time from which the primary may reply to clients, because another target was the
    /// primary before and may still hold leases.
    pub(crate) fn succeed(&mut self, succession: Succession) {
        self.succession = succession;
    }

    /// Returns the time before which the primary sends no reply to a client.
    pub(crate) fn answers_from(&self) -> Duration {
        self.succession.answers_from()
    }

    /// Whether the primary may reply to clients at the time `now`. Two conditions must hold for
    /// each member for which replies wait. The member has acknowledged a request that the primary
    /// sent less than `lease` ago, and the lease that the member has granted has not ended. A
    /// `lease` of `Duration::MAX` means that there are no leases.
    pub(crate) fn holds_lease(&self, lease: Duration, now: Duration) -> bool {
        if now < self.answers_from() {
            return false;
        }
        if lease == Duration::MAX {
            return true;
        }
        let mut counted = self.links.values().filter(|link| link.standing.role != LinkRole::Absent);
        counted.all(|link| link.standing.holds_lease(lease, now))
    }

    /// Returns the serving members that have confirmed the whole log in reply to a request that the
    /// primary sent at the time `since` or later. Leaves out members whose service stops.
    pub(crate) fn complete_since(&self, since: Duration) -> Vec<TargetId> {
        let is_complete = |link: &MemberLink| {
            let standing = &link.standing;
            standing.role == LinkRole::Serving && standing.is_complete_since(since)
        };
        let complete = self.links.iter().filter(|(_, link)| is_complete(link));
        complete.map(|(member, _)| *member).collect()
    }

    /// Returns the members whose disks hang.
    pub(crate) fn hanging_disks(&self) -> impl Iterator<Item = TargetId> {
        let hanging = self.links.iter().filter(|(_, link)| link.standing.has_hanging_disk());
        hanging.map(|(member, _)| *member)
    }

    /// Whether replies wait for a member whose disk hangs.
    pub(crate) fn waits_for_hanging_disk(&self) -> bool {
        let mut counted = self.links.values().filter(|it| it.standing.role != LinkRole::Absent);
        counted.any(|link| link.standing.has_hanging_disk())
    }

    /// A sync of the primary's own disk hangs. This sync covers the record `lsn`, and began at the
    /// time `began`. Returns the member to which the primary asks management to hand the group over
    /// now. This member has confirmed the whole log after the time `began`, and has itself synced
    /// the record `lsn`. `has_space` states whether a member has free space on its disk.
    pub(crate) fn successor(
        &mut self,
        (lsn, began): (Lsn, Duration),
        now: Duration,
        has_space: impl Fn(TargetId) -> bool,
    ) -> Option<TargetId> {
        let is_fit = |member: TargetId, link: &MemberLink| {
            link.standing.role == LinkRole::Serving
                && link.standing.is_complete_since(began)
                && link.progress().synced >= lsn
                && has_space(member)
        };
        let mut links = self.links.iter_mut();
        let (member, link) = links.find(|(member, link)| is_fit(**member, link))?;
        link.standing.may_change(now).then_some(*member)
    }

    /// Makes the next call of [`Self::requests`] renew the lease of each member, even if no renewal
    /// is due yet.
    pub(crate) fn renew_leases(&mut self) {
        self.links.values_mut().for_each(MemberLink::renew_lease);
    }

    /// Begins a batch at the time `now`. If this process was stopped for longer than [`OWN_PAUSE`]
    /// since the previous batch, restarts the time that each member has for its reply, and returns
    /// `true`.
    pub(crate) fn begin_batch(&mut self, now: Duration) -> bool {
        let was_stopped = now > self.handled_at + OWN_PAUSE;
        if was_stopped {
            self.links.values_mut().for_each(|link| link.standing.restart_wait(now));
        }
        self.handled_at = now;
        was_stopped
    }

    /// Begins to count the absent members that lack only a few records, and that have not failed
    /// recently. Returns these members with their progress. From then on, replies also wait for
    /// these members.
    pub(crate) fn begin_to_count(&mut self) -> Vec<(TargetId, Progress)> {
        let (window, now) = (&self.window, self.handled_at);
        let is_ready = |link: &MemberLink| link.standing.may_count(now) && link.is_close_to(window);
        let ready = self.links.iter_mut().filter(|(_, link)| is_ready(link));
        let begun = ready.map(|(member, link)| {
            link.standing.count();
            (*member, link.progress())
        });
        begun.collect()
    }

    /// Stops counting the members that no longer confirm records. A member that the primary has
    /// asked management to mark as in sync stays counted. Returns whether the primary has stopped
    /// counting any member.
    pub(crate) fn end_counting(&mut self, lease: Duration, now: Duration) -> bool {
        let mut has_any = false;
        for link in self.links.values_mut() {
            let is_failing = link.standing.is_failing(lease, now);
            if link.standing.role == LinkRole::Counted && is_failing && !link.standing.may_serve {
                link.standing.note_failure(now);
                link.standing.role = LinkRole::Absent;
                has_any = true;
            }
        }
        has_any
    }

    /// Returns the changes of the group that the primary requests from management now:
    ///
    /// - Mark a counted member as in sync, if it has made the progress `needed`. A primary that
    ///   still waits for the leases of earlier primaries does not request this. The member may have
    ///   granted none of these leases. If it took over, no promise would delay its replies.
    /// - Drop a serving member that no longer confirms records, or whose disk hangs.
    /// - Drop a counted member that no longer confirms records or whose disk hangs, if the primary
    ///   has requested to mark it as in sync. The drop revokes that request.
    ///
    /// `synced` is the last record that the primary has synced. The primary asks to drop a member
    /// only when the primary has itself synced all records on which a reply may depend. After the
    /// drop, the primary may be the only serving member, and its host may lose power.
    pub(crate) fn changes(
        &mut self,
        needed: Progress,
        synced: Lsn,
        lease: Duration,
        now: Duration,
    ) -> Vec<(MemberChange, TargetId)> {
        let may_drop = needed.appended <= synced;
        let may_mark = now >= self.answers_from();
        let mut changes = Vec::new();
        for (member, link) in &mut self.links {
            let fails = match link.standing.role {
                LinkRole::Serving => link.standing.is_failing(lease, now),
                // Management may still carry out an earlier request to mark the member as in sync.
                LinkRole::Counted => link.standing.has_stopped(lease, now),
                LinkRole::Absent => false,
            };
            if !fails && link.standing.take_undecided_drop(now) {
                tracing::warn!(
                    "target {member} answers its primary again, but management may still carry out \
                     an earlier request to drop target {member} from the group. Until management \
                     has decided, each change in the group also waits for a sync of the primary's \
                     disk; if operations are slow, move the primary of the group with `skep group \
                     move`"
                );
            }
            let change = match link.standing.role {
                _ if fails && may_drop => MemberChange::Drop,
                LinkRole::Counted if may_mark && !fails && link.has_all(needed) => {
                    MemberChange::MarkInSync
                }
                _ => continue,
            };
            if link.standing.may_change(now) {
                if change == MemberChange::MarkInSync {
                    link.standing.may_serve = true;
                } else {
                    link.standing.note_failure(now);
                    link.standing.note_drop(now);
                }
                changes.push((change, *member));
            }
        }
        changes
    }

    /// Returns the progress of the other members, for administrators. `total_pairs` is the number
    /// of key-value pairs in the primary's store.
    pub(crate) fn members(&self, total_pairs: u64, now: Duration) -> Vec<MemberProgress> {
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
                missing_bytes: link.missing_bytes(&self.window, self.logged),
                copy: link.copy_progress(total_pairs),
            }
        };
        self.links.iter().map(of).collect()
    }

    /// Returns the number of bytes of all records that the primary keeps in memory for other
    /// members.
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.window.bytes() as u64
    }

    /// Adds the record that the primary appends next. A primary without other members also keeps
    /// the record until it is synced, because a second member may join before the sync.
    pub(crate) fn append(&mut self, epoch: Epoch, lsn: Lsn, synced: Lsn, payload: &[u8]) {
        let record = Record { epoch, lsn, synced, payload: payload.to_vec() };
        self.logged += record_bytes(&record) as u64;
        self.window.push(record);
    }

    /// Drops the records up to `safe` from memory. Keeps up to `kept_bytes` of them if there are
    /// members that do not serve.
    pub(crate) fn release(&mut self, safe: Lsn, kept_bytes: usize) {
        let has_absent = self.links.values().any(|link| link.standing.role != LinkRole::Serving);
        let most = if has_absent { kept_bytes } else { 0 };
        if safe > self.window.before() {
            self.window.trim(safe, most);
        }
    }

    /// Whether the records in memory have reached their maximum size. The primary then accepts no
    /// more requests.
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
        let log = (self.epoch, &self.window);
        let progress = link.on_reply((number, result), log, self.next_number, now)?;
        let appended = result.as_ref().map_or(Lsn::default(), |held| held.appended);
        if link.standing.role == LinkRole::Serving && appended > self.window.last() {
            self.member_ahead = Some((member, appended));
        }
        self.succession.on_report(member);
        Some(progress)
    }

    /// Returns a serving member that has confirmed a later record than the primary's last record,
    /// in a reply of this epoch. Also returns the LSN of this later record. A primary ships only
    /// records of its own log, so this primary has lost the later record.
    pub(crate) fn member_ahead(&self) -> Option<(TargetId, Lsn)> {
        self.member_ahead
    }

    /// Handles the reply of a member to a request about a copy of the store, or the failure of the
    /// request.
    pub(crate) fn on_copy_reply(
        &mut self,
        member: TargetId,
        number: u64,
        result: &Result<StoreCopied>,
        now: Duration,
    ) {
        if let Some(link) = self.links.get_mut(&member) {
            let log = (self.epoch, &self.window);
            link.on_copy_reply((number, result), log, self.next_number, now);
        }
    }

    /// Whether a copy of the store for another member is in progress.
    pub(crate) fn has_copies(&self) -> bool {
        self.links.values().any(MemberLink::has_copy)
    }

    /// Returns the parts of other members' copies that the caller must read from its store now.
    /// `stored` is the last record in the store. The caller passes each part to [`Self::put_part`].
    pub(crate) fn wanted_parts(&self, stored: Lsn, now: Duration) -> Vec<(TargetId, WantedPart)> {
        let wanted = |(member, link): (&TargetId, &MemberLink)| {
            Some((*member, link.wanted_part(&self.window, stored, now)?))
        };
        self.links.iter().filter_map(wanted).collect()
    }

    /// Builds the next part of a member's copy. `page` is a page of the store, with the LSN of the
    /// last record that the store had when the caller read the page.
    pub(crate) fn put_part(
        &mut self,
        member: TargetId,
        page: (Lsn, StorePage),
        bytes_per_second: u64,
        now: Duration,
    ) {
        if let Some(link) = self.links.get_mut(&member) {
            link.put_part((self.epoch, &self.window), page, bytes_per_second, now);
        }
    }

    /// Returns the requests to other members that the caller must send now.
    pub(crate) fn requests(&mut self, log: &GroupLog, now: Duration) -> Vec<MemberRequest> {
        let mut requests = Vec::new();
        // An operation may wait for the sync of a record that this batch has not completed yet. A
        // request cannot ask for the sync of an incomplete record.
        let sync_wanted = log.sync_wanted.min(self.window.last());
        let log = &GroupLog { sync_wanted, wait_ms: self.succession.wait_ms(now), ..*log };
        for (member, link) in &mut self.links {
            let (synced, received) = (link.progress().synced, link.received());
            link.standing.compare_syncs(synced, received.min(log.synced), now);
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

    /// Returns the reads of old log records that the caller must begin now, for members that lack
    /// more than the primary has in memory. The caller passes the results to [`Self::on_log_read`].
    pub(crate) fn log_reads(&mut self) -> Vec<LogRead> {
        let (window, logged) = (&self.window, self.logged);
        let links = self.links.iter_mut();
        links.filter_map(|(member, link)| link.wanted_read(*member, window, logged)).collect()
    }

    /// Handles the result of a read of old log records that began with the record `first`.
    pub(crate) fn on_log_read(
        &mut self,
        member: TargetId,
        first: Lsn,
        result: Result<FoundRecords>,
    ) {
        if let Some(link) = self.links.get_mut(&member) {
            link.on_log_read((first, result), &self.window, self.next_number);
        }
    }

    /// Returns the time at which [`Self::requests`] must be called even if no event arrives.
    pub(crate) fn next_due(&self, safe: Lsn) -> Option<Duration> {
        self.links.values().filter_map(|link| link.next_due(&self.window, safe)).min()
    }

    /// Panics if an invariant of the type is violated.
    pub(crate) fn check_invariants(&self, safe: Lsn, last: Lsn) {
        self.window.check_invariants();
        assert_eq!(self.window.last(), last, "the kept records end with the last record");
        let before = self.window.before();
        assert!(
            before <= safe,
            "record {before} is no longer in memory, but record {safe} is the last safe record"
        );
        self.links.values().for_each(|link| link.check_invariants(&self.window));
    }
}
