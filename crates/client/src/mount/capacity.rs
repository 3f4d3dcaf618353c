//! Free space and capacity of the whole cluster, as management last sent it.

use skep_types::map::Capacity;
use std::sync::{Mutex, PoisonError};

/// The newest capacity of the cluster.
#[derive(Debug, Default)]
pub(crate) struct ClusterCapacity {
    /// The mutex protects the value alone.
    newest: Mutex<Option<Capacity>>,
}

impl ClusterCapacity {
    /// Notes the capacity from the reply to a heartbeat; `None` changes nothing.
    pub(crate) fn note(&self, capacity: Option<Capacity>) {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        *newest = capacity.or(*newest);
    }

    pub(crate) fn newest(&self) -> Option<Capacity> {
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
