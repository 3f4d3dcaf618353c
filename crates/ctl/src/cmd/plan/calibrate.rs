//! `skep plan calibrate`: shows the parameters of the model and their uncertainty. The command also
//! calibrates the model without some tables, and compares the predictions with these tables.

use super::args::{DataArgs, read};
use crate::help::{Example, examples};
use crate::output::{print, render, table};
use serde::Serialize;
use skep_plan::validation::{Errors, Group, cross_validate};
use skep_plan::{Calibration, PARAMETERS, bench};
use skep_types::Result;
use std::fmt::Write;
use std::path::PathBuf;

const EXAMPLES: &[Example] = &[
    ("show the calibration of the model by the published tables", "skep plan calibrate"),
    (
        "calibrate the model also with a benchmark of your own system",
        "skep plan calibrate --result io.json --server twelve-nvme-100g --servers 4",
    ),
];

/// Calibrate the model by measured tables and benchmarks, and test it with tables that were not
/// used
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct CalibrateArgs {
    /// Result of `skep bench io --output json` on the system that the other options describe
    #[arg(long, value_name = "FILE", requires = "server")]
    result: Option<PathBuf>,
    /// Type of the storage servers of the measured system (`skep plan catalogue`)
    #[arg(long, value_name = "NAME", requires = "result")]
    server: Option<String>,
    /// Number of storage servers of the measured system
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    servers: u32,
    /// Type of the clients of the measured system [default: the type of the servers]
    #[arg(long, value_name = "NAME", requires = "result")]
    client: Option<String>,
    #[command(flatten)]
    data: DataArgs,
}

/// The JSON output: the calibration.
#[derive(Debug, Serialize)]
struct CalibrationReport {
    measured_points: usize,
    /// Relative deviation of the measured rates from the fitted rates, in percent.
    residual_percent: f64,
    parameters: Vec<ParameterLine>,
    /// Prediction errors for each table, by a calibration that used all other tables.
    one_table_left_out: Errors,
    /// Prediction errors for the tables of each study, by a calibration that used the tables of all
    /// other studies.
    one_study_left_out: Errors,
}

#[derive(Debug, Serialize)]
struct ParameterLine {
    name: &'static str,
    meaning: &'static str,
    assumed: f64,
    value: f64,
    /// Relative uncertainty of the value in percent: one standard deviation.
    uncertainty_percent: f64,
}

pub(crate) fn run(args: &CalibrateArgs) -> Result<()> {
    let catalogue = args.data.catalogue()?;
    let mut tables = args.data.all_tables(&catalogue)?;
    if let (Some(path), Some(server)) = (&args.result, &args.server) {
        let system = skep_plan::system::System::of(&catalogue, server, args.servers, None)?;
        let client = catalogue.server(args.client.as_ref().unwrap_or(server))?;
        let (file, text) = (path.display().to_string(), read(path)?);
        tables.push(bench::read(&file, &text, &system, client.network_gbit_s)?);
    }
    let calibration = Calibration::fit(&tables);
    let values = calibration.parameters.values().into_iter().zip(calibration.deviations());
    let line = |(it, (value, deviation)): (&skep_plan::Parameter, (f64, f64))| ParameterLine {
        name: it.name,
        meaning: it.meaning,
        assumed: it.prior,
        value,
        uncertainty_percent: 100.0 * deviation,
    };
    let report = CalibrationReport {
        measured_points: calibration.points,
        residual_percent: 100.0 * calibration.residual,
        parameters: PARAMETERS.iter().zip(values).map(line).collect(),
        one_table_left_out: cross_validate(&tables, Group::Table).errors,
        one_study_left_out: cross_validate(&tables, Group::Study).errors,
    };
    print(&report, as_text)
}

fn as_text(report: &CalibrationReport) -> String {
    let mut shown = table(&["Parameter", ">Assumed", ">Calibrated", ">+- %", "Meaning"]);
    for it in &report.parameters {
        let number = |value: f64| match value >= 10.0 {
            true => format!("{value:.0}"),
            false => format!("{value:.3}"),
        };
        shown.add_row([
            it.name,
            &number(it.assumed),
            &number(it.value),
            &format!("{:.1}", it.uncertainty_percent),
            it.meaning,
        ]);
    }
    let mut text = render(&shown);
    let _ = writeln!(
        text,
        "\n{} measured points, deviation from the fit {:.1} %",
        report.measured_points, report.residual_percent
    );
    for (what, it) in [
        ("one table at a time", report.one_table_left_out),
        ("one study at a time", report.one_study_left_out),
    ] {
        let _ = writeln!(
            text,
            "Error for tables that the calibration left out, {what}: median {:.1} %, largest {:.1} \
             %",
            it.median_percent, it.largest_percent
        );
    }
    text
}
