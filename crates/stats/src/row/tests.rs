//! Tests of rows, computed from replies that each test creates.

use super::*;
use skep_wire::node::{Statistics, StatisticsSeries};

pub(crate) fn series(metric: &str, labels: &[(&str, &str)], value: i64) -> StatisticsSeries {
    let labels = labels.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    StatisticsSeries { metric: metric.into(), labels, value, buckets: Vec::new() }
}

/// Returns the reply of a service.
pub(crate) fn service(node: u32, second: u64, series: Vec<StatisticsSeries>) -> ServiceFigures {
    let moment_ns = second * 1_000_000_000;
    let statistics = Statistics { moment_ns, incarnation: 5, page: String::new(), series };
    ServiceFigures { node, name: format!("storage-{node}"), statistics }
}

fn writes(target: &str, operations: i64) -> Vec<StatisticsSeries> {
    let labels = [("target", target), ("operation", "write_chunk")];
    let mut durations = series("skep_storage_operation_seconds", &labels, operations * 2_000_000);
    durations.buckets = vec![(40, operations as u64)];
    vec![
        series("skep_storage_operations", &labels, operations),
        series("skep_storage_received_bytes", &labels, operations * 4096),
        series("skep_storage_requests_busy", &[("target", target)], 3),
        durations,
    ]
}

fn load(id: &str, operations: i64) -> StatisticsSeries {
    let labels = [("service", "storage"), ("target", "7"), ("by", "user"), ("id", id)];
    series("skep_load_operations", &labels, operations)
}

#[test]
fn rates_use_the_clock_of_each_service() {
    let before = vec![service(1, 10, writes("7", 100)), service(2, 500, writes("8", 0))];
    let now = vec![service(1, 12, writes("7", 300)), service(2, 501, writes("8", 50))];
    let targets = rows(By::Target, Some(&before), &now);
    let figures: Vec<_> = targets
        .iter()
        .map(|row| (row.id.as_str(), row.operations, row.operations_per_second, row.busy))
        .collect();
    assert_eq!(figures, [("7", 200, 100.0, 3), ("8", 50, 50.0, 3)]);
    assert_eq!(targets[0].written_bytes_per_second, 100.0 * 4096.0);
    assert_eq!((targets[0].mean_ns(), targets[0].durations.count()), (2_000_000, 200));
    for by in [By::Node, By::Operation] {
        let sum = sum(&rows(by, Some(&before), &now));
        assert_eq!((sum.operations, sum.written_bytes), (250, 250 * 4096), "{by:?}");
        assert_eq!(sum.operations_per_second, 150.0);
    }
}

#[test]
fn operations_of_a_restarted_service_are_counted_from_zero() {
    let before = vec![service(1, 10, writes("7", 100))];
    let mut restarted = service(1, 12, writes("7", 30));
    restarted.statistics.incarnation = 6;
    let now = vec![restarted, service(2, 12, writes("8", 1_000))];
    let sum = sum(&rows(By::Node, Some(&before), &now));
    assert_eq!((sum.operations, sum.operations_per_second), (30, 0.0));
    let total = super::sum(&rows(By::Node, None, &now));
    assert_eq!(total.operations, 1_030);
}

#[test]
fn load_that_moves_to_the_row_other_is_not_counted_again() {
    let before = vec![service(1, 1, vec![load("1000", 50), load("1001", 40), load("1002", 9)])];
    // The account of user 1001 was replaced after 5 more operations. The account of user 1002 was
    // replaced, and created again.
    let after = vec![load("1000", 60), load("1002", 2), load("1003", 1), load("other", 54)];
    let now = vec![service(1, 2, after)];
    let users = rows(By::User, Some(&before), &now);
    let figures: BTreeMap<_, _> =
        users.iter().map(|row| (row.id.as_str(), row.operations)).collect();
    let expected = [("1000", 10), ("1002", 2), ("1003", 1), ("other", 5)];
    assert_eq!(figures, BTreeMap::from(expected));
    assert!(rows(By::Job, Some(&before), &now).is_empty());
}

#[test]
fn load_of_a_job_can_be_divided_by_services() {
    let load = |service: &str, operations| {
        let labels = [("service", service), ("target", "7"), ("by", "job"), ("id", "4711")];
        vec![series("skep_load_operations", &labels, operations)]
    };
    let now = vec![
        service(1, 10, load("storage", 40)),
        service(2, 10, load("storage", 2)),
        service(3, 10, load("metadata", 900)),
    ];
    let divided = rows_by_service(By::Job, None, &now);
    let figures: Vec<_> =
        divided.iter().map(|row| (row.id.as_str(), row.service.as_str(), row.operations)).collect();
    assert_eq!(figures, [("4711", "metadata", 900), ("4711", "storage", 42)]);
    let together = rows(By::Job, None, &now);
    assert_eq!((together.len(), together[0].operations), (1, 942));
}

#[test]
fn load_can_be_limited_to_one_node_or_target() {
    let of_both_targets = || [writes("7", 100), writes("8", 30), vec![load("1000", 40)]].concat();
    let now = vec![service(1, 10, of_both_targets()), service(2, 10, writes("9", 5))];
    let operations = |scope: LoadScope, by| sum(&rows_within(scope, by, None, &now)).operations;
    let all = LoadScope::default();
    assert_eq!(operations(all, By::Target), 135);
    let node = LoadScope { node: Some(1), ..all };
    assert_eq!((operations(node, By::Target), operations(node, By::Operation)), (130, 130));
    // The account of user 1000 belongs to target 7 of node 1.
    assert_eq!(operations(node, By::User), 40);
    assert_eq!(operations(LoadScope { node: Some(2), ..all }, By::User), 0);
    let target = LoadScope { target: Some(8), ..node };
    assert_eq!((operations(target, By::Operation), operations(target, By::User)), (30, 0));
    assert_eq!(operations(LoadScope { target: Some(7), ..all }, By::User), 40);
    assert_eq!(operations(LoadScope { node: Some(3), ..all }, By::Node), 0);
}

#[test]
fn rows_with_the_same_load_are_in_order_of_their_ids() {
    let ids = ["10", "other", "2", "1"];
    let row = |id: &str| Row { id: id.into(), ..Row::default() };
    let mut table: Table =
        ids.iter().map(|id| (((*id).to_owned(), String::new()), row(id))).collect();
    let heavy = Row { operations: 1, ..row("30") };
    table.insert(("30".into(), String::new()), heavy);
    let shown: Vec<_> = heaviest_first(table).into_iter().map(|row| row.id).collect();
    assert_eq!(shown, ["30", "1", "2", "10", "other"]);
}
