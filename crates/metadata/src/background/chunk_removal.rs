//! Asks storage to remove the chunk files of removed files. Each group has at most one such message
//! in flight.

use super::task::{BackgroundCall, JobContext, RemovalCall};
use crate::engine::Engine;
use crate::limits::RETRY_PAUSE;
use crate::tx::operation::OutgoingCall;
use crate::tx::work::InternalWork;
use skep_format::metadata::{Key, removal};
use skep_types::{GroupId, Result};
use skep_wire::storage::RemoveChunks;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The storage groups that have chunk files to remove.
///
/// # Invariants
/// - Each group in `removing` is in `groups`.
/// - No group in `paused` is in `removing`.
#[derive(Debug, Default)]
pub(crate) struct ChunkRemovals {
    /// Groups that may have chunk files to remove.
    groups: BTreeSet<GroupId>,
    /// Groups among `groups` that have a request in flight.
    removing: BTreeSet<GroupId>,
    /// Groups that have refused a removal, each with the time until which the job sends them no
    /// request.
    paused: BTreeMap<GroupId, Duration>,
    /// Key after which the search for a group's removals continues. Before this key there are only
    /// the tombstones of completed removals.
    cursors: BTreeMap<GroupId, Vec<u8>>,
}

impl ChunkRemovals {
    /// Finds the groups that have chunk files to remove. The search skips from one group to the
    /// next.
    pub(crate) fn load<E: Engine>(&mut self, context: &JobContext<'_, E>) -> Result<()> {
        let mut after = Vec::new();
        loop {
            let next = context.table.engine().scan(&Key::removals(), &after, 1)?;
            let Some((group, _)) = next.first().and_then(|(key, _)| removal(key)) else {
                return Ok(());
            };
            self.groups.insert(group);
            after = Key::removals_of(group);
            after.extend([0xFF; 17]);
        }
    }

    /// Adds groups that have chunk files to remove.
    pub(crate) fn add_groups(&mut self, mut groups: BTreeSet<GroupId>) {
        self.groups.append(&mut groups);
    }

    /// Ends pauses that have expired. Returns whether any pause has ended.
    pub(crate) fn end_pauses(&mut self, now: Duration) -> bool {
        let before = self.paused.len();
        self.paused.retain(|_, until| *until > now);
        self.paused.len() < before
    }

    /// Sends a request to each group that has chunk files to remove, no request in flight and no
    /// pause.
    pub(crate) fn start<E: Engine>(&mut self, context: &mut JobContext<'_, E>) -> Result<()> {
        let idle: Vec<_> = self
            .groups
            .difference(&self.removing)
            .filter(|group| !self.paused.contains_key(group))
            .copied()
            .collect();
        for group in idle {
            self.removing.insert(group);
            self.remove_chunks(group, context)?;
        }
        Ok(())
    }

    /// Sends the next removals to a group. All these removals are synced, because the engine holds
    /// only synced changes.
    fn remove_chunks<E: Engine>(
        &mut self,
        group: GroupId,
        context: &mut JobContext<'_, E>,
    ) -> Result<()> {
        let limit = context.shared.limits.removals_per_message;
        let prefix = Key::removals_of(group);
        let mut cursor = self.cursors.remove(&group).unwrap_or_default();
        let mut is_round = cursor.is_empty();
        let mut items = Vec::new();
        let mut keys = Vec::new();
        while keys.is_empty() {
            let found = context.table.engine().scan(&prefix, &cursor, limit)?;
            let Some((last, _)) = found.last() else {
                if is_round {
                    break;
                }
                is_round = true;
                cursor.clear();
                continue;
            };
            cursor.clone_from(last);
            for (key, _) in found {
                // Skips completed items whose deletion is not synced yet.
                if context.table.get(&key)?.is_some()
                    && let Some((_, chunk)) = removal(&key)
                {
                    keys.push(chunk);
                    items.push(key);
                }
            }
        }
        if keys.is_empty() {
            self.removing.remove(&group);
            self.groups.remove(&group);
            return Ok(());
        }
        self.cursors.insert(group, cursor);
        let request = OutgoingCall::new(group, &RemoveChunks { keys });
        context.call(request, BackgroundCall::RemoveChunks(RemovalCall { group, items }));
        Ok(())
    }

    /// Handles a group's reply. Returns whether the group may have more chunk files to remove now.
    pub(crate) fn on_reply<E: Engine>(
        &mut self,
        call: RemovalCall,
        result: Result<Vec<u8>>,
        context: &mut JobContext<'_, E>,
    ) -> bool {
        let RemovalCall { group, items } = call;
        self.removing.remove(&group);
        match result {
            Ok(_) => {
                context.start(InternalWork::DeleteKeys(items));
                true
            }
            Err(error) => {
                tracing::warn!(
                    "cannot remove chunk files at group {group}: {error}; trying again in \
                     {RETRY_PAUSE:?}"
                );
                self.cursors.remove(&group);
                self.paused.insert(group, context.shared.now + RETRY_PAUSE);
                false
            }
        }
    }

    /// Panics if an invariant of the type is violated.
    pub(crate) fn check_invariants(&self) {
        assert!(
            self.removing.is_subset(&self.groups),
            "each group that removes chunk files has something to remove"
        );
        assert!(
            self.paused.keys().all(|group| !self.removing.contains(group)),
            "a group that has refused is left alone"
        );
    }
}
