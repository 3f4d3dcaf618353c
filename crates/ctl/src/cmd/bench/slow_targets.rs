//! `skep bench slow-targets`: finds storage targets that are slower than the other storage targets.

use super::args::HostArgs;
use super::storage::{StorageOptions, end, finish, measure};
use super::witness::Witness;
use crate::access::ClusterArgs;
use crate::help::{Example, examples};
use crate::output::{render, table};
use serde::Serialize;
use skep_bench::storage::Outcome;
use skep_bench::storage::outliers::{Judged, Rules, Verdict, judge};
use skep_types::{Error, ErrorCode, Result};
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &[Example] = &[
    (
        "measure all storage targets; the exit code is 1 if a target is slow",
        "skep bench slow-targets --repetitions 5",
    ),
    (
        "find the slow targets in an earlier result",
        "skep bench slow-targets --result storage.json --slower-by 20",
    ),
];

/// Find storage targets that are slower than the others, with a given confidence
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct SlowTargetsArgs {
    #[command(flatten)]
    query: ClusterArgs,
    #[command(flatten)]
    storage: StorageOptions,
    /// Judge this result of `skep bench storage --output json` instead of measuring
    #[arg(long, value_name = "FILE", conflicts_with = "result_file")]
    result: Option<PathBuf>,
    /// A target counts as slow if it is slower than the other targets by this percentage or more
    #[arg(long, default_value_t = 10.0, value_name = "PERCENT")]
    slower_by: f64,
    /// Confidence that the verdict requires, in percent
    #[arg(long, default_value_t = 95.0, value_name = "PERCENT")]
    confidence: f64,
}

/// The JSON output: the verdict on each target.
#[derive(Debug, Serialize)]
struct Report {
    rules: Rules,
    slow: Vec<u32>,
    unclear: Vec<u32>,
    targets: Vec<Judged>,
    measured: Outcome,
}

pub(crate) fn run(args: &SlowTargetsArgs) -> Result<ExitCode> {
    let query = &args.query;
    let rules = Rules { slower_by: args.slower_by / 100.0, confidence: args.confidence / 100.0 };
    if !(0.0..1.0).contains(&rules.slower_by) || !(0.5..1.0).contains(&rules.confidence) {
        let what = "invalid --slower-by or --confidence: expected 0 to 99 percent for --slower-by, \
                    and 50 to 99.9 percent for --confidence";
        return Err(Error::new(ErrorCode::InvalidArgument, what));
    }
    let (measured, witness) = match &args.result {
        None => measure(&args.storage, query)?,
        Some(file) => {
            let named = |what: String| {
                Error::new(
                    ErrorCode::InvalidArgument,
                    format!("cannot use the result {}: {what}", file.display()),
                )
            };
            let text = std::fs::read_to_string(file).map_err(|error| named(error.to_string()))?;
            let outcome = serde_json::from_str(&text).map_err(|error| {
                named(format!("expected the output of `skep bench storage --output json`: {error}"))
            })?;
            (outcome, Witness::new(&HostArgs::default()))
        }
    };
    let targets = judge(&measured, rules);
    let of = |verdict| {
        let found = targets.iter().filter(|judged| judged.verdict == verdict);
        let mut ids: Vec<u32> = found.map(|judged| judged.target).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    };
    let (slow, unclear) = (of(Verdict::Slow), of(Verdict::Unclear));
    let report = Report { rules, slow, unclear, targets, measured };
    witness.print(&report, &end(&report.measured), in_words)?;
    finish(&report.measured)?;
    Ok(if report.slow.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn in_words(report: &Report) -> String {
    let titles =
        ["TARGET", "PHASE", ">MEDIAN MiB/s", ">SLOWER BY", ">CONFIDENCE", ">SAMPLES", "VERDICT"];
    let mut shown = table(&titles);
    for judged in &report.targets {
        shown.add_row([
            judged.target.to_string(),
            judged.phase.clone(),
            format!("{:.2}", judged.median_mib_per_s),
            format!("{:.1}%", judged.slower_by * 100.0),
            format!("{:.2}%", judged.confidence * 100.0),
            judged.samples.to_string(),
            match judged.verdict {
                Verdict::Fine => "fine",
                Verdict::Slow => "slow",
                Verdict::Unclear => "unclear",
            }
            .to_owned(),
        ]);
    }
    let list = |ids: &[u32]| ids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let Rules { slower_by, confidence } = report.rules;
    let mut text = match (report.slow.as_slice(), report.measured.targets.len()) {
        (_, 0 | 1) => {
            "The benchmark has measured only one target, but a comparison needs at least two \
             targets.\n"
                .to_owned()
        }
        ([], _) => format!(
            "No target is certainly slower than the other targets by {} or more.\n",
            percent(slower_by)
        ),
        (slow, _) => format!(
            "Slower than the other targets by {} or more, with a confidence of at least {}: {}.\n",
            percent(slower_by),
            percent(confidence),
            list(slow)
        ),
    };
    if !report.unclear.is_empty() {
        text += &format!(
            "Unclear: {}. These targets seem slower, but with so few measurements the difference \
             may be chance; raise --repetitions.\n",
            list(&report.unclear)
        );
    }
    format!("{text}\n{}", render(&shown))
}
