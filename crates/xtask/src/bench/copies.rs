//! `cargo xtask bench-copies`: compares clusters with two copies of metadata to clusters with one
//! copy.
//!
//! The two kinds of clusters take turns in the order A B B A. So a slow change in the speed of the
//! machine affects both kinds alike. The measured values are rates of metadata operations, and the
//! processor time of the metadata services while no program uses the cluster. The host must have no
//! other load.
//!
//! This module owns the comparison and its limits. The module `workload` has the workloads, and
//! `system` starts the clusters.

use super::cost::median_and_interval;
use super::report::{Measurement, Report};
use super::system::{System, start_skep};
use super::workload::Workload;
use super::{Options as BenchOptions, run_all};
use crate::repository::{Outcome, root, run as call};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The measured workloads, in the order in which they run.
const WORKLOADS: [Workload; 3] = [Workload::Create, Workload::Stat, Workload::Unlink];
/// Time from the start of a cluster to the measurement of idle services. In this time, the services
/// prepare their logs.
const SETTLING: Duration = Duration::from_secs(5);
/// Maximum processor time that all metadata services together may use while no program uses the
/// cluster, as a share of one processor. The cluster has two groups.
const IDLE_LIMIT: f64 = 0.01;

/// Options of `bench-copies`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Number of pairs of clusters. A pair takes about two minutes (computed, not measured). With
    /// fewer than six pairs, there is no 95 % confidence interval.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(6..=1000))]
    pairs: u32,
    /// Files of a single process. Each of four processes has half as many files.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(2..))]
    files: u64,
    /// Seconds for which the idle metadata services are measured. The kernel counts their processor
    /// time in ticks of 10 ms.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    idle_seconds: u64,
    /// Directory for the data of the clusters.
    #[arg(long, default_value_os_t = root().join("target/bench"))]
    directory: PathBuf,
}

impl Options {
    /// Returns the options of `bench` for the workloads with this number of processes.
    fn of_bench(&self, processes: u64) -> BenchOptions {
        BenchOptions {
            systems: vec![System::Skep],
            workloads: WORKLOADS.to_vec(),
            processes: vec![processes],
            data_mib: 0,
            blocks: 0,
            files: if processes == 1 { self.files } else { self.files / 2 },
            transactions: 0,
            tree_files: 0,
            rounds: 1,
            directory: self.directory.clone(),
            write_page: false,
        }
    }
}

/// Returns the minimum rate with two copies, as a share of the rate with one copy. `None` means
/// that the workload has no limit.
fn limit(workload: Workload, processes: u64) -> Option<f64> {
    match (workload, processes) {
        (Workload::Create, 1) => Some(0.45),
        (Workload::Create, _) => Some(0.55),
        (Workload::Stat, _) => Some(0.9),
        _ => None,
    }
}

/// Returns the processor time of a process in ticks of 10 ms. `stat` is the content of its file
/// `/proc/PID/stat`. The name of the program ends at the last parenthesis. The fields `utime` and
/// `stime` are the 12th and the 13th after the name.
fn ticks(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut times = after_name.split_whitespace().skip(11).map(str::parse::<u64>);
    Some(times.next()?.ok()? + times.next()?.ok()?)
}

/// Returns the processor seconds that the metadata services of the cluster below `directory` have
/// used.
fn seconds_of_metadata(directory: &Path) -> Outcome<f64> {
    let named = |error: std::io::Error| format!("cannot list the processes in /proc: {error}");
    let directory = directory.display().to_string();
    let mut all = Vec::new();
    for entry in fs::read_dir("/proc").map_err(named)? {
        let process = entry.map_err(named)?.path();
        // Skip files in `/proc` that are no processes, and processes that have ended in the
        // meantime.
        let Ok(command) = fs::read_to_string(process.join("cmdline")) else { continue };
        let Ok(stat) = fs::read_to_string(process.join("stat")) else { continue };
        if command.split('\0').nth(1) == Some("metadata") && command.contains(&directory) {
            all.push(ticks(&stat).ok_or("cannot read the processor time in /proc/PID/stat")?);
        }
    }
    if all.is_empty() {
        return Err(format!("no metadata service of the cluster in {directory} runs"));
    }
    Ok(all.iter().sum::<u64>() as f64 / 100.0)
}

/// The results of one cluster.
struct Turn {
    report: Report,
    /// Processor time of the idle metadata services, as a share of one processor.
    idle: f64,
}

/// Starts a cluster with this number of copies of metadata, and measures the cluster.
fn measure(copies: &str, options: &Options, top: &Path) -> Outcome<Turn> {
    let program = root().join("target/release/skep");
    // Start no monitor, because it would send requests to the idle services.
    let more = ["--no-monitor", "--metadata-copies", copies];
    let running = start_skep(&program, &top.join("copies"), &more, &[])?;
    std::thread::sleep(SETTLING);
    let (began, before) = (Instant::now(), seconds_of_metadata(&running.directory)?);
    std::thread::sleep(Duration::from_secs(options.idle_seconds));
    let used = seconds_of_metadata(&running.directory)? - before;
    let idle = used / began.elapsed().as_secs_f64();
    println!("idle metadata services: {:.2} % of a processor", idle * 100.0);
    let mut report = Report::new(top, &[System::Skep], 1)?;
    for processes in [1, 4] {
        run_all(&options.of_bench(processes), &running, &mut report)?;
    }
    Ok(Turn { report, idle })
}

/// The rates of one workload, with one value for each pair of clusters.
#[derive(Default)]
struct Row {
    name: String,
    limit: Option<f64>,
    one_copy: Vec<f64>,
    two_copies: Vec<f64>,
}

/// Adds the rates of a pair of clusters.
fn add_pair(rows: &mut Vec<Row>, one_copy: &[Measurement], two_copies: &[Measurement]) {
    rows.resize_with(one_copy.len(), Row::default);
    for ((row, one), two) in rows.iter_mut().zip(one_copy).zip(two_copies) {
        row.name = format!("{}, {} processes", one.workload.label(), one.processes);
        row.limit = limit(one.workload, one.processes);
        row.one_copy.push(one.rate());
        row.two_copies.push(two.rate());
    }
}

/// Returns the median of values, and its confidence interval. Returns `None` if there are too few
/// values for an interval.
fn median(mut values: Vec<f64>) -> Option<(f64, f64, f64)> {
    values.sort_by(f64::total_cmp);
    let (from, middle, to) = median_and_interval(&values)?;
    Some((middle, from, to))
}

/// Returns a table of the rates and of their ratios, and the names of the workloads whose median
/// ratio is below its limit.
fn judged(rows: &[Row]) -> (String, Vec<String>) {
    let mut text = "| | one copy | two copies | ratio | 95 % interval | at least |\n".to_owned();
    text += "|---|---|---|---|---|---|\n";
    let mut below = Vec::new();
    for row in rows {
        let ratios = row.two_copies.iter().zip(&row.one_copy).map(|(two, one)| two / one);
        let Some((ratio, from, to)) = median(ratios.collect()) else { continue };
        let [one, two] = [&row.one_copy, &row.two_copies]
            .map(|rates| median(rates.clone()).map_or(0.0, |(middle, ..)| middle));
        let limit = row.limit.map_or("-".into(), |limit| format!("{limit:.2}"));
        text += &format!(
            "| {} | {one:.0} /s | {two:.0} /s | {ratio:.2} | {from:.2} to {to:.2} | {limit} |\n",
            row.name
        );
        if row.limit.is_some_and(|limit| ratio < limit) {
            below.push(format!(
                "{}: a ratio of {ratio:.2}, and at least {limit} is required",
                row.name
            ));
        }
    }
    (text, below)
}

/// Measures clusters with one copy and with two copies of metadata, and prints the ratios of their
/// rates.
///
/// # Errors
/// - Describes the reason why a cluster could not be built, started or measured.
/// - Lists the limits that are not met.
pub(crate) fn run(options: &Options) -> Outcome {
    let named = |error: std::io::Error| {
        format!("cannot use the directory {}: {error}", options.directory.display())
    };
    fs::create_dir_all(&options.directory).map_err(named)?;
    let top = options.directory.canonicalize().map_err(named)?;
    call(env!("CARGO"), &["build", "--release", "--package", "skep-ctl"], &[])?;
    let (mut rows, mut idle) = (Vec::new(), [Vec::new(), Vec::new()]);
    for pair in 0..options.pairs {
        let turn = |copies: &str| {
            println!("== pair {} of {}, copies of metadata: {copies}", pair + 1, options.pairs);
            measure(copies, options, &top)
        };
        let (one, two) = if pair % 2 == 0 {
            let one = turn("1")?;
            (one, turn("2")?)
        } else {
            let two = turn("2")?;
            (turn("1")?, two)
        };
        add_pair(&mut rows, one.report.measurements(), two.report.measurements());
        idle[0].push(one.idle);
        idle[1].push(two.idle);
    }
    let (text, mut below) = judged(&rows);
    println!("\nrates with one copy and with two copies of metadata\n\n{text}");
    let [of_one, of_two] = idle.map(|shares| median(shares).map_or(0.0, |(middle, ..)| middle));
    println!(
        "idle metadata services together: {:.2} % of a processor with one copy, {:.2} % with two",
        of_one * 100.0,
        of_two * 100.0
    );
    if of_two >= IDLE_LIMIT {
        below.push(format!(
            "idle metadata services: {:.2} % of a processor, and less than {:.2} % is required",
            of_two * 100.0,
            IDLE_LIMIT * 100.0
        ));
    }
    match below.is_empty() {
        true => Ok(()),
        false => {
            Err(format!("two copies of metadata do not meet these limits: {}", below.join("; ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(workload: Workload, processes: u64, seconds: f64) -> Measurement {
        let system = System::Skep;
        Measurement { system, workload, processes, amount: 100.0, seconds, cpu: 1.0 }
    }

    #[test]
    fn processor_time_is_read_for_a_program_name_with_parentheses() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194560 9 0 0 0 31 11 0 0 20 0 3 0 55 1 2";
        assert_eq!(ticks(stat), Some(42));
        assert_eq!((ticks("7 (a) S 1 7"), ticks("")), (None, None));
    }

    #[test]
    fn workload_fails_if_its_median_ratio_is_below_its_limit() {
        let mut rows = Vec::new();
        for pair in 0..6 {
            let one = [Workload::Create, Workload::Stat, Workload::Unlink]
                .map(|workload| measured(workload, 4, 1.0));
            // One slow pair of six pairs does not change the verdict.
            let create = if pair == 0 { 4.0 } else { 1.25 };
            let two = [
                measured(Workload::Create, 4, create),
                measured(Workload::Stat, 4, 1.25),
                measured(Workload::Unlink, 4, 10.0),
            ];
            add_pair(&mut rows, &one, &two);
        }
        let (text, below) = judged(&rows);
        assert_eq!(below, ["stat, 4 processes: a ratio of 0.80, and at least 0.90 is required"]);
        assert!(text.contains("| create, 4 processes | 100 /s | 80 /s | 0.80 |"), "{text}");
        assert!(text.contains("| unlink, 4 processes | 100 /s | 10 /s | 0.10 |"), "{text}");
    }
}
