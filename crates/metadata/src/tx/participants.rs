//! The transaction that an operation coordinates: the steps that other groups prepare for it, and
//! the rename lock.
//!
//! This module owns the requests to the participants. The module `target` owns the decision and the
//! requests that follow the decision.

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_format::metadata::{StagedEntry, StagedRecord};
use skep_types::{Attributes, GroupId, InodeId, STAGING_FEATURE_LEVEL};
use skep_wire::metadata::{
    BeginPrepare, BeginPrepareReply, Prepare, PrepareReply, Step, TransactionId,
};

impl<E: Engine> Context<'_, E> {
    /// Asks groups to prepare steps as part of this operation's transaction. If the operation
    /// succeeds, the target sends these groups the commit, otherwise the abort.
    pub(crate) fn prepare(
        &mut self,
        steps: Vec<(GroupId, Vec<Step>)>,
    ) -> Result<Vec<PrepareReply>, Stop> {
        if steps.is_empty() {
            return Ok(Vec::new());
        }
        let transaction = self.transaction_with(steps.iter().map(|(group, _)| *group))?;
        let requests: Vec<_> = steps
            .into_iter()
            .map(|(group, steps)| (group, Prepare { transaction, steps }))
            .collect();
        let prepared = self.ask_all(requests.iter().map(|(group, it)| (*group, it)).collect())?;
        if prepared.iter().any(|it| it.busy) {
            return Err(Stop::Busy);
        }
        Ok(prepared)
    }

    /// Like [`Self::prepare`], for an operation with one participant that changes nothing at this
    /// group except the entry `entry` and the counts of its directory. If the feature level
    /// permits, the transaction becomes *staged*: the logs of both groups are synced at the same
    /// time (`docs/design/0028-staged-transactions.md`). Returns the attributes in the reply. If
    /// the reply has attributes, `entry` gets its inode and kind from them.
    pub(crate) fn prepare_for_entry(
        &mut self,
        group: GroupId,
        steps: Vec<Step>,
        mut entry: StagedEntry,
    ) -> Result<Vec<Attributes>, Stop> {
        // A replayed change is not staged, but waits until the participant has durably prepared the
        // steps. So no transaction is undecided when the replay window ends.
        let is_replayed = self.op.first_reply.is_some();
        let may_stage = !is_replayed && self.shared.map.feature_level >= STAGING_FEATURE_LEVEL;
        let request = self.op.header().filter(|_| may_stage);
        let request = request.map(|it| (it.session, it.slot, it.sequence));
        let Some((session, slot, sequence)) = request else {
            let prepared = self.prepare(vec![(group, steps)])?;
            return Ok(prepared.into_iter().flat_map(|it| it.attributes).collect());
        };
        let transaction = self.transaction_with([group])?;
        let reply = self.ask(group, &BeginPrepare { transaction, steps })?;
        let BeginPrepareReply { busy, attributes, since } = reply;
        if busy {
            return Err(Stop::Busy);
        }
        if let Some(answer) = attributes.first() {
            (entry.inode, entry.kind) = (answer.inode, answer.kind);
        }
        let staged = StagedRecord { participant: group, since, entry, session, slot, sequence };
        self.unlogged.staged = Some(staged);
        Ok(attributes)
    }

    /// Returns the id of the transaction that this operation coordinates, and adds participants to
    /// it.
    fn transaction_with(
        &mut self,
        participants: impl IntoIterator<Item = GroupId>,
    ) -> Result<TransactionId, Stop> {
        let number = match self.op.transaction {
            Some(number) => number,
            None => {
                let number = self.next_number()?;
                self.op.transaction = Some(number);
                number
            }
        };
        for group in participants {
            if !self.op.participants.contains(&group) {
                self.op.participants.push(group);
            }
        }
        Ok(TransactionId { coordinator: self.shared.group, number })
    }

    /// Takes the rename lock, if necessary with a call to the group that serves the root. The
    /// operation keeps the lock until the operation ends.
    pub(crate) fn hold_rename_lock(&mut self) -> Result<(), Stop> {
        if self.is_local(InodeId::ROOT)? {
            return self.take_rename_lock();
        }
        let root = self.group_of(InodeId::ROOT)?;
        let number = match self.op.rename_lock {
            Some((number, _)) => number,
            None => {
                let number = self.next_number()?;
                self.op.rename_lock = Some((number, root));
                number
            }
        };
        let transaction = TransactionId { coordinator: self.shared.group, number };
        let reply = self.ask(root, &Prepare { transaction, steps: vec![Step::LockRename] })?;
        if reply.busy { Err(Stop::Busy) } else { Ok(()) }
    }
}
