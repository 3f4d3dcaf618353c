//! How a backup member compares and appends the log records that the primary ships.
//!
//! This module does not own the requests and their replies, the syncs, or the store ([`super`]).

use super::Backup;
use crate::engine::Engine;
use crate::limits::MAX_BACKUP_BYTES;
use crate::shipping::record_window::record_bytes;
use crate::shipping::{following, preceding};
use crate::target::Action;
use skep_format::log::Record;
use skep_format::metadata::Batch;
use skep_types::codec::Codec;
use skep_types::{Epoch, Error, ErrorCode, Lsn, Result};
use skep_wire::log_shipping::{LogHeld, ShipLog, ShippedRecord};

impl<E: Engine> Backup<E> {
    /// Compares and appends the records in a request. The outer error ends the backup member, and
    /// the inner error is the reply.
    pub(super) fn receive(&mut self, ship: ShipLog) -> Result<Result<LogHeld>> {
        if ship.epoch != self.epoch() {
            let (sent, own) = (ship.epoch, self.epoch());
            let what =
                format!("cannot append records of epoch {sent}: this member has epoch {own}");
            return Ok(Err(Error::new(ErrorCode::StaleMap, what)));
        }
        let (before, held, safe) = (preceding(ship.first), ship.held, ship.safe);
        if safe > held || ship.previous_epoch == Epoch::default() && before > safe {
            let what = format!(
                "cannot append after record {before}: the request lacks the epoch of this record, \
                 or its LSNs are wrong (safe {safe}, held {held})"
            );
            return Ok(Err(Error::new(ErrorCode::Protocol, what)));
        }
        let stored = self.records.before();
        self.completeness.note_request(ship.process, ship.last, stored);
        self.completeness.diverges |= self.differs_in_store(before, ship.previous_epoch);
        if self.completeness.diverges {
            return Ok(Err(self.divergence()));
        }
        self.silence.note_wait(ship.wait_ms, self.now);
        if !self.own.serves() && self.completeness.is_inconclusive(ship.last, stored) {
            let (appended, synced) = (Lsn::default(), Lsn::default());
            let held = LogHeld { appended, synced, is_behind: true, ..self.held() };
            return Ok(Ok(held));
        }
        if let Some(ship_after) = self.differs_at(before, ship.previous_epoch) {
            return Ok(Ok(LogHeld { ship_after, is_behind: true, ..self.held() }));
        }
        self.matched = self.matched.max(before);
        let epoch = ship.epoch;
        let mut lsn = ship.first;
        for record in ship.records {
            if let Err(refusal) = self.receive_record(lsn, record, epoch) {
                return Ok(Err(refusal));
            }
            lsn = following(lsn);
        }
        self.safe = self.safe.max(safe);
        self.completeness.matched(self.matched);
        if ship.syncs_at_once && self.sync.synced() < self.records.last() {
            self.sync.request();
        }
        Ok(Ok(self.held()))
    }

    /// Whether `lsn` is the last record in the store of this member, and the primary has a
    /// different record with this LSN. `epoch` is the epoch of the primary's record; zero means
    /// that this epoch is not known.
    fn differs_in_store(&self, lsn: Lsn, epoch: Epoch) -> bool {
        let own = self.records.epoch_before();
        let are_known = own > Epoch::default() && epoch > Epoch::default();
        lsn == self.records.before() && are_known && own != epoch
    }

    /// Compares this member's record `lsn` with the primary's record of the same LSN. `epoch` is
    /// the epoch of the primary's record. Returns the LSN of the record after which the primary
    /// must ship, or `None` if both records are equal.
    fn differs_at(&self, lsn: Lsn, epoch: Epoch) -> Option<Lsn> {
        if lsn > self.records.last() {
            return Some(self.records.last());
        }
        // If this member does not serve, safe records may be missing in its log, so only the
        // records up to `matched` are known to be equal.
        if lsn > self.matched && epoch == Epoch::default() && !self.own.serves() {
            return Some(self.matched);
        }
        // Epoch zero means that the primary no longer has the record in memory. The primary removes
        // only safe records from memory, so this record is safe, and all serving members have the
        // same record.
        let is_equal = lsn <= self.matched || epoch == Epoch::default();
        let own = self.records.epoch_of(lsn).filter(|_| !is_equal)?;
        let first = self.records.first_of_same_epoch(lsn);
        (own != epoch).then(|| preceding(first).max(self.matched))
    }

    /// Appends one record after `matched`, or compares it with this member's record of the same
    /// LSN.
    fn receive_record(&mut self, lsn: Lsn, record: ShippedRecord, epoch: Epoch) -> Result<()> {
        if lsn <= self.matched {
            return Ok(());
        }
        let ShippedRecord { epoch: of_record, payload } = record;
        let previous = self.records.epoch_of(preceding(lsn)).unwrap_or_default();
        if !(previous <= of_record && of_record <= epoch) {
            let what = format!(
                "cannot append record {lsn}: this record has epoch {of_record}; expected an epoch \
                 from {previous} (of the record before) to {epoch} (of the group)"
            );
            return Err(Error::new(ErrorCode::Protocol, what));
        }
        match self.records.epoch_of(lsn) {
            Some(own) if own == of_record => {}
            Some(_) => {
                if self.sync.is_running() {
                    let what = format!(
                        "cannot replace record {lsn}: a sync of the log is running; repeat the \
                         request"
                    );
                    return Err(Error::new(ErrorCode::Busy, what));
                }
                self.remove_after(preceding(lsn));
                self.append(of_record, lsn, payload.0)?;
            }
            None => self.append(of_record, lsn, payload.0)?,
        }
        self.matched = lsn;
        Ok(())
    }

    /// Removes the records after `last`, which an earlier primary created.
    fn remove_after(&mut self, last: Lsn) {
        assert!(last >= self.matched, "the primary's own records stay");
        self.records.truncate(last);
        self.sync.truncate(last);
        self.actions.push(Action::Truncate { after: last });
    }

    fn append(&mut self, epoch: Epoch, lsn: Lsn, payload: Vec<u8>) -> Result<()> {
        if let Some(shortage) = &self.shortage {
            return Err(Error::new(ErrorCode::NoSpace, shortage.clone()));
        }
        let record = Record { epoch, lsn, synced: self.sync.synced(), payload };
        if self.records.bytes() + record_bytes(&record) > MAX_BACKUP_BYTES {
            let what = format!(
                "cannot append record {lsn}: the records that not every member has synced have {} \
                 bytes, and the limit is {MAX_BACKUP_BYTES}",
                self.records.bytes()
            );
            return Err(Error::new(ErrorCode::Busy, what));
        }
        Batch::from_bytes(&record.payload).map_err(|error| {
            let what = format!("record {lsn}: {}", error.context());
            Error::new(ErrorCode::Protocol, what)
        })?;
        self.own.note_record(epoch);
        self.checkpoints.logged(record.payload.len());
        self.sync.appended(self.now);
        let (synced, payload) = (record.synced, record.payload.clone());
        self.actions.push(Action::Append { epoch, lsn, synced, payload });
        self.records.push(record);
        Ok(())
    }
}
