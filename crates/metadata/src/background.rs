//! The background jobs of a target: work that no request of a client has started. Each job is a
//! struct with its own state, which the target rebuilds from the store at its start.
//!
//! | job | module |
//! |---|---|
//! | reserves numbers for inodes and transactions | `numbers` |
//! | closes the open files of ended sessions | `session_end` |
//! | asks storage to delete the chunk files of removed files | `chunk_removal` |
//! | recovers the size of files whose writer has died | `size_recovery` |
//! | makes storage truncate the chunk files of truncated files | `truncations` |
//! | ends prepared transactions, and asks participants to confirm commits | `prepared` |
//! | logs the ends of staged transactions | `staged` |
//! | deletes old records of ended sessions and of other groups' ended transactions | `forget` |
//!
//! A job does not change the target directly: it gets a [`JobContext`] and adds [`JobTask`]s, which
//! the target performs.

mod chunk_removal;
mod forget;
mod numbers;
mod prepared;
mod removal_queue;
mod session_end;
mod size_recovery;
mod staged;
mod startup;
mod storage_name;
mod task;
mod truncations;
mod work_items;

pub(crate) use task::{BackgroundCall, DecideCall, JobContext, JobTask};

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use crate::tx::shared::Shared;
use crate::tx::work::InternalWork;
use chunk_removal::ChunkRemovals;
use forget::ForgetJob;
use numbers::NumberReservation;
use prepared::PreparedTransactions;
use session_end::SessionCleanUp;
use size_recovery::SizeRecoveries;
use skep_types::{Error, GroupId, InodeId, Lsn, Result, SessionId};
use skep_wire::metadata::TransactionId;
use std::collections::BTreeMap;
use std::time::Duration;
use truncations::Truncations;
use work_items::WorkItems;

/// The background jobs of a target.
#[derive(Debug, Default)]
pub(crate) struct Background {
    items: WorkItems,
    numbers: NumberReservation,
    session_ends: SessionCleanUp,
    removals: ChunkRemovals,
    sizes: SizeRecoveries,
    truncations: Truncations,
    prepared: PreparedTransactions,
    forget: ForgetJob,
}

impl Background {
    /// Notes the work item of a key that a transaction has written. `is_present` is false if the
    /// transaction has deleted the key.
    pub(crate) fn on_write(&mut self, key: &[u8], is_present: bool) {
        self.items.on_write(key, is_present);
    }

    /// Notes that a sync of the log up to record `last` begins now. The sync covers all work items
    /// that were written before.
    pub(crate) fn before_sync(&mut self, last: Lsn) {
        self.items.before_sync(last);
    }

    /// Passes the work items of the log records up to `stored` to the jobs. The engine now has the
    /// changes of these records.
    pub(crate) fn after_store(&mut self, stored: Lsn, shared: &Shared) {
        self.removals.add(self.items.stored(stored), shared);
    }

    /// Returns the number of queued chunk files that storage still has to remove.
    pub(crate) fn queued_removals(&self) -> usize {
        self.removals.queued()
    }

    /// Returns the storage group for which the size recovery of a file waits, if this group is
    /// known.
    pub(crate) fn awaited_for_size(&self, inode: InodeId) -> Option<GroupId> {
        self.sizes.awaited(inode)
    }

    /// Adds a session that had begun to end before this start of the target, according to the
    /// store.
    pub(crate) fn add_ended_session(&mut self, session: SessionId) {
        self.session_ends.add(session);
    }

    /// Whether an ended session may still have open files or locks.
    pub(crate) fn is_ending_sessions(&self) -> bool {
        !self.session_ends.is_empty()
    }

    /// Loads the state of the jobs when the target starts.
    pub(crate) fn load<E: Engine>(&mut self, context: &mut JobContext<'_, E>) -> Result<()> {
        self.items.look_again();
        self.removals.load(context)?;
        self.truncations.load(context);
        self.prepared.load(context)
    }

    /// Starts the internal work and the calls of all jobs that are due now. The target calls this
    /// function in each batch.
    pub(crate) fn start<E: Engine>(&mut self, context: &mut JobContext<'_, E>) -> Result<()> {
        self.numbers.start(context);
        self.prepared.ask(context);
        self.session_ends.start(context);
        self.forget.start(context)?;
        let now = context.shared.now;
        let has_ended = self.removals.end_pauses(now)
            | self.sizes.end_pauses(now)
            | self.truncations.end_pauses(now);
        if has_ended {
            self.items.look_again();
        }
        self.prepared.send_again(context);
        if self.items.take_look() {
            self.removals.start(context)?;
            self.sizes.start(context)?;
            self.truncations.start(context)?;
        }
        self.truncations.settle(context);
        Ok(())
    }

    /// Passes the reply to a background call to the job that sent the call.
    pub(crate) fn on_reply<E: Engine>(
        &mut self,
        call: BackgroundCall,
        result: Result<Vec<u8>>,
        context: &mut JobContext<'_, E>,
    ) {
        match call {
            BackgroundCall::Decide(call) => self.prepared.on_decide_reply(&call, result, context),
            BackgroundCall::AskDecision(transaction) => {
                self.prepared.on_decision(transaction, result, context);
            }
            BackgroundCall::RemoveChunks(call) => {
                if self.removals.on_reply(call, result, context) {
                    self.items.look_again();
                }
            }
            BackgroundCall::StatChunk(call) => {
                if self.sizes.on_reply(&call, result, context) {
                    self.items.look_again();
                }
            }
            BackgroundCall::Truncate(call) => {
                let failed = self.truncations.on_truncated(&call, result, context);
                if let Some((generation, error)) = failed {
                    context.fail_truncation(call.inode, generation, error);
                }
            }
            BackgroundCall::SyncTruncated(call) => {
                self.truncations.on_synced(&call, result, context);
            }
        }
    }

    /// Updates the jobs after the transaction of `work` was committed in the log record `lsn`.
    pub(crate) fn after_commit<E: Engine>(
        &mut self,
        work: InternalWork,
        lsn: Lsn,
        context: &mut JobContext<'_, E>,
    ) -> Result<()> {
        match work {
            InternalWork::ReserveNumbers => self.numbers.after_commit(lsn, context),
            InternalWork::RecordSessionEnd(session) => self.session_ends.add(session),
            InternalWork::CleanUpSession(session) => {
                self.session_ends.after_clean_up(session, context);
            }
            InternalWork::EndPrepared { transaction, .. } => {
                self.prepared.after_end(transaction, context);
            }
            InternalWork::RecordSize { inode, .. } => {
                self.sizes.after_commit(inode);
                self.items.look_again();
            }
            InternalWork::ApplyTruncation { inode, .. }
            | InternalWork::SettleTruncation { inode, .. } => {
                self.truncations.after_commit(inode, context);
                // A size recovery of this file may have waited for the end of a truncation, and may
                // be able to begin now.
                self.items.look_again();
            }
            InternalWork::DeleteKeys(_)
            | InternalWork::MakeRoot
            | InternalWork::RecordStart
            | InternalWork::RecordConfirmation { .. }
            | InternalWork::CommitStaged(_)
            | InternalWork::UndoStaged(_)
            | InternalWork::RemoveOpen(_) => {}
        }
        Ok(())
    }

    /// Updates the jobs after a `Decide` request has ended a prepared transaction on this target.
    pub(crate) fn after_decide<E: Engine>(
        &mut self,
        transaction: TransactionId,
        context: &mut JobContext<'_, E>,
    ) {
        self.prepared.after_end(transaction, context);
    }

    /// Adds the transaction of a `Prepare` request to the jobs, if the request was successful.
    /// `lsn` is the log record of the prepared transaction, or a later one.
    ///
    /// # Errors
    /// Returns the error if the engine fails.
    pub(crate) fn after_prepare<E: Engine>(
        &mut self,
        transaction: TransactionId,
        lsn: Lsn,
        context: &mut JobContext<'_, E>,
    ) -> Result<()> {
        self.prepared.after_prepare(transaction, lsn, context)
    }

    /// Notes that the target sends a commit to a participant now, or when a record is *safe*.
    pub(crate) fn note_commit(&mut self, number: u64, group: GroupId, now: Duration) {
        self.prepared.note_commit(number, group, now);
    }

    /// Returns the prepared transactions.
    pub(crate) fn prepared(&self) -> &PreparedTransactions {
        &self.prepared
    }

    /// Returns the number of prepared transactions whose decision this target could not carry out.
    pub(crate) fn stuck_transactions(&self) -> usize {
        self.prepared.stuck()
    }

    /// Notes that the target could not carry out the decision on a prepared transaction.
    pub(crate) fn set_problem(&mut self, transaction: TransactionId, problem: &Error) {
        self.prepared.set_problem(transaction, problem);
    }

    /// Panics if an invariant of a job is violated.
    pub(crate) fn check_invariants(&self) {
        self.removals.check_invariants();
        self.sizes.check_invariants();
        self.truncations.check_invariants();
    }

    /// Returns two maps with the number of missing replies of storage for each file. The first map
    /// is for requests to truncate chunk files, the second for requests to sync them.
    pub(crate) fn missing_truncation_replies(&self) -> [BTreeMap<InodeId, usize>; 2] {
        self.truncations.missing_replies()
    }
}

/// Runs the transaction of a background job.
pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    work: &InternalWork,
) -> Result<(), Stop> {
    match work {
        InternalWork::MakeRoot => startup::make_root(context),
        InternalWork::RecordStart => startup::record_start(context),
        InternalWork::ReserveNumbers => numbers::reserve(context),
        InternalWork::RecordSessionEnd(session) => session_end::record_end(context, *session),
        InternalWork::CleanUpSession(session) => session_end::clean_up(context, *session),
        InternalWork::RecordConfirmation { number, participant } => {
            prepared::record_confirmation(context, *number, *participant)
        }
        InternalWork::DeleteKeys(keys) => {
            keys.iter().for_each(|key| context.delete_raw(key.clone()));
            Ok(())
        }
        InternalWork::EndPrepared { transaction, commit } => {
            crate::tx::prepared::end(context, *transaction, *commit)
        }
        InternalWork::CommitStaged(number) => staged::commit(context, *number),
        InternalWork::UndoStaged(number) => staged::undo(context, *number),
        InternalWork::ApplyTruncation { inode, generation, incarnations } => {
            context.apply_truncation(*inode, *generation, incarnations)
        }
        InternalWork::SettleTruncation { inode, generation, lost } => {
            context.settle_truncation(*inode, *generation, lost)
        }
        InternalWork::RemoveOpen(open) => context.remove_open(open),
        InternalWork::RecordSize { inode, size, question } => {
            size_recovery::record_size(context, *inode, *size, *question)
        }
    }
}
