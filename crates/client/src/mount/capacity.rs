//! The capacity and free space of the whole cluster, as management has last sent them.

use skep_types::map::Capacity;
use std::sync::{Mutex, PoisonError};

/// The newest capacity of the cluster.
#[derive(Debug, Default)]
pub(crate) struct ClusterCapacity {
    /// `None` until management has sent a capacity. The mutex protects only this value.
    newest: Mutex<Option<Capacity>>,
}

impl ClusterCapacity {
    /// Records the capacity in the reply to a heartbeat. `None` means that the reply contains no
    /// capacity.
    pub(crate) fn note(&self, capacity: Option<Capacity>) {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        *newest = capacity.or(*newest);
    }

    pub(crate) fn newest(&self) -> Option<Capacity> {
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
