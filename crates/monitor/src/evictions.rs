//! Finds evicted clients. An evicted client disappears from the cluster map without a `Leave`
//! request.
//!
//! The module is pure, because the caller passes the time.

use skep_stats::{Round, label, series_with};
use skep_wire::node::StatisticsSeries;
use std::collections::{BTreeMap, VecDeque};

/// Time for which an eviction is reported after it was found, in milliseconds.
const REPORTED_MS: u64 = 60_000;
/// Maximum number of evictions that are reported at a time. It covers the mounts of a large cluster
/// that lose their network together.
const MAX_REPORTED: usize = 4096;

/// The `Leave` requests that management has executed, according to the replies of one round.
#[derive(Debug, PartialEq, Eq)]
struct Leaves {
    /// The management services that replied, each with its incarnation, by node id.
    members: Vec<(u32, u64)>,
    count: u64,
}

impl Leaves {
    /// Adds up the counts of all management services. `None` means that none of them replied.
    ///
    /// Any member of management may be the leader. The others refuse a `Leave`, and count it as a
    /// failed request.
    fn of(round: &Round) -> Option<Self> {
        let (mut members, mut count) = (Vec::new(), 0_u64);
        for figures in round {
            let operations = series_with(figures, "skep_management_operations");
            if operations.is_empty() {
                continue;
            }
            let failures = series_with(figures, "skep_management_operation_errors");
            let executed = leaves_in(operations).saturating_sub(leaves_in(failures));
            members.push((figures.node, figures.statistics.incarnation));
            count = count.saturating_add(executed);
        }
        members.sort_unstable();
        (!members.is_empty()).then_some(Self { members, count })
    }

    /// Returns the number of requests since the replies `before`. `None` means that the number is
    /// unknown, because other services replied, or because a service has restarted.
    fn since(&self, before: Option<&Self>) -> Option<usize> {
        let before = before.filter(|before| before.members == self.members)?;
        Some(usize::try_from(self.count.saturating_sub(before.count)).unwrap_or(usize::MAX))
    }
}

/// Returns the sum of the values of the series about the request `Leave`.
fn leaves_in(series: &[StatisticsSeries]) -> u64 {
    let leaves = series.iter().filter(|series| label(series, "operation") == "leave");
    let values = leaves.map(|series| u64::try_from(series.value).unwrap_or(0));
    values.fold(0, u64::saturating_add)
}

/// Compares the clients of successive rounds to find evictions.
#[derive(Debug, Default)]
pub(crate) struct EvictionWatch {
    clients: BTreeMap<u32, String>,
    leaves: Option<Leaves>,
    /// Clients that disappeared in the previous round. Management may count a `Leave` a moment
    /// after it has changed the map. So only the count in the next round shows whether these
    /// clients were evicted.
    vanished: Vec<String>,
    reported: VecDeque<(u64, String)>,
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
        if let Some(leaves) = Leaves::of(round) {
            let since = leaves.since(self.leaves.as_ref());
            let left = since.unwrap_or(usize::MAX);
            let mut evicted = std::mem::take(&mut self.vanished);
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
            if since.is_none() {
                // The counts do not show which of these clients have left.
                self.vanished.clear();
            }
            if self.vanished.is_empty() {
                self.leaves = Some(leaves);
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
    use skep_wire::node::Statistics;

    /// Returns the reply of a management service that has received `leaves` requests to leave, and
    /// has refused `refused` of them.
    fn member(node: u32, incarnation: u64, leaves: i64, refused: i64) -> ServiceFigures {
        let series = |metric: &str, operation: &str, value| StatisticsSeries {
            metric: metric.into(),
            labels: vec![("operation".into(), operation.into())],
            value,
            buckets: Vec::new(),
        };
        let series = vec![
            series("skep_management_operation_errors", "leave", refused),
            series("skep_management_operations", "ask_member", 900),
            series("skep_management_operations", "leave", leaves),
        ];
        let statistics = Statistics { moment_ns: 1, incarnation, page: String::new(), series };
        ServiceFigures { node, name: format!("management-{node}"), statistics }
    }

    fn round(incarnation: u64, leaves: i64) -> Round {
        vec![member(1, incarnation, leaves, 0)]
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
    fn unmount_at_any_leader_of_management_is_no_eviction() {
        // The second of three members leads.
        let round = |refused: i64, executed: i64| {
            vec![member(1, 5, refused, refused), member(2, 6, executed, 0), member(3, 7, 0, 0)]
        };
        let mut watch = EvictionWatch::default();
        let mut at = |second: u64, ids: &[u32], round: &[ServiceFigures]| {
            watch.update(second * 1000, clients(ids), &round.to_vec())
        };
        at(0, &[5, 6, 8, 9], &round(0, 0));
        at(1, &[5, 8, 9], &round(0, 1));
        assert!(at(2, &[5, 8, 9], &round(0, 1)).is_empty());
        // This client first asks a member that does not lead.
        at(3, &[5, 8], &round(1, 2));
        assert!(at(4, &[5, 8], &round(1, 2)).is_empty());
        // One member does not reply any more.
        at(5, &[5, 8], &round(1, 2)[..2]);
        at(6, &[5, 8], &round(1, 2)[..2]);
        at(7, &[5], &round(1, 2)[..2]);
        assert_eq!(at(8, &[5], &round(1, 2)[..2]), ["c8"]);
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
