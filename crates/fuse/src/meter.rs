//! Counts the requests of the kernel that one worker serves, and logs slow requests with their
//! trace ids. Stores a record of each slow or sampled request of the kernel, including the requests
//! to targets that it caused. While a program follows the operations, stores a record of every
//! request.

use crate::abi::{InHeader, Opcode, operation_name};
use crate::following::{EntryNames, Followed, Following};
use crate::reply::{Failure, Outcome, ReplyBody};
use skep_client::{Origin, calls_of};
use skep_env::TimeSpent;
use skep_metrics::{
    Completed, KeptOperation, OperationTable, Reason, Registry, SlowOperations, Stage, catalog,
};
use skep_types::InodeId;
use std::sync::Arc;

/// Counts the requests of one worker, on the worker's thread.
#[derive(Debug)]
pub(crate) struct Meter {
    table: OperationTable,
    slow: SlowOperations,
    following: Arc<Following>,
}

/// A request that a worker is executing. The request counts as busy until this value is dropped.
#[derive(Debug)]
pub(crate) struct BusyRequest<'a>(&'a OperationTable);

impl Drop for BusyRequest<'_> {
    fn drop(&mut self) {
        self.0.busy().add(-1);
    }
}

/// Whether a failure is an ordinary answer to a request: the name or the extended attribute that
/// the request asks for does not exist.
fn is_ordinary_absence(header: &InHeader, failure: &Failure) -> bool {
    match failure.number() {
        libc::ENOENT => header.opcode == Opcode::Lookup as u32,
        libc::ENODATA => header.opcode == Opcode::GetXattr as u32,
        _ => false,
    }
}

impl Meter {
    /// Creates a meter for the calling thread.
    pub(crate) fn new(registry: &Registry, following: Arc<Following>) -> Self {
        let table = OperationTable::new(registry, &catalog::MOUNT, Vec::new(), operation_name);
        Self { table, slow: SlowOperations::default(), following }
    }

    /// Counts a request as busy until the returned value is dropped.
    pub(crate) fn begin(&self) -> BusyRequest<'_> {
        self.table.busy().add(1);
        BusyRequest(&self.table)
    }

    /// Counts a completed request. `cause` names the program that caused the request, and `names`
    /// are the names in the request if a program follows the operations.
    pub(crate) fn count(
        &self,
        header: &InHeader,
        (cause, mut names): (Origin, EntryNames),
        outcome: &Outcome,
        spent: &TimeSpent,
    ) {
        let (received_bytes, sent_bytes) = match outcome {
            Ok(ReplyBody::Size(bytes)) if header.opcode == Opcode::Write as u32 => {
                (u64::from(*bytes), 0)
            }
            Ok(ReplyBody::Data(bytes)) if header.opcode == Opcode::Read as u32 => {
                (0, *bytes as u64)
            }
            _ => (0, 0),
        };
        let trace = cause.trace();
        // The purpose of `SETLKW` is to wait for a lock, so a long `SETLKW` does not count as slow.
        let is_wait = header.opcode == Opcode::SetLockWait as u32;
        let completed = Completed {
            operation: header.opcode,
            trace,
            ended_at: spent.begun_at + spent.total,
            object: header.nodeid,
            is_wait,
            is_failed: outcome.is_err(),
            received_bytes,
            sent_bytes,
            duration: spent.total,
            ..Completed::default()
        };
        // The log line about a slow operation of a mount does not list the stages. The targets log
        // the stages of the requests that this request caused, with the same trace id.
        let name = || operation_name(header.opcode).unwrap_or_default();
        if !is_wait && let Some(line) = self.slow.line(&completed, completed.ended_at, name) {
            tracing::warn!("{line}");
        }
        let waits = spent.total.saturating_sub(spent.running);
        let completed = completed.with(Stage::Processing, spent.running).with(Stage::Others, waits);
        let calls = || calls_of(trace, spent.begun_at);
        let counted = Completed {
            is_failed: outcome.as_ref().is_err_and(|it| !is_ordinary_absence(header, it)),
            ..completed
        };
        self.table.record_with(&counted, &cause.cause(), calls);
        if self.following.is_active(completed.ended_at) {
            let kept = KeptOperation {
                number: 0,
                reason: Reason::Sampled,
                completed,
                origin: cause.cause(),
                service: catalog::MOUNT.service,
                name: name(),
                target: 0,
                calls: calls(),
            };
            let errno = outcome.as_ref().err().map_or(0, |failure| failure.number().unsigned_abs());
            if let Some(inode) = entry_of(outcome) {
                names.other_inode = inode;
            }
            self.following.keep(header.pid, Followed { kept, names, errno });
        }
    }
}

/// Returns the inode of the entry that an operation looked up or created.
fn entry_of(outcome: &Outcome) -> Option<InodeId> {
    match outcome {
        Ok(
            ReplyBody::Entry(attributes)
            | ReplyBody::UncachedEntry(attributes)
            | ReplyBody::Created(attributes, ..),
        ) => Some(attributes.inode),
        _ => None,
    }
}
