//! `cargo xtask bench-cost`: measures the cost of counting, of records of operations, and of the
//! monitor.
//!
//! Compares the program with a build that counts nothing (`--cfg skep_uncounted`) and has no
//! monitor. The builds run alternately on new clusters, in the order A B B A, so that a slow change
//! in the machine's speed affects both alike. The measured value is the processor time of the whole
//! machine for the same work. It depends less on other load than rates do. The build that counts
//! nothing still reads the clock for the stages of requests, because replies contain their times.
//!
//! This module owns the comparison. The module `workload` has the workloads, and `system` starts
//! the clusters.

use super::report::Report;
use super::system::{System, start_skep};
use super::workload::make_archive;
use super::{Options as BenchOptions, run_all};
use crate::repository::{Outcome, root, run as call};
use std::fs;
use std::path::{Path, PathBuf};

/// The cost that the project promises: at most this share of the processor time.
const LIMIT: f64 = 0.02;

/// Options of `bench-cost`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Number of pairs of clusters. The median of 8 pairs or more is stable on a quiet machine.
    #[arg(long, default_value_t = 8)]
    pairs: u32,
    /// Size of the workloads, and the directory of the data.
    #[command(flatten)]
    bench: BenchOptions,
}

/// A build of the program.
#[derive(Clone, Copy)]
enum Build {
    Counting,
    Uncounted,
}

impl Build {
    /// Builds the program, and returns the path of the executable. Each of the two builds has its
    /// own build directory.
    fn make(self) -> Outcome<PathBuf> {
        let (directory, flags) = match self {
            Self::Counting => ("target/cost-counting", ""),
            Self::Uncounted => ("target/cost-uncounted", "--cfg skep_uncounted"),
        };
        let arguments = ["build", "--release", "--package", "skep-ctl", "--target-dir", directory];
        call(env!("CARGO"), &arguments, &[("RUSTFLAGS", flags)])?;
        Ok(root().join(directory).join("release/skep"))
    }

    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Counting => &[],
            Self::Uncounted => &["--no-monitor"],
        }
    }
}

/// Runs the workloads on a new cluster. Returns the processor seconds of each workload with each
/// number of processes.
fn measure(
    (build, program): (Build, &Path),
    options: &Options,
    top: &Path,
) -> Outcome<Vec<(String, f64)>> {
    let directory = top.join("cost");
    let running = start_skep(program, &directory, build.arguments())?;
    make_archive(&directory, options.bench.tree_files)?;
    let mut report = Report::new(top, &[System::Skep], 1)?;
    run_all(&options.bench, &running, &mut report)?;
    Ok(report.processor_seconds())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        _ if values.is_empty() => 0.0,
        0 => f64::midpoint(values[middle - 1], values[middle]),
        _ => values[middle],
    }
}

/// Returns a table with the ratios of the processor times, and the names of the workloads above the
/// limit.
fn judged(names: &[String], ratios: &[Vec<f64>]) -> (String, Vec<String>) {
    let mut text =
        format!("{:<40} {:>8} {:>8} {:>8}\n", "workload, processes", "lowest", "median", "highest");
    let mut above = Vec::new();
    for (name, ratios) in names.iter().zip(ratios) {
        let percent = |ratio: f64| format!("{:+.1} %", (ratio - 1.0) * 100.0);
        let lowest = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let highest = ratios.iter().copied().fold(0.0, f64::max);
        let middle = median(ratios.clone());
        let cells = [lowest, middle, highest].map(percent);
        text += &format!("{name:<40} {:>8} {:>8} {:>8}\n", cells[0], cells[1], cells[2]);
        if middle > 1.0 + LIMIT {
            above.push(format!("{name}: {}", cells[1]));
        }
    }
    (text, above)
}

/// Measures the processor time of both builds, and prints their ratio.
///
/// # Errors
/// - Describes the reason why a cluster could not be built, started or measured.
/// - Lists the workloads whose cost exceeds the limit.
pub(crate) fn run(options: &Options) -> Outcome {
    let named = |error: std::io::Error| format!("{}: {error}", options.bench.directory.display());
    fs::create_dir_all(&options.bench.directory).map_err(named)?;
    let top = options.bench.directory.canonicalize().map_err(named)?;
    let builds = [Build::Counting, Build::Uncounted];
    let programs = [builds[0].make()?, builds[1].make()?];
    let (mut names, mut ratios): (Vec<String>, Vec<Vec<f64>>) = Default::default();
    for pair in 0..options.pairs {
        let mut seconds: [Vec<(String, f64)>; 2] = Default::default();
        for turn in [pair % 2, (pair + 1) % 2].map(|turn| turn as usize) {
            println!(
                "== pair {} of {}, {}",
                pair + 1,
                options.pairs,
                ["counting", "uncounted"][turn]
            );
            seconds[turn] = measure((builds[turn], &programs[turn]), options, &top)?;
        }
        let [counting, uncounted] = &seconds;
        names = counting.iter().map(|(name, _)| name.clone()).collect();
        ratios.resize(names.len(), Vec::new());
        for ((own, (_, with)), (_, without)) in ratios.iter_mut().zip(counting).zip(uncounted) {
            own.push(with / without.max(0.01));
        }
    }
    let (text, above) = judged(&names, &ratios);
    println!("\nprocessor time, counting against uncounted\n{text}");
    match above.is_empty() {
        true => Ok(()),
        false => Err(format!("more than {:.0} %: {}", LIMIT * 100.0, above.join("; "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_are_judged_by_their_median_ratio() {
        let names = ["create, 1", "stat, 1"].map(str::to_owned);
        let ratios = [vec![1.5, 1.01, 1.0], vec![1.03, 1.04, 0.9, 1.05]];
        let (text, above) = judged(&names, &ratios);
        assert_eq!(above, ["stat, 1: +3.5 %"]);
        assert!(text.lines().count() == 3 && text.contains("+50.0 %"), "{text}");
        assert_eq!(median(Vec::new()), 0.0);
    }
}
