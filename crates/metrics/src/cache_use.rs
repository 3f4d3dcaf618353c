//! The uses of a cache: how often the cache had the requested item (hit), and how often it did not
//! have the item (miss).

use crate::counter::Counter;
use crate::definition::Definition;
use crate::registry::{Registry, Source};
use crate::snapshot::{Labels, Snapshot};
use crate::switch::is_off;
use std::sync::Arc;

/// The metrics of hits and misses for the caches of one kind of process.
#[derive(Debug)]
pub struct CacheFamily {
    /// Number of hits: uses in which the cache had the requested item.
    pub hits: &'static Definition,
    /// Number of misses: uses in which the cache did not have the requested item.
    pub misses: &'static Definition,
}

/// Counts the hits and misses of one cache on one thread. Any thread can read the counts.
#[derive(Debug, Default)]
pub struct CacheUse {
    hits: Counter,
    misses: Counter,
}

impl CacheUse {
    /// Creates the counts of one cache of the calling thread, and adds them to `registry` as
    /// metrics.
    pub fn new(registry: &Registry, family: &'static CacheFamily, labels: Labels) -> Arc<Self> {
        let uses = Arc::<Self>::default();
        uses.add_to(registry, family, labels);
        uses
    }

    /// Adds the counts of hits and misses in `self` to a registry, as metrics.
    pub fn add_to(
        self: &Arc<Self>,
        registry: &Registry,
        family: &'static CacheFamily,
        labels: Labels,
    ) {
        registry.add(Arc::new(ShownUse { family, labels, uses: Arc::clone(self) }));
    }

    /// Counts one use. Only the owning thread may call this function.
    #[inline]
    pub fn note(&self, is_hit: bool) {
        if !is_off() {
            let counter = if is_hit { &self.hits } else { &self.misses };
            counter.add(1);
        }
    }

    /// Adds uses that another library has counted. Only the owning thread may call this function.
    pub fn add(&self, hits: u64, misses: u64) {
        self.hits.add(hits);
        self.misses.add(misses);
    }
}

/// The uses of a cache, with the labels of their series.
struct ShownUse {
    family: &'static CacheFamily,
    labels: Labels,
    uses: Arc<CacheUse>,
}

impl Source for ShownUse {
    fn collect(&self, snapshot: &mut Snapshot) {
        snapshot.count(self.family.hits, self.labels.clone(), self.uses.hits.get());
        snapshot.count(self.family.misses, self.labels.clone(), self.uses.misses.get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::STORAGE_CACHE;
    use crate::snapshot::Value;

    #[test]
    fn hits_and_misses_of_all_threads_are_added_up() {
        let registry = Registry::new();
        let labels = vec![("target", "7".to_owned()), ("cache", "open_files".to_owned())];
        let uses = CacheUse::new(&registry, &STORAGE_CACHE, labels.clone());
        [true, false, true].into_iter().for_each(|is_hit| uses.note(is_hit));
        let other = CacheUse::new(&registry, &STORAGE_CACHE, labels);
        other.add(10, 20);
        let snapshot = registry.snapshot();
        let found: Vec<_> = snapshot.iter().map(|it| (it.definition.name, it.value)).collect();
        let expected = [
            ("skep_storage_cache_hits", Value::Number(12)),
            ("skep_storage_cache_misses", Value::Number(21)),
        ];
        assert_eq!(found, expected);
    }
}
