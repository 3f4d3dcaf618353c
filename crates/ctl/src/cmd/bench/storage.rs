//! `skep bench storage`: each target's own speed. `skep bench slow-targets`: which are too slow.

use super::end_on_signals;
use super::results::Size;
use super::witness::{Witness, end_progress};
use crate::access::{Access, ClusterArgs, PATIENCE};
use crate::cli::bench::{HostArgs, SlowTargetsArgs, StorageArgs};
use crate::output::{render, table};
use serde::Serialize;
use serde_json::{Value, json};
use skep_bench::statistics::{Summary, median};
use skep_bench::storage::outliers::{Judged, Rules, Verdict, judge};
use skep_bench::storage::{Connected, Outcome, Plan, TargetRecord};
use skep_types::{ClusterMap, Error, ErrorCode, Result, TargetKind};
use std::process::ExitCode;

pub(super) fn run(args: &StorageArgs, query: &ClusterArgs) -> Result<ExitCode> {
    let (outcome, witness) = measure(args, query)?;
    witness.print(&outcome, &end(&outcome), as_table)?;
    finish(&outcome)
}

/// The last line of a file of results.
fn end(outcome: &Outcome) -> Value {
    json!({"kind": "end", "failure": outcome.failure})
}

fn finish(outcome: &Outcome) -> Result<ExitCode> {
    match &outcome.failure {
        Some(why) => Err(Error::new(ErrorCode::Io, why.clone())),
        None => Ok(ExitCode::SUCCESS),
    }
}

fn measure(args: &StorageArgs, query: &ClusterArgs) -> Result<(Outcome, Witness)> {
    let both = !args.write && !args.read;
    let plan = Plan {
        write: args.write || both,
        read: args.read || both,
        threads: args.threads,
        size_bytes: args.size,
        block_bytes: u32::try_from(args.block_size).map_err(|_| {
            Error::new(ErrorCode::InvalidArgument, "the block size is at most 4 MiB")
        })?,
        repetitions: args.repetitions,
        one_by_one: args.one_by_one,
        patience_s: args.patience,
    };
    plan.check()?;
    let access = query.access(None)?;
    end_on_signals()?;
    let (wanted, results) = (args.targets.clone(), args.results.clone());
    // No process runs anywhere, in no lab.
    let witness = Witness::new(&HostArgs::default());
    let result = crate::cmd::block_on(async move {
        let map = access.map().await?;
        let targets = connect(&access, &map, &wanted).await?;
        let size = Size {
            lines: 2 * targets.len() as u64 * u64::from(plan.repetitions),
            parts: plan.threads.into(),
            is_reported: false,
        };
        let mut witness = witness.keep(&results, ("storage", &plan), size)?;
        let mut see = |progress| witness.see(progress);
        let outcome = skep_bench::storage::run(&plan, &targets, &mut see).await?;
        Ok((outcome, witness))
    });
    end_progress();
    result
}

/// The storage targets that were named, or all.
async fn connect(access: &Access, map: &ClusterMap, wanted: &[u32]) -> Result<Vec<Connected>> {
    let mut connected = Vec::new();
    for id in wanted {
        let is_named = |target: &&skep_types::Target| target.id.raw() == *id;
        if map.targets.iter().find(is_named).is_none_or(|it| it.kind != TargetKind::Storage) {
            let what = format!("there is no storage target {id}; `skep target list` shows all");
            return Err(Error::new(ErrorCode::NotFound, what));
        }
    }
    let mut targets: Vec<_> =
        map.targets.iter().filter(|target| target.kind == TargetKind::Storage).collect();
    targets.sort_by_key(|target| target.id);
    targets.retain(|target| wanted.is_empty() || wanted.contains(&target.id.raw()));
    for target in targets {
        let Some(node) = map.node(target.node) else { continue };
        let (_, connection) = access.connect(node, target.id, PATIENCE).await.map_err(|error| {
            let what = format!("{}: {}; name others with --targets", node.name, error.context());
            Error::new(error.code(), what)
        })?;
        let record = TargetRecord {
            id: target.id.raw(),
            node: node.id.raw(),
            node_name: node.name.clone(),
            path: target.path.clone(),
        };
        connected.push((record, connection));
    }
    Ok(connected)
}

fn as_table(outcome: &Outcome) -> String {
    let titles = ["TARGET", "SERVICE", "PHASE", ">MEDIAN MIB/S", ">MIN", ">MAX", ">SAMPLES"];
    let mut shown = table(&titles);
    let mut totals = table(&["PHASE", ">MAX MIB/S", ">MIN", ">MEAN", ">STD DEV"]);
    for phase in ["write", "read"] {
        for target in &outcome.targets {
            let rates = outcome.bandwidths(target.id, phase);
            let (Some(summary), Some(middle)) = (Summary::of(&rates), median(&rates)) else {
                continue;
            };
            shown.add_row([
                target.id.to_string(),
                target.node_name.clone(),
                phase.to_owned(),
                format!("{middle:.2}"),
                format!("{:.2}", summary.min),
                format!("{:.2}", summary.max),
                rates.len().to_string(),
            ]);
        }
        let Some(summary) = outcome.summary(phase) else { continue };
        let numbers = [summary.max, summary.min, summary.mean, summary.std_dev];
        let cells = numbers.iter().map(|number| format!("{number:.2}"));
        totals.add_row([phase.to_owned()].into_iter().chain(cells));
    }
    let cached = outcome.samples.iter().any(|sample| !sample.is_direct);
    let note = match cached {
        true => "\nSome file systems can't go past the page cache: their rates are of memory.\n",
        false => "",
    };
    format!("{}\n{}{note}", render(&shown), render(&totals))
}

/// What is said of all targets.
#[derive(Debug, Serialize)]
struct Report {
    rules: Rules,
    slow: Vec<u32>,
    unclear: Vec<u32>,
    targets: Vec<Judged>,
    measured: Outcome,
}

pub(super) fn slow_targets(args: &SlowTargetsArgs, query: &ClusterArgs) -> Result<ExitCode> {
    let rules = Rules { slower_by: args.slower_by / 100.0, confidence: args.confidence / 100.0 };
    if !(0.0..1.0).contains(&rules.slower_by) || !(0.5..1.0).contains(&rules.confidence) {
        let what = "--slower-by is a share from 0 to 99 %, --confidence one from 50 to 99.9 %";
        return Err(Error::new(ErrorCode::InvalidArgument, what));
    }
    let (measured, witness) = match &args.result {
        None => measure(&args.storage, query)?,
        Some(file) => {
            let named = |what: String| {
                Error::new(ErrorCode::InvalidArgument, format!("{}: {what}", file.display()))
            };
            let text = std::fs::read_to_string(file).map_err(|error| named(error.to_string()))?;
            let outcome = serde_json::from_str(&text).map_err(|error| {
                named(format!("not a result of `skep bench storage --output json`: {error}"))
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
        ["TARGET", "PHASE", ">MEDIAN MIB/S", ">SLOWER BY", ">CONFIDENCE", ">SAMPLES", "VERDICT"];
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
        (_, 0 | 1) => "One target alone can't be compared with any.\n".to_owned(),
        ([], _) => format!(
            "No target is surely slower than the others by {} or more.\n",
            percent(slower_by)
        ),
        (slow, _) => format!(
            "Slower than the others by {} or more, with a confidence of at least {}: {}.\n",
            percent(slower_by),
            percent(confidence),
            list(slow)
        ),
    };
    if !report.unclear.is_empty() {
        text += &format!(
            "It can't be told of {}: they seem slower, but chance could do that with so few \
             measurements; take more (--repetitions).\n",
            list(&report.unclear)
        );
    }
    format!("{text}\n{}", render(&shown))
}
