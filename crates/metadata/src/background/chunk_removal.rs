//! Asks storage to remove the chunk files of removed files. The job has at most one removal request
//! in flight to each storage group.
//!
//! A removal request costs a storage target several syncs of directories, for one chunk file as for
//! hundreds. So the job collects chunk files for the time `REMOVAL_DELAY` before it sends a
//! request. The job sends the request earlier if the request is full, or if the group is short of
//! free space.

use super::removal_queue::RemovalQueue;
use super::storage_name::storage_name;
use super::task::{BackgroundCall, JobContext, RemovalCall};
use crate::engine::Engine;
use crate::limits::RETRY_PAUSE;
use crate::tx::operation::OutgoingCall;
use crate::tx::shared::Shared;
use crate::tx::work::InternalWork;
use skep_format::metadata::{Key, expect_parsed, removal};
use skep_metrics::LineLimit;
use skep_types::map::CapacityPool;
use skep_types::{ChunkFileKey, ClusterMap, ErrorCode, GroupId, Result};
use skep_wire::storage::RemoveChunks;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The storage groups that have chunk files to remove.
///
/// # Invariants
/// - Each group in `removing` is in `queues`.
/// - No group in `paused` is in `removing`.
/// - Each group in `collecting` is in `queues`.
#[derive(Debug, Default)]
pub(crate) struct ChunkRemovals {
    queues: BTreeMap<GroupId, RemovalQueue>,
    /// Groups in `queues` that have a request in flight.
    removing: BTreeSet<GroupId>,
    /// Groups whose last removal failed, each with the time until which the job sends the group no
    /// request.
    paused: BTreeMap<GroupId, Duration>,
    /// Groups for which the job is collecting chunk files, each with the time at which the
    /// collection ends.
    collecting: BTreeMap<GroupId, Duration>,
    /// Number of chunk files in all queues.
    queued: usize,
    /// Limits the rate of log lines about failed removals.
    lines: LineLimit,
}

impl ChunkRemovals {
    /// Returns the number of chunk files in all queues. Does not count the chunk files in requests
    /// in flight.
    pub(crate) fn queued(&self) -> usize {
        self.queued
    }

    /// Finds the groups that have chunk files to remove, when the target starts. Reads only one
    /// work item of each group.
    pub(crate) fn load<E: Engine>(&mut self, context: &JobContext<'_, E>) -> Result<()> {
        let mut after = Vec::new();
        loop {
            let next = context.table.engine().scan_keys(&Key::removals(), &after, 1)?;
            let Some(key) = next.first() else { return Ok(()) };
            let (group, _) = expect_parsed(key, removal(key))?;
            self.queues.insert(group, RemovalQueue::in_store());
            after = Key::removals_of(group);
            after.extend([0xFF; 17]);
        }
    }

    /// Adds chunk files whose work items have just reached the store. The queues hold at most
    /// `QUEUED_REMOVALS` chunk files; further work items stay only in the store.
    pub(crate) fn add(&mut self, keys: Vec<(GroupId, ChunkFileKey)>, shared: &Shared) {
        let limits = shared.limits.removals;
        for (group, key) in keys {
            let queue = self.queues.entry(group).or_insert_with(|| {
                if !is_short_of_space(&shared.map, group) {
                    self.collecting.insert(group, shared.now + limits.delay);
                }
                RemovalQueue::default()
            });
            let before = queue.len();
            queue.push(key, self.queued >= limits.queued);
            self.queued += queue.len() - before;
        }
    }

    /// Ends the expired pauses of groups, and stops collecting chunk files for groups whose
    /// collection time is over. Returns whether any pause or collection has ended.
    pub(crate) fn end_pauses(&mut self, now: Duration) -> bool {
        let before = self.paused.len() + self.collecting.len();
        self.paused.retain(|_, until| *until > now);
        self.collecting.retain(|_, until| *until > now);
        self.paused.len() + self.collecting.len() < before
    }

    /// Sends a removal request to each group that has chunk files to remove, has no request in
    /// flight and is not paused. Skips a group whose chunk files do not fill a message while the
    /// job is collecting more chunk files.
    pub(crate) fn start<E: Engine>(&mut self, context: &mut JobContext<'_, E>) -> Result<()> {
        let limit = context.shared.limits.removals.per_message;
        let is_ready = |group: &GroupId, queue: &RemovalQueue| {
            !self.removing.contains(group)
                && !self.paused.contains_key(group)
                && (queue.is_at_least(limit) || !self.collecting.contains_key(group))
        };
        let ready: Vec<_> =
            self.queues.iter().filter(|(id, it)| is_ready(id, it)).map(|(id, _)| *id).collect();
        for group in ready {
            self.remove_chunks(group, context)?;
        }
        Ok(())
    }

    /// Sends a group the request to remove the next chunk files of its queue.
    fn remove_chunks<E: Engine>(
        &mut self,
        group: GroupId,
        context: &mut JobContext<'_, E>,
    ) -> Result<()> {
        let Some(queue) = self.queues.get_mut(&group) else { return Ok(()) };
        let limit = context.shared.limits.removals.per_message;
        let before = queue.len();
        let keys = queue.take(group, limit, context.table)?;
        self.queued = self.queued + queue.len() - before;
        self.collecting.remove(&group);
        if keys.is_empty() {
            self.queues.remove(&group);
            return Ok(());
        }
        self.removing.insert(group);
        let request = OutgoingCall::new(group, &RemoveChunks { keys: keys.clone() });
        context.call(request, BackgroundCall::RemoveChunks(RemovalCall { group, keys }));
        Ok(())
    }

    /// Handles a group's reply to a removal request. Returns whether the group may have more chunk
    /// files to remove now.
    pub(crate) fn on_reply<E: Engine>(
        &mut self,
        call: RemovalCall,
        result: Result<Vec<u8>>,
        context: &mut JobContext<'_, E>,
    ) -> bool {
        let RemovalCall { group, keys } = call;
        self.removing.remove(&group);
        let refusal = match result {
            // A lost target has no chunk files any more, so the removal is complete.
            Err(error) if error.code() != ErrorCode::TargetLost => Some(error),
            _ => None,
        };
        match refusal {
            None => {
                let items = keys.iter().map(|key| Key::Removal(group, *key).to_bytes()).collect();
                context.start(InternalWork::DeleteKeys(items));
                if !is_short_of_space(&context.shared.map, group) {
                    let until = context.shared.now + context.shared.limits.removals.delay;
                    self.collecting.insert(group, until);
                }
                true
            }
            Some(error) => {
                if self.lines.is_due(context.shared.now) {
                    tracing::warn!(
                        "metadata cannot free the space of removed files at {} yet, and retries \
                         each second; no program waits for this space: {error}",
                        storage_name(&context.shared.map, group)
                    );
                }
                self.queued += keys.len();
                self.queues.entry(group).or_default().put_back(keys);
                self.paused.insert(group, context.shared.now + RETRY_PAUSE);
                false
            }
        }
    }

    /// Panics if an invariant of the type is violated.
    pub(crate) fn check_invariants(&self) {
        assert!(
            self.removing.iter().all(|group| self.queues.contains_key(group)),
            "each group with a removal request in flight has a queue"
        );
        assert!(
            self.paused.keys().all(|group| !self.removing.contains(group)),
            "a paused group has no request in flight"
        );
        assert!(
            self.collecting.keys().all(|group| self.queues.contains_key(group)),
            "each group for which the job collects chunk files has a queue"
        );
        assert_eq!(
            self.queued,
            self.queues.values().map(RemovalQueue::len).sum::<usize>(),
            "`queued` counts the chunk files of all queues"
        );
        self.queues.values().for_each(RemovalQueue::check_invariants);
    }
}

/// Whether some target of a group has little free space, so that removals of its chunk files must
/// not wait. Also true for a group that the map does not have.
fn is_short_of_space(map: &ClusterMap, group: GroupId) -> bool {
    let Some(group) = map.group(group) else { return true };
    let is_normal = |id| map.target(id).is_some_and(|it| it.capacity_pool == CapacityPool::Normal);
    !group.members.iter().all(|member| is_normal(member.target))
}
