//! The definitions of the metrics that belong to one kind of table of operations.
//!
//! The tables are in `operations`, and the list of families is in `catalog`.

use crate::definition::Definition;

/// The definitions of the metrics of one kind of table.
#[derive(Debug)]
pub struct OperationFamily {
    /// Value of the label `service` in the metrics of the load of each client, user, group, job and
    /// directory.
    pub service: &'static str,
    /// Number of completed operations, including failed operations.
    pub operations: &'static Definition,
    /// Number of failed operations.
    pub errors: &'static Definition,
    /// Bytes of data in requests.
    pub received_bytes: &'static Definition,
    /// Bytes of data in replies.
    pub sent_bytes: &'static Definition,
    /// Time from the arrival of a request to its reply.
    pub duration: &'static Definition,
    /// Time that operations spent in each stage.
    pub stage_duration: &'static Definition,
    /// Number of requests that have arrived and wait for their execution. `None` for mounts,
    /// because their requests wait in the kernel.
    pub queued: Option<&'static Definition>,
    /// Number of requests that are being executed.
    pub busy: &'static Definition,
    /// Number of open connections. `None` for mounts, which accept no connections.
    pub connections: Option<&'static Definition>,
    /// Whether the table has accounts of load. Tables of metadata and storage have accounts. Tables
    /// of management and mounts have none.
    pub has_accounts: bool,
}
