//! `skep stats --mount`, and `skep stats` of a user without the cluster's token. Shows the load
//! that this user's programs cause through one mount. The mount counts this load.
//!
//! Unlike the statistics of services, these statistics include only the requests of one mount, and
//! the times include the network. The mount itself counts the requests, in `skep_fuse`.

use super::moment::Moment;
use super::selection::is_within;
use super::{Division, Report, Series, SpanArgs};
use crate::mounts::mount_points;
use crate::output::{is_one_value, warn};
use crate::path_lookup::entry_at;
use crate::through_mount;
use skep_fuse::{MERGED_LOAD, UserLoad, UserLoadRow};
use skep_metrics::HistogramValue;
use skep_stats::Row;
use skep_types::{ClusterMap, Error, ErrorCode, Result, TargetId, TargetKind};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// After each request for the statistics, the mount continues to count requests for the interval
/// plus this number of seconds.
const MARGIN_SECONDS: u64 = 10;
/// The longest interval in seconds. A mount counts requests for at most two hours after a request
/// for the statistics.
const LONGEST_SECONDS: u64 = 3600;

/// Returns the mount from which a user without the token gets statistics: the mount of the working
/// directory, or the only mount of this host.
pub(crate) fn mount_of_user() -> Option<PathBuf> {
    let points = mount_points();
    let here = std::env::current_dir().unwrap_or_default();
    match &points[..] {
        [first, ..] if here.starts_with(first) => Some(first.clone()),
        [only] => Some(only.clone()),
        _ => None,
    }
}

/// Shows the load through the mount at `path`: of each interval until Ctrl-C, or of one interval
/// only.
///
/// # Errors
/// - `InvalidArgument` if the path is not in a mount, or if an option needs statistics that only
///   services have.
/// - `Unsupported` if the mount is of an older version.
/// - Errors of the mount.
pub(super) async fn follow(path: &Path, by: Division, span: &SpanArgs) -> Result<()> {
    let (_, place) = entry_at(path)?;
    check(span)?;
    span.selection.check_has_nodes(by, "a mount counts")?;
    let map = map(&place)?;
    let scope = span.selection.scope(&map)?;
    let ask = || load(&place, by, span.interval);
    let mut before = ask()?;
    let series = Series::begin(span.interval, span.once || is_one_value());
    while series.wait().await {
        let asked = skep_env::now();
        let now = ask()?;
        let moment = Moment::since(asked);
        let mut rows = rows((&before, &now), by, &map, &place);
        rows.retain(|row| is_within(scope, by, &row.id, &map));
        let report = Report::of_rows(by, &rows, &map, &span.selection);
        let report = Report { is_own: true, moment, ..report };
        if series.is_once() {
            return report.print();
        }
        report.print_next()?;
        before = now;
    }
    Ok(())
}

/// Returns the cluster map of the mount at `place`.
///
/// # Errors
/// - `Unsupported` if the mount is of an older version.
/// - Errors of the mount.
pub(super) fn map(place: &Path) -> Result<ClusterMap> {
    through_mount::cluster_map(place)?.ok_or_else(|| no_load(place))
}

/// Asks the mount at `place` for the counted load. The mount continues to count for `interval` plus
/// [`MARGIN_SECONDS`].
///
/// # Errors
/// The errors of [`map`].
pub(super) fn load(place: &Path, by: Division, interval: Duration) -> Result<UserLoad> {
    let seconds = interval.as_secs() + MARGIN_SECONDS;
    through_mount::load(place, division_name(by), seconds)?.ok_or_else(|| no_load(place))
}

/// Returns an error for options that a mount cannot serve.
pub(super) fn check(span: &SpanArgs) -> Result<()> {
    let refuse = |what: &str| Err(Error::new(ErrorCode::InvalidArgument, what.to_owned()));
    if span.total {
        return refuse(
            "cannot show totals through a mount: a mount counts requests only while a command asks \
             for them; use --interval SPAN --once",
        );
    }
    if span.interval.as_secs() > LONGEST_SECONDS {
        return refuse("invalid --interval: expected at most 1h for statistics through a mount");
    }
    Ok(())
}

/// Warns a user without the token that the statistics come from a mount.
pub(super) fn explain_source(mount: &Path) {
    warn(&format!(
        "this user cannot use the cluster's token, so the statistics show only this user's own \
         requests through the mount at {}",
        mount.display()
    ));
}

fn no_load(place: &Path) -> Error {
    let what = format!(
        "cannot show the load at {}: the mount of this path runs an older version of skep, or the \
         path is a special file; unmount and mount with this version, or name a directory",
        place.display()
    );
    Error::new(ErrorCode::Unsupported, what)
}

/// Returns the name of a kind of objects in requests to the mount. The mount then counts its load
/// separately for each object of this kind, for example for each user.
pub(super) fn division_name(by: Division) -> &'static str {
    match by {
        Division::Node | Division::Target | Division::Client => "target",
        Division::User => "user",
        Division::Group => "group",
        Division::Job => "job",
        Division::Operation => "operation",
    }
}

/// Returns the load between the two replies `before` and `now`, the heaviest rows first.
pub(super) fn rows(
    (before, now): (&UserLoad, &UserLoad),
    by: Division,
    map: &ClusterMap,
    place: &Path,
) -> Vec<Row> {
    // The mount may have counted before this command started, because other programs also ask the
    // mount. So the load is the growth since `before`. If the counts have another incarnation
    // number than in `before`, the mount has restarted from zero. The counts in `now` then cover an
    // unknown time.
    let is_same = before.incarnation == now.incarnation;
    let earlier: BTreeMap<u32, &UserLoadRow> = match is_same {
        true => before.rows.iter().map(|row| (row.id, row)).collect(),
        false => BTreeMap::new(),
    };
    let seconds = now.moment_ns.saturating_sub(before.moment_ns) as f64 / 1e9;
    let mut sums: BTreeMap<(String, String), Row> = BTreeMap::new();
    for row in &now.rows {
        let (id, service) = object(row.id, by, map, place);
        let sum = sums.entry((id.clone(), service.clone())).or_insert_with(|| Row {
            id,
            service,
            ..Row::default()
        });
        let zero = UserLoadRow::default();
        let grown = growth(earlier.get(&row.id).copied().unwrap_or(&zero), row);
        sum.add(&with_rates(grown, if is_same { seconds } else { 0.0 }));
    }
    let mut rows: Vec<Row> = sums.into_values().filter(|row| row.operations > 0).collect();
    rows.sort_by_key(|row| std::cmp::Reverse((row.weight(), row.busy_ns)));
    rows
}

fn durations(row: &UserLoadRow) -> HistogramValue {
    let buckets = row.buckets.iter().map(|(bucket, count)| (usize::from(*bucket), *count));
    HistogramValue::of_buckets(row.busy_ns, buckets)
}

fn growth(before: &UserLoadRow, now: &UserLoadRow) -> Row {
    Row {
        operations: now.requests.saturating_sub(before.requests),
        errors: now.failed.saturating_sub(before.failed),
        read_bytes: now.read_bytes.saturating_sub(before.read_bytes),
        written_bytes: now.written_bytes.saturating_sub(before.written_bytes),
        busy_ns: now.busy_ns.saturating_sub(before.busy_ns),
        durations: durations(now).since(&durations(before)),
        ..Row::default()
    }
}

fn with_rates(row: Row, seconds: f64) -> Row {
    if seconds <= 0.0 {
        return row;
    }
    Row {
        operations_per_second: row.operations as f64 / seconds,
        read_bytes_per_second: row.read_bytes as f64 / seconds,
        written_bytes_per_second: row.written_bytes as f64 / seconds,
        ..row
    }
}

/// Returns the id of an object in the form of the statistics of services, and the name of the
/// object's service.
fn object(id: u32, by: Division, map: &ClusterMap, place: &Path) -> (String, String) {
    if by == Division::Client {
        return (place.display().to_string(), String::new());
    }
    if id == MERGED_LOAD {
        return ("other".into(), String::new());
    }
    let target = map.targets.iter().find(|target| target.id == TargetId::new(id));
    let service = match target.map(|it| it.kind) {
        Some(TargetKind::Metadata) => "metadata",
        Some(TargetKind::Storage) => "storage",
        None => "",
    };
    let service = service.to_owned();
    match by {
        Division::Node => {
            let node = target.map_or_else(|| "other".into(), |it| it.node.raw().to_string());
            (node, service)
        }
        Division::Target => (id.to_string(), service),
        Division::Operation => {
            let message = u16::try_from(id).ok().and_then(skep_wire::catalog::message);
            let name = message.and_then(|it| skep_wire::catalog::metric_name(it.id));
            let service = message.map_or("", |it| it.service);
            (name.unwrap_or_else(|| "other".into()), service.to_owned())
        }
        _ => (id.to_string(), String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::ClusterId;

    fn row(id: u32, requests: u64, written_bytes: u64) -> UserLoadRow {
        let buckets = vec![(4, requests)];
        let busy_ns = requests * 2_000;
        UserLoadRow { id, requests, written_bytes, busy_ns, buckets, ..UserLoadRow::default() }
    }

    fn load(incarnation: u64, second: u64, rows: &[UserLoadRow]) -> UserLoad {
        UserLoad { incarnation, moment_ns: second * 1_000_000_000, rows: rows.to_vec() }
    }

    #[test]
    fn load_of_a_mount_is_the_growth_between_two_replies() {
        let map = ClusterMap::empty(ClusterId::default());
        let place = Path::new("/mnt/skep");
        let before = load(1, 10, &[row(3, 100, 1_000)]);
        let now = load(1, 12, &[row(3, 120, 5_000), row(4, 1, 0), row(5, 0, 0)]);
        let found = rows((&before, &now), Division::Target, &map, place);
        let ids: Vec<_> = found.iter().map(|it| (it.id.as_str(), it.operations)).collect();
        assert_eq!(ids, [("3", 20), ("4", 1)]);
        let first = &found[0];
        assert_eq!((first.operations_per_second, first.written_bytes_per_second), (10.0, 2_000.0));
        assert_eq!((first.mean_ns(), first.durations.count()), (2_000, 20));
        let all = rows((&before, &now), Division::Client, &map, place);
        assert_eq!((all.len(), all[0].id.as_str(), all[0].operations), (1, "/mnt/skep", 21));
        let anew = load(2, 12, &[row(3, 7, 0)]);
        let found = rows((&before, &anew), Division::Target, &map, place);
        assert_eq!((found[0].operations, found[0].operations_per_second), (7, 0.0));
    }

    #[test]
    fn mount_and_service_statistics_use_the_same_request_names() {
        let map = ClusterMap::empty(ClusterId::default());
        let name = |id| object(id, Division::Operation, &map, Path::new("/"));
        assert_eq!(name(96), ("write_chunk".to_owned(), "storage".to_owned()));
        assert_eq!(name(MERGED_LOAD).0, "other");
    }
}
