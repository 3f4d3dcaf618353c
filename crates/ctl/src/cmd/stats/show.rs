//! Lines of `skep stats`: finds the names for ids, and formats a table that fits a terminal of 80
//! columns.

use super::Division;
use crate::host_users::{Database, names_of};
use crate::output::{count, render, size, table};
use serde::Serialize;
use skep_monitor::names::printable;
use skep_rpc::origin::job_text;
use skep_stats::Row;
use skep_types::{ClusterMap, TargetKind};
use std::collections::HashMap;

/// Maximum length of a name in the table. Longer names are truncated, so that a line has at most 80
/// columns.
const NAME_COLUMNS: usize = 18;
/// The column P99 shows the duration that this share of the operations does not exceed.
const SLOW_SHARE: f64 = 0.99;

/// The statistics of one object. The output shows an object as JSON or as a line of the table.
#[derive(Debug, Serialize)]
pub(super) struct Line {
    pub(super) id: String,
    pub(super) name: String,
    /// Kind of the service: `management`, `metadata` or `storage`. Empty if the object is a client,
    /// user, group or job.
    pub(super) service: String,
    pub(super) operations: u64,
    pub(super) errors: u64,
    pub(super) read_bytes: u64,
    pub(super) written_bytes: u64,
    /// Mean time from the arrival of a request to its reply, in microseconds.
    pub(super) mean_us: f64,
    /// 99th percentile of the time from arrival to reply, in microseconds. `null` if the object is
    /// a client, user, group or job.
    pub(super) p99_us: Option<f64>,
    pub(super) queued: i64,
    pub(super) busy: i64,
    pub(super) operations_per_second: f64,
    pub(super) read_bytes_per_second: f64,
    pub(super) written_bytes_per_second: f64,
    /// The statistics from which the line was computed.
    #[serde(skip)]
    row: Row,
}

/// The names of the nodes and targets that the lines are about.
#[derive(Debug)]
pub(super) struct Names {
    nodes: HashMap<String, String>,
    targets: HashMap<String, String>,
}

impl Names {
    pub(super) fn of(map: &ClusterMap) -> Self {
        let node_name = |id| map.node(id).map_or_else(String::new, |node| printable(&node.name));
        let target_name = |target: &skep_types::Target| {
            let kind = match target.kind {
                TargetKind::Metadata => "metadata",
                TargetKind::Storage => "storage",
            };
            let node = node_name(target.node);
            if node.is_empty() { kind.to_owned() } else { node }
        };
        Self {
            nodes: map.nodes.iter().map(|it| (it.id.raw().to_string(), node_name(it.id))).collect(),
            targets: map
                .targets
                .iter()
                .map(|it| (it.id.raw().to_string(), target_name(it)))
                .collect(),
        }
    }

    fn name(&self, by: Division, id: &str) -> String {
        let known = match by {
            Division::Node | Division::Client => self.nodes.get(id),
            Division::Target => self.targets.get(id),
            Division::Job => return id.parse().map_or_else(|_| id.to_owned(), job_text),
            Division::User | Division::Group | Division::Operation => None,
        };
        known.cloned().unwrap_or_default()
    }
}

/// Returns the lines for the statistics in `rows`. Asks the host for the names of users and groups.
pub(super) fn lines(rows: &[Row], by: Division, names: &Names) -> Vec<Line> {
    let database = match by {
        Division::User => Database::Users,
        Division::Group => Database::Groups,
        _ => return rows.iter().map(|row| line(row, by, names)).collect(),
    };
    let found = names_of(database, rows.iter().map(|row| row.id.as_str()));
    let name = |row: &Row| found.get(&row.id).cloned().unwrap_or_default();
    rows.iter().map(|row| line_named(row, name(row))).collect()
}

/// Returns the line for the statistics in `row`. The line of a user or group has no name.
pub(super) fn line(row: &Row, by: Division, names: &Names) -> Line {
    line_named(row, names.name(by, &row.id))
}

/// Returns the line for the statistics in `row`, with this name.
pub(super) fn line_named(row: &Row, name: String) -> Line {
    let has_durations = row.durations.count() > 0;
    let p99 = row.durations.quantile(SLOW_SHARE).filter(|_| has_durations);
    Line {
        id: row.id.clone(),
        name,
        service: row.service.clone(),
        operations: row.operations,
        errors: row.errors,
        read_bytes: row.read_bytes,
        written_bytes: row.written_bytes,
        mean_us: row.mean_ns() as f64 / 1e3,
        p99_us: p99.map(|it| it.as_nanos() as f64 / 1e3),
        queued: row.queued,
        busy: row.busy,
        operations_per_second: row.operations_per_second,
        read_bytes_per_second: row.read_bytes_per_second,
        written_bytes_per_second: row.written_bytes_per_second,
        row: row.clone(),
    }
}

/// Returns the sum of the statistics in `lines`.
pub(super) fn sum<'a>(lines: impl IntoIterator<Item = &'a Line>) -> Row {
    let mut sum = Row { id: "sum".into(), ..Row::default() };
    lines.into_iter().for_each(|line| sum.add(&line.row));
    sum
}

/// Selects the columns of the table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Columns {
    by: Division,
    pub(super) has_durations: bool,
    pub(super) has_queues: bool,
}

impl Columns {
    /// Returns the columns for lines about objects of the kind `by`. `is_own` means that the
    /// statistics come from a mount and not from services.
    pub(super) fn of(by: Division, is_own: bool) -> Self {
        let is_service = matches!(by, Division::Node | Division::Target | Division::Operation);
        Self { by, has_durations: is_service || is_own, has_queues: is_service && !is_own }
    }
}

/// Returns the title of the column with the names of objects of the kind `by`.
pub(super) fn title(by: Division) -> &'static str {
    match by {
        Division::Node => "SERVICE",
        Division::Target => "TARGET",
        Division::Client => "CLIENT",
        Division::User => "USER",
        Division::Group => "GROUP",
        Division::Job => "JOB",
        Division::Operation => "OPERATION",
    }
}

/// Returns the table. Its last line is the sum. With `is_total`, the statistics are counts since
/// the services started, otherwise rates per second.
pub(super) fn as_table(lines: &[Line], sum: &Row, columns: Columns, is_total: bool) -> String {
    let per = if is_total { "" } else { "/s" };
    let [operations, read, written] =
        ["OPS", "READ", "WRITTEN"].map(|title| format!(">{title}{per}"));
    let mut titles = vec![title(columns.by), &operations, &read, &written, ">MEAN"];
    if columns.has_durations {
        titles.extend([">P99", ">ERR"]);
    }
    if columns.has_queues {
        titles.extend([">QUEUED", ">BUSY"]);
    }
    let mut shown = table(&titles);
    for line in lines {
        let [operations, read, written] = match is_total {
            true => [line.operations, line.read_bytes, line.written_bytes],
            false => [
                line.operations_per_second.round() as u64,
                line.read_bytes_per_second.round() as u64,
                line.written_bytes_per_second.round() as u64,
            ],
        };
        let mut cells = vec![
            shown_name(line, columns.by),
            count(operations),
            size(read),
            size(written),
            time(line.mean_us),
        ];
        if columns.has_durations {
            cells.extend([line.p99_us.map_or_else(|| "-".into(), time), count(line.errors)]);
        }
        if columns.has_queues {
            cells.extend([line.queued, line.busy].map(|number| number.to_string()));
        }
        shown.add_row(cells);
    }
    shown.add_row(sum_cells(sum, is_total));
    render(&shown)
}

fn sum_cells(sum: &Row, is_total: bool) -> Vec<String> {
    let [operations, read, written] = match is_total {
        true => [sum.operations, sum.read_bytes, sum.written_bytes],
        false => [
            sum.operations_per_second.round() as u64,
            sum.read_bytes_per_second.round() as u64,
            sum.written_bytes_per_second.round() as u64,
        ],
    };
    vec![
        "sum".into(),
        count(operations),
        size(read),
        size(written),
        time(sum.mean_ns() as f64 / 1e3),
    ]
}

/// Returns the text that names the object of a line in tables: its name, or its id if the object
/// has no name. The text of a target contains its id and its name.
pub(super) fn full_name(line: &Line, by: Division) -> String {
    let id = &line.id;
    match by {
        Division::Job => line.name.clone(),
        Division::Target => format!("t{id} {}", line.name),
        Division::Operation => id.clone(),
        Division::Client if line.name.is_empty() && id.parse::<u32>().is_ok() => {
            format!("{id} (left)")
        }
        Division::Node if line.name.is_empty() && id.parse::<u32>().is_ok() => {
            format!("{id} (removed)")
        }
        _ if line.name.is_empty() => id.clone(),
        _ => line.name.clone(),
    }
}

fn shown_name(line: &Line, by: Division) -> String {
    let name = full_name(line, by);
    match name.chars().count() > NAME_COLUMNS {
        true => name.chars().take(NAME_COLUMNS - 1).chain(['~']).collect(),
        false => name,
    }
}

/// Formats a time in microseconds: 850us, 4.2ms, 1.5s.
pub(super) fn time(us: f64) -> String {
    match us {
        0.0 => "-".into(),
        _ if us < 1e3 => format!("{us:.0}us"),
        _ if us < 1e6 => format!("{:.1}ms", us / 1e3),
        _ => format!("{:.1}s", us / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: &str) -> Row {
        Row {
            id: id.into(),
            service: "storage".into(),
            operations: 1_234_567,
            errors: 99_999,
            read_bytes: u64::MAX / 3,
            written_bytes: u64::MAX / 3,
            busy_ns: 1_234_567 * 1_000_000,
            queued: 10_000,
            busy: 512,
            operations_per_second: 1_234_567.0,
            read_bytes_per_second: 9.9e17,
            written_bytes_per_second: 9.9e17,
            ..Row::default()
        }
    }

    #[test]
    fn tables_fit_a_terminal_of_80_columns() {
        let map = ClusterMap::empty(skep_types::ClusterId::default());
        let names = Names::of(&map);
        let all = [
            Division::Node,
            Division::Target,
            Division::Client,
            Division::User,
            Division::Group,
            Division::Job,
            Division::Operation,
        ];
        for by in all {
            for (is_total, is_own) in [(false, false), (true, false), (false, true)] {
                let long = row(&"x".repeat(60));
                let lines = [line(&long, by, &names), line(&row("4294967295"), by, &names)];
                let columns = Columns::of(by, is_own);
                let text = as_table(&lines, &row("sum"), columns, is_total);
                let widest = text.lines().map(|line| line.chars().count()).max();
                assert!(widest <= Some(80), "{by:?}: {widest:?}\n{text}");
            }
        }
    }

    #[test]
    fn users_and_groups_are_shown_by_their_names_on_this_host() {
        let names = Names::of(&ClusterMap::empty(skep_types::ClusterId::default()));
        for by in [Division::User, Division::Group] {
            let rows = [row("0"), row("4294967294"), row("other")];
            let shown: Vec<_> = lines(&rows, by, &names).into_iter().map(|it| it.name).collect();
            assert_eq!((shown[0].as_str(), shown[2].as_str()), ("root", ""), "{by:?}: {shown:?}");
        }
    }

    #[test]
    fn stats_mark_nodes_that_are_not_in_the_cluster_any_more() {
        let names = Names::of(&ClusterMap::empty(skep_types::ClusterId::default()));
        let shown = |by, id: &str| shown_name(&line(&row(id), by, &names), by);
        assert_eq!(shown(Division::Client, "1048586"), "1048586 (left)");
        assert_eq!(shown(Division::Client, "other"), "other");
        assert_eq!(shown(Division::Node, "9"), "9 (removed)");
    }

    #[test]
    fn control_characters_in_names_become_question_marks() {
        assert_eq!(printable("a\x1b[2Jb\n"), "a?[2Jb?");
        assert_eq!(
            [time(0.0), time(12.4), time(4_200.0), time(2e6)],
            ["-", "12us", "4.2ms", "2.0s"]
        );
    }
}
