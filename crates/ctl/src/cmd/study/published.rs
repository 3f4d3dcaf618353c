//! `skep study published`: shows published measurements next to the results of a study.

use crate::help::{Example, examples};
use crate::output::{print, render, say, table};
use skep_study::journal;
use skep_study::published::{self, ComparedSeries, Comparison, compare};
use skep_types::{Error, ErrorCode, Result};
use std::fmt::Write;
use std::path::PathBuf;

const EXAMPLES: &[Example] = &[
    (
        "compare a study of the plan alces with the published rates, point by point",
        "skep study published skep-study-alces",
    ),
    (
        "compare a study of your own plan with measurements that you describe in a file",
        "skep study published my-study --series mine.toml",
    ),
    (
        "print the built-in series, as an example of such a file",
        "skep study published --print-series",
    ),
];

/// Show published measurements beside the results of a study, point by point
///
/// Compares shapes: each rate is divided by the highest rate of its series, because an emulated
/// cluster is slower than the published systems.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct PublishedArgs {
    /// Directory of the study
    #[arg(required_unless_present = "print_series")]
    directory: Option<PathBuf>,
    /// File with series that replace the built-in series
    #[arg(long, value_name = "FILE")]
    series: Option<PathBuf>,
    /// Include invalid runs, in which the CPU was the limit
    #[arg(long = "with-invalid")]
    includes_invalid: bool,
    /// Print the built-in series instead
    #[arg(long)]
    print_series: bool,
}

pub(crate) fn run(args: &PublishedArgs) -> Result<()> {
    if args.print_series {
        return say(published::BUILT_IN.trim_end());
    }
    let Some(directory) = &args.directory else {
        let what = "cannot compare a study: no directory is given; name the directory of a study";
        return Err(Error::new(ErrorCode::InvalidArgument, what));
    };
    let series = match &args.series {
        None => published::built_in(),
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|error| {
                Error::from(error).within(format_args!("cannot read {}", path.display()))
            })?;
            published::parse(&text)
                .map_err(|error| error.within(format_args!("cannot read {}", path.display())))?
        }
    };
    let contents = journal::read(directory)?;
    print(&compare(&contents, args.includes_invalid, &series)?, as_text)
}

fn as_text(comparison: &Comparison) -> String {
    let mut text = String::new();
    for series in &comparison.series {
        let _ = write!(text, "{}", series_as_text(series));
    }
    if !comparison.without_results.is_empty() {
        let names = comparison.without_results.join(", ");
        let _ = writeln!(text, "Series with results for fewer than two points: {names}");
    }
    text
}

fn series_as_text(series: &ComparedSeries) -> String {
    let mut titles = vec![
        "Published for",
        "Measured for",
        ">Published",
        ">Measured",
        ">Published %",
        ">Measured %",
        ">Difference",
        ">Runs",
    ];
    // Only the series of some publications have the limits of their hardware.
    let has_limits = series.points.iter().any(|it| it.published_of_limit.is_some());
    if has_limits {
        titles.extend([">Published % of limit", ">Measured % of limit"]);
    }
    let mut shown = table(&titles);
    for it in &series.points {
        let mut row = vec![
            it.label.clone(),
            it.condition.clone(),
            rate(it.published, &series.published_unit),
            rate(it.measured, series.measured_unit),
            format!("{:.0}", it.published_share * 100.0),
            format!("{:.0}", it.measured_share * 100.0),
            format!("{:+.0}", it.difference * 100.0),
            it.runs.to_string(),
        ];
        if has_limits {
            row.extend([of_limit(it.published_of_limit), of_limit(it.measured_of_limit)]);
        }
        shown.add_row(row);
    }
    let missing = match series.points_without_results {
        0 => String::new(),
        number => format!("; points without results: {number}"),
    };
    format!(
        "{} ({})\nRuns of the study: {}\n{}\nDifference: {:.1} points on average, at most \
         {:.1}{missing}\n\n",
        series.name,
        series.source,
        if series.condition.is_empty() { "all" } else { series.condition.as_str() },
        render(&shown).trim_end(),
        series.mean_difference * 100.0,
        series.largest_difference * 100.0
    )
}

/// Formats a share of a limit in percent. Returns `-` if the limit is not known.
fn of_limit(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.1}", share * 100.0))
}

/// Formats a rate with its unit. A rate below 10, such as a ratio, has two decimals. All other
/// rates have no decimals.
fn rate(value: f64, unit: &str) -> String {
    match value < 10.0 {
        true => format!("{value:.2} {unit}"),
        false => format!("{value:.0} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_study::published::ComparedPoint;

    #[test]
    fn columns_of_limits_are_shown_only_for_series_with_limits() {
        let point = |published_of_limit, measured_of_limit| ComparedPoint {
            label: "1 server".to_owned(),
            condition: "servers 1".to_owned(),
            published: 760.0,
            published_share: 1.0,
            measured: 18.0,
            measured_share: 1.0,
            runs: 2,
            difference: 0.0,
            published_of_limit,
            measured_of_limit,
        };
        let series = |points| ComparedSeries {
            name: "s".to_owned(),
            source: "a paper".to_owned(),
            condition: String::new(),
            published_unit: "MB/s".to_owned(),
            measured_unit: "MiB/s",
            points,
            points_without_results: 0,
            mean_difference: 0.0,
            largest_difference: 0.0,
        };
        let without = series_as_text(&series(vec![point(None, None)]));
        assert!(!without.contains("% OF LIMIT"), "{without}");
        let with = series_as_text(&series(vec![point(Some(0.99), Some(0.954)), point(None, None)]));
        assert!(with.contains("PUBLISHED % OF LIMIT  MEASURED % OF LIMIT"), "{with}");
        assert!(with.contains("99.0") && with.contains("95.4"), "{with}");
    }

    #[test]
    fn small_rates_have_decimals() {
        assert_eq!(rate(1.49, "times (1,3)"), "1.49 times (1,3)");
        assert_eq!(rate(262_000.4, "IO/s"), "262000 IO/s");
    }
}
