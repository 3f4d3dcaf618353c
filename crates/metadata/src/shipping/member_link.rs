//! The primary's link to one other member: the progress of the member in this epoch, the requests
//! in flight, and the next record to ship.
//!
//! The module `record_window` owns the records. The caller sends the requests of the link.
//!
//! # Lease
//! If there is nothing else to send, the link still returns a request every [`LEASE_RENEWAL`].
//! Without requests, the primary's lease from the member would end ([`super::standing`]).
//!
//! # Members that do not serve
//! The primary ships records from its memory to an absent member. If the member lacks older
//! records, the primary first reads them back from its log on disk ([`super::old_records`]). When
//! the member lacks only a few records, the primary begins to *count* the member: replies then wait
//! for it as for a serving member. When the counted member has all records, and has synced the
//! *safe* ones, the primary asks management to mark it as in sync.
//!
//! If the member lacks records that the log on disk no longer has, the primary sends a copy of its
//! store instead ([`super::copy_sender`]). Until the copy is complete, the link ships no records.
//!
//! The primary ships only records that it has synced to a member that does not serve. A primary
//! without another serving member continues in its epoch after a power loss, and assigns the LSNs
//! of the lost records to new records. If another member had the lost records, two different
//! records would have the same LSN and epoch, and no comparison would find the difference.
//!
//! # Comparison
//! The member's log equals the log of the primary up to some record. At the beginning of an epoch,
//! and after the loss of a message, the primary has not found this record yet. During the search,
//! the primary sends one request at a time, until the member confirms that it has the record before
//! the first record of a request. After that, several requests may be in flight. If the member
//! restarts, the comparison must be repeated, since the new process does not have the result of the
//! earlier comparison.

mod copy;
mod from_disk;

use super::copy_sender::CopySender;
use super::old_records::{DiskSource, FIRST_WITH_PREVIOUS};
use super::record_window::{RecordWindow, record_bytes};
use super::standing::{LinkRole, Standing};
use super::{MemberMessage, Progress, following, preceding};
use crate::limits::{
    AWAIT_LOST_AFTER, JOIN_LAG, LEASE_RENEWAL, MEMBER_PAUSE, SAFE_NOTICE_PAUSE, SHIP_AGAIN_AFTER,
    SHIP_BYTES, SHIPPED_BYTES, SHIPPED_RECORDS, SHIPPED_REQUESTS,
};
use skep_format::log::Record;
use skep_types::codec::Bytes;
use skep_types::{Epoch, Error, ErrorCode, Lsn, Result};
use skep_wire::log_shipping::{AwaitLogSync, LogHeld, ShipLog, ShippedRecord};
use std::time::Duration;

/// The state of the group's log that requests report to the member.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupLog {
    pub(crate) epoch: Epoch,
    pub(crate) held: Lsn,
    pub(crate) safe: Lsn,
    /// Last record that the primary has synced.
    pub(crate) synced: Lsn,
    /// Last record that a member must sync immediately, since a reply, call or operation waits for
    /// this sync.
    pub(crate) sync_wanted: Lsn,
    /// Time in milliseconds for which the primary still waits before it replies to clients.
    pub(crate) wait_ms: u32,
}

/// A `ShipLog` request that has no reply yet.
#[derive(Debug)]
struct UnderWay {
    number: u64,
    first: Lsn,
    /// The last record of the log when the primary sent the request.
    last: Lsn,
    /// The process of the member that the request names.
    process: u64,
    sent: Duration,
    records: usize,
    bytes: usize,
}

/// An `AwaitLogSync` request that has no reply yet.
#[derive(Debug)]
struct SyncQuestion {
    number: u64,
    sent: Duration,
    /// The last record that the member had confirmed when the primary sent this request.
    appended: Lsn,
}

/// The primary's link to one other member.
#[derive(Debug)]
pub(super) struct MemberLink {
    pub(super) standing: Standing,
    /// The copy of the store for a member that needs one and does not serve.
    copy: Option<CopySender>,
    disk: DiskSource,
    progress: Progress,
    /// The id of the member's process in its newest reply of this epoch. Zero means that there is
    /// no reply yet.
    process: u64,
    /// Whether the member has confirmed the record before `next`. If so, the member appends all
    /// later records without a comparison.
    is_compared: bool,
    /// LSN of the next record to ship.
    next: Lsn,
    under_way: Vec<UnderWay>,
    awaiting: Option<SyncQuestion>,
    /// Id of the first request after the last [`Self::resume`]. Replies to earlier requests do
    /// not change `next`.
    resumed_at: u64,
    /// Time of the last reply to a `ShipLog`. If the primary has since sent a `ShipLog` while no
    /// other `ShipLog` was in flight, the time of the last such request.
    replied_at: Duration,
    paused_until: Duration,
    sent_at: Duration,
    /// The value of *safe* in the last request.
    sent_safe: Lsn,
    /// The last record whose sync the primary has requested from the member immediately.
    sync_asked: Lsn,
}

impl MemberLink {
    /// Creates the link to a member at the beginning of an epoch, when the last record of the
    /// primary is `last`.
    pub(super) fn new(last: Lsn, role: LinkRole) -> Self {
        Self {
            standing: Standing::new(role),
            copy: None,
            disk: DiskSource::default(),
            progress: Progress::default(),
            process: 0,
            is_compared: false,
            next: following(last),
            under_way: Vec::new(),
            awaiting: None,
            resumed_at: 0,
            replied_at: Duration::ZERO,
            paused_until: Duration::ZERO,
            sent_at: Duration::ZERO,
            sent_safe: Lsn::default(),
            sync_asked: Lsn::default(),
        }
    }

    /// Handles the reply to a request, or the failure of the request. Returns the progress of the
    /// member if the reply belongs to this epoch. `next_number` is the number that the next request
    /// will get.
    pub(super) fn on_reply(
        &mut self,
        reply: (u64, &Result<LogHeld>),
        log: (Epoch, &RecordWindow),
        next_number: u64,
        now: Duration,
    ) -> Option<Progress> {
        let ((number, result), (epoch, window)) = (reply, log);
        let awaited = self.awaiting.take_if(|it| it.number == number);
        let was_awaited = awaited.is_some();
        let at = self.under_way.iter().position(|it| it.number == number);
        let shipped = at.map(|at| self.under_way.remove(at));
        let is_current = was_awaited || number >= self.resumed_at;
        let Some(held) = result.as_ref().ok().filter(|held| held.epoch == epoch) else {
            if is_current {
                match result.as_ref().err().map(Error::code) {
                    Some(ErrorCode::NotReady) => self.standing.note_stop(),
                    Some(ErrorCode::DeviceFailed) => self.standing.note_hanging_disk(),
                    _ => {}
                }
                self.paused_until = now + self.standing.pause();
                self.resume(next_number);
            }
            return None;
        };
        let sent = awaited.as_ref().map(|it| it.sent).or(shipped.as_ref().map(|it| it.sent));
        self.standing.acknowledge(sent, Duration::from_millis(held.lease_ms.into()));
        self.process = held.process;
        if !was_awaited {
            // Ignore replies to `AwaitLogSync` here: they keep arriving even if `ShipLog` requests
            // are lost, so they would delay the repetition of `ShipLog`.
            self.replied_at = now;
        }
        self.progress = self.progress.max(Progress {
            appended: held.appended.min(window.last()),
            synced: held.synced.min(held.appended).min(window.last()),
        });
        self.standing.note_synced(self.progress.synced);
        if awaited.is_some_and(|it| held.appended < it.appended) {
            // The process of the member has restarted. Send a request that makes the new process
            // compare its records, because no request in flight lets the process compare its
            // records.
            self.resume(next_number);
        } else if !was_awaited && is_current {
            if held.is_behind {
                if self.is_absent() && held.ship_after < self.progress.appended {
                    // The member has lost records that it had confirmed, for instance in a power
                    // loss. The member was absent, so no reply to a client relied on these records.
                    // Continue after the last record that the member still has. Pause first,
                    // because the reply may just be a late one.
                    let synced = held.synced.min(held.ship_after);
                    self.progress = Progress { appended: held.ship_after, synced };
                    self.paused_until = now + self.standing.pause();
                }
                let before = window.before();
                let is_first = shipped.is_some_and(|it| it.first <= following(before));
                let lacks_old = held.ship_after < before && is_first;
                let has_lost = held.ship_after < self.progress.appended;
                let may_read = self.is_absent() && !has_lost && held.ship_after > Lsn::default();
                if held.needs_copy || lacks_old && !may_read {
                    self.begin_copy();
                    self.paused_until = now + self.standing.pause();
                } else if lacks_old {
                    self.disk.old.get_or_insert_default();
                }
                if has_lost {
                    // Either the reply is a late one, or the member has lost confirmed records.
                    // Replies to clients relied on these records, so the member cannot continue
                    // before the next epoch. Therefore send requests only at intervals.
                    self.paused_until = now + MEMBER_PAUSE;
                }
                self.resume(next_number);
                // The records that are not in memory are safe, so every serving member has them.
                let lowest =
                    if self.disk.old.is_some() { FIRST_WITH_PREVIOUS } else { following(before) };
                let last = held.ship_after.max(self.progress.appended).min(window.last());
                self.next = following(last).max(lowest);
                self.is_compared = self.next == following(self.progress.appended);
            } else {
                self.is_compared = true;
                self.standing.confirm(now);
                let has_all =
                    |it: &UnderWay| it.process == held.process && it.last <= held.appended;
                if let Some(complete) = shipped.filter(has_all) {
                    self.standing.note_complete(complete.sent);
                }
                self.next = self.next.max(following(self.progress.appended));
            }
        }
        Some(self.progress)
    }

    /// Returns the requests to send now, with their sequence numbers.
    pub(super) fn requests(
        &mut self,
        log: &GroupLog,
        window: &RecordWindow,
        next_number: &mut u64,
        now: Duration,
    ) -> Vec<(u64, MemberMessage)> {
        let mut requests = Vec::new();
        if self.is_copied() {
            let log_begins = self.disk.log_begins;
            let copy = self.copy.get_or_insert_with(|| CopySender::new(log_begins));
            if let Some(part) = copy.request((log.epoch, window), *next_number, now) {
                requests.push((*next_number, MemberMessage::Copy(Box::new(part))));
                *next_number += 1;
            }
            return requests;
        }
        if now < self.paused_until {
            return requests;
        }
        if !self.under_way.is_empty() && now >= self.replied_at + SHIP_AGAIN_AFTER {
            self.resume(*next_number);
        }
        if self.next > window.before() || !self.is_absent() {
            self.disk.old = None;
        }
        if self.disk.old.is_none() {
            // The records up to `window.before()` are not in memory, and all serving members have
            // synced them.
            self.next = self.next.max(following(window.before()));
        }
        while !self.awaits_read(window) && self.may_send() && self.has_cause(log, window, now) {
            let ship = self.ship(log, window, *next_number, now);
            requests.push((*next_number, MemberMessage::Ship(ship)));
            *next_number += 1;
        }
        self.awaiting.take_if(|it| now >= it.sent + AWAIT_LOST_AFTER);
        let has_unsynced = self.progress.synced < preceding(self.next);
        if self.is_compared && self.awaiting.is_none() && has_unsynced {
            let message = AwaitLogSync { epoch: log.epoch, synced: self.progress.synced };
            requests.push((*next_number, MemberMessage::AwaitSync(message)));
            let appended = self.progress.appended;
            self.awaiting = Some(SyncQuestion { number: *next_number, sent: now, appended });
            *next_number += 1;
        }
        requests
    }

    /// Whether the member gets a copy of the store instead of records.
    fn is_copied(&self) -> bool {
        self.standing.needs_copy && self.is_absent()
    }

    fn is_absent(&self) -> bool {
        self.standing.role == LinkRole::Absent
    }

    pub(super) fn progress(&self) -> Progress {
        self.progress
    }

    /// Returns the last record that the member has certainly appended. A member that has asked to
    /// take over confirms only the records that it has synced, but has replied to all requests.
    pub(super) fn received(&self) -> Lsn {
        let has_replied = self.is_compared && self.under_way.is_empty();
        let replied = if has_replied { preceding(self.next) } else { Lsn::default() };
        replied.max(self.progress.appended)
    }

    /// Makes the next call of [`Self::requests`] send a request that renews the lease.
    pub(super) fn renew_lease(&mut self) {
        self.sent_at = self.sent_at.saturating_sub(LEASE_RENEWAL);
    }

    /// Whether the member has made the progress `needed`.
    pub(super) fn has_all(&self, needed: Progress) -> bool {
        let Progress { appended, synced } = self.progress;
        !self.standing.needs_copy && appended >= needed.appended && synced >= needed.synced
    }

    /// Whether the member lacks at most [`JOIN_LAG`] records, and the primary has all these records
    /// in memory. A member with an incomplete store needs more than these records, even if the
    /// primary's memory has all records since the first record.
    pub(super) fn is_close_to(&self, window: &RecordWindow) -> bool {
        let appended = self.progress.appended;
        let lag = window.last().raw().saturating_sub(appended.raw());
        let lacks_old = self.disk.old.is_some() || appended < window.before();
        self.is_compared && !self.standing.needs_copy && !lacks_old && lag <= JOIN_LAG
    }

    /// Returns the time at which [`Self::requests`] must be called even if no event arrives.
    pub(super) fn next_due(&self, window: &RecordWindow, safe: Lsn) -> Option<Duration> {
        if self.is_copied() {
            return self.copy.as_ref().map(CopySender::next_due);
        }
        let awaited = self.awaiting.as_ref().map(|it| it.sent + AWAIT_LOST_AFTER);
        if self.under_way.is_empty() && self.awaits_read(window) {
            // No timer is needed for the read from the log: its end arrives as an event.
            return awaited;
        }
        let resent = (!self.under_way.is_empty()).then_some(self.replied_at + SHIP_AGAIN_AFTER);
        let is_idle = self.under_way.is_empty() && self.is_compared && self.sent_safe < safe;
        let noticed = is_idle.then_some(self.sent_at + SAFE_NOTICE_PAUSE);
        let is_quiet = self.under_way.is_empty() && self.is_compared;
        let renewed = is_quiet.then_some(self.sent_at + LEASE_RENEWAL);
        let begun = (self.under_way.is_empty() && !self.is_compared).then_some(self.paused_until);
        let due =
            resent.into_iter().chain(noticed).chain(renewed).chain(awaited).chain(begun).min()?;
        Some(due.max(self.paused_until))
    }

    /// Treats the requests in flight as lost. The next request asks the member where to continue.
    fn resume(&mut self, next_number: u64) {
        self.under_way.clear();
        self.resumed_at = next_number;
        self.is_compared = false;
        if self.progress.appended > Lsn::default() {
            self.next = following(self.progress.appended);
        }
        self.sent_safe = Lsn::default();
        self.sync_asked = self.progress.synced;
    }

    fn may_send(&self) -> bool {
        let records: usize = self.under_way.iter().map(|it| it.records).sum();
        let bytes: usize = self.under_way.iter().map(|it| it.bytes).sum();
        let has_space = self.under_way.len() < SHIPPED_REQUESTS
            && records < SHIPPED_RECORDS
            && bytes < SHIPPED_BYTES;
        let may_follow = self.is_compared && !self.standing.needs_copy;
        self.under_way.is_empty() || may_follow && has_space
    }

    /// Whether there is a reason to send a request: a record, the comparison of logs, a sync
    /// that must begin immediately, a new value of *safe*, or the renewal of the lease.
    fn has_cause(&self, log: &GroupLog, window: &RecordWindow, now: Duration) -> bool {
        let asks = !self.is_compared && self.under_way.is_empty();
        let reports = self.sent_safe < log.safe && now >= self.sent_at + SAFE_NOTICE_PAUSE;
        let renews = now >= self.sent_at + LEASE_RENEWAL;
        let has_record = self.next <= self.last_to_ship(log, window);
        has_record || asks || reports || renews || self.needs_sync(log, window)
    }

    /// Returns the last record that the primary may ship to the member now.
    fn last_to_ship(&self, log: &GroupLog, window: &RecordWindow) -> Lsn {
        match self.standing.role {
            LinkRole::Serving => window.last(),
            LinkRole::Counted | LinkRole::Absent => window.last().min(log.synced),
        }
    }

    fn needs_sync(&self, log: &GroupLog, window: &RecordWindow) -> bool {
        let wanted = log.sync_wanted.min(self.last_to_ship(log, window));
        wanted > self.sync_asked.max(self.progress.synced)
    }

    fn ship(
        &mut self,
        log: &GroupLog,
        window: &RecordWindow,
        number: u64,
        now: Duration,
    ) -> ShipLog {
        let first = self.next;
        let source = self.source(window);
        let previous_epoch = source.epoch_of_previous(first);
        let (mut records, mut bytes) = (Vec::new(), 0);
        let last = self.last_to_ship(log, window);
        let ships = |record: &&Record| record.lsn <= last && !self.standing.needs_copy;
        for record in source.from(first).take_while(ships) {
            let size = record_bytes(record);
            let is_full = bytes + size > SHIP_BYTES || records.len() >= SHIPPED_RECORDS;
            if is_full && !records.is_empty() {
                break;
            }
            bytes += size;
            let payload = Bytes(record.payload.clone());
            records.push(ShippedRecord { epoch: record.epoch, payload });
        }
        let syncs_at_once = self.needs_sync(log, window);
        self.next = Lsn::new(first.raw() + records.len() as u64);
        if syncs_at_once {
            // If `sync_wanted` is a later record, the request that ships it will ask for a sync
            // again.
            self.sync_asked = log.sync_wanted.min(preceding(self.next));
        }
        if self.under_way.is_empty() {
            self.replied_at = now;
        }
        let (last, process, count) = (window.last(), self.process, records.len());
        let sent = UnderWay { number, first, last, process, sent: now, records: count, bytes };
        self.under_way.push(sent);
        self.standing.request_sent(now);
        (self.sent_at, self.sent_safe) = (now, log.safe);
        ShipLog {
            epoch: log.epoch,
            first,
            previous_epoch,
            last: window.last(),
            process: self.process,
            records,
            held: log.held,
            safe: log.safe,
            syncs_at_once,
            wait_ms: log.wait_ms,
        }
    }

    /// Panics if an invariant of the type is violated.
    pub(super) fn check_invariants(&self, window: &RecordWindow) {
        assert!(
            self.progress.synced <= self.progress.appended,
            "a member has synced only records that it has appended"
        );
        assert!(self.next <= following(window.last()), "only records that exist are shipped");
        assert!(self.under_way.len() <= SHIPPED_REQUESTS, "requests under way have a limit");
        self.copy.iter().for_each(CopySender::check_invariants);
    }
}
