//! Metrics about the chunk files of a target that the target's background task updates: the regions
//! that are not on the disk yet, and the files in the quarantine. Requests do not update these
//! metrics, so the metrics cost requests no time.

use crate::chunk_store::ChunkStore;
use skep_metrics::{Gauge, Labels, Registry, catalog};
use skep_types::TargetId;
use std::sync::Arc;

/// The metrics of one target.
#[derive(Debug)]
pub(crate) struct StoreGauges {
    registry: Arc<Registry>,
    labels: Labels,
    unsynced: Arc<Gauge>,
    /// `None` before the first look into the quarantine.
    quarantined: Option<Arc<Gauge>>,
}

impl StoreGauges {
    /// Creates the metrics for the calling thread.
    pub(crate) fn new(registry: &Arc<Registry>, target: TargetId) -> Self {
        let labels = vec![("target", target.raw().to_string())];
        let unsynced = registry.gauge(&catalog::UNSYNCED_REGIONS, &labels);
        Self { registry: Arc::clone(registry), labels, unsynced, quarantined: None }
    }

    /// Updates the number of unsynced regions.
    pub(crate) fn update(&self, store: &ChunkStore) {
        self.unsynced.set(store.dirty_regions() as i64);
    }

    /// Sets the number of files in the quarantine. The first call adds the metric, so that the
    /// page does not show zero before the target has looked.
    pub(crate) fn set_quarantined(&mut self, files: usize) {
        let create = || self.registry.gauge(&catalog::QUARANTINED_FILES, &self.labels);
        self.quarantined.get_or_insert_with(create).set(files as i64);
    }
}

impl Drop for StoreGauges {
    /// Sets the number of unsynced regions to zero. If the target is marked as lost, the target
    /// drops this value, but continues to report the metrics.
    fn drop(&mut self) {
        self.unsynced.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_metrics::Value;

    #[test]
    fn quarantine_metric_is_absent_until_the_target_has_looked() {
        let registry = Registry::new();
        let mut gauges = StoreGauges::new(&registry, TargetId::new(5));
        let shown = || registry.snapshot().iter().map(|it| it.value).collect::<Vec<_>>();
        assert_eq!(shown(), [Value::Number(0)], "only the unsynced regions");
        gauges.set_quarantined(3);
        gauges.set_quarantined(2);
        let mut values = shown();
        values.sort_by_key(|value| *value == Value::Number(2));
        assert_eq!(values, [Value::Number(0), Value::Number(2)]);
    }
}
