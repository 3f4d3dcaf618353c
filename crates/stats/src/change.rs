//! The change of each series of one service between two replies.

use crate::ServiceFigures;
use skep_metrics::{BUCKETS, HistogramValue};
use skep_wire::node::{Statistics, StatisticsSeries};
use std::collections::HashMap;

/// Id of the account that has the figures of all causes of load without a separate account.
pub const LEFT_OUT: &str = "other";

/// The change of a series.
#[derive(Debug)]
pub(crate) struct Change<'a> {
    pub(crate) series: &'a StatisticsSeries,
    /// Growth of a counter or of the sum of a histogram. Not used for gauges.
    pub(crate) growth: i64,
    /// Durations that a histogram has counted between the replies.
    pub(crate) durations: Option<HistogramValue>,
}

impl Change<'_> {
    pub(crate) fn label(&self, name: &str) -> &str {
        label(self.series, name)
    }
}

fn label<'a>(series: &'a StatisticsSeries, name: &str) -> &'a str {
    series.labels.iter().find(|(it, _)| it == name).map_or("", |(_, value)| value)
}

fn histogram(series: &StatisticsSeries) -> HistogramValue {
    let mut value = HistogramValue { sum_ns: series.value as u64, ..HistogramValue::default() };
    for (bucket, count) in &series.buckets {
        // A newer service may have more buckets. Durations in these buckets count as very long.
        value.buckets[usize::from(*bucket).min(BUCKETS - 1)] += count;
    }
    value
}

/// Returns the seconds between two replies of one service. Returns `None` if there is no earlier
/// reply, or if an earlier process sent it.
pub(crate) fn seconds(before: Option<&ServiceFigures>, now: &ServiceFigures) -> Option<f64> {
    let before = comparable(before, now)?;
    let span = now.statistics.moment_ns.checked_sub(before.moment_ns)?;
    (span > 0).then_some(span as f64 / 1e9)
}

/// Returns the earlier reply if the same process sent it.
fn comparable<'a>(
    before: Option<&'a ServiceFigures>,
    now: &ServiceFigures,
) -> Option<&'a Statistics> {
    let before = &before?.statistics;
    (before.incarnation == now.statistics.incarnation).then_some(before)
}

/// Returns the changes of all series since `before`. If `before` is `None` or from an earlier
/// process, the changes are counted from the start of the process.
///
/// When a service replaces an account of load, it moves the figures of the old account to the
/// account [`LEFT_OUT`]. These figures are not new load, so this function subtracts them from the
/// change of [`LEFT_OUT`].
pub(crate) fn changes<'a>(
    before: Option<&ServiceFigures>,
    now: &'a ServiceFigures,
) -> Vec<Change<'a>> {
    type Key<'k> = (&'k str, &'k [(String, String)]);
    let key = |series: &'a StatisticsSeries| -> Key<'a> { (&series.metric, &series.labels) };
    let mut known: HashMap<Key<'_>, &StatisticsSeries> = HashMap::new();
    for series in comparable(before, now).iter().flat_map(|it| &it.series) {
        known.insert((&series.metric, &series.labels), series);
    }
    let mut moved: HashMap<String, i64> = HashMap::new();
    let mut changes = Vec::new();
    for series in &now.statistics.series {
        let earlier = known.remove(&key(series));
        let growth = match earlier {
            Some(earlier) if earlier.value > series.value && is_account(series) => {
                // The account was replaced, and created again.
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
        changes.push(Change { series, growth, durations });
    }
    for vanished in known.values().filter(|series| is_account(series)) {
        *moved.entry(table_of(vanished)).or_default() += vanished.value;
    }
    for change in changes.iter_mut().filter(|change| change.label("id") == LEFT_OUT) {
        change.growth -= moved.get(&table_of(change.series)).copied().unwrap_or_default();
    }
    changes
}

fn is_account(series: &StatisticsSeries) -> bool {
    series.metric.starts_with("skep_load_") && label(series, "id") != LEFT_OUT
}

/// Returns a text that identifies the table of an account.
fn table_of(series: &StatisticsSeries) -> String {
    let label = |name| label(series, name);
    let [service, target, by, stage] = ["service", "target", "by", "stage"].map(label);
    format!("{} {service} {target} {by} {stage}", series.metric)
}
