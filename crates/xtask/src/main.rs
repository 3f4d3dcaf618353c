//! `cargo xtask`: the commands for developers. This file parses the command line. Each command has
//! its own module.

mod bench;
mod black_box;
mod built;
mod ci;
mod dashboards;
mod docs;
mod external;
mod fuzz;
mod miri;
mod needs;
mod package;
mod repository;
mod runner;
mod sanitizer;
mod schema;
mod suites;
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
    /// Runs all steps of CI.
    Ci(ci::Options),
    /// Checks rules that compilers do not check: layers, headers, lengths, names in documents.
    Tidy,
    /// Lists the sentences that `tidy` counts as unclear.
    Language {
        /// Prefix of the areas to list, such as `crates/client` or `messages`.
        #[arg(default_value = "")]
        area: String,
        /// Store the counts that are lower than before, and list nothing.
        #[arg(long)]
        lower: bool,
    },
    /// Writes the generated documents.
    Docs {
        /// Write nothing; fail if a document is stale.
        #[arg(long)]
        check: bool,
    },
    /// Writes the dashboards for Grafana.
    Dashboards {
        /// Write nothing; fail if a dashboard is stale.
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
    /// Installs the external test suites that black-box tests run.
    Suites,
    /// Runs applications and external test suites on real mounts.
    External(external::Options),
    /// Builds the packages of a release: deb, rpm and a tarball.
    Package(package::Options),
    /// Measures Skep, the local file system and the installed other file systems in one run.
    Bench(bench::Options),
    /// Measures the processor time that statistics and the monitor cost.
    BenchCost(bench::cost::Options),
    /// Compares two copies of metadata with one copy: rates, and the load of idle services.
    BenchCopies(bench::copies::Options),
    /// Runs one worker process of a workload of `bench`.
    #[command(hide = true)]
    BenchWorker(bench::Worker),
    /// Touches this many MiB of memory.
    #[command(hide = true)]
    BenchTouch { megabytes: u64 },
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Ci(options) => ci::run(&options),
        Command::Tidy => tidy::run(),
        Command::Language { area, lower } => tidy::language(&area, lower),
        Command::Docs { check } => docs::run(check),
        Command::Dashboards { check } => dashboards::run(check),
        Command::Vectors { check } => vectors::run(check),
        Command::Fuzz(options) => fuzz::run_with_all_decoders(&options),
        Command::Suites => suites::run(),
        Command::External(options) => external::run(&options),
        Command::Package(options) => package::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::BenchCost(options) => bench::cost::run(&options),
        Command::BenchCopies(options) => bench::copies::run(&options),
        Command::BenchWorker(worker) => worker.run(),
        Command::BenchTouch { megabytes } => bench::touch_memory(megabytes << 20),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("error: {problem}");
            ExitCode::FAILURE
        }
    }
}
