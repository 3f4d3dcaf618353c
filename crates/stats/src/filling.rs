//! Predicts when storage will be full, from the growth of its used space in the past days.
//!
//! Only the monitor has the history that a prediction needs. The module is pure: it does no I/O and
//! reads no clock.

use crate::why::{Cause, names};
use skep_cluster::problems::Severity;
use skep_types::{ClusterMap, TargetId};

/// Name of the rule.
pub const RULE: &str = "space-filling";

/// Number of days before the space is full at which the rule reports it. An administrator can
/// remove data or add disks in this time, also at a weekend.
const WARN_DAYS: f64 = 3.0;
const DAY_MS: u64 = 24 * 3_600_000;
/// Lengths of the spans whose growth counts. A prediction uses the slower of the two growth rates,
/// so that neither one large job nor one quiet day determines it.
const SPANS_MS: [u64; 2] = [DAY_MS, 7 * DAY_MS];
/// Minimum length of the history. In a shorter time, single jobs determine the growth of the used
/// space.
const LEAST_MS: u64 = 20 * 3_600_000;

/// The used space at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsedSpace {
    /// The moment, in milliseconds since 1970.
    pub at_ms: u64,
    /// Number of used bytes.
    pub used: u64,
    /// Number of bytes that can still be stored.
    pub free: u64,
}

/// The growth of used space.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Growth {
    bytes_per_day: f64,
    free: u64,
}

impl Growth {
    /// Returns the growth from the used space of the past days, the oldest moment first. `None`
    /// means that the space does not grow, or that its history is too short.
    pub fn of(points: &[UsedSpace]) -> Option<Self> {
        let (first, newest) = (points.first()?, points.last()?);
        if newest.at_ms.saturating_sub(first.at_ms) < LEAST_MS {
            return None;
        }
        let slopes = SPANS_MS.map(|span_ms| {
            let from_ms = newest.at_ms.saturating_sub(span_ms);
            slope(points.iter().filter(|point| point.at_ms >= from_ms))
        });
        let bytes_per_day = slopes[0]?.min(slopes[1]?) * DAY_MS as f64;
        (bytes_per_day > 0.0).then_some(Self { bytes_per_day, free: newest.free })
    }

    /// Returns the number of days until the space is full.
    pub fn days_left(&self) -> f64 {
        self.free as f64 / self.bytes_per_day
    }
}

/// Returns the growth of the used bytes in each millisecond, as the line with the smallest squares
/// of the differences from the points. `None` means that the points are at fewer than two moments.
fn slope<'a>(points: impl Iterator<Item = &'a UsedSpace> + Clone) -> Option<f64> {
    let start = points.clone().next()?.at_ms;
    let pairs = points.map(|point| (point.at_ms.saturating_sub(start) as f64, point.used as f64));
    let count = pairs.clone().count() as f64;
    let (x_sum, y_sum) = pairs.clone().fold((0.0, 0.0), |(x, y), it| (x + it.0, y + it.1));
    let (x_mean, y_mean) = (x_sum / count, y_sum / count);
    let (mut both, mut squares) = (0.0, 0.0);
    for (x, y) in pairs {
        both += (x - x_mean) * (y - y_mean);
        squares += (x - x_mean) * (x - x_mean);
    }
    (squares > 0.0).then(|| both / squares)
}

/// Returns a finding if the space will be full in a few days. `target` is the target that has the
/// space, or `None` for the space of all storage targets together.
pub fn soon_full(map: &ClusterMap, target: Option<TargetId>, growth: &Growth) -> Option<Cause> {
    let days = growth.days_left();
    if days > WARN_DAYS {
        return None;
    }
    let name = match target {
        Some(id) => names::target(map, id.raw()),
        None => "the space of all storage targets".into(),
    };
    let left = match days < 2.0 {
        true => format!("{:.0} hours", days * 24.0),
        false => format!("{days:.0} days"),
    };
    Some(Cause {
        rule: RULE,
        severity: Severity::Warning,
        object: target.map_or_else(|| "cluster".into(), |id| id.to_string()),
        targets: target.iter().map(|id| id.raw()).collect(),
        client: None,
        is_over: false,
        what: format!(
            "{name} will be full in about {left}: {} are free, and the used space grows by {} a \
             day",
            size(growth.free as f64),
            size(growth.bytes_per_day)
        ),
        remedy:
            "writes fail when the space is full: remove files (`skep purge` finds old files), or \
             add storage targets. `skep stats --by user --history 1d` shows the users whose \
             programs write"
                .into(),
    })
}

/// Formats a number of bytes with one decimal place.
fn size(bytes: f64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let (mut value, mut unit) = (bytes / 1024.0, 0);
    while value >= 1024.0 && unit < UNITS.len() - 1 {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::why::tests::map;

    const HOUR_MS: u64 = 3_600_000;
    const GIB: u64 = 1 << 30;

    /// Returns the used space of `hours` hours. `used` returns the used GiB of each hour. The size
    /// is 1000 GiB.
    fn points(hours: u64, used: impl Fn(u64) -> u64) -> Vec<UsedSpace> {
        let point = |hour: u64| {
            let used = used(hour);
            UsedSpace { at_ms: hour * HOUR_MS, used: used * GIB, free: (1000 - used) * GIB }
        };
        (0..hours).map(point).collect()
    }

    fn days_left(points: &[UsedSpace]) -> Option<f64> {
        Growth::of(points).map(|growth| (growth.days_left() * 10.0).round() / 10.0)
    }

    #[test]
    fn steady_growth_predicts_the_day_on_which_space_is_full() {
        // 48 GiB a day: after 7 days 334 GiB are used, and 666 GiB are free.
        assert_eq!(days_left(&points(168, |hour| hour * 2)), Some(13.9));
        assert_eq!(days_left(&points(21, |hour| hour * 2)), Some(20.0));
        assert_eq!(days_left(&points(20, |hour| hour * 2)), None, "too short a history");
        assert_eq!(days_left(&points(168, |_| 500)), None, "no growth");
        assert_eq!(days_left(&points(168, |hour| 999 - hour)), None, "shrinking");
        assert_eq!(days_left(&[]), None);
    }

    #[test]
    fn prediction_uses_the_slower_growth_of_the_last_day_and_week() {
        // A job writes 240 GiB on the last day. Before this day, the used space did not grow.
        let burst = points(168, |hour| if hour < 144 { 100 } else { 100 + (hour - 144) * 10 });
        assert!(days_left(&burst).unwrap() > 10.0, "{:?}", days_left(&burst));
        // The cluster is idle on the last day.
        let idle = points(168, |hour| hour.min(140) * 5);
        assert_eq!(days_left(&idle), None);
    }

    #[test]
    fn space_that_is_full_within_days_is_a_finding() {
        let growth =
            |free_gib: u64| Growth { bytes_per_day: (100 * GIB) as f64, free: free_gib * GIB };
        assert_eq!(soon_full(&map(), None, &growth(301)), None);
        let found = soon_full(&map(), None, &growth(250)).unwrap();
        assert_eq!((found.rule, found.object.as_str()), (RULE, "cluster"));
        let words = "the space of all storage targets will be full in about 2 days: 250.0 GiB are \
                     free, and the used space grows by 100.0 GiB a day";
        assert_eq!(found.what, words);
        let found = soon_full(&map(), Some(TargetId::new(3)), &growth(50)).unwrap();
        assert_eq!((found.object.as_str(), found.targets), ("t3", vec![3]));
        assert!(
            found.what.contains("t3 on storage-1 will be full in about 12 hours"),
            "{}",
            found.what
        );
    }
}
