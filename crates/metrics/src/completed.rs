//! An operation that has ended: its figures, as a thread passes them to its table of operations and
//! to the records of single operations. Does not own what is counted
//! ([`crate::operations`]) or kept ([`crate::traces`]).

use crate::stage::{STAGES, Stage};
use std::time::Duration;

/// A completed operation.
#[derive(Debug, Clone, Copy, Default)]
pub struct Completed {
    /// Number of the operation's kind.
    pub operation: u32,
    /// Trace id of the operation that caused this one, or of this one. Zero means none.
    pub trace: u128,
    /// Time at which the operation ended, since the boot of the host.
    pub ended_at: Duration,
    /// Id of the inode that the operation is about. Zero means none, or several.
    pub object: u64,
    /// Whether the operation failed.
    pub is_failed: bool,
    /// Bytes of data in the request.
    pub received_bytes: u64,
    /// Bytes of data in the reply.
    pub sent_bytes: u64,
    /// Time from the arrival of the request to its reply.
    pub duration: Duration,
    /// Whether the purpose of the request is to wait for an event. The time of such a request is no
    /// sign of load, so neither the time nor its stages are charged to its cause.
    pub is_wait: bool,
    /// Time in which data of the request moved while no other data of the client did.
    pub moving: Duration,
    /// Time in each stage, in the order of [`Stage::ALL`]. Stages with zero are not counted.
    pub stages: [Duration; STAGES],
}

impl Completed {
    /// Sets the time in a stage.
    #[must_use]
    pub fn with(mut self, stage: Stage, duration: Duration) -> Self {
        self.stages[stage as usize] = duration;
        self
    }

    /// Returns the time in each stage in microseconds. A longer time than fits is the largest
    /// number.
    pub fn times_us(&self) -> [u32; STAGES] {
        self.stages.map(|time| u32::try_from(time.as_micros()).unwrap_or(u32::MAX))
    }
}
