//! `skep study compare`: puts the results of several studies, for example of several file systems,
//! into one table.

use crate::help::{Example, examples};
use crate::output::{print, render, table};
use serde::Serialize;
use skep_study::journal::{self, Contents, write_file};
use skep_study::limits::MAX_COMPARED;
use skep_study::report::{Row, Shown, compare, compared_files};
use skep_types::{Error, ErrorCode, Result};
use std::path::{Path, PathBuf};

const EXAMPLES: &[Example] = &[
    (
        "compare two file systems on which the same plan was run",
        "skep study compare skep=./on-skep nfs=./on-nfs",
    ),
    (
        "write a page with the table and the figures by number of servers",
        "skep study compare two=./two-servers four=./four-servers --directory comparison",
    ),
];

/// Show the results of several studies in one table, side by side
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct CompareArgs {
    /// Directories of studies, each with the name of its system: NAME=DIR, or DIR for the name of
    /// the directory
    #[arg(required = true, num_args = 2.., value_name = "NAME=DIR")]
    studies: Vec<String>,
    /// Include invalid runs, in which the CPU was the limit
    #[arg(long = "with-invalid")]
    includes_invalid: bool,
    /// Also write a page, its figures and the table as CSV to this directory
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

/// The JSON output: the rows of the table, and the written files.
#[derive(Debug, Serialize)]
struct Comparison {
    rows: Vec<Row>,
    /// Directory of the written files. Null if no files were written.
    directory: Option<PathBuf>,
    /// Names of the files in the directory.
    files: Vec<String>,
}

pub(crate) fn run(args: &CompareArgs) -> Result<()> {
    if args.studies.len() > MAX_COMPARED {
        let what = format!(
            "cannot compare {} studies: at most {MAX_COMPARED} fit into one table",
            args.studies.len()
        );
        return Err(Error::new(ErrorCode::InvalidArgument, what));
    }
    let mut studies: Vec<(String, Contents)> = Vec::new();
    for text in &args.studies {
        let (name, directory) = named(text)?;
        if studies.iter().any(|(other, _)| *other == name) {
            let what = format!(
                "invalid study '{text}': another study has the name '{name}'; name the studies \
                 with NAME=DIR"
            );
            return Err(Error::new(ErrorCode::InvalidArgument, what));
        }
        studies.push((name, journal::read(directory)?));
    }
    let rows = compare(&studies, args.includes_invalid);
    let files = match &args.directory {
        Some(directory) => write(directory, &rows)?,
        None => Vec::new(),
    };
    let comparison = Comparison { rows, directory: args.directory.clone(), files };
    print(&comparison, as_text)
}

/// Returns the name and the directory of a study in the arguments.
fn named(text: &str) -> Result<(String, &Path)> {
    if let Some((name, directory)) = text.split_once('=') {
        return Ok((name.to_owned(), Path::new(directory)));
    }
    let directory = Path::new(text);
    match directory.file_name() {
        Some(name) => Ok((name.to_string_lossy().into_owned(), directory)),
        None => {
            let what = format!(
                "invalid study '{text}': the directory has no name; name the study with NAME=DIR"
            );
            Err(Error::new(ErrorCode::InvalidArgument, what))
        }
    }
}

/// Writes the files of a comparison, and returns their names.
fn write(directory: &Path, rows: &[Row]) -> Result<Vec<String>> {
    std::fs::create_dir_all(directory).map_err(|error| {
        Error::from(error).within(format_args!("cannot create {}", directory.display()))
    })?;
    let mut names = Vec::new();
    for (name, bytes) in compared_files(rows)? {
        write_file(&directory.join(&name), &bytes)?;
        names.push(name);
    }
    Ok(names)
}

fn as_text(comparison: &Comparison) -> String {
    let text = as_table(&comparison.rows);
    match &comparison.directory {
        Some(directory) => {
            format!("{text}\nThe comparison: {}", directory.join("index.html").display())
        }
        None => text,
    }
}

/// Returns a table of results as text.
pub(super) fn as_table(rows: &[Row]) -> String {
    let shown = Shown::of(rows);
    // Align the columns with numbers to the right.
    let is_text = |title: &str| ["system", "condition"].contains(&title);
    let title = |it: &String| if is_text(it) { it.clone() } else { format!(">{it}") };
    let titles: Vec<String> = shown.titles.iter().map(title).collect();
    let mut text = table(&titles.iter().map(String::as_str).collect::<Vec<_>>());
    for cells in shown.rows {
        text.add_row(cells);
    }
    render(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn study_is_named_by_its_argument_or_else_by_its_directory() {
        assert_eq!(named("nfs=./a/b").unwrap(), ("nfs".to_owned(), Path::new("./a/b")));
        assert_eq!(named("a/b").unwrap(), ("b".to_owned(), Path::new("a/b")));
        assert!(named("..").unwrap_err().context().contains("NAME=DIR"));
    }
}
