//! The storage targets for which requests of a metadata target have waited. The trace records and
//! the log lines of slow requests contain these targets.

use super::Meter;
use crate::target::{RequestWait, WaitReason};
use skep_metrics::{Completed, Stage, TracedCalls, TracedWait};
use skep_types::{ClusterMap, GroupId};
use std::ops::Deref;
use std::time::Duration;

/// The storage group for which a request has waited.
#[derive(Debug)]
pub(super) struct Awaited {
    group: GroupId,
    /// Id of the primary of the group. Zero means that the group has no primary.
    target: u32,
    /// Name of the target and of its service, for the log.
    name: String,
}

impl Awaited {
    fn new(group: GroupId, map: &ClusterMap) -> Self {
        let Some(target) = map.primary(group) else {
            let name = format!("group {group}, which no target serves");
            return Self { group, target: 0, name };
        };
        let node = map.node(target.node).map_or_else(String::new, |it| format!(" ({})", it.name));
        let name = format!("storage target {}{node}", target.id);
        Self { group, target: target.id.raw(), name }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the wait for the trace record of a request. The duration of the wait is the whole
    /// time of the request in the stage `others`.
    pub(super) fn calls(&self, completed: &Completed) -> TracedCalls {
        let wait = TracedWait {
            group: self.group.raw(),
            target: self.target,
            served_by: self.target,
            begin: Duration::ZERO,
            duration: completed.stages[Stage::Others as usize],
            error: String::new(),
        };
        TracedCalls { waits: vec![wait], ..TracedCalls::default() }
    }
}

impl Meter {
    /// Notes the storage targets for which requests have waited, from the waits of a batch. Call
    /// this function before [`Meter::end_batch`]. `map` returns the newest cluster map.
    pub(crate) fn note_awaited<M: Deref<Target = ClusterMap>>(
        &mut self,
        waits: &[RequestWait],
        map: impl FnOnce() -> M,
    ) {
        let of_storage = |it: &RequestWait| match it.reason {
            WaitReason::Storage(group) => Some(((it.connection, it.tag), group)),
            _ => None,
        };
        let waits: Vec<_> = waits.iter().filter_map(of_storage).collect();
        if waits.is_empty() {
            return;
        }
        let map = map();
        for (key, group) in waits {
            if let Some(arrival) = self.arrivals.get_mut(&key) {
                arrival.awaited = Some(Awaited::new(group, &map));
            }
        }
    }
}
