//! Runs the background jobs of the target, and performs the [`JobTask`]s that they return.

use super::calls::CallPurpose;
use crate::background::{BackgroundCall, JobContext, JobTask};
use crate::engine::Engine;
use crate::target::MetadataTarget;
use crate::tx::work::InternalWork;
use skep_format::metadata::{DecisionRecord, Key};
use skep_types::{Lsn, Result};
use skep_wire::metadata::TransactionId;

use crate::background::Background;

impl<E: Engine> MetadataTarget<E> {
    /// Calls `run` with the background jobs. After the call, performs the tasks that the jobs have
    /// added, in the order in which they were added.
    fn with_jobs(
        &mut self,
        run: impl FnOnce(&mut Background, &mut JobContext<'_, E>) -> Result<()>,
    ) -> Result<()> {
        let mut context = JobContext::new(&self.table, &mut self.shared);
        let result = run(&mut self.background, &mut context);
        for task in context.into_tasks() {
            match task {
                JobTask::Start(work) => self.start_internal(work),
                JobTask::Call(request, call) => {
                    self.call(request, CallPurpose::Background(call));
                }
                JobTask::SendCommit { group, number } => {
                    // After a start of the target, a serving member may not have synced the
                    // decision record yet. The commit must wait for the sync of this record.
                    let key = Key::Decision(number).to_bytes();
                    let is_safe = self.table.get_safe::<DecisionRecord>(&key)?.is_some();
                    let after = (!is_safe).then(|| self.last_logged());
                    self.send_decision(group, number, true, after);
                }
                JobTask::Release(owner) => self.release(owner),
                JobTask::FailTruncation { inode, generation, error } => {
                    self.fail_truncation(inode, generation, error);
                }
            }
        }
        result
    }

    pub(super) fn load_background(&mut self) -> Result<()> {
        self.with_jobs(|background, context| background.load(context))
    }

    pub(super) fn work_in_background(&mut self) -> Result<()> {
        self.with_jobs(|background, context| background.start(context))
    }

    pub(super) fn on_background_reply(
        &mut self,
        call: BackgroundCall,
        result: Result<Vec<u8>>,
    ) -> Result<()> {
        self.with_jobs(|background, context| {
            background.on_reply(call, result, context);
            Ok(())
        })
    }

    /// Updates the target after internal work was committed in the log record `lsn`.
    pub(super) fn after_internal(&mut self, work: InternalWork, lsn: Lsn) -> Result<()> {
        match work {
            InternalWork::RecordStart => self.shared.starts.logged(lsn),
            InternalWork::RemoveOpen(open) => self.open_removed(&open),
            InternalWork::CommitStaged(number) => self.staged_committed(number, lsn),
            InternalWork::UndoStaged(number) => self.staged_undone(number, lsn),
            work => {
                return self
                    .with_jobs(|background, context| background.after_commit(work, lsn, context));
            }
        }
        Ok(())
    }

    /// Updates the jobs after a `Decide` request has ended a prepared transaction on this target.
    pub(super) fn after_decide(&mut self, transaction: TransactionId) -> Result<()> {
        self.with_jobs(|background, context| {
            background.after_decide(transaction, context);
            Ok(())
        })
    }

    /// Adds the transaction of a `Prepare` request to the jobs, if the request was successful.
    pub(super) fn after_prepare(&mut self, transaction: TransactionId) -> Result<()> {
        let lsn = self.newest_record();
        self.with_jobs(|background, context| background.after_prepare(transaction, lsn, context))
    }
}
