//! The interface between background jobs and the target.

use crate::tx::locks::Owner;
use crate::tx::operation::OutgoingCall;
use crate::tx::shared::Shared;
use crate::tx::table::Table;
use crate::tx::work::InternalWork;
use skep_types::{ChunkFileKey, Error, GroupId, InodeId};
use skep_wire::metadata::TransactionId;

/// A `Decide` request, which sends a participant the decision about a transaction of this group.
#[derive(Debug)]
pub(crate) struct DecideCall {
    pub(crate) number: u64,
    pub(crate) group: GroupId,
    pub(crate) commit: bool,
}

/// A request to remove chunk files.
#[derive(Debug)]
pub(crate) struct RemovalCall {
    pub(super) group: GroupId,
    pub(super) keys: Vec<ChunkFileKey>,
}

/// A request for the size of a chunk file.
#[derive(Debug)]
pub(crate) struct StatCall {
    pub(super) inode: InodeId,
    pub(super) component: u16,
    pub(super) index: u16,
}

/// A request to truncate or sync a chunk file of a truncated file.
#[derive(Debug)]
pub(crate) struct TruncationCall {
    pub(crate) inode: InodeId,
    /// Index of the chunk file in the work item of the truncation.
    pub(super) index: usize,
}

/// A request of a background job to another group. No client's operation waits for its reply.
#[derive(Debug)]
pub(crate) enum BackgroundCall {
    /// Sends a participant the decision of a transaction.
    Decide(DecideCall),
    /// Asks a coordinator for the decision of a transaction.
    AskDecision(TransactionId),
    /// Asks storage to remove chunk files.
    RemoveChunks(RemovalCall),
    /// Asks storage to truncate a chunk file.
    Truncate(TruncationCall),
    /// Asks storage to sync a truncated chunk file.
    SyncTruncated(TruncationCall),
    /// Asks storage for the size of a chunk file.
    StatChunk(StatCall),
}

/// A task that a job asks the target to perform.
#[derive(Debug)]
pub(crate) enum JobTask {
    /// Run the internal work as a transaction.
    Start(InternalWork),
    /// Send a background call to another group.
    Call(OutgoingCall, BackgroundCall),
    /// Send a participant the commit of a transaction.
    SendCommit { group: GroupId, number: u64 },
    /// Release all transaction locks of an owner.
    Release(Owner),
    /// Storage has refused a truncation. Reply with an error to the requests that wait for the
    /// truncation.
    FailTruncation { inode: InodeId, generation: u64, error: Error },
}

/// The tables and the shared state of the target that a background job may use, and the tasks that
/// the job has added.
pub(crate) struct JobContext<'a, E> {
    pub(crate) table: &'a Table<E>,
    pub(crate) shared: &'a mut Shared,
    tasks: Vec<JobTask>,
}

impl<'a, E> JobContext<'a, E> {
    pub(crate) fn new(table: &'a Table<E>, shared: &'a mut Shared) -> Self {
        Self { table, shared, tasks: Vec::new() }
    }

    /// Returns the tasks that the job has added, in the order in which it added them.
    pub(crate) fn into_tasks(self) -> Vec<JobTask> {
        self.tasks
    }

    pub(super) fn start(&mut self, work: InternalWork) {
        self.tasks.push(JobTask::Start(work));
    }

    pub(super) fn call(&mut self, request: OutgoingCall, call: BackgroundCall) {
        self.tasks.push(JobTask::Call(request, call));
    }

    pub(super) fn send_commit(&mut self, group: GroupId, number: u64) {
        self.tasks.push(JobTask::SendCommit { group, number });
    }

    pub(super) fn fail_truncation(&mut self, inode: InodeId, generation: u64, error: Error) {
        self.tasks.push(JobTask::FailTruncation { inode, generation, error });
    }

    pub(super) fn release(&mut self, owner: Owner) {
        self.tasks.push(JobTask::Release(owner));
    }
}
