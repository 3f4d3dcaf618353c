//! The table of results: a row for each number of servers, clients and processes, and a column for
//! each operation. The table has the rates that the hardware can reach, and the reached share of
//! these rates.

use super::points::quoted;
use super::{ExperimentReport, Factor, Group, label};
use crate::journal::Contents;
use crate::plan::{Cache, Operation, Quantity};
use crate::record::{LimitRecord, Record, Settings};
use crate::statistics::mean;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// A row of the table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Name of the study, or of the system in a comparison.
    pub system: String,
    /// Number of servers that the runs could use. `None` if the file system does not report its
    /// servers.
    pub servers: Option<u32>,
    /// Number of client hosts of all applications together.
    pub clients: u32,
    /// Number of processes of all applications together.
    pub processes: u64,
    /// The values of the other factors that vary, such as `count 4`. Empty if no other factor
    /// varies.
    pub condition: String,
    /// Bytes per second that the servers and clients of this row can move. `None` if the limit is
    /// not known.
    pub limit_bytes_per_second: Option<f64>,
    /// Operations per second that the servers of this row can do. `None` if the limit is not known.
    pub limit_operations_per_second: Option<f64>,
    /// The results, in the order of their operations. Each operation occurs at most once with
    /// dropped caches, and at most once with unchanged caches.
    pub cells: Vec<Cell>,
}

/// The result of one operation in a row.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cell {
    /// The measured operation.
    pub operation: Operation,
    /// Whether caches were dropped before the operation.
    pub cache: Cache,
    /// Number of runs that measured the operation.
    pub runs: usize,
    /// Mean of all runs, in bytes or operations per second.
    pub mean: f64,
    /// `mean` as a share of the limit. `None` if there is no limit, and also for unchanged caches,
    /// because reads from the caches of clients can exceed the limit.
    pub of_limit: Option<f64>,
    /// The latency that half of the operations do not exceed, in microseconds: the mean of all
    /// valid runs. `None` if the journal has no latencies.
    pub latency_p50_us: Option<f64>,
    /// The latency that 99 % of the operations do not exceed, as `latency_p50_us`.
    pub latency_p99_us: Option<f64>,
}

/// The factors other than servers, clients and processes that can distinguish rows.
const OTHERS: [Factor; 8] = [
    Factor::Count,
    Factor::Applications,
    Factor::DataSize,
    Factor::Transfer,
    Factor::Files,
    Factor::Chooser,
    Factor::Targets,
    Factor::Access,
];

/// The values that distinguish a row: servers, clients, processes, and the other factors that vary.
type Key = (Option<u32>, u32, u64, String);
/// The results of all runs of a row, by operation and state of the caches.
type Results = BTreeMap<(Operation, Cache), Measured>;

/// The results of an operation in a row.
#[derive(Debug, Default)]
struct Measured {
    /// The result of each run, in bytes or operations per second.
    values: Vec<f64>,
    latencies: Vec<Percentiles>,
}

/// The latencies of one run that 50 % and 99 % of the operations do not exceed, in microseconds.
type Percentiles = [f64; 2];

/// Returns the table of a study. Empty if the journal does not have the rates of the hardware.
pub(super) fn of_study(contents: &Contents, experiments: &[ExperimentReport]) -> Vec<Row> {
    match contents.study.limit {
        Some(limit) => rows(&contents.plan.name, contents, experiments, limit),
        None => Vec::new(),
    }
}

/// Returns the rows of a study. `recorded` are the rates of the hardware in its journal, which the
/// plan can replace. `experiments` are the results of the study.
pub(super) fn rows(
    system: &str,
    contents: &Contents,
    experiments: &[ExperimentReport],
    recorded: LimitRecord,
) -> Vec<Row> {
    // The runs of the calibration are not in the table.
    let is_planned = |it: &&ExperimentReport| {
        contents.plan.experiments.iter().any(|planned| planned.name == it.name)
    };
    let groups: Vec<&Group> =
        experiments.iter().filter(is_planned).flat_map(|it| &it.groups).collect();
    let varied = varied(&groups);
    let latencies = latencies(contents);
    let all_servers = contents.study.targets_per_server.as_ref().map(|it| it.len() as u32);
    let mut found: BTreeMap<Key, Results> = BTreeMap::new();
    for group in groups {
        let settings = &group.settings;
        let key = (
            settings.servers.or(all_servers),
            settings.hosts * settings.applications,
            settings.processes_of_application() * u64::from(settings.applications),
            condition(settings, &varied),
        );
        let results = found.entry(key).or_default();
        let measured = results.entry((settings.operation, settings.cache)).or_default();
        measured.values.extend_from_slice(&group.values);
        measured.latencies.extend(latencies.get(settings).into_iter().flatten());
    }
    let limit = contents.plan.limit;
    let server = limit.server_bytes_per_second.or(recorded.server_bytes_per_second);
    let client = limit.client_bytes_per_second.or(recorded.client_bytes_per_second);
    let operations = limit.server_operations_per_second;
    let row = |((servers, clients, processes, condition), results): (Key, Results)| {
        let of_servers = |rate: Option<u64>| Some(rate? as f64 * f64::from(servers?));
        let of_clients = client.map(|rate| rate as f64 * f64::from(clients));
        let limits = [of_servers(server), of_clients];
        let mut row = Row {
            system: system.to_owned(),
            servers,
            clients,
            processes,
            condition,
            limit_bytes_per_second: limits.into_iter().flatten().reduce(f64::min),
            limit_operations_per_second: of_servers(operations),
            cells: Vec::new(),
        };
        row.cells = results.iter().map(|(which, measured)| cell(&row, *which, measured)).collect();
        row
    };
    found.into_iter().map(row).collect()
}

/// Returns the latencies of all valid runs with each condition.
fn latencies(contents: &Contents) -> BTreeMap<&Settings, Vec<Percentiles>> {
    let mut found: BTreeMap<&Settings, Vec<Percentiles>> = BTreeMap::new();
    for record in &contents.records {
        let Record::Run(run) = record else { continue };
        let percentiles = run.latency_us(|it| it.p50_us).zip(run.latency_us(|it| it.p99_us));
        if let (true, Some((half, most))) = (run.is_valid, percentiles) {
            found.entry(&run.settings).or_default().push([half, most]);
        }
    }
    found
}

/// Returns the factors of [`OTHERS`] that vary among the groups of each quantity. Factors that have
/// other values only for another quantity, such as the transfer size, do not distinguish rows.
fn varied(groups: &[&Group]) -> BTreeMap<Quantity, Vec<Factor>> {
    let mut by_quantity: BTreeMap<Quantity, Vec<&Settings>> = BTreeMap::new();
    for group in groups {
        let quantity = group.settings.operation.quantity();
        by_quantity.entry(quantity).or_default().push(&group.settings);
    }
    let varies = |factor: &Factor, all: &[&Settings]| {
        all.iter().map(|it| factor.text(it)).collect::<BTreeSet<_>>().len() > 1
    };
    let of_quantity = |all: Vec<&Settings>| {
        OTHERS.into_iter().filter(|factor| varies(factor, &all)).collect::<Vec<_>>()
    };
    by_quantity.into_iter().map(|(quantity, all)| (quantity, of_quantity(all))).collect()
}

fn condition(settings: &Settings, varied: &BTreeMap<Quantity, Vec<Factor>>) -> String {
    match varied.get(&settings.operation.quantity()) {
        Some(factors) if !factors.is_empty() => label(settings, factors),
        _ => String::new(),
    }
}

fn cell(row: &Row, (operation, cache): (Operation, Cache), measured: &Measured) -> Cell {
    let latency = |which: usize| {
        let all: Vec<f64> = measured.latencies.iter().map(|it| it[which]).collect();
        (!all.is_empty()).then(|| mean(&all))
    };
    let result = mean(&measured.values);
    Cell {
        operation,
        cache,
        runs: measured.values.len(),
        mean: result,
        of_limit: row.limit(operation, cache).map(|limit| result / limit),
        latency_p50_us: latency(0),
        latency_p99_us: latency(1),
    }
}

impl Row {
    /// Returns the result of an operation with this state of the caches. `None` means that the row
    /// has no such result.
    pub fn cell(&self, operation: Operation, cache: Cache) -> Option<&Cell> {
        self.cells.iter().find(|it| it.operation == operation && it.cache == cache)
    }

    /// Returns the limit of an operation, in bytes or operations per second. `None` if there is no
    /// limit, and also for unchanged caches, because reads from the caches of clients can exceed
    /// the limit.
    pub(crate) fn limit(&self, operation: Operation, cache: Cache) -> Option<f64> {
        let limit = match operation.quantity() {
            Quantity::Bandwidth => self.limit_bytes_per_second,
            Quantity::Transfers => self.limit_operations_per_second,
            Quantity::Names => None,
        };
        limit.filter(|_| cache != Cache::Kept)
    }
}

/// The table as text: a title for each column, and the cells of each row. Columns without a value
/// are left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// The titles of the columns.
    pub titles: Vec<String>,
    /// The cells of each row.
    pub rows: Vec<Vec<String>>,
}

impl Shown {
    /// Converts a table to text.
    pub fn of(rows: &[Row]) -> Self {
        let mut shown = Columns { rows, columns: Vec::new() };
        let systems: BTreeSet<&str> = rows.iter().map(|it| it.system.as_str()).collect();
        shown.add("system", &|it| (systems.len() > 1).then(|| it.system.clone()));
        shown.add("servers", &|it| it.servers.map(|number| number.to_string()));
        shown.add("clients", &|it| Some(it.clients.to_string()));
        shown.add("processes", &|it| Some(it.processes.to_string()));
        shown.add("condition", &|it| (!it.condition.is_empty()).then(|| it.condition.clone()));
        for (operation, cache) in columns_of(rows) {
            let quantity = operation.quantity();
            let title = format!("{}{} {}", cached(cache), operation.word(), quantity.unit());
            let value = |cell: &Cell| format!("{:.1}", quantity.shown(cell.mean));
            shown.add(&title, &|it| it.cell(operation, cache).map(value));
        }
        let mib = |value| format!("{:.1}", Quantity::Bandwidth.shown(value));
        shown.add("limit MiB/s", &|it| it.limit_bytes_per_second.map(mib));
        shown.add("limit IO/s", &|it| it.limit_operations_per_second.map(|it| format!("{it:.0}")));
        for (operation, cache) in columns_of(rows) {
            let title = format!("{}{} % of limit", cached(cache), operation.word());
            let share = |cell: &Cell| cell.of_limit.map(|share| format!("{:.1}", share * 100.0));
            shown.add(&title, &|it| it.cell(operation, cache).and_then(share));
        }
        let is_counted = |it: &&(Operation, Cache)| !it.0.quantity().is_bandwidth();
        for (operation, cache) in columns_of(rows).iter().filter(is_counted).copied() {
            let title = format!("{}{} P99 us", cached(cache), operation.word());
            let latency = |cell: &Cell| cell.latency_p99_us.map(|it| format!("{it:.0}"));
            shown.add(&title, &|it| it.cell(operation, cache).and_then(latency));
        }
        let columns = shown.columns;
        let line = |row: usize| -> Vec<String> {
            columns.iter().map(|(_, cells)| cells[row].clone()).collect()
        };
        Self {
            titles: columns.iter().map(|(title, _)| title.clone()).collect(),
            rows: (0..rows.len()).map(line).collect(),
        }
    }
}

/// The columns of a table as text, to which the caller adds one column at a time.
struct Columns<'a> {
    rows: &'a [Row],
    /// The title of each column, and its cells.
    columns: Vec<(String, Vec<String>)>,
}

impl Columns<'_> {
    /// Adds a column, unless the column has no value in any row.
    fn add(&mut self, title: &str, value: &dyn Fn(&Row) -> Option<String>) {
        let values: Vec<Option<String>> = self.rows.iter().map(value).collect();
        if values.iter().any(Option::is_some) {
            let cells = values.into_iter().map(|it| it.unwrap_or_else(|| "-".to_owned()));
            self.columns.push((title.to_owned(), cells.collect()));
        }
    }
}

/// Returns the operations that have a result in any row, with the state of their caches.
fn columns_of(rows: &[Row]) -> Vec<(Operation, Cache)> {
    let all = rows.iter().flat_map(|it| &it.cells).map(|it| (it.operation, it.cache));
    all.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Returns the word for the state of the caches, which precedes the name of an operation, with a
/// space after the word. Empty for dropped caches.
pub(super) fn cached(cache: Cache) -> &'static str {
    match cache {
        Cache::Dropped => "",
        Cache::Kept => "cached ",
        Cache::Bypassed => "direct ",
    }
}

/// Returns the table as CSV. The columns are the same for all studies, so that programs can join
/// tables.
pub(super) fn csv(rows: &[Row]) -> String {
    let all: Vec<(Operation, Cache)> = [Cache::Dropped, Cache::Kept, Cache::Bypassed]
        .into_iter()
        .flat_map(|cache| Operation::ALL.iter().map(move |(_, operation)| (*operation, cache)))
        .collect();
    let name = |(operation, cache): &(Operation, Cache)| {
        let unit = match operation.quantity() {
            Quantity::Bandwidth => "mib_s",
            Quantity::Transfers => "io_s",
            Quantity::Names => "s",
        };
        format!("{}_{unit}", spaced(operation.word(), *cache))
    };
    let is_limited = |(operation, cache): &(Operation, Cache)| {
        operation.quantity() != Quantity::Names && *cache != Cache::Kept
    };
    let limited: Vec<(Operation, Cache)> = all.iter().copied().filter(is_limited).collect();
    let mut titles: Vec<String> =
        ["system", "servers", "clients", "processes", "condition"].map(str::to_owned).to_vec();
    titles.extend(all.iter().map(name));
    titles.extend(["limit_mib_s".to_owned(), "limit_io_s".to_owned()]);
    let share = |(operation, cache): &(Operation, Cache)| {
        format!("{}_of_limit", spaced(operation.word(), *cache))
    };
    titles.extend(limited.iter().map(share));
    for (operation, cache) in &all {
        let word = spaced(operation.word(), *cache);
        titles.extend(["p50", "p99"].map(|percentile| format!("{word}_{percentile}_us")));
    }
    let mut text = titles.join(",") + "\n";
    let number = |value: Option<f64>, digits: usize| {
        value.map(|value| format!("{value:.digits$}")).unwrap_or_default()
    };
    for row in rows {
        let mut fields = vec![
            quoted(&row.system),
            row.servers.map(|it| it.to_string()).unwrap_or_default(),
            row.clients.to_string(),
            row.processes.to_string(),
            quoted(&row.condition),
        ];
        fields.extend(all.iter().map(|(operation, cache)| {
            let cell = row.cell(*operation, *cache);
            number(cell.map(|it| operation.quantity().shown(it.mean)), 2)
        }));
        let limit = row.limit_bytes_per_second.map(|it| Quantity::Bandwidth.shown(it));
        fields.extend([number(limit, 2), number(row.limit_operations_per_second, 2)]);
        fields.extend(limited.iter().map(|&(operation, cache)| {
            let cell = row.cell(operation, cache);
            number(cell.and_then(|it| it.of_limit), 4)
        }));
        fields.extend(all.iter().flat_map(|(operation, cache)| {
            let cell = row.cell(*operation, *cache);
            let half = cell.and_then(|it| it.latency_p50_us);
            let most = cell.and_then(|it| it.latency_p99_us);
            [half, most].map(|latency| number(latency, 1))
        }));
        let _ = writeln!(text, "{}", fields.join(","));
    }
    text
}

/// Returns the word of an operation, with the state of its caches, for the name of a column. The
/// word contains `_` in place of spaces and dashes.
fn spaced(word: &str, cache: Cache) -> String {
    format!("{}{word}", cached(cache)).replace([' ', '-'], "_")
}

#[cfg(test)]
mod tests;
