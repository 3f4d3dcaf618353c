//! The primary's link to one other member: the member's progress in this epoch, the requests under
//! way, and the next record to ship.
//!
//! Does not own the records (`record_window`), and sends nothing itself.
//!
//! # Lease
//! A link sends something every [`LEASE_RENEWAL`], so that the primary may answer
//! ([`super::standing`]).
//!
//! # Members that do not serve
//! A member that was away gets what the primary still keeps. When little is missing, the primary
//! counts the member: replies wait for it like for a serving member. Then the primary asks
//! management to mark the member as in sync.
//!
//! # Comparison
//! At the beginning of an epoch, and after each loss, the primary does not know where the member's
//! log agrees with its own. Then one request at a time is under way, until the member confirms that
//! it has the record that precedes the first record of the request. After that, several requests
//! may be under way. A member that has restarted must be compared again, since its process forgets
//! how far it had compared.

use super::record_window::{RecordWindow, record_bytes};
use super::standing::{LinkRole, Standing};
use super::{MemberMessage, Progress, following, preceding};
use crate::limits::{
    AWAIT_LOST_AFTER, JOIN_LAG, LEASE_RENEWAL, MEMBER_PAUSE, SAFE_NOTICE_PAUSE, SHIP_AGAIN_AFTER,
    SHIP_BYTES, SHIPPED_BYTES, SHIPPED_RECORDS, SHIPPED_REQUESTS,
};
use skep_types::codec::Bytes;
use skep_types::{Epoch, Lsn, Result};
use skep_wire::log_shipping::{AwaitLogSync, LogHeld, ShipLog, ShippedRecord};
use std::time::Duration;

/// The state of the group's log that requests report to the member.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupLog {
    pub(crate) epoch: Epoch,
    pub(crate) held: Lsn,
    pub(crate) safe: Lsn,
    /// Last record that a member must sync soon, since a reply, call or operation waits for it.
    pub(crate) sync_wanted: Lsn,
}

/// A `ShipLog` without a reply.
#[derive(Debug)]
struct UnderWay {
    number: u64,
    first: Lsn,
    sent: Duration,
    records: usize,
    bytes: usize,
}

/// An `AwaitLogSync` without a reply.
#[derive(Debug)]
struct SyncQuestion {
    number: u64,
    sent: Duration,
    /// Last record that the member had confirmed when the primary sent the request.
    appended: Lsn,
}

/// The primary's link to one other member.
#[derive(Debug)]
pub(super) struct MemberLink {
    pub(super) standing: Standing,
    progress: Progress,
    /// Whether the member has confirmed the record before `next`, so that it appends what follows.
    is_compared: bool,
    /// Next record to ship.
    next: Lsn,
    under_way: Vec<UnderWay>,
    awaiting: Option<SyncQuestion>,
    /// Replies to requests with lower numbers do not change `next`.
    resumed_at: u64,
    /// Time of the last reply to a `ShipLog`, or of the first request after a time without requests
    /// under way.
    replied_at: Duration,
    paused_until: Duration,
    sent_at: Duration,
    /// Last value of *safe* that a request has carried.
    sent_safe: Lsn,
    /// Last record of the newest request that asked for a sync at once.
    sync_asked: Lsn,
}

impl MemberLink {
    /// Creates the link to a member at the beginning of an epoch, when the last record of the
    /// primary is `last`.
    pub(super) fn new(last: Lsn, role: LinkRole) -> Self {
        Self {
            standing: Standing::new(role),
            progress: Progress::default(),
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

    /// Handles the reply to a request, or its failure. Returns the progress of the member if the
    /// reply belongs to this epoch. `next_number` is the number of the next request.
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
                self.paused_until = now + self.standing.pause();
                self.resume(next_number);
            }
            return None;
        };
        let sent = awaited.as_ref().map(|it| it.sent).or(shipped.as_ref().map(|it| it.sent));
        self.standing.acknowledge(sent);
        if !was_awaited {
            // Replies to waits arrive all the time, also if the records under way are lost.
            self.replied_at = now;
        }
        self.progress = self.progress.max(Progress {
            appended: held.appended.min(window.last()),
            synced: held.synced.min(held.appended).min(window.last()),
        });
        if awaited.is_some_and(|it| held.appended < it.appended) {
            // The process of the member has restarted, and no request under way would make it
            // compare its records again.
            self.resume(next_number);
        } else if !was_awaited && is_current {
            if held.is_behind {
                let before = window.before();
                let is_first = shipped.is_some_and(|it| it.first <= following(before));
                if held.ship_after < before && is_first {
                    self.standing.needs_copy = true;
                    self.paused_until = now + self.standing.pause();
                }
                if held.ship_after < self.progress.appended {
                    // The reply is old, or the member has lost records that it had confirmed. Then
                    // it stays behind until the next epoch, and gets a request now and then.
                    self.paused_until = now + MEMBER_PAUSE;
                }
                self.resume(next_number);
                // Records before the window are safe, so a serving member has them.
                let next = following(held.ship_after.max(self.progress.appended));
                self.next = next.clamp(following(window.before()), following(window.last()));
                self.is_compared = self.next == following(self.progress.appended);
            } else {
                self.is_compared = true;
                self.standing.confirm();
                self.next = self.next.max(following(self.progress.appended));
            }
        }
        Some(self.progress)
    }

    /// Returns the requests to send now, with their numbers.
    pub(super) fn requests(
        &mut self,
        log: &GroupLog,
        window: &RecordWindow,
        next_number: &mut u64,
        now: Duration,
    ) -> Vec<(u64, MemberMessage)> {
        let mut requests = Vec::new();
        if now < self.paused_until {
            return requests;
        }
        if !self.under_way.is_empty() && now >= self.replied_at + SHIP_AGAIN_AFTER {
            self.resume(*next_number);
        }
        // A resumed link begins after the records that all members have synced at the latest.
        self.next = self.next.max(following(window.before()));
        while self.may_send() && self.has_cause(log, window, now) {
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

    pub(super) fn progress(&self) -> Progress {
        self.progress
    }

    /// Whether little is missing to the member.
    pub(super) fn is_close_to(&self, last: Lsn) -> bool {
        let lag = last.raw().saturating_sub(self.progress.appended.raw());
        self.is_compared && lag <= JOIN_LAG
    }

    /// Returns the time at which [`Self::requests`] has something to send even if no event arrives.
    pub(super) fn next_due(&self, safe: Lsn) -> Option<Duration> {
        let resent = (!self.under_way.is_empty()).then_some(self.replied_at + SHIP_AGAIN_AFTER);
        let is_idle = self.under_way.is_empty() && self.is_compared && self.sent_safe < safe;
        let noticed = is_idle.then_some(self.sent_at + SAFE_NOTICE_PAUSE);
        let is_quiet = self.under_way.is_empty() && self.is_compared;
        let renewed = is_quiet.then_some(self.sent_at + LEASE_RENEWAL);
        let awaited = self.awaiting.as_ref().map(|it| it.sent + AWAIT_LOST_AFTER);
        let begun = (self.under_way.is_empty() && !self.is_compared).then_some(self.paused_until);
        let due =
            resent.into_iter().chain(noticed).chain(renewed).chain(awaited).chain(begun).min()?;
        Some(due.max(self.paused_until))
    }

    /// Counts the requests under way as lost: one request asks the member where to continue.
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
        self.under_way.is_empty() || self.is_compared && has_space
    }

    /// Whether there is anything to send: records, a question where to continue, a sync that must
    /// begin at once, or a new value of *safe*.
    fn has_cause(&self, log: &GroupLog, window: &RecordWindow, now: Duration) -> bool {
        let asks = !self.is_compared && self.under_way.is_empty();
        let reports = self.sent_safe < log.safe && now >= self.sent_at + SAFE_NOTICE_PAUSE;
        let renews = now >= self.sent_at + LEASE_RENEWAL;
        self.next <= window.last() || asks || reports || renews || self.needs_sync(log)
    }

    fn needs_sync(&self, log: &GroupLog) -> bool {
        log.sync_wanted > self.sync_asked.max(self.progress.synced)
    }

    fn ship(
        &mut self,
        log: &GroupLog,
        window: &RecordWindow,
        number: u64,
        now: Duration,
    ) -> ShipLog {
        let first = self.next;
        let (mut records, mut bytes) = (Vec::new(), 0);
        for record in window.from(first).take_while(|_| !self.standing.needs_copy) {
            let size = record_bytes(record);
            let is_full = bytes + size > SHIP_BYTES || records.len() >= SHIPPED_RECORDS;
            if is_full && !records.is_empty() {
                break;
            }
            bytes += size;
            let payload = Bytes(record.payload.clone());
            records.push(ShippedRecord { epoch: record.epoch, payload });
        }
        let syncs_at_once = self.needs_sync(log);
        self.next = Lsn::new(first.raw() + records.len() as u64);
        if syncs_at_once {
            // If `sync_wanted` is a later record, the request with that record asks again.
            self.sync_asked = log.sync_wanted.min(preceding(self.next));
        }
        if self.under_way.is_empty() {
            self.replied_at = now;
        }
        self.under_way.push(UnderWay { number, first, sent: now, records: records.len(), bytes });
        self.standing.request_sent(now);
        (self.sent_at, self.sent_safe) = (now, log.safe);
        ShipLog {
            epoch: log.epoch,
            first,
            previous_epoch: window.epoch_of_previous(first),
            last: window.last(),
            records,
            held: log.held,
            safe: log.safe,
            syncs_at_once,
        }
    }

    /// Panics if an invariant of the type is violated.
    pub(super) fn check_invariants(&self, window: &RecordWindow) {
        assert!(
            self.progress.synced <= self.progress.appended,
            "a member has synced only records that it has appended"
        );
        assert!(self.next <= following(window.last()), "only records that exist are shipped");
        assert!(self.under_way.len() <= SHIPPED_REQUESTS, "few requests are under way");
    }
}
