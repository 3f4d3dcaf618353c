//! `cargo xtask`: the developer's commands. Parses the command line; each command is a module.

mod ci;
mod docs;
mod fuzz;
mod needs;
mod repository;
mod schema;
mod tidy;
mod vectors;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Developer commands of Skep.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs everything that CI runs.
    Ci(ci::Options),
    /// Checks the rules that compilers don't know: layers, headers, lengths, names in documents.
    Tidy,
    /// Writes the generated documents.
    Docs {
        /// Write nothing; fail if a document is stale.
        #[arg(long)]
        check: bool,
    },
    /// Writes the test vectors.
    Vectors {
        /// Write nothing; fail if a vector is stale.
        #[arg(long)]
        check: bool,
    },
    /// Feeds mutated vectors to the decoders, on stable Rust, for a fixed number of rounds.
    Fuzz(fuzz::Options),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Ci(options) => ci::run(&options),
        Command::Tidy => tidy::run(),
        Command::Docs { check } => docs::run(check),
        Command::Vectors { check } => vectors::run(check),
        Command::Fuzz(options) => fuzz::run(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("error: {problem}");
            ExitCode::FAILURE
        }
    }
}
