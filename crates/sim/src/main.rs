//! Runs seeds of the simulation and prints their results.

use clap::Parser;
use skep_sim::knobs::PlantedBug;
use skep_sim::{
    Judged, MOST_BLIND_PERCENT, MOST_LISTINGS_SKIPPED_PERCENT, MOST_SIZES_SKIPPED_PERCENT, Options,
    Report, run,
};
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
    /// Plant this bug (a name in `PlantedBug`).
    #[arg(long)]
    plant: Option<String>,
    /// Print all events.
    #[arg(long)]
    trace: bool,
    /// Continue after a seed that failed.
    #[arg(long)]
    keep_going: bool,
}

fn command(arguments: &Arguments, seed: u64) -> String {
    let steps = arguments.steps.map(|steps| format!(" --steps {steps}")).unwrap_or_default();
    format!("cargo run --release -p skep-sim -- --seed {seed}{steps}")
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let start = Instant::now();
    let (mut runs, mut commits, mut faults, mut blind, mut failures) = (0_u64, 0, 0, 0_u64, 0);
    let (mut listings, mut sizes) = (Judged::default(), Judged::default());
    println!("seeds {} and {} after it", arguments.seed, arguments.new.saturating_sub(1));
    let plant = match arguments.plant.as_deref().map(PlantedBug::named) {
        Some(None) => {
            println!("cannot plant this bug: expected one of {:?}", PlantedBug::ALL);
            return ExitCode::FAILURE;
        }
        plant => plant.flatten(),
    };
    for seed in arguments.seed..arguments.seed.saturating_add(arguments.new) {
        let limit = arguments.seconds.map(Duration::from_secs);
        if limit.is_some_and(|limit| start.elapsed() > limit) {
            break;
        }
        let (again, steps, trace) = (command(&arguments, seed), arguments.steps, arguments.trace);
        std::panic::set_hook(Box::new(move |panic| {
            eprintln!("seed {seed}: {panic}\nrepeat with: {again}");
        }));
        let report = run(&Options { seed, steps, trace, plant });
        runs += 1;
        commits += report.commits;
        faults += report.faults;
        blind += u64::from(report.is_blind);
        listings = listings.plus(report.listings);
        sizes = sizes.plus(report.sizes);
        if let Some(violation) = &report.violation {
            failures += 1;
            println!("seed {seed}: {violation}\nrepeat with: {}", command(&arguments, seed));
            if !arguments.keep_going {
                break;
            }
        } else if arguments.new == 1 {
            show(&report);
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{runs} seeds, {commits} commits, {faults} faults, {blind} not judged to their end, \
         {failures} failed, {seconds:.1} s"
    );
    println!(
        "not judged: {} of {} listings, {} of {} sizes of files",
        listings.skipped, listings.seen, sizes.skipped, sizes.seen
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
    if failures == 0 && is_judged { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn show(report: &Report) {
    println!(
        "seed {}: {} events, {} commits, {} faults, {:?} simulated, trace {:016x}",
        report.seed, report.events, report.commits, report.faults, report.time, report.trace
    );
}
