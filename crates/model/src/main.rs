//! Checks the model within larger bounds, and then random runs of the model, for some minutes.
//! Prints the number of states of each check.

use skep_model::checks::{LARGE, RANDOM, run, run_random};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Duration of the random runs of each model.
const TIME: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    println!("seed of the random runs: {}", now.as_secs());
    let all = LARGE.iter().map(|it| (it.name, run(&it.model, threads)));
    let random = RANDOM.iter().map(|it| (it.name, run_random(&it.model, now.as_secs(), TIME)));
    let mut is_good = true;
    for (name, result) in all.chain(random) {
        match result {
            Ok(states) => println!("{name}: {states} states"),
            Err(problems) => {
                is_good = false;
                println!("{name}: FAILED\n{problems}");
            }
        }
    }
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
