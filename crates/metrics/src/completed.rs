//! The measurements of one operation that has ended. A thread passes these measurements to its
//! table of operations and to the records of single operations. [`crate::operations`] counts the
//! operations, and [`crate::traces`] stores the records.

use crate::stage::{STAGES, Stage};
use std::time::Duration;

/// An operation that has ended.
#[derive(Debug, Clone, Copy, Default)]
pub struct Completed {
    /// Index of the operation's kind in its table.
    pub operation: u32,
    /// Trace id of the operation that caused this operation, or of this operation itself. Zero
    /// means that there is no trace id.
    pub trace: u128,
    /// Time at which the operation ended, since the boot of the host.
    pub ended_at: Duration,
    /// Id of the inode that the operation is about. Zero means no inode, or several inodes.
    pub object: u64,
    /// Whether the operation failed.
    pub is_failed: bool,
    /// Bytes of data in the request.
    pub received_bytes: u64,
    /// Bytes of data in the reply.
    pub sent_bytes: u64,
    /// Time from the arrival of the request to its reply.
    pub duration: Duration,
    /// Whether the purpose of the request is to wait for an event. The duration of such a request
    /// is no sign of load, so neither the duration nor the stages are added to the account of the
    /// cause.
    pub is_wait: bool,
    /// Time in which data of this request was transferred while no other data of the client was
    /// transferred.
    pub moving: Duration,
    /// Time spent in each stage, in the order of [`Stage::ALL`]. A stage with zero is not counted.
    pub stages: [Duration; STAGES],
}

impl Completed {
    /// Sets the time spent in a stage.
    #[must_use]
    pub fn with(mut self, stage: Stage, duration: Duration) -> Self {
        self.stages[stage as usize] = duration;
        self
    }

    /// Returns the time spent in each stage, in microseconds. A time that does not fit into 32 bits
    /// is replaced by the largest 32-bit number.
    pub fn times_us(&self) -> [u32; STAGES] {
        self.stages.map(|time| u32::try_from(time.as_micros()).unwrap_or(u32::MAX))
    }
}
