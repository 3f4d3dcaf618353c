//! Tests of the built-in series, and of comparisons with the studies in the repository.

use super::*;
use crate::journal;
use crate::plan::{Operation, Plan};
use crate::plans;
use crate::record::{LimitRecord, Record, Settings};
use std::path::PathBuf;

fn study(name: &str) -> Contents {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/studies").join(name);
    journal::read(&directory).expect("a journal")
}

fn series<'a>(comparison: &'a Comparison, name: &str) -> &'a ComparedSeries {
    comparison.series.iter().find(|it| it.name == name).expect(name)
}

/// Returns the published share and the measured share of each point of a series, in percent.
fn percent(series: &ComparedSeries) -> Vec<(u32, u32)> {
    let rounded = |share: f64| (share * 100.0).round() as u32;
    let of = |it: &ComparedPoint| (rounded(it.published_share), rounded(it.measured_share));
    series.points.iter().map(of).collect()
}

#[test]
fn each_point_selects_one_condition_of_its_plan() {
    for series in built_in() {
        let plan = Plan::parse(plans::text(&series.plan).expect("a plan")).expect("valid");
        for point in &series.points {
            let selectors = [&series.at, &point.at];
            let is_named = |name: &str| {
                selectors.iter().all(|it| it.experiment.as_deref().is_none_or(|it| it == name))
            };
            let factors = || selectors.iter().flat_map(|it| &it.factors);
            let matching = plan.conditions().filter(|(experiment, condition)| {
                let settings = Settings::new(condition, None).expect("no calibration");
                is_named(&experiment.name)
                    && factors().all(|(factor, text)| factor.text(&settings) == *text)
            });
            let has_allocation = selectors.iter().any(|it| it.allocation.is_some());
            let number = matching.count();
            assert!(number == 1 || (has_allocation && number > 0), "{}: {number}", point.label);
        }
    }
}

/// The table of docs/operations/studies.md shows which plan reproduces which published table.
#[test]
fn table_of_published_tables_names_each_series_and_its_plan() {
    let page = include_str!("../../../../docs/operations/studies.md");
    let rows = || page.lines().filter(|line| line.starts_with("| ") && line.contains(" | "));
    for series in built_in() {
        let names = [&series.name, &series.plan].map(|name| format!("`{name}`"));
        let has_both = |row: &str| names.iter().all(|name| row.contains(name));
        assert!(rows().any(has_both), "docs/operations/studies.md lacks {names:?}");
    }
}

#[test]
fn relative_rates_of_allocations_equal_the_published_rates() {
    let found = compare(&study("scenario1"), false, &built_in()).expect("series");
    assert_eq!((found.series.len(), found.without_results.len()), (3, 0));
    let targets = series(&found, "boito-figure8-scenario1");
    assert_eq!(percent(targets), [(50, 50), (66, 67), (100, 100)]);
    assert!(targets.largest_difference < 0.01, "{targets:?}");
    assert_eq!((targets.measured_unit, targets.points[1].runs), ("MiB/s", 10));
    assert_eq!(targets.points[1].condition, "count 4, allocation (1,3)");
    assert_eq!(targets.condition, "experiment count");
    let allocations = series(&found, "boito-allocations-scenario1");
    assert_eq!(percent(allocations), [(67, 68), (100, 100)]);
    // One client host of the lab nearly saturates the links, in contrast to one node of the
    // published measurement.
    let hosts = series(&found, "boito-figure4-scenario1");
    assert_eq!(percent(hosts), [(60, 95), (100, 100)]);
    assert!((hosts.mean_difference - hosts.largest_difference / 2.0).abs() < 1e-9);
}

#[test]
fn comparison_lists_series_without_results() {
    let mut contents = study("scenario2");
    let found = compare(&contents, false, &built_in()).expect("series");
    assert_eq!(percent(series(&found, "boito-figure10-scenario2")), [(22, 14), (100, 100)]);
    contents.records.clear();
    let found = compare(&contents, false, &built_in()).expect("series");
    assert_eq!(found.without_results, ["boito-figure10-scenario2"]);
    assert!(found.series.is_empty());
}

#[test]
fn error_for_a_plan_without_series_names_plans_with_series() {
    let error = compare(&study("six-targets"), false, &built_in()).expect_err("no series");
    assert_eq!(error.code(), ErrorCode::NotFound);
    let words = ["'six-targets'", "alces, azure-iops", "scenario1, scenario2"];
    assert!(words.iter().all(|word| error.context().contains(word)), "{error}");
}

#[test]
fn published_limits_stand_beside_the_limits_of_the_study() {
    let text = "[[series]]\nname = 's'\nplan = 'scenario1'\nsource = 's'\nunit = 'x'\n\
        at = { experiment = 'count', chooser = 'balanced' }\n\
        points = [{ label = 'one', rate = 10, at = { count = 1 } }, \
        { label = 'eight', rate = 45, limit = 50, at = { count = 8 } }]\n";
    let all = parse(text).expect("valid");
    let mut contents = study("scenario1");
    contents.study.limit = None;
    let found = compare(&contents, false, &all).expect("series");
    let eight = &series(&found, "s").points[1];
    assert_eq!((eight.published_of_limit, eight.measured_of_limit), (Some(0.9), None));
    // The links of both servers have 100 MB/s together.
    let server_bytes_per_second = Some(50_000_000);
    contents.study.limit =
        Some(LimitRecord { server_bytes_per_second, client_bytes_per_second: None });
    let found = compare(&contents, false, &all).expect("series");
    let [one, eight] = &series(&found, "s").points[..] else { panic!("two points") };
    assert_eq!((one.published_of_limit, one.measured_of_limit), (None, None));
    let share = eight.measured_of_limit.expect("a limit");
    assert!((0.97..1.0).contains(&share), "{share}");
}

#[test]
fn built_in_series_of_azure_have_the_limits_of_their_servers() {
    for (name, points) in [
        ("azure-table8-write-to-20-servers", 11),
        ("azure-table8-read", 2),
        // The table has no limit for 16 servers.
        ("azure-table10-write-to-20-servers", 10),
    ] {
        let all = built_in();
        let series = all.iter().find(|it| it.name == name).expect(name);
        let shares: Vec<f64> =
            series.points.iter().filter_map(|it| Some(it.rate / it.limit?)).collect();
        assert_eq!(shares.len(), points, "{name}");
        assert!(shares.iter().all(|it| (0.84..1.0).contains(it)), "{name}: {shares:?}");
    }
}

#[test]
fn series_of_different_quantities_is_refused() {
    let mut contents = study("scenario1");
    for record in &mut contents.records {
        let Record::Run(run) = record else { continue };
        if run.experiment == "hosts" {
            run.settings.operation = Operation::RandomRead;
            run.operations_per_second = Some(100.0);
        }
    }
    let text = "[[series]]\nname = 'mixed'\nplan = 'scenario1'\nsource = 's'\nunit = 'x'\n\
        points = [{ label = 'a', rate = 1, at = { experiment = 'count' } }, \
        { label = 'b', rate = 2, at = { experiment = 'hosts' } }]\n";
    let error = compare(&contents, false, &parse(text).expect("valid")).expect_err("refused");
    assert_eq!(error.code(), ErrorCode::Configuration);
    assert!(error.context().contains("series \"mixed\""), "{error}");
}
