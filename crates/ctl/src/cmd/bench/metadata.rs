//! `skep bench metadata`: mdtest's phases.

use super::results::Size;
use super::witness::Witness;
use super::{by, end_on_signals, hosts, named, path_on_hosts, runner};
use crate::cli::bench::MetadataArgs;
use crate::output::{render, table};
use skep_bench::metadata::{OPERATIONS, Outcome, Plan};
use skep_types::Result;
use std::process::ExitCode;

pub(super) fn run(args: &MetadataArgs) -> Result<ExitCode> {
    let hosts = hosts(&args.place)?;
    let plan = plan(args)?;
    end_on_signals()?;
    let processes = args.place.processes_per_host;
    let runner = runner(args.tool.as_deref(), &args.runner);
    let size = Size {
        lines: OPERATIONS.len() as u64 * u64::from(plan.repetitions),
        parts: hosts.len() as u64 * u64::from(processes),
        is_reported: runner.is_some(),
    };
    let witness = Witness::new(&args.place);
    let mut witness = witness.keep(&args.results, ("metadata", &plan), size)?;
    let mut see = |progress| witness.see(progress);
    let result = skep_bench::metadata::run_by(runner.as_ref(), &plan, &hosts, processes, &mut see);
    witness.report(result, |it| it.failure.as_deref(), as_table)?;
    Ok(ExitCode::SUCCESS)
}

fn plan(args: &MetadataArgs) -> Result<Plan> {
    // As with mdtest, none means all.
    let all = !(args.create || args.stat || args.read || args.remove);
    let directory = path_on_hosts(&args.place, &args.directory, "directory (-d)")?;
    Ok(Plan {
        directory: directory.display().to_string(),
        items: args.items,
        items_per_directory: args.items_per_directory,
        depth: args.depth,
        branching: args.branching,
        leaves_only: args.leaves_only,
        unique_trees: args.unique_trees,
        files_only: args.files_only,
        directories_only: args.directories_only,
        create: args.create || all,
        stat: args.stat || all,
        read: args.read || all,
        remove: args.remove || all,
        repetitions: args.repetitions,
        write_bytes: args.write_bytes,
        read_bytes: args.read_bytes,
        sync: args.sync,
        stride: args.stride,
        run: None,
        keep_caches: args.caches.keep_caches,
        before_phase: args.caches.before_phase.clone(),
        server_hosts: named(&args.caches.server_hosts, &args.place.enter),
        patience_s: args.place.patience,
    })
}

/// The table with which mdtest ends.
fn as_table(outcome: &Outcome) -> String {
    let mut shown = table(&["OPERATION", ">MAX/S", ">MIN/S", ">MEAN/S", ">STD DEV"]);
    for (phase, title) in OPERATIONS {
        let Some(summary) = outcome.summary(phase) else { continue };
        let numbers = [summary.max, summary.min, summary.mean, summary.std_dev];
        let cells = numbers.iter().map(|number| format!("{number:.3}"));
        shown.add_row([title.to_owned()].into_iter().chain(cells));
    }
    let hosts = outcome.hosts.iter().filter(|host| host.has_processes).count();
    let skew = outcome.phases.iter().map(|phase| phase.start_skew_s).fold(0.0, f64::max);
    format!(
        "{}{}: {} processes on {hosts} hosts, {} items each, {} times; processes started at most \
         {:.1} ms apart\n\n{}",
        by(&outcome.tool),
        outcome.plan.directory,
        outcome.processes,
        outcome.plan.items_of_process(),
        outcome.plan.repetitions,
        skew * 1000.0,
        render(&shown)
    )
}
