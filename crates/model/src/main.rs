//! Checks the model within larger bounds, which takes some minutes. Prints the number of states of
//! each check.

use skep_model::checks::{LARGE, run};
use std::process::ExitCode;

fn main() -> ExitCode {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut is_good = true;
    for check in LARGE {
        match run(&check.model, threads) {
            Ok(states) => println!("{}: {states} states", check.name),
            Err(problems) => {
                is_good = false;
                println!("{}: FAILED\n{problems}", check.name);
            }
        }
    }
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
