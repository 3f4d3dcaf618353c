//! How a target starts.

use crate::limits::Limits;
use skep_types::{ClusterMap, GroupId, Timestamp};
use std::sync::Arc;
use std::time::Duration;

/// When the log is synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncPolicy {
    /// At most [`crate::limits::SYNC_INTERVAL`] after an append, and at once where a request asks
    /// for it.
    Interval,
    /// Before each reply.
    Always,
}

/// The parameters of a target's start.
#[derive(Debug)]
pub struct Start {
    /// The group that the target serves.
    pub group: GroupId,
    /// When the log is synced.
    pub policy: SyncPolicy,
    /// The target's limits.
    pub limits: Limits,
    /// The newest cluster map.
    pub map: Arc<ClusterMap>,
    /// Time on the clock that [`super::MetadataTarget::handle`] is given.
    pub now: Duration,
    /// Time of day.
    pub wall: Timestamp,
}
