//! `skep bench io`: writes and reads files in the access patterns of IOR.

use super::args::{CacheArgs, HostArgs, ResultArgs, RunnerArgs, parse_size, parse_span};
use super::presets::{self, IoPreset};
use super::results::Size;
use super::witness::Witness;
use super::{by, end_on_signals, hosts, microseconds, named, path_on_hosts, runner, warm_ups};
use crate::help::{Example, examples};
use crate::output::{render, table};
use skep_bench::io::{Outcome, Plan};
use skep_bench::launcher::PhaseRecord;
use skep_types::{Error, ErrorCode, Result};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

const EXAMPLES: &[Example] = &[
    (
        "4 processes write and read a file each, in transfers of 1 MiB",
        "skep bench io --processes-per-host 4 -F -t 1m -b 256m -e -o /mnt/skep/test",
    ),
    (
        "three hosts write one shared file; each host reads and verifies the data of another host",
        "skep bench io --hosts a,b,c -t 1m -b 1g -C -e -R -o /mnt/skep/test",
    ),
    (
        "random transfers of 4 KiB that bypass the page cache, five times, with all results as \
         JSON",
        "skep bench io -F -z -B -t 4k -b 64m -i 5 -o /mnt/skep/test --output json",
    ),
    (
        "write 100 GiB, with the progress of each second in the results",
        "skep bench io -w -b 100g -t 1m --sample-interval 1s -o /mnt/skep/test --output json",
    ),
    (
        "repeat a published measurement with smaller files, and show the share of the hardware \
         limit",
        "skep bench io --hosts a,b --preset azure-throughput -b 256m --limit 1g -o /mnt/skep/test",
    ),
    (
        "run the installed program IOR with the same options",
        "skep bench io --tool ior -F -z -B -t 4k -b 64m -i 5 -o /mnt/skep/test",
    ),
];

/// Write and read data in IOR's patterns, from any number of hosts, on any mounted file system
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct IoArgs {
    #[command(flatten)]
    place: HostArgs,
    #[command(flatten)]
    caches: CacheArgs,
    #[command(flatten)]
    runner: RunnerArgs,
    /// Run this installed program instead of the built-in benchmark, with translated options
    #[arg(long, value_name = "PROGRAM", value_parser = ["ior", "fio", "iozone"])]
    tool: Option<String>,
    /// File to use; with -F, a dot and the process number are appended; {host} becomes the host's
    /// name
    #[arg(short = 'o', long = "path", value_name = "FILE")]
    path: String,
    /// Use a named set of options; other options of the command line replace options of the set
    #[arg(long, value_name = "NAME", value_parser = presets::of_io())]
    preset: Option<String>,
    /// Switches of the preset to leave out
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "SWITCHES",
        requires = "preset",
        value_parser = presets::switches()
    )]
    without: Vec<String>,
    /// Bytes per system call: 4k, 1m, 1MiB, ... [default: 256k]
    #[arg(short = 't', long, value_name = "SIZE", value_parser = parse_size)]
    transfer_size: Option<u64>,
    /// Contiguous bytes of each process in a segment [default: 1m]
    #[arg(short = 'b', long, value_name = "SIZE", value_parser = parse_size)]
    block_size: Option<u64>,
    /// Number of segments; each segment holds one block of every process
    #[arg(short = 's', long, default_value_t = 1, value_name = "NUMBER")]
    segments: u64,
    /// Use one file per process (N-N) instead of a shared file (N-1)
    #[arg(short = 'F', long)]
    file_per_process: bool,
    /// Write [default: write and read]
    #[arg(short = 'w', long)]
    write: bool,
    /// Read [default: write and read]
    #[arg(short = 'r', long)]
    read: bool,
    /// Do transfers in random order
    #[arg(short = 'z', long)]
    random: bool,
    /// Let each process read the data of a process on the next host
    #[arg(short = 'C', long)]
    reorder: bool,
    /// Sync each file after writing, as part of the measured time
    #[arg(short = 'e', long)]
    fsync: bool,
    /// Do not remove the files at the end
    #[arg(short = 'k', long)]
    keep: bool,
    /// Overwrite existing files, and keep these files at the end of the run
    #[arg(short = 'E', long)]
    use_existing: bool,
    /// Number of repetitions [default: 1]
    #[arg(short = 'i', long, value_name = "NUMBER")]
    repetitions: Option<u32>,
    /// Verify the written data after the measurement
    #[arg(short = 'W', long)]
    verify_write: bool,
    /// Verify the data during the read, as part of the measured time
    #[arg(short = 'R', long)]
    verify_read: bool,
    /// Bypass the page cache (`O_DIRECT`)
    #[arg(short = 'B', long)]
    direct: bool,
    /// Transfer data by MPI-IO; only with --tool ior
    #[arg(long, requires = "tool")]
    mpi_io: bool,
    /// Use collective transfers of MPI-IO, in which all processes take part; only with --mpi-io
    #[arg(long, requires = "mpi_io")]
    collective: bool,
    /// Number that identifies this run in the written data, so that a further run with the same
    /// number can verify the data (-r -R) [default: a random number]
    #[arg(short = 'G', long, value_name = "NUMBER")]
    signature: Option<u32>,
    /// Bytes per second that the hardware can move; results are shown as a share of this rate
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    limit: Option<u64>,
    /// Operations per second that the hardware can do; results are shown as a share of this rate
    #[arg(long, value_name = "NUMBER")]
    limit_iops: Option<u64>,
    /// Random seed of the order of transfers
    #[arg(long, default_value_t = 0, value_name = "NUMBER")]
    seed: u64,
    /// Add samples of each process's progress to the results: the number of transferred bytes, with
    /// at least this time between two samples, such as 1s or 100ms
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    sample_interval: Option<Duration>,
    #[command(flatten)]
    results: ResultArgs,
}

pub(super) fn run(args: &IoArgs) -> Result<ExitCode> {
    let hosts = hosts(&args.place)?;
    let preset = args.preset.as_deref().and_then(IoPreset::named);
    let of_preset = preset.map_or(1, |it| it.processes_per_host);
    let processes = args.place.processes_per_host.unwrap_or(of_preset);
    let plan = plan(args, preset, hosts.len() as u64 * u64::from(processes))?;
    end_on_signals()?;
    let runner = runner(args.tool.as_deref(), &args.runner);
    let each = u64::from(plan.write) * (1 + u64::from(plan.verify_write)) + u64::from(plan.read);
    let size = Size {
        lines: each * u64::from(plan.repetitions),
        parts: hosts.len() as u64 * u64::from(processes),
        samples: plan.samples_per_process(),
        is_reported: runner.is_some(),
    };
    let witness = Witness::new(&args.place);
    let mut witness = witness.keep(&args.results, ("io", &plan), size)?;
    let mut see = |progress| witness.see(progress);
    let result = skep_bench::io::run(runner.as_ref(), &plan, &hosts, processes, &mut see);
    let outcome = witness.report(result, |it| it.failure.as_deref(), as_table)?;
    match outcome.errors() {
        0 => Ok(ExitCode::SUCCESS),
        errors => {
            let first = outcome.phases.iter().find_map(|phase| phase.first_error.clone());
            let what = format!(
                "verification failed: the data of {errors} transfers differs from the written \
                 data; the first of these transfers: {}",
                first.unwrap_or_default()
            );
            Err(Error::new(ErrorCode::Corrupt, what))
        }
    }
}

/// Returns the plan of the run. Options of the command line replace options of the preset.
fn plan(args: &IoArgs, preset: Option<&IoPreset>, processes: u64) -> Result<Plan> {
    // As in IOR, a command line without `-w` and `-r` requests both writing and reading.
    let both = !args.write && !args.read;
    let path = path_on_hosts(&args.place, Path::new(&args.path), "path (-o)")?;
    let base = Plan::default();
    let of_preset = preset.map_or(base.transfer_bytes, |it| it.transfer_bytes);
    let transfer_bytes = args.transfer_size.unwrap_or(of_preset);
    let of_preset = |it: &IoPreset| it.block.bytes(processes, transfer_bytes);
    let block_bytes = preset.map_or(base.block_bytes, of_preset);
    let is_on = |letter| preset.is_some_and(|it| it.turns_on(letter, &args.without));
    Ok(Plan {
        path: path.display().to_string(),
        transfer_bytes,
        block_bytes: args.block_size.unwrap_or(block_bytes),
        segments: args.segments,
        file_per_process: args.file_per_process || is_on('F'),
        write: args.write || both,
        read: args.read || both,
        random: args.random || is_on('z'),
        reorder: args.reorder || is_on('C'),
        fsync: args.fsync || is_on('e'),
        keep: args.keep,
        use_existing: args.use_existing,
        repetitions: args.repetitions.unwrap_or(preset.map_or(1, |it| it.repetitions)),
        verify_write: args.verify_write,
        verify_read: args.verify_read,
        direct: args.direct || is_on('B'),
        signature: args.signature,
        seed: args.seed,
        sample_interval_ms: args
            .sample_interval
            .map(|it| u64::try_from(it.as_millis()).unwrap_or(u64::MAX)),
        keep_caches: args.caches.keep_caches,
        limit_bytes_per_s: args.limit,
        limit_operations_per_s: args.limit_iops,
        before_phase: args.caches.before_phase.clone(),
        server_hosts: named(&args.caches.server_hosts, &args.place.enter),
        patience_s: args.place.patience,
        mpi_io: args.mpi_io,
        collective: args.collective,
        preset: preset.map(|it| it.name.to_owned()),
    })
}

fn as_table(outcome: &Outcome) -> String {
    let mut titles = vec!["PHASE", ">REPETITION", ">MiB/s", ">IO/s"];
    let limits = limits(&outcome.plan);
    titles.extend(limits.iter().map(|(title, _)| *title));
    titles.extend([">P50 us", ">P99 us", ">SECONDS", ">OPEN", ">CLOSE", ">SKEW", ">ERRORS"]);
    let mut shown = table(&titles);
    for phase in &outcome.phases {
        let rates = [
            phase.phase.clone(),
            phase.repetition.to_string(),
            format!("{:.2}", phase.bandwidth_mib_per_s),
            format!("{:.2}", phase.operations_per_s),
        ];
        let shares = limits.iter().map(|(_, share)| format!("{:.1}%", share(phase) * 100.0));
        let rest = [
            microseconds(phase.latency.as_ref().map(|it| it.p50_us)),
            microseconds(phase.latency.as_ref().map(|it| it.p99_us)),
            format!("{:.4}", phase.seconds),
            format!("{:.4}", longest(phase, |process| process.measure.open_s)),
            format!("{:.4}", longest(phase, |process| process.measure.close_s)),
            format!("{:.4}", phase.start_skew_s),
            phase.errors.to_string(),
        ];
        shown.add_row(rates.into_iter().chain(shares).chain(rest));
    }
    let mut summaries = table(&["SUMMARY", ">MAX MiB/s", ">MIN", ">MEAN", ">STD DEV"]);
    for phase in ["write", "read"] {
        let Some(summary) = outcome.summary(phase) else { continue };
        let numbers = [summary.max, summary.min, summary.mean, summary.std_dev];
        let cells = numbers.iter().map(|number| format!("{number:.2}"));
        summaries.add_row([phase.to_owned()].into_iter().chain(cells));
    }
    let notes = warm_ups(["write", "read"].map(|phase| (phase, outcome.bandwidths(phase))));
    format!("{}\n{}\n{}{notes}", about(outcome), render(&shown), render(&summaries))
}

/// Function that divides the rate of a phase by a hardware limit that the user has named. The
/// result 1 means that the phase reached the limit.
type Share = Box<dyn Fn(&PhaseRecord) -> f64>;

/// Returns a table column for each hardware limit that the user named: the title of the column, and
/// the function that computes the cells.
fn limits(plan: &Plan) -> Vec<(&'static str, Share)> {
    let mut found: Vec<(&str, Share)> = Vec::new();
    if let Some(limit) = plan.limit_bytes_per_s {
        let mib = limit as f64 / f64::from(1 << 20);
        found.push((">OF LIMIT", Box::new(move |phase| phase.bandwidth_mib_per_s / mib)));
    }
    if let Some(limit) = plan.limit_operations_per_s {
        let limit = limit as f64;
        found.push((">OF IO/s", Box::new(move |phase| phase.operations_per_s / limit)));
    }
    found
}

/// Returns the longest time that any process spent in one step of a phase. `of` selects the step,
/// such as opening the files.
fn longest(phase: &PhaseRecord, of: impl Fn(&skep_bench::launcher::ProcessRecord) -> f64) -> f64 {
    phase.processes.iter().map(of).fold(0.0, f64::max)
}

fn about(outcome: &Outcome) -> String {
    let plan = &outcome.plan;
    let with_processes = outcome.hosts.iter().filter(|host| host.has_processes);
    let names: Vec<_> = with_processes.map(|host| host.name.as_str()).collect();
    let size = |bytes: u64| {
        let (number, unit) = skep_types::size::whole(bytes);
        format!("{number} {unit}")
    };
    let preset = plan.preset.as_ref().map_or_else(String::new, |it| format!("preset {it}: "));
    let layout = if plan.file_per_process { "a file for each process" } else { "one file" };
    let order = if plan.random { "at random" } else { "in order" };
    let caches = match outcome.phases.iter().all(|phase| phase.caches_dropped) {
        _ if plan.keep_caches => "kept",
        true => "dropped before each phase",
        false => "not dropped everywhere",
    };
    let kind = outcome.hosts.first().and_then(|host| host.environment.mount.as_ref());
    format!(
        "{preset}{}{} on {}: {} processes on {} ({}), {layout}, transfers of {} {order}, blocks of \
         {}, {} segments, {} in all; caches {caches}\n",
        by(&outcome.tool),
        plan.path,
        kind.map_or("an unknown type of file system", |mount| mount.kind.as_str()),
        outcome.processes,
        if names.len() == 1 { "one host".to_owned() } else { format!("{} hosts", names.len()) },
        names.join(", "),
        size(plan.transfer_bytes),
        size(plan.block_bytes),
        plan.segments,
        size(plan.total_bytes(outcome.processes).unwrap_or(0)),
    )
}
