//! A row: the load of one node, target, operation, client, user, group or job in a time interval.

use crate::change::{Change, changes, seconds};
use crate::{Round, ServiceFigures};
use skep_metrics::HistogramValue;
use std::collections::BTreeMap;

/// Kinds of requests whose purpose is to wait for an event. Their duration does not show load, so
/// means and percentiles of nodes and targets omit these requests.
/// With `await_log_sync`, the primary of a metadata group waits for the next sync of a backup
/// member. Replies to clients that wait for this sync have a stage of their own at the primary.
pub(crate) const LONG_POLLS: [&str; 3] = ["wait_notifications", "get_map", "await_log_sync"];

/// The kind of objects that the rows describe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// Services.
    Node,
    /// Targets.
    Target,
    /// Clients.
    Client,
    /// Users.
    User,
    /// Groups of users.
    Group,
    /// Jobs of batch systems.
    Job,
    /// Kinds of requests.
    Operation,
}

impl By {
    /// Returns the value that the label `by` has in the accounts of load. `None` means that the
    /// rows are not computed from accounts.
    fn account(self) -> Option<&'static str> {
        match self {
            Self::Node | Self::Target | Self::Operation => None,
            Self::Client => Some("client"),
            Self::User => Some("user"),
            Self::Group => Some("group"),
            Self::Job => Some("job"),
        }
    }
}

/// The load of one object in a time interval.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Row {
    /// Identifies the object: a node id, a target id, the name of an operation, a node id of a
    /// client, a user id, a group id or a job id. `other` stands for all objects that
    /// were left out.
    pub id: String,
    /// The kind of the service that executed the operations: `management`, `metadata` or `storage`.
    /// Empty for clients, users, groups and jobs if their rows add up the load at all services.
    pub service: String,
    /// Number of operations in the time interval.
    pub operations: u64,
    /// Number of failed operations. Services do not count failures for a client, user, group or
    /// job.
    pub errors: u64,
    /// Bytes of file data that were read.
    pub read_bytes: u64,
    /// Bytes of file data that were written.
    pub written_bytes: u64,
    /// Sum of the times from the arrival of each request to its reply, in nanoseconds.
    pub busy_ns: u64,
    /// Number of requests that are waiting at the end of the interval. Known only for nodes and
    /// targets.
    pub queued: i64,
    /// Number of requests that are being executed at the end of the interval. Known only for nodes
    /// and targets.
    pub busy: i64,
    /// Durations of the operations. Services do not record durations for a client, user, group or
    /// job.
    pub durations: HistogramValue,
    /// Number of operations per second.
    pub operations_per_second: f64,
    /// Bytes read per second.
    pub read_bytes_per_second: f64,
    /// Bytes written per second.
    pub written_bytes_per_second: f64,
}

impl Row {
    /// Adds another row to this row. The id does not change.
    pub fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.errors += other.errors;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.busy_ns += other.busy_ns;
        self.queued += other.queued;
        self.busy += other.busy;
        self.durations.add(&other.durations);
        self.operations_per_second += other.operations_per_second;
        self.read_bytes_per_second += other.read_bytes_per_second;
        self.written_bytes_per_second += other.written_bytes_per_second;
    }

    /// Returns the sort key of the row: its number of operations, and its file data in units of
    /// 64 KiB.
    pub fn weight(&self) -> u64 {
        self.operations + (self.read_bytes + self.written_bytes) / (64 << 10)
    }

    /// Returns the mean duration of the operations in nanoseconds, or zero if there were none.
    pub fn mean_ns(&self) -> u64 {
        let measured = match self.durations.count() {
            // Rows of clients, users, groups and jobs have no histogram, so divide by the number of
            // operations.
            0 => self.operations,
            count => count,
        };
        self.busy_ns.checked_div(measured).unwrap_or(0)
    }
}

/// The part of a cluster whose load is counted. With the default, this is the whole cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LoadScope {
    /// Node id of the only service that counts. `None` means all services.
    pub node: Option<u32>,
    /// Id of the only target that counts. `None` means all targets.
    pub target: Option<u32>,
}

impl LoadScope {
    fn has_node(self, node: u32) -> bool {
        self.node.is_none_or(|only| only == node)
    }

    /// Whether the scope contains the series with the value `target` of the label `target`. The
    /// value is empty for a series without a target.
    fn has_target(self, target: &str) -> bool {
        self.target.is_none_or(|only| target.parse::<u32>() == Ok(only))
    }
}

/// Returns the load between two rounds of replies, the heaviest rows first. Without an earlier
/// round, returns the load since the start of each service, without rates. A service that has
/// restarted since the earlier round has no rates either. If there is an earlier round, services
/// without a reply in it are omitted.
pub fn rows(by: By, before: Option<&Round>, now: &Round) -> Vec<Row> {
    rows_within(LoadScope::default(), by, before, now)
}

/// Like [`rows`], but counts only the load of a part of the cluster.
pub fn rows_within(scope: LoadScope, by: By, before: Option<&Round>, now: &Round) -> Vec<Row> {
    tables_within(scope, &[by], false, before, now).pop().unwrap_or_default()
}

/// Like [`rows`], but divides the load of each client, user, group and job by kind of service. Each
/// row has the load at the services of one kind, and names this kind.
pub fn rows_by_service(by: By, before: Option<&Round>, now: &Round) -> Vec<Row> {
    tables_within(LoadScope::default(), &[by], true, before, now).pop().unwrap_or_default()
}

/// Like [`rows`], but returns one table for each of `divisions`. Compares the rounds only once.
pub fn tables(divisions: &[By], before: Option<&Round>, now: &Round) -> Vec<Vec<Row>> {
    tables_within(LoadScope::default(), divisions, false, before, now)
}

/// Returns one table for each of `divisions`, with the load in `scope`. `is_by_service` is as in
/// [`rows_of_service`].
fn tables_within(
    scope: LoadScope,
    divisions: &[By],
    is_by_service: bool,
    before: Option<&Round>,
    now: &Round,
) -> Vec<Vec<Row>> {
    let mut tables: Vec<Table> = divisions.iter().map(|_| Table::new()).collect();
    for figures in now.iter().filter(|it| scope.has_node(it.node)) {
        let earlier = before.and_then(|round| round.iter().find(|it| it.node == figures.node));
        if before.is_some() && earlier.is_none() {
            // This service replied for the first time. The reply contains the load since the start
            // of the service, and not the load of this interval.
            continue;
        }
        let seconds = seconds(earlier, figures);
        let mut changes = changes(earlier, figures);
        changes.retain(|change| scope.has_target(change.label("target")));
        for (by, table) in divisions.iter().zip(&mut tables) {
            for (key, mut row) in rows_of_service(*by, is_by_service, figures, &changes) {
                if let Some(seconds) = seconds {
                    row.operations_per_second = row.operations as f64 / seconds;
                    row.read_bytes_per_second = row.read_bytes as f64 / seconds;
                    row.written_bytes_per_second = row.written_bytes as f64 / seconds;
                }
                let (id, service) = key.clone();
                table.entry(key).or_insert_with(|| Row { id, service, ..Row::default() }).add(&row);
            }
        }
    }
    tables.into_iter().map(heaviest_first).collect()
}

/// Rows by id and service.
type Table = BTreeMap<(String, String), Row>;

fn heaviest_first(table: Table) -> Vec<Row> {
    let mut rows: Vec<Row> = table.into_values().collect();
    // Ids with the same load are in the order of their numbers, so that 10 comes after 9. Ids that
    // are not numbers come last, and keep the alphabetical order of the table.
    let number = |row: &Row| row.id.parse().unwrap_or(u64::MAX);
    rows.sort_by_key(|row| (std::cmp::Reverse((row.weight(), row.busy_ns)), number(row)));
    rows
}

/// Returns the sum of the rows.
pub fn sum(rows: &[Row]) -> Row {
    let mut sum = Row { id: "sum".into(), ..Row::default() };
    rows.iter().for_each(|row| sum.add(row));
    sum
}

/// If `is_by_service` is true, the rows of clients, users, groups and jobs name the kind of the
/// service. Otherwise, they add up the load at all services.
fn rows_of_service(
    by: By,
    is_by_service: bool,
    now: &ServiceFigures,
    changes: &[Change<'_>],
) -> Table {
    let mut rows = Table::new();
    for change in changes {
        let key = match by.account() {
            Some(account) if change.label("by") == account => {
                let service = if is_by_service { change.label("service") } else { "" };
                Some((change.label("id").to_owned(), service.to_owned()))
            }
            Some(_) => None,
            None => key_of_operation(by, now, change),
        };
        if let Some(key) = key {
            let is_measured =
                by == By::Operation || !LONG_POLLS.contains(&change.label("operation"));
            count(rows.entry(key).or_default(), change, is_measured);
        }
    }
    rows
}

/// Splits the name of an operation metric into the service and the rest of the name.
fn operation_metric(metric: &str) -> Option<(&str, &str)> {
    let (service, rest) = metric.strip_prefix("skep_")?.split_once('_')?;
    ["management", "metadata", "storage"].contains(&service).then_some((service, rest))
}

fn key_of_operation(by: By, now: &ServiceFigures, change: &Change<'_>) -> Option<(String, String)> {
    let (service, _) = operation_metric(&change.series.metric)?;
    let id = match by {
        By::Node => now.node.to_string(),
        By::Operation => change.label("operation").to_owned(),
        _ => change.label("target").to_owned(),
    };
    (!id.is_empty()).then(|| (id, service.to_owned()))
}

/// Adds the change of one series to a row. If `is_measured` is true, also adds the durations of the
/// requests.
fn count(row: &mut Row, change: &Change<'_>, is_measured: bool) {
    let growth = u64::try_from(change.growth).unwrap_or(0);
    let metric = change.series.metric.as_str();
    let rest = operation_metric(metric).map_or(metric, |(_, rest)| rest);
    match rest {
        "operations" | "skep_load_operations" => row.operations += growth,
        "operation_errors" => row.errors += growth,
        "sent_bytes" | "skep_load_read_bytes" => row.read_bytes += growth,
        "received_bytes" | "skep_load_written_bytes" => row.written_bytes += growth,
        "skep_load_busy_seconds" => row.busy_ns += growth,
        "requests_queued" => row.queued += change.series.value,
        "requests_busy" => row.busy += change.series.value,
        "operation_seconds" if is_measured => {
            row.busy_ns += growth;
            if let Some(durations) = &change.durations {
                row.durations.add(durations);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
pub(crate) mod tests;
