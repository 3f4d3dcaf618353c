//! `skep plan compare`: shows the measured rates of tables next to the predicted rates.

use super::args::{DataArgs, rate, write};
use crate::help::{Example, examples};
use crate::output::{print, render, say, table};
use clap::ValueEnum;
use serde::Serialize;
use skep_plan::validation::{Comparison, Errors, Group, compare, cross_validate, errors};
use skep_plan::{Calibration, page};
use skep_types::Result;
use std::fmt::Write;
use std::path::PathBuf;

const EXAMPLES: &[Example] = &[
    (
        "compare each published table with a prediction that is calibrated without this table",
        "skep plan compare --left-out",
    ),
    (
        "compare each published table with a prediction that is calibrated without the tables of \
         the same study",
        "skep plan compare --left-out=study",
    ),
    (
        "compare your own tables with predictions that are calibrated by the published tables only",
        "skep plan compare --tables mine.toml",
    ),
    ("print an example of a description of tables", "skep plan compare --print-tables"),
];

/// Compare predictions with measured tables. Your own tables (--tables) do not calibrate the model
/// for this command, so the comparison tests the model
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct CompareArgs {
    /// Predict each table with a model that is calibrated without this table, or without all tables
    /// of its study. `--left-out` alone means `--left-out=table`
    #[arg(long, value_enum, value_name = "GROUP", conflicts_with = "tables")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "table")]
    left_out: Option<LeftOut>,
    /// Print the description of the built-in tables instead
    #[arg(long)]
    print_tables: bool,
    /// Write a page with figures
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    data: DataArgs,
}

/// The tables that a calibration leaves out together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LeftOut {
    /// The predicted table
    Table,
    /// All tables of the same study: of the same hardware and authors
    Study,
}

/// The JSON output: the comparison.
#[derive(Debug, Serialize)]
struct ComparisonReport {
    errors: Errors,
    tables: Vec<Comparison>,
}

pub(crate) fn run(args: &CompareArgs) -> Result<()> {
    if args.print_tables {
        return say(skep_plan::table::BUILT_IN.trim_end());
    }
    let catalogue = args.data.catalogue()?;
    let built_in = skep_plan::table::built_in(&catalogue);
    let own = args.data.own_tables(&catalogue)?;
    let tables = match args.left_out {
        Some(LeftOut::Table) => cross_validate(&built_in, Group::Table).tables,
        Some(LeftOut::Study) => cross_validate(&built_in, Group::Study).tables,
        None => {
            let calibration = Calibration::fit(&built_in);
            let tables = if own.is_empty() { &built_in } else { &own };
            tables.iter().map(|table| compare(&calibration, table)).collect()
        }
    };
    if let Some(path) = &args.html {
        write(path, &page::of_comparisons(&tables)?)?;
    }
    let errors = errors(tables.iter().flat_map(|it| &it.rows));
    print(&ComparisonReport { errors, tables }, as_text)
}

fn as_text(report: &ComparisonReport) -> String {
    let mut shown = table(&[
        "Table",
        ">Servers",
        ">Clients",
        ">Measured",
        ">Predicted",
        "Unit",
        ">Error %",
        "Within 90 %",
    ]);
    for comparison in &report.tables {
        for row in &comparison.rows {
            let it = &row.prediction;
            let is_within = (it.low..=it.high).contains(&row.measured);
            shown.add_row([
                comparison.table.clone(),
                row.servers.to_string(),
                it.clients.to_string(),
                rate(row.measured),
                rate(it.rate),
                row.unit.to_owned(),
                format!("{:+.1}", row.error_percent),
                if is_within { "yes" } else { "no" }.to_owned(),
            ]);
        }
    }
    let mut text = render(&shown);
    let mut shown = table(&["Table", ">Rows", ">Median error %", ">Largest error %"]);
    for it in &report.tables {
        shown.add_row([
            it.table.clone(),
            it.rows.len().to_string(),
            format!("{:.1}", it.median_error_percent),
            format!("{:.1}", it.largest_error_percent),
        ]);
    }
    let _ = write!(
        text,
        "\n{}\nAll {} rows: median error {:.1} %, largest {:.1} %",
        render(&shown),
        report.errors.points,
        report.errors.median_percent,
        report.errors.largest_percent
    );
    text
}
