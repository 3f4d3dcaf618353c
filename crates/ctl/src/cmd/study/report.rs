//! `skep study report`: writes the report of a study from the results that the study has so far.

use super::compare::as_table;
use crate::help::{Example, examples};
use crate::output::print;
use serde::Serialize;
use skep_study::journal::{self, write_file};
use skep_study::report::{Report, analyse, files};
use skep_types::{Error, Result};
use std::fmt::Write;
use std::path::{Path, PathBuf};

const EXAMPLES: &[Example] = &[
    ("write a page for people, skep-study/report/index.html", "skep study report skep-study"),
    ("print the findings for a program", "skep study report skep-study --output json"),
];

/// Write the report of a study: a page, figures and tables
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct ReportArgs {
    /// Include invalid runs, in which the CPU was the limit; the report marks them as invalid
    #[arg(long = "with-invalid")]
    includes_invalid: bool,
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
}

pub(crate) fn run(args: &ReportArgs) -> Result<()> {
    let ReportArgs { includes_invalid, directory } = args;
    print(&write(directory, *includes_invalid)?, as_text)
}

/// Writes the report of a study.
pub(super) fn write(directory: &Path, includes_invalid: bool) -> Result<ReportFiles> {
    let contents = journal::read(directory)?;
    let report = analyse(&contents, includes_invalid);
    let directory = directory.join("report");
    std::fs::create_dir_all(&directory)
        .map_err(|error| Error::from(error).within(directory.display()))?;
    let mut names = Vec::new();
    for (name, bytes) in files(&contents, &report)? {
        write_file(&directory.join(&name), &bytes)?;
        names.push(name);
    }
    Ok(ReportFiles { directory, files: names, report })
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
    let _ = write!(text, "\nThe report: {}", written.directory.join("index.html").display());
    text
}
