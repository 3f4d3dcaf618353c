//! `cargo xtask bench-cost`: measures the cost of counting, of records of operations, and of the
//! monitor.
//!
//! Compares clusters with statistics and with the monitor to clusters of the same program that have
//! neither (`skep_metrics::is_off`). The two kinds of clusters take turns in the order A B B A. So
//! a slow change in the machine's speed affects both kinds alike. The measured value is the
//! processor time of the whole machine for the same work. Processor time depends less on other load
//! than rates do. The kernel counts this time in ticks of 10 ms, so each workload must last for at
//! least [`SHORTEST`].
//!
//! This module owns the comparison. The module `workload` has the workloads, and `system` starts
//! the clusters.

use super::report::{Measurement, Report};
use super::system::{System, start_skep};
use super::workload::{Workload, make_archive};
use super::{Options as BenchOptions, run_all};
use crate::repository::{Outcome, root, run as call};
use skep_metrics::STATISTICS_VARIABLE;
use std::fs;
use std::path::{Path, PathBuf};

/// The project promises that statistics and the monitor cost at most this share of the processor
/// time.
const LIMIT: f64 = 0.02;
/// Maximum probability that the true median is outside the reported interval.
const DOUBT: f64 = 0.05;
/// Minimum duration of each workload in seconds, so that a tick of the processor time is small
/// compared with the limit.
const SHORTEST: f64 = 2.0;
/// Environment variables of a cluster without statistics.
const OFF: &[(&str, &str)] = &[(STATISTICS_VARIABLE, "off")];

/// Options of `bench-cost`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Number of pairs of clusters. A pair takes about five minutes (computed, not measured). With
    /// fewer than six pairs, there is no 95 % confidence interval.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(6..=1000))]
    pairs: u32,
    /// Multiplies the amount of work of each workload. On a fast machine, increase this number
    /// until no workload is reported as too short.
    #[arg(long, default_value_t = 1)]
    factor: u64,
    /// Directory for the data of the clusters.
    #[arg(long, default_value_os_t = root().join("target/bench"))]
    directory: PathBuf,
}

/// A part of a measurement: workloads that run with the same number of processes. No workload of a
/// part needs files that a workload of another part has created.
struct Part {
    processes: u64,
    workloads: &'static [Workload],
    /// MiB of data, divided over the processes.
    data_mib: u64,
    /// Random blocks, divided over the processes.
    blocks: u64,
    /// Files of each process.
    files: u64,
    /// Synced appends and SQLite transactions of each process.
    transactions: u64,
    /// Files in the tree that `tar` and `rm` work on.
    tree_files: u64,
}

const DATA: &[Workload] = &[
    Workload::SequentialWrite,
    Workload::SequentialRead,
    Workload::RandomWrite,
    Workload::RandomRead,
    Workload::AppendSync,
];
const SHARED: &[Workload] = &[Workload::SharedWrite, Workload::SharedRead];
const NAMES: &[Workload] = &[Workload::Create, Workload::Stat, Workload::Unlink];
const SMALL_FILES: &[Workload] =
    &[Workload::SmallCreate, Workload::SmallRead, Workload::SmallRemove];
const DIRECTORIES: &[Workload] = &[
    Workload::MakeDirectory,
    Workload::Rename,
    Workload::RemoveDirectory,
    Workload::MakeDirectoryWide,
    Workload::RemoveDirectoryWide,
];
/// The workloads that always run with one process.
const PROGRAMS: &[Workload] =
    &[Workload::Sqlite, Workload::TreeUnpack, Workload::TreePack, Workload::TreeRemove];
/// A part without work, from which [`PARTS`] takes all amounts that its workloads do not use.
const NOTHING: Part = Part {
    processes: 1,
    workloads: &[],
    data_mib: 0,
    blocks: 0,
    files: 0,
    transactions: 0,
    tree_files: 0,
};

/// The parts of a measurement. Together, these parts have all workloads of `bench`. The amounts of
/// work are computed from the rates in `docs/benchmarks.md`. On the machine of that page, each
/// workload lasts for 2 to 13 s, and all workloads together last for some 140 s. These times have
/// not been measured, but the report marks workloads that are shorter than [`SHORTEST`].
#[rustfmt::skip]
const PARTS: &[Part] = &[
    Part { processes: 1, workloads: DATA, data_mib: 2048, blocks: 16_384, transactions: 4500,
        ..NOTHING },
    Part { processes: 1, workloads: SHARED, data_mib: 2560, ..NOTHING },
    Part { processes: 1, workloads: NAMES, files: 28_000, ..NOTHING },
    Part { processes: 1, workloads: SMALL_FILES, files: 7500, ..NOTHING },
    Part { processes: 1, workloads: DIRECTORIES, files: 6000, ..NOTHING },
    Part { processes: 1, workloads: PROGRAMS, transactions: 450, tree_files: 7500, ..NOTHING },
    Part { processes: 4, workloads: DATA, data_mib: 2560, blocks: 40_960, transactions: 2500,
        ..NOTHING },
    Part { processes: 4, workloads: SHARED, data_mib: 2560, ..NOTHING },
    Part { processes: 4, workloads: NAMES, files: 10_000, ..NOTHING },
    Part { processes: 4, workloads: SMALL_FILES, files: 3500, ..NOTHING },
    Part { processes: 4, workloads: DIRECTORIES, files: 3200, ..NOTHING },
];

impl Part {
    /// Returns the options of `bench` for the workloads of this part.
    fn options(&self, options: &Options) -> BenchOptions {
        BenchOptions {
            systems: vec![System::Skep],
            workloads: self.workloads.to_vec(),
            processes: vec![self.processes],
            data_mib: self.data_mib * options.factor,
            blocks: self.blocks * options.factor,
            files: self.files * options.factor,
            transactions: self.transactions * options.factor,
            tree_files: self.tree_files * options.factor,
            rounds: 1,
            directory: options.directory.clone(),
            write_page: false,
        }
    }
}

/// Runs the workloads on a new cluster. With `is_counting`, the cluster has statistics and the
/// monitor, otherwise neither of the two.
fn measure(is_counting: bool, options: &Options, top: &Path) -> Outcome<Report> {
    let program = root().join("target/release/skep");
    let directory = top.join("cost");
    let running = match is_counting {
        true => start_skep(&program, &directory, &[], &[])?,
        false => start_skep(&program, &directory, &["--no-monitor"], OFF)?,
    };
    let mut report = Report::new(top, &[System::Skep], 1)?;
    for part in PARTS {
        let options = part.options(options);
        if options.tree_files > 0 {
            make_archive(&running.directory, options.tree_files)?;
        }
        run_all(&options, &running, &mut report)?;
    }
    Ok(report)
}

fn name(measurement: &Measurement) -> String {
    format!("{}, {}", measurement.workload.label(), measurement.processes)
}

/// The measured ratios of one workload: the processor time with statistics, divided by the time
/// without statistics. There is one ratio for each pair of clusters.
#[derive(Default)]
struct Row {
    name: String,
    ratios: Vec<f64>,
    /// Whether the workload was shorter than [`SHORTEST`] on a cluster.
    is_short: bool,
}

/// Adds the ratios of a pair of clusters to the rows. The last row has the ratio of the sums of all
/// workloads.
fn add_pair(rows: &mut Vec<Row>, counting: &[Measurement], off: &[Measurement]) {
    rows.resize_with(counting.len() + 1, Row::default);
    let ratio = |with: f64, without: f64| with / without.max(0.01);
    let sum = |all: &[Measurement]| all.iter().map(|it| it.cpu).sum::<f64>();
    for ((row, with), without) in rows.iter_mut().zip(counting).zip(off) {
        row.name = name(with);
        row.ratios.push(ratio(with.cpu, without.cpu));
        row.is_short |= with.seconds.min(without.seconds) < SHORTEST;
    }
    if let Some(row) = rows.last_mut() {
        row.name = "all workloads".into();
        row.ratios.push(ratio(sum(counting), sum(off)));
    }
}

/// Returns the median of sorted values, and its confidence interval. `None` if there are too few
/// values. The sign test gives the interval: the true median is below the lowest value only if all
/// values are above the median. Each value is above the median with a probability of a half. So the
/// interval makes no assumption about the distribution of the values.
pub(super) fn median_and_interval(sorted: &[f64]) -> Option<(f64, f64, f64)> {
    let count = sorted.len();
    let middle = f64::midpoint(*sorted.get(count.checked_sub(1)? / 2)?, sorted[count / 2]);
    // The probability that at most `left_out` of the values are below the true median.
    let mut probability = 0.5_f64.powi(i32::try_from(count).ok()?);
    let mut sum = probability;
    let mut left_out = None;
    for index in 0..count / 2 {
        if 2.0 * sum > DOUBT {
            break;
        }
        left_out = Some(index);
        probability *= (count - index) as f64 / (index + 1) as f64;
        sum += probability;
    }
    let left_out = left_out?;
    Some((sorted[left_out], middle, sorted[count - 1 - left_out]))
}

/// Compares the interval of a workload with the limit. A workload costs more than the limit only if
/// even the lower end of its interval is above the limit. A workload is undecided if its interval
/// contains the limit.
fn verdict(from: f64, to: f64) -> &'static str {
    if from > 1.0 + LIMIT {
        "above the limit"
    } else if to <= 1.0 + LIMIT {
        "within the limit"
    } else {
        "undecided"
    }
}

/// Returns a table with the ratios of the processor times, and the names of the workloads that cost
/// more than the limit.
///
/// An undecided workload is no failure. If only the median counted, a workload that costs exactly
/// the limit would fail in half of the runs. With many such workloads, almost every run would fail.
/// The table shows which workloads are undecided, and additional pairs reduce the intervals.
fn judged(rows: &[Row]) -> (String, Vec<String>) {
    let columns = format!("{:>8} {:>8} {:>8}", "median", "from", "to");
    let mut text = format!("{:<40} {columns}  (95 %)\n", "workload, processes");
    let mut above = Vec::new();
    for row in rows {
        let mut sorted = row.ratios.clone();
        sorted.sort_by(f64::total_cmp);
        let Some((from, middle, to)) = median_and_interval(&sorted) else { continue };
        let percent = |ratio: f64| format!("{:+.1} %", (ratio - 1.0) * 100.0);
        let note = if row.is_short { ", shorter than 2 s" } else { "" };
        let verdict = verdict(from, to);
        let [middle, lower, upper] = [middle, from, to].map(percent);
        text += &format!("{:<40} {middle:>8} {lower:>8} {upper:>8}  {verdict}{note}\n", row.name);
        if from > 1.0 + LIMIT {
            above.push(format!("{}: at least {lower}", row.name));
        }
    }
    (text, above)
}

/// Measures the processor time of clusters with statistics and of clusters without statistics, and
/// prints the ratio of these two times.
///
/// # Errors
/// - Describes the reason why a cluster could not be built, started or measured.
/// - Lists the workloads whose cost exceeds the limit.
pub(crate) fn run(options: &Options) -> Outcome {
    let named = |error: std::io::Error| {
        format!("cannot use the directory {}: {error}", options.directory.display())
    };
    fs::create_dir_all(&options.directory).map_err(named)?;
    let top = options.directory.canonicalize().map_err(named)?;
    call(env!("CARGO"), &["build", "--release", "--package", "skep-ctl"], &[])?;
    let mut rows = Vec::new();
    for pair in 0..options.pairs {
        let turn = |is_counting: bool| {
            let statistics = if is_counting { "with statistics" } else { "without statistics" };
            println!("== pair {} of {}, {statistics}", pair + 1, options.pairs);
            measure(is_counting, options, &top)
        };
        let is_counting_first = pair % 2 == 0;
        let first = turn(is_counting_first)?;
        let second = turn(!is_counting_first)?;
        let (counting, off) = if is_counting_first { (first, second) } else { (second, first) };
        add_pair(&mut rows, counting.measurements(), off.measurements());
    }
    let (text, above) = judged(&rows);
    println!("\nprocessor time with statistics and monitor, compared with both off\n{text}");
    match above.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "statistics and monitor cost more than {:.0} % of the processor time: {}",
            LIMIT * 100.0,
            above.join("; ")
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(cpu: f64, seconds: f64) -> Measurement {
        let (system, workload) = (System::Skep, Workload::Stat);
        Measurement { system, workload, processes: 4, amount: 1.0, seconds, cpu }
    }

    #[test]
    fn confidence_interval_excludes_only_improbable_medians() {
        let values = |count: u32| (1..=count).map(f64::from).collect::<Vec<_>>();
        let of = |count| median_and_interval(&values(count));
        assert_eq!((of(0), of(5)), (None, None));
        assert_eq!(of(6), Some((1.0, 3.5, 6.0)));
        assert_eq!(of(9), Some((2.0, 5.0, 8.0)));
        assert_eq!(of(10), Some((2.0, 5.5, 9.0)));
        assert_eq!(of(12), Some((3.0, 6.5, 10.0)));
    }

    #[test]
    fn workload_fails_only_if_its_whole_interval_exceeds_the_limit() {
        let row = |name: &str, ratios: [f64; 6]| Row {
            name: name.to_owned(),
            ratios: ratios.to_vec(),
            is_short: false,
        };
        let rows = [
            row("create, 1", [1.5, 1.4, 1.01, 1.3, 1.6, 1.2]),
            row("stat, 1", [1.05, 1.04, 1.03, 1.06, 1.05, 1.04]),
        ];
        let (text, above) = judged(&rows);
        assert_eq!(above, ["stat, 1: at least +3.0 %"]);
        assert!(text.lines().count() == 3 && text.contains("+60.0 %  undecided\n"), "{text}");
        assert!(text.contains("+6.0 %  above the limit\n"), "{text}");
    }

    #[test]
    fn cost_bench_runs_each_workload_with_one_and_four_processes() {
        let measured = |workload: Workload, processes: u64| {
            PARTS.iter().any(|it| it.processes == processes && it.workloads.contains(&workload))
        };
        for workload in Workload::ALL {
            assert!(measured(workload, 1), "{workload:?}");
            assert_eq!(measured(workload, 4), !workload.has_one_process(), "{workload:?}");
        }
    }

    #[test]
    fn each_pair_of_runs_adds_a_ratio_to_each_workload_and_the_sum() {
        let mut rows = Vec::new();
        for _ in 0..6 {
            let counting = [measured(3.0, 4.0), measured(1.0, 2.5)];
            add_pair(&mut rows, &counting, &[measured(2.0, 4.0), measured(2.0, 1.5)]);
        }
        let ratios: Vec<_> = rows.iter().map(|row| (row.ratios.len(), row.ratios[0])).collect();
        assert_eq!(ratios, [(6, 1.5), (6, 0.5), (6, 1.0)]);
        assert_eq!([rows[0].is_short, rows[1].is_short], [false, true]);
        let (text, _) = judged(&rows);
        assert!(text.contains("within the limit, shorter than 2 s\n"), "{text}");
        assert_eq!(rows[2].name, "all workloads");
    }
}
