//! Runs the simulation with several seeds, and prints the results. After SIGINT or SIGTERM, the
//! program finishes the current seed, prints the number of finished seeds, and ends.

use clap::Parser;
use skep_env::Signals;
use skep_sim::knobs::PlantedBug;
use skep_sim::{
    GroupBug, GroupOptions, Judged, MOST_BLIND_PERCENT, MOST_LISTINGS_SKIPPED_PERCENT,
    MOST_SIZES_SKIPPED_PERCENT, Options, Report, run, run_group,
};
use std::fmt::Debug;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Simulates the metadata core under faults. The seed determines the whole run.
#[derive(Debug, Parser)]
struct Arguments {
    /// First seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of seeds, beginning with the first.
    #[arg(long, default_value_t = 1)]
    new: u64,
    /// Number of seconds after which no new seed begins.
    #[arg(long)]
    seconds: Option<u64>,
    /// Number of operations of a run, over all clients.
    #[arg(long)]
    steps: Option<u64>,
    /// Plant this bug (a name in `PlantedBug`, or in `GroupBug` with `--group`).
    #[arg(long)]
    plant: Option<String>,
    /// Print all events.
    #[arg(long)]
    trace: bool,
    /// Simulate one metadata group of several members, with leases, take-over and copies.
    #[arg(long, conflicts_with = "steps")]
    group: bool,
    /// Continue after a seed that failed.
    #[arg(long)]
    keep_going: bool,
}

fn command(arguments: &Arguments, seed: u64) -> String {
    let steps = arguments.steps.map(|steps| format!(" --steps {steps}")).unwrap_or_default();
    let group = if arguments.group { " --group" } else { "" };
    format!("cargo run --release -p skep-sim -- --seed {seed}{steps}{group}")
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let signals = match Signals::take(&[libc::SIGINT, libc::SIGTERM]) {
        Ok(signals) => signals,
        Err(error) => {
            println!("cannot receive signals: {error}");
            return ExitCode::FAILURE;
        }
    };
    println!("seeds {} and the {} seeds after it", arguments.seed, arguments.new.saturating_sub(1));
    let is_good = match arguments.group {
        true => run_groups(&arguments, &signals),
        false => run_clusters(&arguments, &signals),
    };
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns the bug to plant. `Err` means that no bug has the name.
fn plant_of<B: Copy + Debug>(arguments: &Arguments, all: &[B]) -> Result<Option<B>, ()> {
    let Some(name) = &arguments.plant else { return Ok(None) };
    let found = all.iter().find(|bug| format!("{bug:?}") == *name);
    if found.is_none() {
        println!("cannot plant this bug: expected one of {all:?}");
    }
    found.copied().map(Some).ok_or(())
}

/// The numbers of runs and of failed runs, and the time that all runs took.
struct Runs {
    runs: u64,
    failures: u64,
    seconds: f64,
}

/// Returns the reason why no further seed begins: the time limit in the arguments, or a signal.
/// `None` means that the next seed begins.
fn reason_to_end(arguments: &Arguments, signals: &Signals, start: Instant) -> Option<String> {
    let limit = arguments.seconds.map(Duration::from_secs);
    if limit.is_some_and(|limit| start.elapsed() > limit) {
        return Some("the time limit".to_owned());
    }
    match signals.take_pending() {
        Ok(signal) => signal.map(|number| format!("signal {number}")),
        Err(error) => Some(format!("an error while reading signals: {error}")),
    }
}

/// Runs all seeds, until the time limit in the arguments or a signal ends the program. `run_one`
/// returns the violation of a seed, if the seed has a violation.
fn run_seeds(
    arguments: &Arguments,
    signals: &Signals,
    mut run_one: impl FnMut(u64) -> Option<String>,
) -> Runs {
    let start = Instant::now();
    let (mut runs, mut failures) = (0, 0);
    for seed in arguments.seed..arguments.seed.saturating_add(arguments.new) {
        if let Some(reason) = reason_to_end(arguments, signals, start) {
            println!("ended before seed {seed} by {reason}, {runs} seeds are finished");
            break;
        }
        let again = command(arguments, seed);
        let shown = again.clone();
        std::panic::set_hook(Box::new(move |panic| {
            eprintln!("seed {seed}, after {runs} seeds: {panic}\nrepeat with: {shown}");
        }));
        runs += 1;
        if let Some(violation) = run_one(seed) {
            failures += 1;
            println!("seed {seed}: {violation}\nrepeat with: {again}");
            if !arguments.keep_going {
                break;
            }
        }
    }
    Runs { runs, failures, seconds: start.elapsed().as_secs_f64() }
}

/// Runs seeds of the simulation of a cluster. Returns whether all runs passed.
fn run_clusters(arguments: &Arguments, signals: &Signals) -> bool {
    let Ok(plant) = plant_of(arguments, &PlantedBug::ALL) else { return false };
    let (mut commits, mut faults, mut blind) = (0, 0, 0_u64);
    let (mut listings, mut sizes) = (Judged::default(), Judged::default());
    let mut known_sizes = Judged::default();
    let (steps, trace) = (arguments.steps, arguments.trace);
    let Runs { runs, failures, seconds } = run_seeds(arguments, signals, |seed| {
        let report = run(&Options { seed, steps, trace, plant });
        commits += report.commits;
        faults += report.faults;
        blind += u64::from(report.is_blind);
        listings = listings.plus(report.listings);
        sizes = sizes.plus(report.sizes);
        known_sizes = known_sizes.plus(report.known_sizes);
        if report.violation.is_none() && arguments.new == 1 {
            show(&report);
        }
        report.violation
    });
    println!(
        "{runs} seeds, {commits} commits, {faults} faults, {blind} not judged to their end, \
         {failures} failed, {seconds:.1} s"
    );
    println!(
        "not judged: {} of {} listings, {} of {} sizes of files, {} of {} sizes in clients",
        listings.skipped,
        listings.seen,
        sizes.skipped,
        sizes.seen,
        known_sizes.skipped,
        known_sizes.seen
    );
    let is_judged = blind * 100 <= runs.max(100) * MOST_BLIND_PERCENT
        && listings.is_within(MOST_LISTINGS_SKIPPED_PERCENT)
        && sizes.is_within(MOST_SIZES_SKIPPED_PERCENT);
    if !is_judged {
        println!(
            "more than {MOST_BLIND_PERCENT} % of the runs, {MOST_LISTINGS_SKIPPED_PERCENT} % of \
             the listings or {MOST_SIZES_SKIPPED_PERCENT} % of the sizes were not judged"
        );
    }
    failures == 0 && is_judged
}

/// Runs seeds of the simulation of one metadata group. Returns whether all runs passed.
fn run_groups(arguments: &Arguments, signals: &Signals) -> bool {
    let Ok(plant) = plant_of(arguments, &GroupBug::ALL) else { return false };
    let (mut commits, mut faults, mut take_overs, mut copies, mut events) = (0, 0, 0, 0, 0);
    let (mut leaders, mut blind) = (0, 0_u64);
    let trace = arguments.trace;
    let Runs { runs, failures, seconds } = run_seeds(arguments, signals, |seed| {
        let report = run_group(GroupOptions { seed, trace, plant });
        commits += report.commits;
        faults += report.faults;
        take_overs += report.take_overs;
        copies += report.copies;
        leaders += report.leader_changes;
        events += report.events;
        blind += u64::from(report.is_blind);
        report.violation
    });
    println!(
        "{runs} seeds of a group, {events} events, {commits} commits, {faults} faults, \
         {take_overs} take-overs, {copies} copies, {leaders} changes of management's leader, \
         {blind} not judged to their end, {failures} failed, {seconds:.1} s"
    );
    failures == 0 && blind * 100 <= runs.max(100) * MOST_BLIND_PERCENT
}

fn show(report: &Report) {
    println!(
        "seed {}: {} events, {} commits, {} faults, {:?} simulated, trace {:016x}",
        report.seed, report.events, report.commits, report.faults, report.time, report.trace
    );
}
