//! The acceptance check of a study: compares the best result with each number of servers with the
//! rate that the hardware can reach.

use crate::plan::{Cache, Operation};
use crate::report::{Cell, Row};
use serde::Serialize;
use skep_types::{Error, ErrorCode, Result};
use std::collections::BTreeMap;

/// The best result of one operation with one number of servers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BestResult {
    /// Name of the study, or of the system in a comparison.
    pub system: String,
    /// Number of servers. `None` if the file system does not report its servers.
    pub servers: Option<u32>,
    /// The measured operation.
    pub operation: Operation,
    /// Whether caches were dropped before the operation.
    pub cache: Cache,
    /// Number of client hosts in the measurement.
    pub clients: u32,
    /// Number of processes in the measurement.
    pub processes: u64,
    /// The result: the highest mean, in bytes or operations per second.
    pub mean: f64,
    /// The highest limit of all rows with these servers, in the unit of `mean`.
    pub limit: f64,
    /// `mean` as a share of `limit`.
    pub share: f64,
    /// Whether `share` is at least the share of the limit that the user requires.
    pub is_enough: bool,
}

/// The values for which there is exactly one [`BestResult`].
type Key<'a> = (&'a str, Option<u32>, Operation, Cache);

/// Returns the best result of each operation with each number of servers, in ascending order of the
/// servers. `rows` is the table of a study, and `least` is the required share of the limit.
///
/// The limit of a row is the smaller rate of its servers and of its clients. The function uses the
/// highest limit and the highest result of all rows with equally many servers. So a row with few
/// clients, which attains the limit of these clients, does not count as a good result of the
/// servers.
///
/// # Errors
/// `InvalidArgument` if no result has a limit, for example because the study has only operations on
/// names.
pub fn check(rows: &[Row], least: f64) -> Result<Vec<BestResult>> {
    let mut found: BTreeMap<Key<'_>, BestResult> = BTreeMap::new();
    for row in rows {
        for cell in &row.cells {
            let limit = row.limit(cell.operation, cell.cache).filter(|limit| *limit > 0.0);
            let Some(limit) = limit else { continue };
            let key = (row.system.as_str(), row.servers, cell.operation, cell.cache);
            let best = found.entry(key).or_insert_with(|| first(row, cell));
            best.limit = best.limit.max(limit);
            if cell.mean > best.mean {
                (best.mean, best.clients, best.processes) = (cell.mean, row.clients, row.processes);
            }
        }
    }
    if found.is_empty() {
        return Err(Error::new(
            ErrorCode::InvalidArgument,
            "cannot compare results with the limit of the hardware: the study has no result with \
             a limit; run it in a lab, or add `[limit]` to its plan",
        ));
    }
    let judged = |mut it: BestResult| {
        it.share = it.mean / it.limit;
        it.is_enough = it.share >= least;
        it
    };
    Ok(found.into_values().map(judged).collect())
}

fn first(row: &Row, cell: &Cell) -> BestResult {
    BestResult {
        system: row.system.clone(),
        servers: row.servers,
        operation: cell.operation,
        cache: cell.cache,
        clients: row.clients,
        processes: row.processes,
        mean: cell.mean,
        limit: 0.0,
        share: 0.0,
        is_enough: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a row with one result. Each server moves 100 bytes per second, and each client 60.
    fn row(servers: u32, clients: u32, operation: Operation, mean: f64) -> Row {
        let limit = f64::from(servers * 100).min(f64::from(clients * 60));
        let cell = Cell {
            operation,
            cache: Cache::Dropped,
            runs: 2,
            mean,
            of_limit: None,
            latency_p50_us: None,
            latency_p99_us: None,
        };
        Row {
            system: "x".to_owned(),
            servers: Some(servers),
            clients,
            processes: u64::from(clients),
            condition: String::new(),
            limit_bytes_per_second: Some(limit),
            limit_operations_per_second: None,
            cells: vec![cell],
        }
    }

    #[test]
    fn best_result_of_each_number_of_servers_is_judged() {
        let write = Operation::Write;
        let rows = [
            row(1, 2, write, 80.0),
            row(1, 4, write, 95.0),
            row(1, 8, write, 91.0),
            row(2, 8, write, 170.0),
        ];
        let found = check(&rows, 0.9).expect("limits");
        let shown: Vec<_> =
            found.iter().map(|it| (it.servers, it.clients, it.share, it.is_enough)).collect();
        assert_eq!(shown, [(Some(1), 4, 0.95, true), (Some(2), 8, 0.85, false)]);
        assert!(check(&rows, 0.85).expect("limits").iter().all(|it| it.is_enough));
    }

    #[test]
    fn run_with_few_clients_does_not_lower_the_server_limit() {
        // One client attains its full rate of 60 bytes per second, which is 30 % of the rate of two
        // servers.
        let rows = [row(2, 1, Operation::Read, 60.0), row(2, 8, Operation::Read, 140.0)];
        let found = check(&rows, 0.9).expect("limits");
        assert_eq!((found.len(), found[0].limit, found[0].is_enough), (1, 200.0, false));
        assert_eq!(found[0].share, 0.7);
    }

    #[test]
    fn results_without_a_limit_are_not_judged() {
        let mut names = row(1, 4, Operation::Create, 5000.0);
        let mut cached = row(1, 4, Operation::Read, 5000.0);
        cached.cells[0].cache = Cache::Kept;
        let error = check(&[names.clone(), cached], 0.9).expect_err("no limit");
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
        assert!(error.context().contains("`[limit]`"), "{error}");
        names.cells.extend(row(1, 4, Operation::Write, 99.0).cells);
        assert_eq!(check(&[names], 0.9).expect("a limit").len(), 1);
    }
}
