//! The registry of a process. All counters of the process belong to this registry.

use crate::counter::{Counter, Gauge};
use crate::definition::{Definition, Kind};
use crate::histogram::Histogram;
use crate::snapshot::{Labels, Snapshot};
use crate::traces::TraceStore;
use std::sync::{Arc, Mutex, PoisonError};

/// A source of values for a snapshot.
pub trait Source: Send + Sync {
    /// Adds the current values to a snapshot.
    fn collect(&self, snapshot: &mut Snapshot);
}

/// All sources of a process. A process creates one registry and shares it with its threads.
#[derive(Default)]
pub struct Registry {
    /// The mutex protects only the list. A thread locks the mutex when the thread adds a counter or
    /// takes a snapshot, but not when it counts.
    sources: Mutex<Vec<Arc<dyn Source>>>,
    traces: Arc<TraceStore>,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Registry")
    }
}

/// One thread's instance of a metric, with its labels.
struct Instance<T> {
    definition: &'static Definition,
    labels: Labels,
    metric: Arc<T>,
}

impl Source for Instance<Counter> {
    fn collect(&self, snapshot: &mut Snapshot) {
        snapshot.count(self.definition, self.labels.clone(), self.metric.get());
    }
}

impl Source for Instance<Gauge> {
    fn collect(&self, snapshot: &mut Snapshot) {
        snapshot.number(self.definition, self.labels.clone(), self.metric.get());
    }
}

impl Source for Instance<Histogram> {
    fn collect(&self, snapshot: &mut Snapshot) {
        snapshot.histogram(self.definition, self.labels.clone(), self.metric.value());
    }
}

impl Registry {
    /// Creates a registry without sources.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Creates a registry that has no sources and stores records of operations in the store of
    /// `whole`. The caller must add the new registry to `whole`.
    pub fn part_of(whole: &Self) -> Arc<Self> {
        Arc::new(Self { traces: Arc::clone(&whole.traces), ..Self::default() })
    }

    /// Returns the store for the records of single operations of the process.
    pub fn traces(&self) -> &Arc<TraceStore> {
        &self.traces
    }

    /// Adds a source.
    pub fn add(&self, source: Arc<dyn Source>) {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner).push(source);
    }

    /// Removes the registry `part`, which was added as a source.
    pub fn remove(&self, part: &Arc<Self>) {
        let is_part =
            |source: &Arc<dyn Source>| std::ptr::addr_eq(Arc::as_ptr(source), Arc::as_ptr(part));
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.retain(|source| !is_part(source));
    }

    fn instance<T: Default + Send + Sync + 'static>(
        &self,
        definition: &'static Definition,
        labels: &Labels,
        kind: Kind,
    ) -> Arc<T>
    where
        Instance<T>: Source,
    {
        debug_assert_eq!(definition.kind, kind, "{}", definition.name);
        let metric = Arc::new(T::default());
        let labels = labels.clone();
        self.add(Arc::new(Instance { definition, labels, metric: Arc::clone(&metric) }));
        metric
    }

    /// Creates a counter for the calling thread.
    pub fn counter(&self, definition: &'static Definition, labels: &Labels) -> Arc<Counter> {
        self.instance(definition, labels, Kind::Counter)
    }

    /// Creates a gauge for the calling thread. A snapshot adds up gauges with equal labels.
    pub fn gauge(&self, definition: &'static Definition, labels: &Labels) -> Arc<Gauge> {
        self.instance(definition, labels, Kind::Gauge)
    }

    /// Creates a histogram for the calling thread.
    pub fn histogram(&self, definition: &'static Definition, labels: &Labels) -> Arc<Histogram> {
        self.instance(definition, labels, Kind::Histogram)
    }

    /// Returns the current values of all series.
    pub fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::default();
        self.collect(&mut snapshot);
        snapshot
    }
}

/// A registry can be a part of another registry. A child registry can be removed from its parent
/// registry, together with all series of the child.
impl Source for Registry {
    fn collect(&self, snapshot: &mut Snapshot) {
        let sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for source in sources {
            source.collect(snapshot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog;
    use crate::snapshot::Value;

    #[test]
    fn removal_of_a_child_registry_removes_its_series() {
        let (registry, part) = (Registry::new(), Registry::new());
        registry.add(Arc::clone(&part) as _);
        part.gauge(&catalog::NODE_MAP_VERSION, &Vec::new()).set(1);
        let count = || registry.snapshot().iter().count();
        assert_eq!(count(), 1);
        registry.remove(&part);
        assert_eq!(count(), 0);
    }

    #[test]
    fn snapshot_adds_up_the_counters_of_all_threads() {
        let registry = Registry::new();
        let threads: Vec<_> = (1..=4)
            .map(|count| {
                let registry = Arc::clone(&registry);
                std::thread::spawn(move || {
                    let labels = vec![("target", "7".to_owned())];
                    registry.counter(&catalog::LOG_BYTES, &labels).add(count);
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let other = vec![("target", "8".to_owned())];
        registry.counter(&catalog::LOG_BYTES, &other).add(100);
        let snapshot = registry.snapshot();
        let values: Vec<_> = snapshot.iter().map(|series| series.value).collect();
        assert_eq!(values, [Value::Number(10), Value::Number(100)]);
    }
}
