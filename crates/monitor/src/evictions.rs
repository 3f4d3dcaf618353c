//! Finds evicted clients. An evicted client disappears from the cluster map without a `Leave`
//! request.
//!
//! The module is pure, because the caller passes the time.

use skep_stats::{Round, label, series_with};
use std::collections::{BTreeMap, VecDeque};

/// Time for which an eviction is reported after it was found, in milliseconds.
const REPORTED_MS: u64 = 60_000;
/// Maximum number of evictions that are reported at a time.
const MAX_REPORTED: usize = 32;

/// Compares the clients of successive rounds to find evictions.
#[derive(Debug, Default)]
pub(crate) struct EvictionWatch {
    clients: BTreeMap<u32, String>,
    leaves: Option<(u64, u64)>,
    /// Clients that disappeared in the previous round. Management may count a `Leave` a moment
    /// after it has changed the map. So only the count in the next round shows whether these
    /// clients were evicted.
    vanished: Vec<String>,
    reported: VecDeque<(u64, String)>,
}

/// Returns the incarnation of management and its count of clients that have left with a `Leave`.
fn leaves(round: &Round) -> Option<(u64, u64)> {
    round.iter().find_map(|figures| {
        let all = series_with(figures, "skep_management_operations");
        let leaves = all.iter().filter(|series| label(series, "operation") == "leave");
        let count = leaves.map(|series| series.value).sum::<i64>();
        let is_of_management = !all.is_empty();
        is_of_management
            .then(|| (figures.statistics.incarnation, u64::try_from(count).unwrap_or(0)))
    })
}

impl EvictionWatch {
    /// Takes the clients of the newest map and the replies of a round that began after the map was
    /// read. Returns the names of the clients that were evicted within the last minute. If some of
    /// several clients were evicted and it is not known which ones, a single text lists the names
    /// of all of them.
    pub(crate) fn update(
        &mut self,
        now_ms: u64,
        clients: BTreeMap<u32, String>,
        round: &Round,
    ) -> Vec<String> {
        if let Some((incarnation, count)) = leaves(round) {
            let left = match self.leaves {
                Some((before, earlier)) if before == incarnation => count.saturating_sub(earlier),
                _ => u64::MAX,
            };
            let mut evicted = std::mem::take(&mut self.vanished);
            let left = usize::try_from(left).unwrap_or(usize::MAX);
            let is_certain = left == 0;
            let unexplained = evicted.len().saturating_sub(left);
            if !is_certain && unexplained > 0 {
                let names = evicted.join(", ");
                evicted = vec![format!("one of {names}"); unexplained.min(1)];
            } else {
                evicted.truncate(unexplained);
            }
            self.reported.extend(evicted.into_iter().map(|name| (now_ms, name)));
            let gone = self.clients.iter().filter(|(id, _)| !clients.contains_key(*id));
            self.vanished = gone.map(|(_, name)| name.clone()).collect();
            if self.vanished.is_empty() {
                self.leaves = Some((incarnation, count));
            } else if self.leaves.is_none_or(|(before, _)| before != incarnation) {
                // Management has restarted, so its count of leaves does not include these clients.
                self.vanished.clear();
                self.leaves = Some((incarnation, count));
            }
            self.clients = clients;
        }
        // If the clock has been set back, older times are in the future. Drop them too.
        self.reported.retain(|(time, _)| (*time..=time + REPORTED_MS).contains(&now_ms));
        while self.reported.len() > MAX_REPORTED {
            self.reported.pop_front();
        }
        self.reported.iter().map(|(_, name)| name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_stats::ServiceFigures;
    use skep_wire::node::{Statistics, StatisticsSeries};

    fn round(incarnation: u64, leaves: i64) -> Round {
        let series = StatisticsSeries {
            metric: "skep_management_operations".into(),
            labels: vec![("operation".into(), "leave".into())],
            value: leaves,
            buckets: Vec::new(),
        };
        let statistics =
            Statistics { moment_ns: 1, incarnation, page: String::new(), series: vec![series] };
        vec![ServiceFigures { node: 1, name: "management-1".into(), statistics }]
    }

    fn clients(ids: &[u32]) -> BTreeMap<u32, String> {
        ids.iter().map(|id| (*id, format!("c{id}"))).collect()
    }

    /// Returns the evicted clients after `rounds`. Each round consists of the clients of the map,
    /// the incarnation of management, and its count of leaves.
    fn evicted(rounds: &[(&[u32], u64, i64)]) -> Vec<String> {
        let mut watch = EvictionWatch::default();
        let mut found = Vec::new();
        for (second, (ids, incarnation, leaves)) in rounds.iter().enumerate() {
            let round = round(*incarnation, *leaves);
            found = watch.update(second as u64 * 1000, clients(ids), &round);
        }
        found
    }

    #[test]
    fn client_that_disappears_without_leaving_was_evicted() {
        assert_eq!(evicted(&[(&[5, 6], 1, 0), (&[5], 1, 0), (&[5], 1, 0)]), ["c6"]);
    }

    #[test]
    fn client_that_unmounts_is_not_reported_as_evicted() {
        assert!(evicted(&[(&[5, 6], 1, 3), (&[5], 1, 4), (&[5], 1, 4), (&[5], 1, 4)]).is_empty());
        // Here the client disappears from the map in one round, and the count of leaves rises only
        // in the next round.
        assert!(evicted(&[(&[5, 6], 1, 3), (&[5], 1, 3), (&[5], 1, 4), (&[5], 1, 4)]).is_empty());
    }

    #[test]
    fn a_restart_of_management_is_not_an_eviction() {
        assert!(evicted(&[(&[5, 6], 1, 3), (&[5], 2, 0), (&[5], 2, 0)]).is_empty());
    }

    #[test]
    fn eviction_alert_ends_after_a_minute() {
        let mut watch = EvictionWatch::default();
        watch.update(0, clients(&[5]), &round(1, 0));
        watch.update(1000, clients(&[]), &round(1, 0));
        assert_eq!(watch.update(2000, clients(&[]), &round(1, 0)), ["c5"]);
        assert!(watch.update(70_000, clients(&[]), &round(1, 0)).is_empty());
    }
}
