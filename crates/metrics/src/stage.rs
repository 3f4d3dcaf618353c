//! The stages in which an operation of a service or a mount spends its time.
//!
//! The module does not own the measurement of the stages (the meters of the services) or their
//! counters (`operations`, `accounts`).

/// A stage in which an operation spends a part of its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The request has arrived and waits for its turn.
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
    /// The data of the request arrive over the network, or data of the reply leave.
    Network,
}

/// Number of stages.
pub const STAGES: usize = Stage::ALL.len();

impl Stage {
    /// All stages, in the order of their numbers.
    pub const ALL: [Self; 6] =
        [Self::Waiting, Self::Processing, Self::Disk, Self::LogSync, Self::Others, Self::Network];

    /// Returns the name of the stage, as in the label `stage`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Processing => "processing",
            Self::Disk => "disk",
            Self::LogSync => "log_sync",
            Self::Others => "others",
            Self::Network => "network",
        }
    }
}
