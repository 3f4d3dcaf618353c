//! The stages in which an operation of a service or a mount spends its time.
//!
//! The meters of the services measure the stages. `operations` and `accounts` have the counters of
//! the stages.

/// A stage in which an operation spends a part of its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The request has arrived and waits for its execution.
    Waiting,
    /// The thread works on the operation, or on other operations of the same batch.
    Processing,
    /// The operation waits for a disk.
    Disk,
    /// The operation waits until the log is synced.
    LogSync,
    /// The operation waits for other services, for locks, for clients, or for other operations on
    /// the same bytes.
    Others,
    /// Data of the request is arriving over the network, or data of the reply is being sent.
    Network,
    /// The reply waits for the other members of the target's group: until they have the changes on
    /// which the reply depends, or until they confirm the primary's lease.
    Copies,
}

/// Number of stages.
pub const STAGES: usize = Stage::ALL.len();

impl Stage {
    /// All stages, in the order of their discriminants.
    pub const ALL: [Self; 7] = [
        Self::Waiting,
        Self::Processing,
        Self::Disk,
        Self::LogSync,
        Self::Others,
        Self::Network,
        Self::Copies,
    ];

    /// Returns the name of the stage, as in the label `stage` of metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Processing => "processing",
            Self::Disk => "disk",
            Self::LogSync => "log_sync",
            Self::Others => "others",
            Self::Network => "network",
            Self::Copies => "copies",
        }
    }
}
