//! Metrics of a target in its role as primary, backup member or receiver of a copy: hits and misses
//! of the cache of its key-value store, and durations of recoveries.
//!
//! The roles report the events ([`crate::service`]).

use crate::engine::fjall_engine::BlockLoads;
use skep_metrics::catalog::{METADATA_CACHE, METADATA_RECOVERY};
use skep_metrics::{CacheUse, Histogram, Registry};
use skep_types::TargetId;
use std::sync::Arc;
use std::time::Duration;

/// Minimum time between two updates of the metrics of the cache.
const LOADS_EVERY: Duration = Duration::from_millis(250);
/// The kinds of blocks, in the order of [`BlockLoads`].
const BLOCKS: [&str; 3] = ["data", "index", "filter"];

/// The metrics of the roles of one target.
#[derive(Debug)]
pub(crate) struct RoleFigures {
    cache: [Arc<CacheUse>; BLOCKS.len()],
    /// The counts of loaded blocks at the last update.
    loads: BlockLoads,
    loads_shown: Duration,
    log_replay: Arc<Histogram>,
    take_over: Arc<Histogram>,
    catch_up: Arc<Histogram>,
    copy: Arc<Histogram>,
    /// Time at which the target became the primary. `None` means that the target may reply to
    /// clients, or is not the primary.
    took_over_at: Option<Duration>,
    /// Time since which the target is a member that does not serve. `None` means that the target
    /// serves.
    behind_since: Option<Duration>,
}

impl RoleFigures {
    /// Creates the metrics for the calling thread.
    pub(super) fn new(registry: &Registry, target: TargetId) -> Self {
        let labels = |name: &'static str, value: &str| {
            vec![("target", target.raw().to_string()), (name, value.to_owned())]
        };
        let recovery =
            |value: &str| registry.histogram(&METADATA_RECOVERY, &labels("recovery", value));
        Self {
            cache: BLOCKS
                .map(|block| CacheUse::new(registry, &METADATA_CACHE, labels("cache", block))),
            loads: BlockLoads::default(),
            loads_shown: Duration::ZERO,
            log_replay: recovery("log_replay"),
            take_over: recovery("take_over"),
            catch_up: recovery("catch_up"),
            copy: recovery("copy"),
            took_over_at: None,
            behind_since: None,
        }
    }

    /// Counts the blocks that the store has loaded since the last update. `loads` returns the
    /// counts since the store was opened. Does nothing if the last update was less than
    /// [`LOADS_EVERY`] ago.
    pub(crate) fn show_loads(&mut self, now: Duration, loads: impl FnOnce() -> BlockLoads) {
        if now.saturating_sub(self.loads_shown) < LOADS_EVERY {
            return;
        }
        self.loads_shown = now;
        let before = std::mem::replace(&mut self.loads, loads());
        let changes = self.loads.0.into_iter().zip(before.0);
        for (uses, ((hits, misses), (old_hits, old_misses))) in self.cache.iter().zip(changes) {
            uses.add(hits.saturating_sub(old_hits), misses.saturating_sub(old_misses));
        }
    }

    /// Counts an opening of the store and log, which took `duration`.
    pub(crate) fn replayed(&self, duration: Duration) {
        self.log_replay.record(duration);
    }

    /// Counts a received copy of a store, which took `duration`.
    pub(crate) fn copied(&self, duration: Duration) {
        self.copy.record(duration);
    }

    /// Notes that a take-over has begun: the target has received the map in which it is the
    /// primary.
    pub(crate) fn begin_take_over(&mut self, now: Duration) {
        self.took_over_at = Some(now);
    }

    /// Handles a batch of the primary. `wait` is the time until the primary may reply to clients.
    /// Zero means that the take-over has ended.
    pub(crate) fn after_batch(&mut self, wait: Duration, now: Duration) {
        if wait.is_zero()
            && let Some(since) = self.took_over_at.take()
        {
            self.take_over.record(now.saturating_sub(since));
        }
    }

    /// Handles a batch of a backup member. `serves` states whether the backup member is a serving
    /// member.
    pub(crate) fn note_backup(&mut self, serves: bool, now: Duration) {
        if !serves {
            self.behind_since.get_or_insert(now);
        } else if let Some(since) = self.behind_since.take() {
            self.catch_up.record(now.saturating_sub(since));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_metrics::Value;

    /// Returns the number of recorded recoveries of each kind, in the order of the labels, and the
    /// numbers of hits and misses of data blocks.
    fn figures(registry: &Registry) -> (Vec<u64>, Vec<i64>) {
        let (mut recoveries, mut data) = (Vec::new(), Vec::new());
        for series in registry.snapshot().iter() {
            match series.value {
                Value::Histogram(durations) => recoveries.push(durations.count()),
                Value::Number(count) if series.labels[1].1 == "data" => data.push(count),
                Value::Number(_) => {}
            }
        }
        (recoveries, data)
    }

    #[test]
    fn each_recovery_of_a_target_is_counted_once_when_it_ends() {
        let registry = Registry::new();
        let mut role = RoleFigures::new(&registry, TargetId::new(7));
        let at = Duration::from_secs;
        role.after_batch(Duration::ZERO, at(1));
        role.note_backup(true, at(1));
        assert_eq!(figures(&registry).0, [0; 4]);
        role.begin_take_over(at(2));
        role.after_batch(at(1), at(3));
        assert_eq!(figures(&registry).0, [0; 4], "the leases of the former primary still run");
        (4..6).for_each(|now| role.after_batch(Duration::ZERO, at(now)));
        [false, false, true, true].into_iter().for_each(|serves| role.note_backup(serves, at(7)));
        role.replayed(at(1));
        // The order of the labels: catch_up, copy, log_replay, take_over.
        assert_eq!(figures(&registry).0, [1, 0, 1, 1]);
    }

    #[test]
    fn metrics_count_each_block_load_of_the_store_once() {
        let registry = Registry::new();
        let mut role = RoleFigures::new(&registry, TargetId::new(7));
        let loads = |hits, misses| move || BlockLoads([(hits, misses), (0, 0), (0, 0)]);
        role.show_loads(Duration::from_secs(1), loads(5, 2));
        role.show_loads(Duration::from_secs(1), loads(6, 2));
        assert_eq!(figures(&registry).1, [5, 2], "the last update is recent");
        role.show_loads(Duration::from_secs(2), loads(9, 3));
        assert_eq!(figures(&registry).1, [9, 3]);
    }
}
