//! `skep bench metadata`: creates, stats, reads and removes files and directories in mdtest's
//! phases.

use super::args::{CacheArgs, HostArgs, ResultArgs, RunnerArgs, parse_size};
use super::presets::{self, MetadataPreset};
use super::results::Size;
use super::witness::Witness;
use super::{by, end_on_signals, hosts, microseconds, named, path_on_hosts, runner, warm_ups};
use crate::help::{Example, examples};
use crate::output::{render, table};
use skep_bench::metadata::{OPERATIONS, Outcome, Plan};
use skep_types::Result;
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &[Example] = &[
    (
        "4 processes, each with its own tree of directories with 1000 files",
        "skep bench metadata --processes-per-host 4 -u -F -I 1000 -d /mnt/skep",
    ),
    (
        "three hosts; each host uses the items that the next host has created",
        "skep bench metadata --hosts a,b,c -n 10000 -N 1 -i 3 -d /mnt/skep",
    ),
    (
        "spread the directories of four processes over all metadata servers of Skep",
        "skep bench metadata --processes-per-host 4 -u --separate-trees -I 1000 -d /mnt/skep",
    ),
    (
        "repeat a published measurement with fewer files",
        "skep bench metadata --hosts a,b --preset azure-mdtest -I 100 -d /mnt/skep",
    ),
];

/// Create, stat, read and remove files and directories as mdtest does
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct MetadataArgs {
    #[command(flatten)]
    place: HostArgs,
    #[command(flatten)]
    caches: CacheArgs,
    #[command(flatten)]
    runner: RunnerArgs,
    /// Run this installed program instead of the built-in benchmark, with translated options
    #[arg(long, value_name = "PROGRAM", value_parser = ["mdtest"])]
    tool: Option<String>,
    /// Existing directory to work in; {host} becomes the host's name
    #[arg(short = 'd', long, value_name = "DIR")]
    directory: PathBuf,
    /// Use a named set of options; other options of the command line replace options of the set
    #[arg(long, value_name = "NAME", value_parser = presets::of_metadata())]
    preset: Option<String>,
    /// Items per process, over all directories of the tree
    #[arg(short = 'n', long, value_name = "NUMBER", conflicts_with = "items_per_directory")]
    items: Option<u64>,
    /// Items per process in each directory of the tree
    #[arg(short = 'I', long, value_name = "NUMBER")]
    items_per_directory: Option<u64>,
    /// Depth of the directory tree [default: 0]
    #[arg(short = 'z', long, value_name = "NUMBER")]
    depth: Option<u32>,
    /// Subdirectories per directory of the tree [default: 1]
    #[arg(short = 'b', long, value_name = "NUMBER")]
    branching: Option<u64>,
    /// Put items into the leaves of the tree only
    #[arg(short = 'L', long)]
    leaves_only: bool,
    /// Use one tree per process
    #[arg(short = 'u', long)]
    unique_trees: bool,
    /// With -u: put the tree of each process directly into the directory. In the root of Skep, the
    /// trees are then on all metadata servers
    #[arg(long)]
    separate_trees: bool,
    /// Use files only
    #[arg(short = 'F', long)]
    files_only: bool,
    /// Use directories only
    #[arg(short = 'D', long)]
    directories_only: bool,
    /// Create items [default: all four phases]
    #[arg(short = 'C', long)]
    create: bool,
    /// Stat items [default: all four phases]
    #[arg(short = 'T', long)]
    stat: bool,
    /// Read files [default: all four phases]
    #[arg(short = 'E', long)]
    read: bool,
    /// Remove items [default: all four phases]
    #[arg(short = 'r', long)]
    remove: bool,
    /// Number of repetitions [default: 1]
    #[arg(short = 'i', long, value_name = "NUMBER")]
    repetitions: Option<u32>,
    /// Bytes to write into each new file
    #[arg(short = 'w', long, default_value = "0", value_name = "SIZE", value_parser = parse_size)]
    write_bytes: u64,
    /// Bytes to read from each file
    #[arg(short = 'e', long, default_value = "0", value_name = "SIZE", value_parser = parse_size)]
    read_bytes: u64,
    /// Sync each file after writing
    #[arg(short = 'y', long)]
    sync: bool,
    /// Let each process stat the items of the process whose number is higher by this value. For
    /// reads the number is higher by twice the value, and for removals by three times; 1 means a
    /// process on the next host
    #[arg(short = 'N', long, default_value_t = 0, value_name = "NUMBER")]
    stride: u32,
    /// Number of metadata servers of the file system; the table also shows the mean rate of each
    #[arg(long, value_name = "NUMBER")]
    metadata_servers: Option<u32>,
    #[command(flatten)]
    results: ResultArgs,
}

pub(super) fn run(args: &MetadataArgs) -> Result<ExitCode> {
    let hosts = hosts(&args.place)?;
    let preset = args.preset.as_deref().and_then(MetadataPreset::named);
    let plan = plan(args, preset)?;
    end_on_signals()?;
    let of_preset = preset.map_or(1, |it| it.processes_per_host);
    let processes = args.place.processes_per_host.unwrap_or(of_preset);
    let runner = runner(args.tool.as_deref(), &args.runner);
    let size = Size {
        lines: OPERATIONS.len() as u64 * u64::from(plan.repetitions),
        parts: hosts.len() as u64 * u64::from(processes),
        samples: 0,
        is_reported: runner.is_some(),
    };
    let witness = Witness::new(&args.place);
    let mut witness = witness.keep(&args.results, ("metadata", &plan), size)?;
    let mut see = |progress| witness.see(progress);
    let result = skep_bench::metadata::run(runner.as_ref(), &plan, &hosts, processes, &mut see);
    witness.report(result, |it| it.failure.as_deref(), as_table)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the plan of the run. Options of the command line replace options of the preset.
fn plan(args: &MetadataArgs, preset: Option<&MetadataPreset>) -> Result<Plan> {
    let names_no_phase = !(args.create || args.stat || args.read || args.remove);
    // As in mdtest, a command line that names no phase requests all phases.
    let all = names_no_phase && preset.is_none();
    let of_preset = names_no_phase && preset.is_some();
    // The option `-n`, the number of items in the whole tree, replaces the preset's number of items
    // in each directory.
    let per_directory = preset.filter(|_| args.items.is_none()).map(|it| it.items_per_directory);
    let directory = path_on_hosts(&args.place, &args.directory, "directory (-d)")?;
    Ok(Plan {
        directory: directory.display().to_string(),
        items: args.items,
        items_per_directory: args.items_per_directory.or(per_directory),
        depth: args.depth.unwrap_or(preset.map_or(0, |it| it.depth)),
        branching: args.branching.unwrap_or(preset.map_or(1, |it| it.branching)),
        leaves_only: args.leaves_only || preset.is_some(),
        unique_trees: args.unique_trees || preset.is_some(),
        separate_trees: args.separate_trees,
        files_only: args.files_only || (preset.is_some() && !args.directories_only),
        directories_only: args.directories_only,
        create: args.create || all || of_preset,
        stat: args.stat || all || of_preset,
        read: args.read || all,
        remove: args.remove || all || of_preset,
        repetitions: args.repetitions.unwrap_or(preset.map_or(1, |it| it.repetitions)),
        write_bytes: args.write_bytes,
        read_bytes: args.read_bytes,
        sync: args.sync,
        stride: args.stride,
        run: None,
        keep_caches: args.caches.keep_caches,
        before_phase: args.caches.before_phase.clone(),
        server_hosts: named(&args.caches.server_hosts, &args.place.enter),
        patience_s: args.place.patience,
        metadata_servers: args.metadata_servers,
        preset: preset.map(|it| it.name.to_owned()),
    })
}

/// Returns the summary table, in the format of the table that mdtest prints last.
fn as_table(outcome: &Outcome) -> String {
    let mut titles = vec!["OPERATION", ">MAX/s", ">MIN/s", ">MEAN/s", ">STD DEV"];
    titles.extend(outcome.plan.metadata_servers.map(|_| ">MEAN/s PER SERVER"));
    titles.extend([">P50 us", ">P99 us"]);
    let mut shown = table(&titles);
    for (phase, title) in OPERATIONS {
        let Some(summary) = outcome.summary(phase) else { continue };
        let mut numbers = vec![summary.max, summary.min, summary.mean, summary.std_dev];
        let servers = outcome.plan.metadata_servers;
        numbers.extend(servers.map(|servers| summary.mean / f64::from(servers)));
        let cells = numbers.iter().map(|number| format!("{number:.3}"));
        let latency = outcome.latency(phase);
        let latency = [latency.as_ref().map(|it| it.p50_us), latency.as_ref().map(|it| it.p99_us)];
        let cells = cells.chain(latency.map(microseconds));
        shown.add_row([title.to_owned()].into_iter().chain(cells));
    }
    let hosts = outcome.hosts.iter().filter(|host| host.has_processes).count();
    let skew = outcome.phases.iter().map(|phase| phase.start_skew_s).fold(0.0, f64::max);
    let preset = outcome.plan.preset.as_ref();
    let preset = preset.map_or_else(String::new, |it| format!("preset {it}: "));
    let notes = warm_ups(OPERATIONS.map(|(phase, title)| (title, outcome.rates(phase))));
    format!(
        "{preset}{}{}: {} processes on {hosts} hosts, {} items each, {} times; processes started \
         at most {:.1} ms apart\n\n{}{notes}",
        by(&outcome.tool),
        outcome.plan.directory,
        outcome.processes,
        outcome.plan.items_of_process(),
        outcome.plan.repetitions,
        skew * 1000.0,
        render(&shown)
    )
}
