//! `skep study report`: writes the report of a study from the results that the study has so far.

use super::compare::as_table;
use crate::help::{Example, examples};
use crate::output::{print, render, table};
use serde::Serialize;
use skep_study::acceptance::{self, BestResult};
use skep_study::journal::{self, write_file};
use skep_study::report::{Report, analyse, files};
use skep_types::{Error, Result};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &[Example] = &[
    ("write a page for people, skep-study/report/index.html", "skep study report skep-study"),
    ("print the findings for a program", "skep study report skep-study --output json"),
    (
        "fail unless each number of servers reaches 90 % of the limit of its links and disks",
        "skep study report skep-study --least-share 90",
    ),
];

/// Write the report of a study: a page, figures and tables
///
/// With --least-share, exit code 1 means that the best result with some number of servers is below
/// this share of the limit of the hardware.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct ReportArgs {
    /// Include invalid runs, in which the CPU was the limit; the report marks them as invalid
    #[arg(long = "with-invalid")]
    includes_invalid: bool,
    /// Required share of the limit of the hardware, in percent: the best result of each operation
    /// with each number of servers must reach this share
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    least_share: Option<f64>,
    /// Directory of the study; the report goes to its subdirectory `report`
    directory: PathBuf,
}

/// The JSON output: the report, and the names of its files.
#[derive(Debug, Serialize)]
pub(super) struct ReportFiles {
    pub(super) directory: PathBuf,
    /// Names of the files in the directory of the report.
    files: Vec<String>,
    report: Report,
    /// The best results, compared with the required share of the limit. `None` without
    /// `--least-share`.
    #[serde(skip_serializing_if = "Option::is_none")]
    best_results: Option<Vec<BestResult>>,
}

pub(crate) fn run(args: &ReportArgs) -> Result<ExitCode> {
    let mut written = write(&args.directory, args.includes_invalid)?;
    if let Some(percent) = args.least_share {
        let found = acceptance::check(&written.report.table, percent / 100.0)?;
        written.best_results = Some(found);
    }
    print(&written, as_text)?;
    let is_enough = written.best_results.iter().flatten().all(|it| it.is_enough);
    Ok(if is_enough { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Parses a share in percent.
fn percent(text: &str) -> std::result::Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| *number > 0.0 && *number <= 100.0);
    number.ok_or_else(|| "expected a number of percent, above 0 and up to 100".to_owned())
}

/// Writes the report of a study.
pub(super) fn write(directory: &Path, includes_invalid: bool) -> Result<ReportFiles> {
    let contents = journal::read(directory)?;
    let report = analyse(&contents, includes_invalid);
    let directory = directory.join("report");
    std::fs::create_dir_all(&directory).map_err(|error| {
        Error::from(error).within(format_args!("cannot create {}", directory.display()))
    })?;
    let mut names = Vec::new();
    for (name, bytes) in files(&contents, &report)? {
        write_file(&directory.join(&name), &bytes)?;
        names.push(name);
    }
    Ok(ReportFiles { directory, files: names, report, best_results: None })
}

/// Returns the findings of the report as text.
pub(super) fn as_text(written: &ReportFiles) -> String {
    let report = &written.report;
    let mut text = format!("{} of {} runs", report.runs_done, report.runs_planned);
    if report.runs_invalid > 0 {
        let _ = write!(text, ", {} of them invalid", report.runs_invalid);
    }
    text.push('\n');
    for conclusion in &report.conclusions {
        let _ = writeln!(text, "- {}", conclusion.text);
    }
    if !report.table.is_empty() {
        let _ = write!(text, "\n{}\n", as_table(&report.table).trim_end());
    }
    if let Some(found) = &written.best_results {
        let _ = write!(text, "\n{}\n", best_as_text(found));
    }
    let _ = write!(text, "\nThe report: {}", written.directory.join("index.html").display());
    text
}

/// Returns the best results and their shares of the limit as text.
fn best_as_text(found: &[BestResult]) -> String {
    let mut shown = table(&[
        ">Servers",
        "Operation",
        "Caches",
        ">Clients",
        ">Processes",
        ">Best",
        ">Limit",
        "Unit",
        ">% of limit",
        "Enough",
    ]);
    for it in found {
        let quantity = it.operation.quantity();
        let rate = |value| format!("{:.1}", quantity.shown(value));
        shown.add_row([
            it.servers.map_or("-".to_owned(), |number| number.to_string()),
            it.operation.word().to_owned(),
            it.cache.word().to_owned(),
            it.clients.to_string(),
            it.processes.to_string(),
            rate(it.mean),
            rate(it.limit),
            quantity.unit().to_owned(),
            format!("{:.1}", it.share * 100.0),
            if it.is_enough { "yes" } else { "no" }.to_owned(),
        ]);
    }
    render(&shown).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn least_share_option_accepts_up_to_100_percent() {
        assert_eq!(percent("90"), Ok(90.0));
        assert_eq!(percent("87.5"), Ok(87.5));
        for wrong in ["0", "101", "-5", "NaN", "ninety"] {
            assert!(percent(wrong).is_err(), "{wrong}");
        }
    }
}
