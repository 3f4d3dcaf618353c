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
use super::{MemberMessage, MemberRequest, Progress};
use crate::limits::KEPT_BYTES;
use skep_format::log::Record;
use skep_types::{Epoch, Lsn, Result, TargetId};
use skep_wire::log_shipping::LogHeld;
use std::collections::BTreeMap;
use std::time::Duration;

/// The primary's part of shipping.
#[derive(Debug)]
pub(crate) struct Shipper {
    epoch: Epoch,
    window: RecordWindow,
    /// The other serving members.
    links: BTreeMap<TargetId, MemberLink>,
    next_number: u64,
}

impl Shipper {
    /// Creates the shipper of a primary with these records. All records before the first of them
    /// are safe.
    pub(crate) fn new(epoch: Epoch, window: RecordWindow) -> Self {
        Self { epoch, window, links: BTreeMap::new(), next_number: 1 }
    }

    /// Begins an epoch: forgets the progress of all members.
    pub(crate) fn begin_epoch(&mut self, epoch: Epoch) {
        self.epoch = epoch;
        let last = self.window.last();
        self.links.values_mut().for_each(|link| *link = MemberLink::new(last));
    }

    /// Replaces the other serving members.
    pub(crate) fn set_members(&mut self, serving: &[TargetId]) {
        self.links.retain(|member, _| serving.contains(member));
        for member in serving {
            let last = self.window.last();
            self.links.entry(*member).or_insert_with(|| MemberLink::new(last));
        }
    }

    /// Adds the record that the primary appends next. A group of one member keeps it too, until
    /// it is synced: a second member that joins in between needs the record.
    pub(crate) fn append(&mut self, epoch: Epoch, lsn: Lsn, synced: Lsn, payload: &[u8]) {
        self.window.push(Record { epoch, lsn, synced, payload: payload.to_vec() });
    }

    /// Drops the records up to `safe`.
    pub(crate) fn release(&mut self, safe: Lsn) {
        if safe > self.window.before() {
            self.window.take_up_to(safe);
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
