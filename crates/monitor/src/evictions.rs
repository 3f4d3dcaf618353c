//! Finds evicted clients, which disappear from the cluster map without a `Leave` request, and the
//! reasons for their evictions.
//!
//! Management lists the newest evictions with their reasons, and [`crate::collect`] asks for this
//! list when clients have disappeared. Management may not send the list, or may have evicted more
//! clients than the list has entries. The module then compares the number of the other vanished
//! clients with the number of executed `Leave` requests.
//!
//! The module is pure, because the caller passes the time.

use skep_cluster::limits::MAX_EVICTIONS;
use skep_stats::{Round, label, series_with};
use skep_types::Eviction;
use skep_wire::node::StatisticsSeries;
use std::collections::{BTreeMap, VecDeque};

/// Time for which an eviction is reported after it was found, in milliseconds.
const REPORTED_MS: u64 = 60_000;
/// Maximum number of evictions that are reported at a time. The limit covers the mounts of a large
/// cluster that lose their network together.
const MAX_REPORTED: usize = 4096;

/// The `Leave` requests that management has executed, according to the replies of one round.
#[derive(Debug, PartialEq, Eq)]
struct Leaves {
    /// The management services that replied, each with its incarnation, by node id.
    members: Vec<(u32, u64)>,
    count: u64,
}

impl Leaves {
    /// Adds up the counts of all management services. `None` means that no management service
    /// replied.
    ///
    /// Any member of management may be the leader. The other members refuse a `Leave`, and count it
    /// as a failed request.
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

/// A client that was evicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EvictedClient {
    /// Host and mount point of the client. If only some of several clients were evicted, but the
    /// monitor does not know which clients, the text has the names of all these clients.
    pub(crate) name: String,
    /// The reason for the eviction. Empty if the reason is not known.
    pub(crate) reason: String,
}

/// Compares the clients of successive rounds to find evictions.
#[derive(Debug, Default)]
pub(crate) struct EvictionWatch {
    clients: BTreeMap<u32, String>,
    leaves: Option<Leaves>,
    /// Clients that disappeared in the previous round, with their node ids. Management may count a
    /// `Leave` a moment after it has changed the map. So only the count in the next round shows
    /// whether these clients were evicted.
    vanished: Vec<(u32, String)>,
    reported: VecDeque<(u64, EvictedClient)>,
}

impl EvictionWatch {
    /// Takes the clients of the newest map, and the replies of a round that began after the map was
    /// read. `listed` contains the evictions that management has listed after this round. `None`
    /// means that management has sent no list. Returns the clients that were evicted within the
    /// last minute.
    pub(crate) fn update(
        &mut self,
        now_ms: u64,
        clients: BTreeMap<u32, String>,
        round: &Round,
        listed: Option<&[Eviction]>,
    ) -> Vec<EvictedClient> {
        let leaves = Leaves::of(round);
        if leaves.is_some() || listed.is_some() {
            let since = leaves.as_ref().and_then(|it| it.since(self.leaves.as_ref()));
            self.report_listed(now_ms, listed);
            self.report_uncounted(now_ms, since);
            let gone = self.clients.iter().filter(|(id, _)| !clients.contains_key(*id));
            self.vanished = gone.map(|(id, name)| (*id, name.clone())).collect();
            self.report_listed(now_ms, listed);
            if since.is_none() {
                // The counts do not show which of these clients have left.
                self.vanished.clear();
            }
            if self.vanished.is_empty() {
                self.leaves = leaves.or(self.leaves.take());
            }
            self.clients = clients;
        }
        // If the clock has been set back, older times are in the future. Drop the evictions with
        // such times too.
        self.reported.retain(|(time, _)| (*time..=time + REPORTED_MS).contains(&now_ms));
        while self.reported.len() > MAX_REPORTED {
            self.reported.pop_front();
        }
        self.reported.iter().map(|(_, client)| client.clone()).collect()
    }

    /// Reports the vanished clients that management lists as evicted. All other vanished clients
    /// have left, unless the list may lack some evicted clients.
    fn report_listed(&mut self, now_ms: u64, listed: Option<&[Eviction]>) {
        let Some(listed) = listed else { return };
        let vanished = std::mem::take(&mut self.vanished);
        let has_vanished = |it: &Eviction| vanished.iter().any(|(id, _)| *id == it.client.raw());
        // The list has the newest evictions. If the oldest listed client has not just vanished, the
        // list has the evictions of all vanished clients.
        let is_full = listed.len() >= MAX_EVICTIONS;
        let may_lack = is_full && listed.first().is_some_and(has_vanished);
        for (id, name) in vanished {
            match listed.iter().find(|it| it.client.raw() == id) {
                Some(eviction) => self.report(now_ms, name, eviction.reason()),
                None if may_lack => self.vanished.push((id, name)),
                None => {}
            }
        }
    }

    /// Reports evictions if more clients have vanished than have left. `left` is the number of
    /// clients that have left. `None` means that the number is not known.
    fn report_uncounted(&mut self, now_ms: u64, left: Option<usize>) {
        let vanished = std::mem::take(&mut self.vanished);
        let names: Vec<String> = vanished.into_iter().map(|(_, name)| name).collect();
        let left = left.unwrap_or(usize::MAX);
        if left == 0 {
            names.into_iter().for_each(|name| self.report(now_ms, name, String::new()));
        } else if names.len() > left {
            let name = format!("one of {}", names.join(", "));
            self.report(now_ms, name, String::new());
        }
    }

    fn report(&mut self, now_ms: u64, name: String, reason: String) {
        self.reported.push_back((now_ms, EvictedClient { name, reason }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_stats::ServiceFigures;
    use skep_types::{EvictionCause, GroupId, NodeId, Timestamp};
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

    fn names(found: Vec<EvictedClient>) -> Vec<String> {
        found.into_iter().map(|client| client.name).collect()
    }

    /// Returns the evicted clients after `rounds`, in which management sends no list. Each round
    /// consists of the clients of the map, the incarnation of management, and its count of leaves.
    fn evicted(rounds: &[(&[u32], u64, i64)]) -> Vec<String> {
        let mut watch = EvictionWatch::default();
        let mut found = Vec::new();
        for (second, (ids, incarnation, leaves)) in rounds.iter().enumerate() {
            let round = round(*incarnation, *leaves);
            found = watch.update(second as u64 * 1000, clients(ids), &round, None);
        }
        names(found)
    }

    fn eviction(client: u32) -> Eviction {
        Eviction {
            client: NodeId::new(client),
            name: format!("c{client}"),
            time: Timestamp::default(),
            cause: EvictionCause::Silent,
            group: GroupId::default(),
            silent_ms: 5_000,
        }
    }

    #[test]
    fn listed_eviction_is_reported_immediately_with_its_reason() {
        let mut watch = EvictionWatch::default();
        watch.update(0, clients(&[5, 6, 7]), &round(1, 3), None);
        // Client 7 has left, but management has not counted its `Leave` request yet.
        let list = [eviction(4), eviction(6)];
        let found = watch.update(1000, clients(&[5]), &round(1, 3), Some(&list));
        let reason = "the client sent no heartbeat for 5.0 s".to_owned();
        let expected = [EvictedClient { name: "c6".into(), reason }];
        assert_eq!(found, expected);
        assert_eq!(watch.update(2000, clients(&[5]), &round(1, 3), None), expected);
        // Management has restarted, or does not reply to other requests.
        let list = [eviction(4), eviction(6), eviction(5)];
        let mut later = watch.update(3000, clients(&[]), &Vec::new(), Some(&list));
        assert_eq!(later.pop().map(|client| client.name).as_deref(), Some("c5"));
        assert_eq!(later, expected);
    }

    #[test]
    fn evictions_beyond_the_list_of_management_are_found_by_counts() {
        let count = u32::try_from(MAX_EVICTIONS).unwrap() + 36;
        let all: Vec<u32> = (1..=count).collect();
        let mut watch = EvictionWatch::default();
        watch.update(0, clients(&all), &round(1, 0), None);
        let list: Vec<Eviction> = (37..=count).map(eviction).collect();
        assert_eq!(list.len(), MAX_EVICTIONS);
        let first = watch.update(1000, clients(&[]), &round(1, 0), Some(&list));
        assert!(first.iter().all(|client| !client.reason.is_empty()), "{first:?}");
        assert_eq!(first.len(), MAX_EVICTIONS);
        let all = watch.update(2000, clients(&[]), &round(1, 0), None);
        assert_eq!(all.len(), MAX_EVICTIONS + 36);
        // A full list of older evictions lacks no newer eviction.
        let mut watch = EvictionWatch::default();
        watch.update(0, clients(&[500]), &round(1, 0), None);
        assert_eq!(watch.update(1000, clients(&[]), &round(1, 0), Some(&list)), []);
        assert_eq!(watch.update(2000, clients(&[]), &round(1, 0), None), [], "the client has left");
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
            names(watch.update(second * 1000, clients(ids), &round.to_vec(), None))
        };
        at(0, &[5, 6, 8, 9], &round(0, 0));
        at(1, &[5, 8, 9], &round(0, 1));
        assert!(at(2, &[5, 8, 9], &round(0, 1)).is_empty());
        // Client 9 first sends its `Leave` request to a member that does not lead.
        at(3, &[5, 8], &round(1, 2));
        assert!(at(4, &[5, 8], &round(1, 2)).is_empty());
        // One member does not reply any more.
        at(5, &[5, 8], &round(1, 2)[..2]);
        at(6, &[5, 8], &round(1, 2)[..2]);
        at(7, &[5], &round(1, 2)[..2]);
        assert_eq!(at(8, &[5], &round(1, 2)[..2]), ["c8"]);
    }

    #[test]
    fn restart_of_management_is_not_reported_as_an_eviction() {
        assert!(evicted(&[(&[5, 6], 1, 3), (&[5], 2, 0), (&[5], 2, 0)]).is_empty());
    }

    #[test]
    fn eviction_alert_ends_after_a_minute() {
        let mut watch = EvictionWatch::default();
        watch.update(0, clients(&[5]), &round(1, 0), None);
        watch.update(1000, clients(&[]), &round(1, 0), None);
        assert_eq!(names(watch.update(2000, clients(&[]), &round(1, 0), None)), ["c5"]);
        assert!(watch.update(70_000, clients(&[]), &round(1, 0), None).is_empty());
    }
}
