//! Tables of measured rates. Each row also describes the system on which it was measured.
//!
//! A description in TOML names a CSV file and its columns. `data/published/tables.toml` describes
//! the built-in tables. That file is also the example for users who add tables.

use crate::catalogue::Catalogue;
use crate::invalid;
use crate::system::{Operation, Spread, System, Workload};
use serde::{Deserialize, Serialize};
use skep_types::Result;
use std::collections::BTreeMap;

/// The description of the built-in tables.
pub const BUILT_IN: &str = include_str!("../data/published/tables.toml");
/// One MiB, in MB.
const MIB: f64 = 1.048_576;

/// A table of measured rates.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// Name of the table.
    pub name: String,
    /// Name of the study from which the table comes. Tables of one study have the same hardware and
    /// method.
    pub study: String,
    /// The measured points.
    pub points: Vec<Point>,
}

/// A rate that was measured once.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Point {
    /// The system on which the rate was measured.
    pub system: System,
    /// The workload of the measurement.
    pub workload: Workload,
    /// The measured rate, in MB/s or operations per second.
    pub measured: f64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    table: Vec<Description>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    name: String,
    study: String,
    csv: String,
    #[serde(default, rename = "where")]
    conditions: BTreeMap<String, String>,
    rate: String,
    unit: String,
    system: SystemColumns,
    workload: WorkloadColumns,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SystemColumns {
    server: String,
    servers: Cell,
    disk: Option<String>,
    disks: Option<Cell>,
    limit_mb_s: Option<Cell>,
    limit_iops: Option<Cell>,
    mtu: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WorkloadColumns {
    operation: String,
    client: String,
    clients: Cell,
    processes: Cell,
    transfer_bytes: u64,
    /// Number of targets of each file, if each process has its own file.
    targets_per_file: Option<Cell>,
    /// Number of targets of the file that all processes share. Each server has the same number of
    /// these targets.
    targets_of_shared: Option<Cell>,
    /// Column with the numbers of targets of the shared file on each of two servers, such as
    /// `(1,3)`.
    allocation: Option<String>,
}

/// A number, or the name of the column that contains the number.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Cell {
    Number(f64),
    Column(String),
}

/// Returns the tables that are compiled into the program.
///
/// # Panics
/// Panics if a built-in table is invalid. A test ensures that all built-in tables are valid.
pub fn built_in(catalogue: &Catalogue) -> Vec<Table> {
    let read = |file: &str| match file {
        "alces_throughput.csv" => Ok(include_str!("../data/published/alces_throughput.csv").into()),
        "azure_beegfs_write.csv" => {
            Ok(include_str!("../data/published/azure_beegfs_write.csv").into())
        }
        "boito_scenario1.csv" => Ok(include_str!("../data/published/boito_scenario1.csv").into()),
        other => Err(invalid(format!("cannot find {other}: no built-in table has this name"))),
    };
    parse("tables.toml", BUILT_IN, catalogue, read).expect("a test parses the built-in tables")
}

/// Reads the tables that a description names. `read` returns the text of a CSV file.
///
/// # Errors
/// `InvalidArgument`, with the file, the table and the line that is invalid, or the error of
/// `read`.
pub fn parse(
    file: &str,
    text: &str,
    catalogue: &Catalogue,
    read: impl Fn(&str) -> Result<String>,
) -> Result<Vec<Table>> {
    let described: File = toml::from_str(text).map_err(|error| {
        let error = error.to_string();
        invalid(format!(
            "cannot read the tables in {file}: {}; `skep plan compare --print-tables` prints an \
             example",
            error.trim()
        ))
    })?;
    let mut tables = Vec::new();
    for description in &described.table {
        let csv = read(&description.csv)?;
        let points = points(description, &csv, catalogue).map_err(|error| {
            let place = format!("cannot read table {} from {}", description.name, description.csv);
            skep_types::Error::new(error.code(), format!("{place}: {}", error.context()))
        })?;
        let Description { name, study, .. } = description;
        tables.push(Table { name: name.clone(), study: study.clone(), points });
    }
    Ok(tables)
}

/// One line of a CSV file, with the titles of its cells.
struct Row<'a> {
    line: usize,
    cells: BTreeMap<&'a str, &'a str>,
}

impl Row<'_> {
    fn text(&self, column: &str) -> Result<&str> {
        let found = self.cells.get(column).copied();
        found.ok_or_else(|| invalid(format!("line {}: there is no column '{column}'", self.line)))
    }

    /// Returns the number that a cell contains. `None` means that the cell is empty.
    fn number(&self, cell: &Cell) -> Result<Option<f64>> {
        let column = match cell {
            Cell::Number(number) => return Ok(Some(*number)),
            Cell::Column(column) => column,
        };
        let text = self.text(column)?.trim();
        if text.is_empty() {
            return Ok(None);
        }
        match text.parse::<f64>() {
            Ok(number) if number.is_finite() && number > 0.0 => Ok(Some(number)),
            _ => Err(invalid(format!(
                "line {}: invalid {column} '{text}': expected a number greater than 0",
                self.line
            ))),
        }
    }

    fn count(&self, cell: &Cell) -> Result<u32> {
        let number = self.number(cell)?;
        let number = number.filter(|it| (1.0..=1e6).contains(it) && it.fract() == 0.0);
        let missing = || {
            let place = match cell {
                Cell::Number(number) => format!("count {number} in the description"),
                Cell::Column(column) => format!("count in column '{column}'"),
            };
            let expected = "expected a whole number from 1 to 1000000";
            invalid(format!("line {}: invalid {place}: {expected}", self.line))
        };
        number.map(|it| it as u32).ok_or_else(missing)
    }
}

fn rows(csv: &str) -> Vec<Row<'_>> {
    let mut lines = csv.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let titles = lines.next().map(|(_, line)| cells(line)).unwrap_or_default();
    let row = |(index, line)| Row {
        line: index + 1,
        cells: titles.iter().copied().zip(cells(line)).collect(),
    };
    lines.map(row).collect()
}

/// Splits a line at its commas, except for commas in parentheses, as in `8,4,(1,3),1460`.
fn cells(line: &str) -> Vec<&str> {
    let mut depth = 0;
    let at_comma = |letter: char| {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        letter == ',' && depth <= 0
    };
    line.split(at_comma).map(str::trim).collect()
}

fn points(of: &Description, csv: &str, catalogue: &Catalogue) -> Result<Vec<Point>> {
    let Description { system: columns, workload: work, .. } = of;
    let operation = Operation::named(&work.operation)?;
    let client_gbit_s = catalogue.server(&work.client)?.network_gbit_s;
    if work.transfer_bytes == 0 {
        return Err(invalid("transfer_bytes must be greater than 0"));
    }
    let factor = match (of.unit.as_str(), operation.is_sequential()) {
        ("MB/s", true) | ("1/s", false) => 1.0,
        ("MiB/s", true) => MIB,
        ("GB/s", true) => 1000.0,
        (unit, _) => return Err(invalid(format!("invalid unit '{unit}' of {}", operation.word()))),
    };
    let mut points = Vec::new();
    // The limits of one server, from the first row that has them. Rows without limits use these
    // limits.
    let mut known: [Option<f64>; 2] = [None; 2];
    for row in rows(csv) {
        if !is_wanted(of, &row)? {
            continue;
        }
        let Some(measured) = row.number(&Cell::Column(of.rate.clone()))? else { continue };
        let workload = Workload {
            operation,
            clients: row.count(&work.clients)?,
            processes: row.count(&work.processes)?,
            client_gbit_s,
            transfer_bytes: work.transfer_bytes,
            spread: spread(work, &row)?,
        };
        let system = system(columns, &row, catalogue, &mut known)?;
        points.push(Point { system, workload, measured: measured * factor });
    }
    match points.is_empty() {
        true => Err(invalid("no row of the table has a rate; check the keys `where` and `rate`")),
        false => Ok(points),
    }
}

fn is_wanted(of: &Description, row: &Row) -> Result<bool> {
    for (column, value) in &of.conditions {
        if row.text(column)? != value {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the system of a row. `known` has the limits of one server from an earlier row.
fn system(
    of: &SystemColumns,
    row: &Row,
    catalogue: &Catalogue,
    known: &mut [Option<f64>; 2],
) -> Result<System> {
    let servers = row.count(&of.servers)?;
    let disks = of.disks.as_ref().map(|it| row.count(it)).transpose()?;
    let disk = of.disk.as_deref().zip(disks);
    let mut system = System::of(catalogue, &of.server, servers, disk)?;
    system.mtu = of.mtu;
    let limits = [&mut system.limit_mb_s, &mut system.limit_iops];
    for ((cell, known), limit) in
        [&of.limit_mb_s, &of.limit_iops].into_iter().zip(known).zip(limits)
    {
        let Some(cell) = cell else { continue };
        let of_server = row.number(cell)?.map(|it| it / f64::from(servers));
        *known = known.or(of_server);
        *limit = of_server.or(*known);
    }
    Ok(system)
}

fn spread(of: &WorkloadColumns, row: &Row) -> Result<Spread> {
    if let Some(column) = &of.allocation {
        let text = row.text(column)?;
        return allocation(text).ok_or_else(|| {
            invalid(format!(
                "line {}: invalid allocation '{text}': expected (MIN,MAX), as in (1,3)",
                row.line
            ))
        });
    }
    if let Some(cell) = &of.targets_of_shared {
        return Ok(Spread::Shared { targets: row.count(cell)? });
    }
    let targets = of.targets_per_file.as_ref().map(|cell| row.count(cell)).transpose()?;
    Ok(Spread::Files { targets })
}

/// Parses the numbers of targets of a file on each of two servers, such as `(1,3)` or `1,3`. `None`
/// means that the text has another form.
pub fn allocation(text: &str) -> Option<Spread> {
    let (min, max) = text.trim_matches(['(', ')']).split_once(',')?;
    let (min, max) = (min.trim().parse().ok()?, max.trim().parse().ok()?);
    (min <= max && max > 0).then_some(Spread::Allocation { min, max })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_tables_have_all_rows_of_their_files() {
        let tables = built_in(&Catalogue::built_in());
        let counts: Vec<_> = tables.iter().map(|it| it.points.len()).collect();
        assert_eq!(counts, [5, 5, 4, 4, 11, 11, 5]);
        let boito = &tables[6].points[0];
        assert_eq!(boito.workload.spread, Spread::Allocation { min: 1, max: 3 });
        assert!((boito.measured - 880.0 * MIB).abs() < 1e-6);
        let without_limit = &tables[5].points[8].system;
        assert_eq!((without_limit.servers, without_limit.limit_iops), (16, Some(22560.0)));
    }

    #[test]
    fn error_for_a_missing_or_invalid_cell_names_its_line() {
        let catalogue = Catalogue::built_in();
        let read = |csv: &str| {
            let csv = csv.to_owned();
            parse(
                "t.toml",
                BUILT_IN.split("\n\n").nth(1).unwrap_or_default(),
                &catalogue,
                move |_| Ok(csv.clone()),
            )
        };
        let good = "system,clients,write_mb_s\noption1,2,1699\n";
        assert_eq!(read(good).unwrap()[0].points.len(), 1);
        for (csv, expected) in [
            ("system,clients,write_mb_s\noption1,x,1\n", "line 2: invalid clients 'x'"),
            ("system,clients,write_mb_s\noption1,,1\n", "line 2: invalid count in column"),
            ("system,write_mb_s\noption1,1\n", "no column 'clients'"),
            ("system,clients,write_mb_s\noption9,2,1\n", "no row of the table has a rate"),
            ("", "no row of the table has a rate"),
            ("system,clients,write_mb_s\noption1,2,-5\n", "'-5'"),
        ] {
            let error = read(csv).unwrap_err();
            assert!(error.context().contains(expected), "{csv}: {}", error.context());
            assert!(error.context().contains("alces-option1-write"), "{}", error.context());
        }
    }

    #[test]
    fn allocations_are_parsed_as_sorted_pairs() {
        assert_eq!(allocation("(0,1)"), Some(Spread::Allocation { min: 0, max: 1 }));
        assert_eq!([allocation("(3,1)"), allocation("3"), allocation("(0,0)")], [None; 3]);
    }
}
