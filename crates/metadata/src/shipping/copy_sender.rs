//! The primary's side of a copy of its store. The copy goes to one member that lacks log records
//! which the primary no longer has.
//!
//! The copy consists of parts ([`CopyStore`]). Each part has the next key-value pairs in the order
//! of their keys. Each part also has the log records whose changes the primary has written to its
//! store since the previous part. The member applies these records to the keys that it has. So up
//! to the last copied key, the member's store equals the primary's store after one record, and the
//! primary needs no snapshot of its store. Only one part is in flight at a time, and this part
//! continues the copy from the state in the member's last reply. So after a restart, a change of
//! the primary, or a lost, repeated or late message, the primary only asks the member for the state
//! of its copy.
//!
//! This module owns the choice of the next request and the rate of the copy. The module does not
//! own the store, which the caller reads ([`CopySender::wanted`], [`CopySender::put`]), or the
//! member's side ([`super::copy_receiver`]).
//!
//! # Invariants
//! - At most one request is in flight, and the primary builds a part only while no request is in
//!   flight.
//! - The records and pairs of a part reflect the primary's store, which has only safe records. So
//!   no other primary has other records with the same LSNs.

use super::old_records::FIRST_WITH_PREVIOUS;
use super::record_window::{RecordWindow, record_bytes};
use super::{following, preceding};
use crate::limits::{ABSENT_PAUSE, COPY_LOST_AFTER, COPY_PAUSE, COPY_RECORD_BYTES, SHIP_BYTES};
use skep_format::log::Record;
use skep_types::codec::{Bytes, Codec, crc32c};
use skep_types::{Epoch, Error, ErrorCode, Lsn, Result};
use skep_wire::log_shipping::{
    CopyProgress, CopyStep, CopyStore, ShippedRecord, StoreCopied, StoredPair,
};
use std::time::Duration;

/// Consecutive key-value pairs of the primary's store.
#[derive(Debug, Default)]
pub(crate) struct StorePage {
    /// The pairs, in ascending order of their keys.
    pub(crate) pairs: Vec<StoredPair>,
    /// Whether the store has no pairs after `pairs`.
    pub(crate) is_last: bool,
}

/// The next part of a copy, which the primary must read from its store.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WantedPart {
    /// The pairs begin after this key.
    pub(crate) after: Vec<u8>,
    /// Whether the part has key-value pairs. `false` means that the part has only log records.
    pub(crate) has_pairs: bool,
}

/// A request to the member that has no reply yet.
#[derive(Debug)]
struct UnderWay {
    number: u64,
    sent: Duration,
    /// The reply that the member sends if it adds the part in the request. `None` means that the
    /// request has no part.
    expected: Option<StoreCopied>,
}

/// The copy of the store to one member, during one epoch.
#[derive(Debug, Default)]
pub(super) struct CopySender {
    /// The last report of the member about its copy. `None` means that the primary must ask for a
    /// report.
    position: Option<StoreCopied>,
    /// The part for the next request.
    ready: Option<CopyStore>,
    under_way: Option<UnderWay>,
    paused_until: Duration,
    /// Time from which the next part may have pairs. This time limits the rate of the copy: see
    /// [`Self::put`] and [`Self::on_reply`].
    pairs_from: Duration,
    /// Time of the first report, and the number of bytes that the copy had at that time. The
    /// primary measures the rate of the copy from this point.
    measured_from: Option<(Duration, u64)>,
    reported_at: Duration,
    problem: String,
    /// LSN of the first record that the primary's log on disk has. `None` means that no read of the
    /// log has failed for lack of a record, so the first record is unknown.
    log_begins: Option<Lsn>,
    /// Whether the member's copy differs from the parts that the primary has sent, according to a
    /// reply. If so, the copy must begin again.
    has_failed: bool,
}

/// Returns the checksum of a copy to which `pairs` were added. `before` is the checksum of the copy
/// without these pairs.
pub(super) fn checksum_after(before: u32, pairs: &Vec<StoredPair>) -> u32 {
    let mut bytes = before.to_bytes();
    bytes.extend(pairs.to_bytes());
    crc32c(&bytes)
}

/// Returns the number of bytes of all keys and values in `pairs`.
pub(crate) fn pair_bytes(pairs: &[StoredPair]) -> u64 {
    pairs.iter().map(|pair| (pair.key.0.len() + pair.value.0.len()) as u64).sum()
}

impl CopySender {
    /// Creates the state of a copy that has not begun. `log_begins` is the LSN of the first record
    /// that the primary's log on disk has. `None` means that this LSN is unknown.
    pub(super) fn new(log_begins: Option<Lsn>) -> Self {
        Self { log_begins, ..Self::default() }
    }

    /// Returns the next part to read from the store now. `stored` is the last record in the
    /// primary's store. The caller reads the part and calls [`Self::put`].
    pub(super) fn wanted(
        &self,
        window: &RecordWindow,
        stored: Lsn,
        now: Duration,
    ) -> Option<WantedPart> {
        if now < self.paused_until || self.under_way.is_some() || self.ready.is_some() {
            return None;
        }
        let position = self.position.as_ref().filter(|it| it.is_copying && !it.is_whole)?;
        // The primary must still have the records after the part in memory. The store of the member
        // must not revert to an older state.
        if stored < window.before() || self.must_begin(window) || stored < position.applied {
            return None;
        }
        let bytes = if is_first(position) { 0 } else { bytes_between(window, position, stored) };
        let has_pairs = bytes <= SHIP_BYTES && now >= self.pairs_from;
        let is_due = has_pairs || bytes >= COPY_RECORD_BYTES;
        is_due.then(|| WantedPart { after: position.after.0.clone(), has_pairs })
    }

    /// Builds the next part of the copy, a [`CopyStore`] message. `page` has the key-value pairs
    /// that the caller has read from the primary's store. `stored` is the LSN of the last record in
    /// this store. `bytes_per_second` is the maximum rate.
    pub(super) fn put(
        &mut self,
        log: (Epoch, &RecordWindow),
        (stored, page): (Lsn, StorePage),
        bytes_per_second: u64,
        now: Duration,
    ) {
        let Some(position) = &self.position else { return };
        let StorePage { pairs, is_last } = page;
        let first = following(if is_first(position) { stored } else { position.applied });
        let records = records_up_to(log.1, first, stored);
        let through = pairs.last().map_or_else(|| position.after.clone(), |it| it.key.clone());
        let bytes = pair_bytes(&pairs);
        let checksum = match pairs.is_empty() {
            true => position.checksum,
            false => checksum_after(position.checksum, &pairs),
        };
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_second.max(1));
        let pause = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.pairs_from = self.pairs_from.max(now).saturating_add(pause);
        self.ready = Some(CopyStore {
            epoch: log.0,
            step: CopyStep::Extend,
            after: position.after.clone(),
            first,
            previous_epoch: log.1.epoch_of_previous(first),
            records,
            pair_count: position.pair_count + pairs.len() as u64,
            pair_bytes: position.pair_bytes + bytes,
            checksum,
            pairs,
            through,
            is_last,
        });
    }

    /// Returns the request that the primary must send now.
    pub(super) fn request(
        &mut self,
        log: (Epoch, &RecordWindow),
        number: u64,
        now: Duration,
    ) -> Option<CopyStore> {
        if self.under_way.take_if(|it| now >= it.sent + COPY_LOST_AFTER).is_some() {
            self.position = None;
            self.problem = "the member does not reply".into();
        }
        if now < self.paused_until || self.under_way.is_some() {
            return None;
        }
        let request = match (self.ready.take(), &self.position) {
            (Some(part), _) => part,
            (None, Some(position)) if self.must_begin(log.1) => {
                let is_wrong = self.has_failed || is_ahead(position, log.1);
                let kept = match (is_wrong, position.is_copying) {
                    (true, _) => Lsn::new(u64::MAX - 1),
                    (false, true) => log.1.before(),
                    (false, false) => self.records_begin_after(log.1),
                };
                CopyStore { first: following(kept), ..without_part(log.0, CopyStep::Begin) }
            }
            (None, Some(it)) if it.is_copying && !it.is_whole => return None,
            (None, _) => without_part(log.0, CopyStep::Ask),
        };
        let expected = (request.step == CopyStep::Extend).then(|| StoreCopied {
            epoch: request.epoch,
            is_copying: true,
            is_whole: request.is_last,
            applied: preceding(Lsn::new(request.first.raw() + request.records.len() as u64)),
            after: request.through.clone(),
            pair_count: request.pair_count,
            pair_bytes: request.pair_bytes,
            checksum: request.checksum,
        });
        self.under_way = Some(UnderWay { number, sent: now, expected });
        Some(request)
    }

    /// Handles a reply, or the failure of a request. When the copy has ended, returns the LSN of
    /// the last record in the member's store. The primary can then ship all later records from
    /// memory or from its log on disk.
    pub(super) fn on_reply(
        &mut self,
        (number, result): (u64, &Result<StoreCopied>),
        log: (Epoch, &RecordWindow),
        now: Duration,
    ) -> Option<Lsn> {
        let under_way = self.under_way.take_if(|it| it.number == number)?;
        self.position = None;
        let copied = match result {
            Ok(copied) if copied.epoch == log.0 => copied,
            Ok(_) => return self.pause(ABSENT_PAUSE, now, ""),
            Err(error) => return self.pause(ABSENT_PAUSE, now, error.context()),
        };
        if !copied.is_copying && copied.applied >= self.records_begin_after(log.1) {
            return Some(copied.applied);
        }
        self.problem.clear();
        let has_moved = under_way.expected.as_ref().is_some_and(|it| it.after == copied.after);
        if has_moved {
            // Pause for as long as the transfer of this part took. So the copy uses at most half of
            // the time of a device or processor, and leaves the other half to requests.
            self.pairs_from = self.pairs_from.max(now + (now - under_way.sent));
        }
        if has_moved && under_way.expected.as_ref() != Some(copied) {
            self.has_failed = true;
            self.problem = "the copy at the member differs from the parts that were sent".into();
        }
        self.has_failed &= !is_first(copied);
        if !copied.is_copying || copied.is_whole {
            // The member has not opened an empty store for the copy yet, or it has all parts and
            // makes them durable.
            self.paused_until = now + COPY_PAUSE;
        } else {
            let bytes = copied.pair_bytes;
            if self.measured_from.is_none_or(|(_, first)| bytes < first) {
                self.measured_from = Some((now, bytes));
            }
            self.reported_at = now;
        }
        self.position = Some(copied.clone());
        None
    }

    /// Returns the time at which the copy continues even if no event arrives.
    pub(super) fn next_due(&self) -> Duration {
        let lost = self.under_way.as_ref().map(|it| it.sent + COPY_LOST_AFTER);
        lost.unwrap_or(self.paused_until.max(self.pairs_from))
    }

    /// Returns the progress of the copy, for administrators.
    pub(super) fn progress(&self, total_pairs: u64) -> CopyProgress {
        let sent = self.under_way.as_ref().and_then(|it| it.expected.as_ref());
        let known = self.position.as_ref().or(sent).filter(|it| it.is_copying);
        let (pair_count, pair_bytes) = known.map_or((0, 0), |it| (it.pair_count, it.pair_bytes));
        let bytes_per_second = self.measured_from.and_then(|(at, bytes)| {
            let millis = self.reported_at.saturating_sub(at).as_millis();
            let bytes = u128::from(pair_bytes.saturating_sub(bytes)) * 1000;
            u64::try_from(bytes.checked_div(millis)?).ok()
        });
        let problem = self.problem.clone();
        CopyProgress { pair_count, total_pairs, pair_bytes, bytes_per_second, problem }
    }

    /// Returns the LSN of the oldest record that a member must have. If the member has this record,
    /// the primary can ship all later records from memory or from its log on disk.
    fn records_begin_after(&self, window: &RecordWindow) -> Lsn {
        // The member compares the record before the first shipped record, so the log must have that
        // record too.
        let begins = self.log_begins.unwrap_or_default();
        begins.max(preceding(FIRST_WITH_PREVIOUS)).min(window.before())
    }

    /// Whether the member must remove its store and begin a copy.
    fn must_begin(&self, window: &RecordWindow) -> bool {
        let Some(position) = &self.position else { return false };
        // The primary no longer has the log record in memory that the member's copy needs next.
        let is_stale = !is_first(position) && position.applied < window.before();
        let is_wrong = self.has_failed || is_ahead(position, window);
        !position.is_copying || is_wrong || is_stale && !position.is_whole
    }

    fn pause(&mut self, pause: Duration, now: Duration, problem: &str) -> Option<Lsn> {
        self.paused_until = now + pause;
        problem.clone_into(&mut self.problem);
        None
    }

    /// Panics if an invariant of the type is violated.
    pub(super) fn check_invariants(&self) {
        assert!(
            self.ready.is_none() || self.under_way.is_none(),
            "a part is made only when no request is under way"
        );
    }
}

/// Whether the copy has changes that the primary lacks. A copy is ahead only if the primary was
/// restored from a backup after it had sent a part of this copy.
fn is_ahead(position: &StoreCopied, window: &RecordWindow) -> bool {
    position.is_copying && position.applied > window.last()
}

/// Whether the member has no part of the copy yet.
fn is_first(position: &StoreCopied) -> bool {
    position.after.0.is_empty()
}

/// Returns the number of bytes of the records up to `stored` that the copy lacks.
fn bytes_between(window: &RecordWindow, position: &StoreCopied, stored: Lsn) -> usize {
    let missing = window.from(following(position.applied));
    missing.take_while(|record| record.lsn <= stored).map(record_bytes).sum()
}

/// Returns the records from `first` to `stored`, as far as they fit into one part.
fn records_up_to(window: &RecordWindow, first: Lsn, stored: Lsn) -> Vec<ShippedRecord> {
    let mut bytes = 0;
    let mut fits = |record: &&Record| {
        let is_first = bytes == 0;
        bytes += record_bytes(record);
        record.lsn <= stored && (is_first || bytes <= SHIP_BYTES)
    };
    let records = window.from(first).take_while(|record| fits(record));
    let shipped = |record: &Record| ShippedRecord {
        epoch: record.epoch,
        payload: Bytes(record.payload.clone()),
    };
    records.map(shipped).collect()
}

/// Returns a request without a part.
fn without_part(epoch: Epoch, step: CopyStep) -> CopyStore {
    CopyStore {
        epoch,
        step,
        after: Bytes(Vec::new()),
        first: Lsn::default(),
        previous_epoch: Epoch::default(),
        records: Vec::new(),
        pairs: Vec::new(),
        through: Bytes(Vec::new()),
        is_last: false,
        pair_count: 0,
        pair_bytes: 0,
        checksum: 0,
    }
}

/// Returns the error for a part that a correct primary does not send.
pub(super) fn malformed(what: &str) -> Error {
    Error::new(ErrorCode::Protocol, format!("cannot add a part to the copy of the store: {what}"))
}
