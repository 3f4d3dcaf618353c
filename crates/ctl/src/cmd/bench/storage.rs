//! `skep bench storage`: measures the speed of each storage target. `skep bench slow-targets` has
//! the same options.

use super::args::{HostArgs, ResultArgs, parse_size};
use super::end_on_signals;
use super::results::Size;
use super::witness::{Witness, end_progress};
use crate::access::{Access, ClusterArgs, PATIENCE};
use crate::help::{Example, examples};
use crate::output::{render, table};
use serde_json::{Value, json};
use skep_bench::statistics::{Summary, median};
use skep_bench::storage::{Connected, Outcome, Plan, TargetRecord};
use skep_types::{ClusterMap, Error, ErrorCode, Result, TargetKind};
use std::process::ExitCode;

const EXAMPLES: &[Example] = &[
    ("measure all storage targets at the same time", "skep bench storage"),
    (
        "measure two targets one after the other, with large files, five times",
        "skep bench storage --targets 3,7 --one-by-one --size 4g --repetitions 5",
    ),
];

/// Measure the storage targets themselves, without the network
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct StorageArgs {
    #[command(flatten)]
    query: ClusterArgs,
    #[command(flatten)]
    options: StorageOptions,
}

/// The options of the measurement of storage targets, which `storage` and `slow-targets` share.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct StorageOptions {
    /// Only these targets: ids separated by commas [default: all]
    #[arg(long, value_delimiter = ',', value_name = "IDS")]
    targets: Vec<u32>,
    /// Measure writing [default: writing and reading]
    #[arg(long)]
    write: bool,
    /// Measure reading; the command first writes the data [default: writing and reading]
    #[arg(long)]
    read: bool,
    /// Number of threads per target; each writes and reads its own file
    #[arg(long, default_value_t = 4, value_name = "NUMBER")]
    threads: u16,
    /// Size of each file
    #[arg(long, default_value = "256m", value_name = "SIZE", value_parser = parse_size)]
    size: u64,
    /// Bytes per transfer: a multiple of 4 KiB, up to 4 MiB
    #[arg(long, default_value = "1m", value_name = "SIZE", value_parser = parse_size)]
    block_size: u64,
    /// Number of repetitions
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    repetitions: u32,
    /// Measure one target at a time, instead of all targets at the same time
    #[arg(long)]
    one_by_one: bool,
    /// Stop the benchmark if no target makes progress for this time
    #[arg(long, default_value_t = skep_bench::limits::DEFAULT_PATIENCE_S, value_name = "SECONDS")]
    patience: u32,
    #[command(flatten)]
    results: ResultArgs,
}

pub(crate) fn run(args: &StorageArgs) -> Result<ExitCode> {
    let StorageArgs { query, options } = args;
    let (outcome, witness) = measure(options, query)?;
    witness.print(&outcome, &end(&outcome), as_table)?;
    finish(&outcome)
}

/// Returns the last line of the file of results, as JSON.
pub(super) fn end(outcome: &Outcome) -> Value {
    json!({"kind": "end", "failure": outcome.failure})
}

pub(super) fn finish(outcome: &Outcome) -> Result<ExitCode> {
    match &outcome.failure {
        Some(why) => Err(Error::new(ErrorCode::Io, why.clone())),
        None => Ok(ExitCode::SUCCESS),
    }
}

pub(super) fn measure(args: &StorageOptions, query: &ClusterArgs) -> Result<(Outcome, Witness)> {
    let both = !args.write && !args.read;
    let plan = Plan {
        write: args.write || both,
        read: args.read || both,
        threads: args.threads,
        size_bytes: args.size,
        block_bytes: u32::try_from(args.block_size).map_err(|_| {
            Error::new(ErrorCode::InvalidArgument, "invalid --block-size: expected at most 4 MiB")
        })?,
        repetitions: args.repetitions,
        one_by_one: args.one_by_one,
        patience_s: args.patience,
    };
    plan.check()?;
    let access = query.access(None)?;
    end_on_signals()?;
    let (wanted, results) = (args.targets.clone(), args.results.clone());
    // The default arguments name no lab, because this benchmark starts no processes on hosts.
    let witness = Witness::new(&HostArgs::default());
    let result = crate::cmd::block_on(async move {
        let map = access.map().await?;
        let targets = connect(&access, &map, &wanted).await?;
        let size = Size {
            lines: 2 * targets.len() as u64 * u64::from(plan.repetitions),
            parts: plan.threads.into(),
            samples: 0,
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

/// Connects to the storage targets in `wanted`, or to all storage targets if `wanted` is empty.
async fn connect(access: &Access, map: &ClusterMap, wanted: &[u32]) -> Result<Vec<Connected>> {
    let mut connected = Vec::new();
    for id in wanted {
        let is_named = |target: &&skep_types::Target| target.id.raw() == *id;
        if map.targets.iter().find(is_named).is_none_or(|it| it.kind != TargetKind::Storage) {
            let what = format!(
                "cannot find storage target {id}: no storage target has this id; `skep target \
                 list` shows all targets"
            );
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
            let what = format!(
                "cannot connect to {}: {}; choose other targets with --targets",
                node.name,
                error.context()
            );
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
    let titles = ["TARGET", "SERVICE", "PHASE", ">MEDIAN MiB/s", ">MIN", ">MAX", ">SAMPLES"];
    let mut shown = table(&titles);
    let mut totals = table(&["PHASE", ">MAX MiB/s", ">MIN", ">MEAN", ">STD DEV"]);
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
        true => {
            "\nThe file systems of some targets cannot bypass the page cache, so the rates of \
             these targets are rates of memory.\n"
        }
        false => "",
    };
    format!("{}\n{}{note}", render(&shown), render(&totals))
}
