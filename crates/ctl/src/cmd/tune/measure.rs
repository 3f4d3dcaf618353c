//! `skep tune measure`: measures a command with the former and with the recommended value of each
//! setting that deviates from the rules.

use super::args::ScopeArgs;
use super::measured_command::{check_signals, follow_signals, run as run_command};
use crate::help::{Example, examples};
use crate::output::{print, render, table, warn};
use serde::Serialize;
use skep_study::statistics::{Summary, welch};
use skep_tune::changes::{Outcome, apply, is_changed, planned, undo};
use skep_tune::check::{Finding, check};
use skep_tune::{Rules, Tree};
use skep_types::{Error, ErrorCode, Result};
use std::process::{Command, Stdio};
use std::time::Instant;

const EXAMPLES: &[Example] = &[
    (
        "measure how much faster a program runs with each recommended setting",
        "skep tune measure --role client -- cp -r /mnt/skep/input /tmp/input",
    ),
    (
        "measure the rate that a script prints, for one rule",
        "skep tune measure --role storage --device sdb --only read-ahead-storage --number -- \
         ./rate",
    ),
];

/// Significance level. A difference counts only if its p-value is below this level.
const SIGNIFICANT: f64 = 0.05;

/// Measure a command with each setting that deviates, and restore the former settings
///
/// For each rule, the command runs several times, in turn with the former values and with the
/// recommended values. After each change, the former values are restored. If this command is
/// killed, `skep tune undo` restores the former values.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct MeasureArgs {
    /// Measure only these rules, even those with a risk
    #[arg(long, value_delimiter = ',', value_name = "RULES")]
    only: Vec<String>,
    /// Number of runs with each value
    #[arg(long, default_value_t = 5, value_name = "NUMBER")]
    #[arg(value_parser = clap::value_parser!(u32).range(2..=100))]
    repetitions: u32,
    /// Measure the number that the command prints in its last line, such as a rate, where more is
    /// better. Without this option: the time that the command takes
    #[arg(long = "number")]
    has_number: bool,
    #[command(flatten)]
    scope: ScopeArgs,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// The JSON output: the measured rules.
#[derive(Debug, Serialize)]
struct MeasureReport {
    /// Unit of the results: `s` for the time of the command, or `number` for its last line.
    unit: &'static str,
    rules: Vec<MeasuredRule>,
}

/// A rule, with the results of the runs with the former values and of the runs with the recommended
/// values.
#[derive(Debug, Serialize)]
struct MeasuredRule {
    rule: String,
    /// The files of the kernel that the rule changes, at least one.
    files: Vec<String>,
    /// The former value of the first file in `files`.
    is: String,
    should_be: String,
    /// The results with the former values, in the order of the runs.
    former: Vec<f64>,
    /// The results with the recommended values.
    changed: Vec<f64>,
    /// How much better the recommended values are: 0.1 means 10 % faster, or a number that is 10 %
    /// higher. `None` if the kernel has refused the change.
    gain: Option<f64>,
    /// Probability that the difference is due to chance (p-value of Welch's t-test). `None` if the
    /// results do not vary.
    p: Option<f64>,
    /// The error of the kernel. `None` if the kernel has accepted the values.
    refused: Option<String>,
}

pub(crate) fn run(args: &MeasureArgs) -> Result<()> {
    let (tree, scope) = args.scope.resolve(false)?;
    let rules = Rules::built_in();
    rules.check_names(&args.only)?;
    if is_changed(&tree)? {
        return Err(Error::new(
            ErrorCode::InvalidArgument,
            "cannot measure settings: `skep tune apply` has already changed some settings; run \
             `skep tune undo` first, and run `skep tune apply` after the measurement",
        ));
    }
    let findings = check(&tree, &rules, &scope);
    let planned = planned(&findings, &args.only);
    if !planned.is_empty() {
        follow_signals()?;
        warn("if this command is killed, `skep tune undo` restores the former settings");
    }
    let mut report = MeasureReport { unit: args.unit(), rules: Vec::new() };
    for of_rule in planned.chunk_by(|one, next| one.rule == next.rule) {
        let named = |error: Error| error.within(format!("cannot measure rule {}", of_rule[0].rule));
        report.rules.push(measure_rule(args, &tree, of_rule).map_err(named)?);
    }
    print(&report, as_text)
}

impl MeasureArgs {
    fn unit(&self) -> &'static str {
        if self.has_number { "number" } else { "s" }
    }
}

/// Measures one rule. `findings` are the files that the rule changes, at least one file.
fn measure_rule(args: &MeasureArgs, tree: &Tree, findings: &[&Finding]) -> Result<MeasuredRule> {
    let first = findings[0];
    let mut measured = MeasuredRule {
        rule: first.rule.clone(),
        files: findings.iter().map(|it| it.file.clone()).collect(),
        is: first.is.clone(),
        should_be: format!("{}{}", first.test.words(), first.should_be),
        former: Vec::new(),
        changed: Vec::new(),
        gain: None,
        p: None,
        refused: None,
    };
    for repetition in 0..args.repetitions {
        // The order of the two runs alternates. So a slow change of the host's speed affects the
        // former and the recommended values equally.
        let begins_changed = repetition % 2 == 1;
        for is_changed in [begins_changed, !begins_changed] {
            if !is_changed {
                measured.former.push(result(args)?);
                continue;
            }
            match with_changes(args, tree, findings)? {
                Ok(value) => measured.changed.push(value),
                Err(refused) => {
                    measured.refused = Some(refused);
                    return Ok(measured);
                }
            }
        }
    }
    compare(args, &mut measured);
    Ok(measured)
}

/// Changes the settings, runs the command, and restores the settings, also if the command fails.
/// Returns the result of the command, or the error with which the kernel has refused a value.
fn with_changes(
    args: &MeasureArgs,
    tree: &Tree,
    findings: &[&Finding],
) -> Result<std::result::Result<f64, String>> {
    let refused = |outcome: &Outcome| outcome.failures.first().map(|it| it.error.clone());
    let applied = apply(tree, findings);
    let value = match &applied {
        Ok(outcome) if outcome.failures.is_empty() => Some(result(args)),
        _ => None,
    };
    if is_changed(tree)? {
        let restored = undo(tree, false)?;
        if let Some(error) = refused(&restored) {
            let what = format!("{error}; `skep tune undo` repeats the attempt");
            return Err(Error::new(ErrorCode::Io, what));
        }
    }
    let outcome = applied?;
    match value {
        Some(value) => value.map(Ok),
        None => Ok(Err(refused(&outcome).unwrap_or_default())),
    }
}

/// Runs the command once, and returns its result.
///
/// # Errors
/// - `Interrupted` if a signal has ended the measurement.
/// - `Io` if the command fails, or does not print a number.
fn result(args: &MeasureArgs) -> Result<f64> {
    let failed = |fact: String| {
        let what = format!("cannot measure command '{}': {fact}", args.command.join(" "));
        Error::new(ErrorCode::Io, what)
    };
    let (program, arguments) =
        args.command.split_first().ok_or_else(|| failed("the command is empty".into()))?;
    let mut command = Command::new(program);
    let stdout = if args.has_number { Stdio::piped() } else { Stdio::null() };
    command.args(arguments).stdin(Stdio::null()).stdout(stdout).stderr(Stdio::inherit());
    check_signals()?;
    let begin = Instant::now();
    let output = run_command(&mut command).map_err(|error| failed(error.to_string()))?;
    let seconds = begin.elapsed().as_secs_f64();
    check_signals()?;
    if !output.status.success() {
        return Err(failed(format!("the command has failed with {}", output.status)));
    }
    if !args.has_number {
        return Ok(seconds);
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.trim_end().lines().next_back().unwrap_or_default().trim();
    let number = last.parse::<f64>().ok().filter(|number| number.is_finite());
    number.ok_or_else(|| failed(format!("the last line of its output, '{last}', is not a number")))
}

/// Computes the gain, and the probability that the gain is due to chance.
fn compare(args: &MeasureArgs, measured: &mut MeasuredRule) {
    // A higher number and a shorter time are better.
    let (better, worse) = match args.has_number {
        true => (&measured.changed, &measured.former),
        false => (&measured.former, &measured.changed),
    };
    let (Some(over), Some(under)) = (Summary::of(better), Summary::of(worse)) else { return };
    let p = welch(better, worse).map(|it| it.p);
    measured.gain = Some(over.mean / under.mean - 1.0).filter(|gain| gain.is_finite());
    measured.p = p;
}

fn as_text(report: &MeasureReport) -> String {
    if report.rules.is_empty() {
        return "No setting deviates from the rules, so there is nothing to measure".to_owned();
    }
    let mut shown =
        table(&["Rule", "Is", "Should be", ">Former", ">Changed", ">Gain %", ">p", "Conclusion"]);
    for it in &report.rules {
        let mean = |values: &[f64]| match Summary::of(values) {
            Some(summary) => format!("{:.3}", summary.mean),
            None => "-".to_owned(),
        };
        shown.add_row([
            it.rule.clone(),
            it.is.clone(),
            it.should_be.clone(),
            mean(&it.former),
            mean(&it.changed),
            it.gain.map_or("-".to_owned(), |gain| format!("{:+.1}", gain * 100.0)),
            it.p.map_or("-".to_owned(), |p| format!("{p:.4}")),
            conclusion(it),
        ]);
    }
    let unit = match report.unit {
        "s" => "seconds of the command",
        _ => "the number that the command prints",
    };
    format!("{}\nFormer and changed: mean of {unit}\n", render(&shown))
}

/// Describes a result in words.
fn conclusion(it: &MeasuredRule) -> String {
    match (&it.refused, it.gain, it.p) {
        (Some(error), ..) => format!("the kernel refuses the value: {error}"),
        (None, Some(gain), p) if gain != 0.0 && p.is_none_or(|p| p < SIGNIFICANT) => {
            if gain > 0.0 { "better" } else { "worse" }.to_owned()
        }
        _ => "no difference is shown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(former: &[f64], changed: &[f64]) -> MeasuredRule {
        MeasuredRule {
            rule: "swappiness".into(),
            files: vec!["/proc/sys/vm/swappiness".into()],
            is: "60".into(),
            should_be: "10".into(),
            former: former.to_vec(),
            changed: changed.to_vec(),
            gain: None,
            p: None,
            refused: None,
        }
    }

    fn args(has_number: bool) -> MeasureArgs {
        use clap::Parser;
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: MeasureArgs,
        }
        let number: &[&str] = if has_number { &["--number"] } else { &[] };
        let words = [&["x", "--role", "client"][..], number, &["--", "true"]].concat();
        Line::parse_from(words).args
    }

    #[test]
    fn gain_is_positive_for_less_time_and_for_a_higher_number() {
        let mut times = measured(&[2.0, 2.1, 1.9], &[1.0, 1.1, 0.9]);
        compare(&args(false), &mut times);
        assert!((times.gain.unwrap() - 1.0).abs() < 1e-9, "{times:?}");
        assert_eq!(conclusion(&times), "better");
        let mut numbers = measured(&[100.0, 101.0, 99.0], &[90.0, 91.0, 89.0]);
        compare(&args(true), &mut numbers);
        assert!((numbers.gain.unwrap() + 0.1).abs() < 1e-9, "{numbers:?}");
        assert_eq!(conclusion(&numbers), "worse");
        let mut equal = measured(&[100.0, 120.0, 80.0], &[101.0, 119.0, 79.0]);
        compare(&args(true), &mut equal);
        assert_eq!(conclusion(&equal), "no difference is shown");
    }
}
