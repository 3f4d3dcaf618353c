//! Checks staged transactions. A target commits a staged transaction only if the participant still
//! has the prepared transaction. A target undoes a staged transaction only if the participant has
//! lost the prepared transaction. No client gets a reply to a request whose staged transaction is
//! undone later. After a participant has replied that it has not prepared a transaction, it never
//! prepares this transaction.
//!
//! The record of the staged transaction contains the reply of the slot and all changes of the
//! coordinator. So the witness applies the operation to the reference model when the coordinator
//! appends this record, as for any other operation. As soon as the participant has lost its
//! prepared transaction, the outcome is certain: the witness reverts the operation. Until the
//! coordinator undoes the changes of this operation, listings of the directory show them. So the
//! witness does not check the name in listings.

use super::{Effect, InstanceId, Violation, Witness};
use crate::changes::Changes;
use skep_format::metadata::{ORDINALS, StagedEntry, name_cursor};
use skep_types::{GroupId, InodeId, Lsn, Timestamp};
use skep_wire::metadata::TransactionId;
use std::collections::{BTreeMap, BTreeSet};

/// A prepared transaction in the log of a participant.
struct PreparedTransaction {
    target: usize,
    lsn: Lsn,
    since: Timestamp,
}

/// A staged transaction in the log of a coordinator.
struct StagedOperation {
    target: usize,
    lsn: Lsn,
    /// The request that the transaction executes.
    id: InstanceId,
    entry: StagedEntry,
    /// Whether the participant has lost its prepared transaction.
    is_lost: bool,
    /// The record that ends the staged transaction, and whether it is a commit.
    end: Option<(Lsn, bool)>,
}

/// The staged transactions of all targets.
#[derive(Default)]
pub(super) struct StagedOperations {
    prepared: BTreeMap<TransactionId, PreparedTransaction>,
    staged: BTreeMap<TransactionId, StagedOperation>,
    /// Replies of participants that they do not have a prepared transaction: the target and the
    /// transaction.
    refused: BTreeSet<(usize, TransactionId)>,
    /// The names of the entries that lost transactions have changed.
    lost_names: BTreeSet<(InodeId, Vec<u8>)>,
}

impl StagedOperations {
    fn add_lost_name(&mut self, entry: &StagedEntry) {
        self.lost_names.insert((entry.directory, entry.name.0.clone()));
    }

    /// Whether a listing of a directory may show a change of this name that is undone later.
    pub(super) fn may_be_undone(&self, directory: InodeId, name: &[u8]) -> bool {
        self.lost_names.contains(&(directory, name.to_vec()))
    }
}

impl Witness {
    /// Whether a target has a prepared transaction, which it has prepared at the time `since`.
    pub(crate) fn has_prepared(
        &self,
        target: usize,
        transaction: TransactionId,
        since: Timestamp,
    ) -> bool {
        let prepared = self.staging.prepared.get(&transaction);
        prepared.is_some_and(|it| it.target == target && it.since == since)
    }

    /// Records that a target has replied that it does not have a prepared transaction.
    pub(crate) fn refused_to_prepare(&mut self, target: usize, transaction: TransactionId) {
        self.staging.refused.insert((target, transaction));
    }

    /// Records that a client has received a durable reply to a request.
    pub(crate) fn note_durable(&mut self, id: InstanceId) {
        if let Some(instance) = self.instances.get_mut(&id) {
            instance.is_durable = true;
        }
    }

    /// Checks the prepared and staged transactions in a record. Removes the changes of a staged
    /// transaction from `changes` if its participant has lost its prepared transaction already.
    ///
    /// # Errors
    /// Describes a wrong outcome of a transaction.
    pub(super) fn check_staged(
        &mut self,
        target: usize,
        lsn: Lsn,
        changes: &mut Changes,
    ) -> Result<(), Violation> {
        for (transaction, since) in &changes.prepared_transactions {
            if self.staging.refused.contains(&(target, *transaction)) {
                return Err(format!(
                    "prepared {transaction:?} after its reply that it had not done so"
                ));
            }
            let prepared = PreparedTransaction { target, lsn, since: *since };
            self.staging.prepared.insert(*transaction, prepared);
        }
        let coordinator = GroupId::new(target as u32 + 1);
        for (number, record) in std::mem::take(&mut changes.staged) {
            let transaction = TransactionId { coordinator, number };
            let id = (record.session, record.slot, record.sequence);
            let prepared = self.staging.prepared.get(&transaction);
            let is_lost = prepared.is_none_or(|it| it.since != record.since);
            if is_lost {
                self.staging.add_lost_name(&record.entry);
                self.hide_changes(&record.entry, id, changes);
            }
            let (entry, end) = (record.entry, None);
            let staged = StagedOperation { target, lsn, id, entry, is_lost, end };
            self.staging.staged.insert(transaction, staged);
        }
        for number in std::mem::take(&mut changes.staged_ends) {
            let transaction = TransactionId { coordinator, number };
            let is_commit = changes.decided.contains(&number);
            let Some(staged) = self.staging.staged.get_mut(&transaction) else { continue };
            match (is_commit, staged.is_lost) {
                (true, true) => {
                    return Err(format!(
                        "committed staged {transaction:?}, but its participant has lost it"
                    ));
                }
                (false, false) => {
                    return Err(format!(
                        "undid staged {transaction:?}, but its participant has prepared it"
                    ));
                }
                _ => staged.end = Some((lsn, is_commit)),
            }
        }
        for id in &changes.undone {
            let is_lost = |it: &StagedOperation| it.id == *id && it.is_lost;
            if !self.staging.staged.values().any(is_lost) {
                return Err(format!("{id:?} was undone"));
            }
        }
        Ok(())
    }

    /// Removes the changes of a staged transaction from the changes of a batch.
    fn hide_changes(&self, entry: &StagedEntry, id: InstanceId, changes: &mut Changes) {
        changes.slots.retain(|(session, slot, it)| (*session, *slot, it.sequence) != id);
        let first = name_cursor(self.map.cluster, entry.directory, &entry.name);
        changes.dentries.retain(|(directory, cursor, _)| {
            *directory != entry.directory || cursor / ORDINALS != first / ORDINALS
        });
    }

    /// Reverts the staged operations whose participant `target` has lost the prepared transaction,
    /// because its records after `last` are lost. Also forgets the staged transactions that
    /// `target` has lost as a coordinator. Returns whether an operation was reverted. The caller
    /// then rebuilds the model.
    ///
    /// # Errors
    /// Describes a lost transaction that was committed or acknowledged.
    pub(super) fn lose_prepared(&mut self, target: usize, last: Lsn) -> Result<bool, Violation> {
        let staging = &mut self.staging;
        staging.staged.retain(|_, it| it.target != target || it.lsn <= last);
        for staged in staging.staged.values_mut().filter(|it| it.target == target) {
            staged.end = staged.end.filter(|(lsn, _)| *lsn <= last);
        }
        let is_lost = |it: &PreparedTransaction| it.target == target && it.lsn > last;
        let lost = staging.prepared.iter().filter(|(_, it)| is_lost(it));
        let lost: Vec<_> = lost.map(|(transaction, _)| *transaction).collect();
        let mut has_reverted = false;
        for transaction in lost {
            self.staging.prepared.remove(&transaction);
            has_reverted |= self.lose_participant(transaction)?;
        }
        Ok(has_reverted)
    }

    /// Reverts a staged operation whose participant has lost its prepared transaction. Returns
    /// `false` if the transaction is not staged, or was reverted before.
    fn lose_participant(&mut self, transaction: TransactionId) -> Result<bool, Violation> {
        let Some(staged) = self.staging.staged.get_mut(&transaction) else { return Ok(false) };
        if staged.is_lost {
            return Ok(false);
        }
        if let Some((_, true)) = staged.end {
            return Err(format!(
                "committed staged {transaction:?}, and its participant has lost it later"
            ));
        }
        staged.is_lost = true;
        let (at, lsn, id, entry) = (staged.target, staged.lsn, staged.id, staged.entry.clone());
        self.staging.add_lost_name(&entry);
        if let Some(instance) = self.instances.get_mut(&id) {
            if instance.answered && !instance.refused {
                let op = &instance.op;
                return Err(format!("{op:?} was acknowledged, and its participant has lost it"));
            }
            instance.committed = None;
        }
        let is_effect = |it: &Effect| matches!(it, Effect::Client(of, _) if *of == id);
        for entry in self.history.iter_mut().filter(|it| it.target == at && it.lsn == lsn) {
            entry.effects.retain(|it| !is_effect(it));
        }
        Ok(true)
    }
}
