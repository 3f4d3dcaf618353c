//! The change of each series of one service between two replies to `GetStatistics`.

use crate::ServiceFigures;
use skep_metrics::HistogramValue;
use skep_wire::node::{Statistics, StatisticsSeries};
use std::collections::HashMap;

/// Id of the account that contains the load of all clients, users, groups, jobs and directories
/// without an account of their own.
pub const LEFT_OUT: &str = "other";

/// The change of one series.
#[derive(Debug)]
pub(crate) struct Change<'a> {
    pub(crate) series: &'a StatisticsSeries,
    /// Growth of a counter or of the sum of a histogram. Not used for gauges.
    pub(crate) growth: i64,
    /// Whether the earlier reply did not have the series.
    pub(crate) is_new: bool,
    /// The durations that a histogram has counted between the two replies.
    pub(crate) durations: Option<HistogramValue>,
}

impl Change<'_> {
    pub(crate) fn label(&self, name: &str) -> &str {
        label(self.series, name)
    }
}

/// Returns the value of a label of a series. The value is empty if the series has no such label.
pub fn label<'a>(series: &'a StatisticsSeries, name: &str) -> &'a str {
    series.labels.iter().find(|(it, _)| it == name).map_or("", |(_, value)| value)
}

/// Returns the series of a reply whose names begin with `prefix`. A reply has thousands of series,
/// sorted by their names, so a binary search finds them.
pub fn series_with<'a>(figures: &'a ServiceFigures, prefix: &str) -> &'a [StatisticsSeries] {
    let all = &figures.statistics.series;
    let rest = &all[all.partition_point(|series| series.metric.as_str() < prefix)..];
    &rest[..rest.partition_point(|series| series.metric.starts_with(prefix))]
}

fn histogram(series: &StatisticsSeries) -> HistogramValue {
    let buckets = series.buckets.iter().map(|(bucket, count)| (usize::from(*bucket), *count));
    HistogramValue::of_buckets(series.value as u64, buckets)
}

/// Returns the time between two replies of one service, in seconds. Returns `None` if there is no
/// earlier reply, or if the service has restarted since that reply.
pub(crate) fn seconds(before: Option<&ServiceFigures>, now: &ServiceFigures) -> Option<f64> {
    let before = comparable(before, now)?;
    let span = now.statistics.moment_ns.checked_sub(before.moment_ns)?;
    (span > 0).then_some(span as f64 / 1e9)
}

/// Returns the earlier reply, unless the service has restarted since that reply.
fn comparable<'a>(
    before: Option<&'a ServiceFigures>,
    now: &ServiceFigures,
) -> Option<&'a Statistics> {
    let before = &before?.statistics;
    (before.incarnation == now.statistics.incarnation).then_some(before)
}

/// Returns the changes of all series since the reply `before`. If `before` is `None`, or the
/// service has restarted since then, the changes are counted from the start of the service.
///
/// When a service replaces an account of load, it adds the load of the old account to the account
/// [`LEFT_OUT`]. The load of the old account is not new, so this function subtracts it from the
/// change of [`LEFT_OUT`].
pub(crate) fn changes<'a>(
    before: Option<&ServiceFigures>,
    now: &'a ServiceFigures,
) -> Vec<Change<'a>> {
    let before = comparable(before, now).map_or(&[][..], |it| &it.series);
    let (pairs, vanished) = pairs(before, &now.statistics.series);
    let mut moved: HashMap<String, i64> = HashMap::new();
    let mut changes = Vec::new();
    for (series, earlier) in pairs {
        let growth = match earlier {
            Some(earlier) if earlier.value > series.value && is_account(series) => {
                // The account was replaced in the meantime, and then created again. So the load
                // from before the replacement is now in the account [`LEFT_OUT`].
                *moved.entry(table_of(series)).or_default() += earlier.value;
                series.value
            }
            Some(earlier) => series.value - earlier.value,
            None => series.value,
        };
        let durations = (!series.buckets.is_empty()).then(|| match earlier {
            Some(earlier) => histogram(series).since(&histogram(earlier)),
            None => histogram(series),
        });
        changes.push(Change { series, growth, is_new: earlier.is_none(), durations });
    }
    for vanished in vanished.into_iter().filter(|series| is_account(series)) {
        *moved.entry(table_of(vanished)).or_default() += vanished.value;
    }
    for change in changes.iter_mut().filter(|change| change.label("id") == LEFT_OUT) {
        change.growth -= moved.get(&table_of(change.series)).copied().unwrap_or_default();
    }
    changes
}

type Pairs<'a, 'b> = Vec<(&'a StatisticsSeries, Option<&'b StatisticsSeries>)>;

/// Returns each series of the reply `now`, together with the same series of the earlier reply
/// `before` if it exists there. Also returns the series that only `before` has.
///
/// Two replies of one process nearly always have the same series in the same order. So it is much
/// cheaper to compare the series at the same position than to look up each series by metric and
/// labels.
fn pairs<'a, 'b>(
    before: &'b [StatisticsSeries],
    now: &'a [StatisticsSeries],
) -> (Pairs<'a, 'b>, Vec<&'b StatisticsSeries>) {
    let is_same = |one: &StatisticsSeries, other: Option<&StatisticsSeries>| {
        other.is_some_and(|other| one.metric == other.metric && one.labels == other.labels)
    };
    let (mut pairs, mut left): (Pairs<'a, 'b>, Vec<&'b StatisticsSeries>) = Default::default();
    let mut at = 0;
    for (index, series) in now.iter().enumerate() {
        if is_same(series, before.get(at)) {
            pairs.push((series, Some(&before[at])));
            at += 1;
            continue;
        }
        if is_same(series, before.get(at + 1)) {
            // The series at `at` is missing from `now`.
            left.push(&before[at]);
            pairs.push((series, Some(&before[at + 1])));
            at += 2;
            continue;
        }
        pairs.push((series, None));
        let is_new = now.get(index + 1).is_some_and(|next| is_same(next, before.get(at)));
        if !is_new && at < before.len() {
            // At this position, `now` has another series instead of the series `before[at]`.
            left.push(&before[at]);
            at += 1;
        }
    }
    left.extend(before.get(at..).unwrap_or_default());
    if left.is_empty() {
        return (pairs, left);
    }
    type Key<'k> = (&'k str, &'k [(String, String)]);
    let key = |series: &'b StatisticsSeries| -> Key<'b> { (&series.metric, &series.labels) };
    let mut known: HashMap<Key<'_>, &'b StatisticsSeries> =
        left.into_iter().map(|series| (key(series), series)).collect();
    for (series, earlier) in pairs.iter_mut().filter(|(_, earlier)| earlier.is_none()) {
        *earlier = known.remove(&(series.metric.as_str(), series.labels.as_slice()));
    }
    (pairs, known.into_values().collect())
}

fn is_account(series: &StatisticsSeries) -> bool {
    series.metric.starts_with("skep_load_") && label(series, "id") != LEFT_OUT
}

/// Returns a text that identifies the table to which an account belongs.
fn table_of(series: &StatisticsSeries) -> String {
    let label = |name| label(series, name);
    let [service, target, by, stage] = ["service", "target", "by", "stage"].map(label);
    format!("{} {service} {target} {by} {stage}", series.metric)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(ids: &[u32]) -> Vec<StatisticsSeries> {
        let series = |id: &u32| StatisticsSeries {
            metric: "skep_load_operations".into(),
            labels: vec![("id".into(), id.to_string())],
            value: i64::from(*id),
            buckets: Vec::new(),
        };
        ids.iter().map(series).collect()
    }

    #[test]
    fn series_with_a_prefix_are_found_in_a_sorted_reply() {
        let names = ["skep_a", "skep_host_cpu", "skep_host_disk", "skep_hosts", "skep_load"];
        let series =
            names.map(|name| StatisticsSeries { metric: name.into(), ..reply(&[1])[0].clone() });
        let statistics =
            Statistics { moment_ns: 1, incarnation: 1, page: String::new(), series: series.into() };
        let figures = ServiceFigures { node: 1, name: String::new(), statistics };
        for (prefix, range) in [
            ("skep_host_", 1..3),
            ("skep_a", 0..1),
            ("skep_load", 4..5),
            ("skep_", 0..5),
            ("skep_b", 1..1),
            ("z", 5..5),
        ] {
            let found: Vec<_> =
                series_with(&figures, prefix).iter().map(|it| &*it.metric).collect();
            assert_eq!(found, names[range], "{prefix}");
        }
    }

    #[test]
    fn series_of_two_statistics_replies_match_in_any_order() {
        for (before, now, vanished) in [
            (&[1, 2, 3][..], &[1, 2, 3][..], &[][..]),
            (&[1, 2, 3], &[1, 9, 2, 3], &[]),
            (&[1, 2, 3], &[1, 3], &[2]),
            (&[1, 2, 3, 4], &[1, 9, 3, 4], &[2]),
            (&[1, 2, 3, 4], &[4, 3, 2, 1], &[]),
            (&[1, 2, 3, 4, 5], &[8, 9, 5, 1], &[2, 3, 4]),
            (&[], &[1], &[]),
            (&[1, 2], &[], &[1, 2]),
        ] {
            let (before, now) = (reply(before), reply(now));
            let (found, left) = pairs(&before, &now);
            for (series, earlier) in &found {
                let expected = before.iter().find(|it| it.value == series.value);
                assert_eq!(earlier.map(|it| it.value), expected.map(|it| it.value), "{now:?}");
            }
            assert_eq!(found.len(), now.len());
            let mut left: Vec<_> = left.iter().map(|it| it.value).collect();
            left.sort_unstable();
            assert_eq!(left, vanished);
        }
    }
}
