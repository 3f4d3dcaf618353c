//! Runs seeds of the simulation and prints their results.

use clap::Parser;
use skep_sim::{Options, Report, run};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Simulates the metadata core under faults; a seed decides everything.
#[derive(Debug, Parser)]
struct Arguments {
    /// First seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of seeds, beginning with the first.
    #[arg(long, default_value_t = 1)]
    new: u64,
    /// Seconds after which no new seed begins.
    #[arg(long)]
    seconds: Option<u64>,
    /// Number of operations of a run, over all clients.
    #[arg(long)]
    steps: Option<u64>,
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
    let (mut runs, mut commits, mut faults, mut failures) = (0_u64, 0, 0, 0);
    println!("seeds {} and {} after it", arguments.seed, arguments.new.saturating_sub(1));
    for seed in arguments.seed..arguments.seed.saturating_add(arguments.new) {
        let limit = arguments.seconds.map(Duration::from_secs);
        if limit.is_some_and(|limit| start.elapsed() > limit) {
            break;
        }
        let (again, steps, trace) = (command(&arguments, seed), arguments.steps, arguments.trace);
        std::panic::set_hook(Box::new(move |panic| {
            eprintln!("seed {seed}: {panic}\nrepeat with: {again}");
        }));
        let report = run(&Options { seed, steps, trace, ..Options::default() });
        runs += 1;
        commits += report.commits;
        faults += report.faults;
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
    println!("{runs} seeds, {commits} commits, {faults} faults, {failures} failed, {seconds:.1} s");
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn show(report: &Report) {
    println!(
        "seed {}: {} events, {} commits, {} faults, {:?} simulated, trace {:016x}",
        report.seed, report.events, report.commits, report.faults, report.time, report.trace
    );
}
