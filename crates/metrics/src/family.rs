//! The definitions that belong to one kind of table of operations.
//!
//! Does not own the tables (`operations`) or the families that exist (`catalog`).

use crate::definition::Definition;

/// The definitions of the metrics of one kind of table.
#[derive(Debug)]
pub struct OperationFamily {
    /// Value of the label `service` in the accounts of load.
    pub service: &'static str,
    /// Operations that were completed, including failed ones.
    pub operations: &'static Definition,
    /// Operations that failed.
    pub errors: &'static Definition,
    /// Bytes of data in requests.
    pub received_bytes: &'static Definition,
    /// Bytes of data in replies.
    pub sent_bytes: &'static Definition,
    /// Time from the arrival of a request to its reply.
    pub duration: &'static Definition,
    /// Time in each stage.
    pub stage_duration: &'static Definition,
    /// Requests that have arrived and wait.
    /// `None` for mounts, whose requests wait in the kernel.
    pub queued: Option<&'static Definition>,
    /// Requests that are being executed.
    pub busy: &'static Definition,
    /// Open connections.
    /// `None` for mounts, which accept none.
    pub connections: Option<&'static Definition>,
    /// Whether the table keeps accounts of load. Services keep them, and mounts do not.
    pub has_accounts: bool,
}
