//! The parameters of a target's start, and the policy for syncs of its log.

use crate::limits::Limits;
use skep_types::{ClusterMap, Epoch, GroupId, Lsn, TargetId, Timestamp};
use std::sync::Arc;
use std::time::Duration;

/// When the target syncs its log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncPolicy {
    /// The target syncs at most [`crate::limits::SYNC_INTERVAL`] after an append, and immediately
    /// if a request asks for a sync.
    Interval,
    /// The target syncs before each reply.
    Always,
}

/// The parameters of a target's start.
#[derive(Debug)]
pub struct Start {
    /// Group that the target serves.
    pub group: GroupId,
    /// Id of the target. The other serving members of its group must confirm each record.
    pub target: TargetId,
    /// Group epoch of the last record of the log, or zero if the log has no record. No later record
    /// gets a lower epoch, even if the cluster map has a lower epoch.
    pub epoch: Epoch,
    /// Members about which an earlier process of this target has sent requests to management in the
    /// epoch of `map`. Management may still carry out these requests:
    ///
    /// - A member that does not serve in `map`: the target has asked to mark it as in sync. The
    ///   member may serve in a newer map, so replies wait for the member from the beginning.
    /// - A member that serves in `map`: the target has asked to drop it.
    /// - The target itself: it has asked to become the primary.
    pub counted: Vec<TargetId>,
    /// Last synced log record. `None` means that all records are synced.
    pub synced: Option<Lsn>,
    /// When the target syncs its log.
    pub policy: SyncPolicy,
    /// Limits of the target.
    pub limits: Limits,
    /// Newest cluster map.
    pub map: Arc<ClusterMap>,
    /// Time of the start, on the clock that the caller also uses for `now` in
    /// [`super::MetadataTarget::handle`].
    pub now: Duration,
    /// Time of day at the start.
    pub wall: Timestamp,
}
