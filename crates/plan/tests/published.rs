//! Computes the errors of the model for the published tables, and checks that
//! `docs/operations/planning.md` contains the same numbers.

use skep_plan::validation::{Group, compare, cross_validate, errors};
use skep_plan::{Calibration, Catalogue, table};
use std::fmt::Write;

const REPORT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations/planning.md");

/// Asserts that the documentation contains a line.
fn assert_reported(line: &str) {
    let report = std::fs::read_to_string(REPORT).expect("the report");
    assert!(report.contains(line), "docs/operations/planning.md lacks this line:\n{line}");
}

#[test]
fn model_errors_on_the_published_tables_are_small() {
    let tables = table::built_in(&Catalogue::built_in());
    let calibration = Calibration::fit(&tables);
    let compared: Vec<_> = tables.iter().map(|table| compare(&calibration, table)).collect();
    let all = errors(compared.iter().flat_map(|it| &it.rows));
    println!("{:?} {all:?}", calibration.parameters);
    assert_eq!(all.points, 45);
    assert!(all.median_percent <= 5.0, "median {} %", all.median_percent);
    assert!(all.largest_percent <= 20.0, "largest {} %", all.largest_percent);
    let mut lines = String::new();
    for it in &compared {
        let row = format!(
            "| {} | {} | {:.1} | {:.1} |",
            it.table,
            it.rows.len(),
            it.median_error_percent,
            it.largest_error_percent
        );
        let _ = writeln!(lines, "{row}");
    }
    let row = format!(
        "| all | {} | {:.1} | {:.1} |",
        all.points, all.median_percent, all.largest_percent
    );
    let _ = writeln!(lines, "{row}");
    println!("{lines}");
    lines.lines().for_each(assert_reported);
    let rows = compared.iter().flat_map(|it| &it.rows);
    let is_within = |it: &&skep_plan::validation::Row| {
        it.prediction.low <= it.measured && it.measured <= it.prediction.high
    };
    let within = rows.clone().filter(is_within).count();
    assert!(within * 100 >= all.points * 85, "{within} of {} within the interval", all.points);
}

#[test]
fn predictions_for_tables_left_out_of_the_fit_are_close() {
    let tables = table::built_in(&Catalogue::built_in());
    for (group, name) in [(Group::Table, "one table"), (Group::Study, "one study")] {
        let found = cross_validate(&tables, group);
        println!("{name}: {:?}", found.errors);
        assert!(found.errors.median_percent <= 10.0, "{name}: {:?}", found.errors);
        assert!(found.errors.largest_percent <= 20.0, "{name}: {:?}", found.errors);
        for it in &found.tables {
            println!(
                "  {}: {:.1} {:.1}",
                it.table, it.median_error_percent, it.largest_error_percent
            );
            assert!(it.median_error_percent <= 10.0, "{name}, {}", it.table);
        }
        assert_reported(&format!(
            "| {name} | {:.1} | {:.1} |",
            found.errors.median_percent, found.errors.largest_percent
        ));
    }
}

#[test]
fn planning_page_has_the_fitted_parameters() {
    let tables = table::built_in(&Catalogue::built_in());
    let calibration = Calibration::fit(&tables);
    for (value, it) in calibration.parameters.values().iter().zip(skep_plan::PARAMETERS) {
        let shown = if *value >= 10.0 { format!("{value:.0}") } else { format!("{value:.3}") };
        println!("| `{}` | {shown} |", it.name);
        assert_reported(&format!("| `{}` | {shown} |", it.name));
    }
}
