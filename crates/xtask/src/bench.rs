//! `cargo xtask bench`: runs the same workloads on Skep, on the local file system and on other
//! installed file systems (peers). One run reports rates, ratios of rates, and the CPU time of the
//! whole machine.
//!
//! Only ratios within one run are meaningful, so do not compare rates from different machines or
//! days. Each worker of a workload is a process, and all workers start at the same time.
//! [`workload`] defines the workloads, [`system`] starts the file systems, and [`report`] prints
//! the results. [`cost`] compares Skep with and without statistics, and [`copies`] compares two
//! copies of metadata with one copy.

pub(crate) mod copies;
pub(crate) mod cost;
mod report;
mod system;
mod workload;

use crate::repository::{Outcome, output, root, run as call};
use report::{Measurement, Report};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use system::{MountedSystem, System};
use workload::Workload;
use workload::make_archive;
pub(crate) use workload::{Worker, touch_memory};

/// Options of `bench`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// File systems to measure (default: all that are installed, without `skep-level-2`). For
    /// example, `--systems skep,skep-level-2` compares both feature levels of Skep in one run.
    #[arg(long, value_delimiter = ',')]
    systems: Vec<System>,
    /// Workloads to run (default: all).
    #[arg(long, value_delimiter = ',')]
    workloads: Vec<Workload>,
    /// Numbers of worker processes. Each workload runs once for each number.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4])]
    processes: Vec<u64>,
    /// MiB of data in each data workload, divided over its processes.
    #[arg(long, default_value_t = 2048)]
    data_mib: u64,
    /// Number of blocks in each random workload, divided over its processes.
    #[arg(long, default_value_t = 32_768)]
    blocks: u64,
    /// Number of files of each process in metadata workloads.
    #[arg(long, default_value_t = 5_000)]
    files: u64,
    /// Number of SQLite transactions, and of synced appends, of each process.
    #[arg(long, default_value_t = 1_000)]
    transactions: u64,
    /// Number of files in the tree that `tar` and `rm` work on.
    #[arg(long, default_value_t = 20_000)]
    tree_files: u64,
    /// Number of rounds on each file system. The best result of each workload is reported.
    #[arg(long, default_value_t = 1)]
    rounds: u32,
    /// Directory for the data of all file systems.
    #[arg(long, default_value_os_t = root().join("target/bench"))]
    directory: PathBuf,
    /// Write the result to docs/benchmarks.md.
    #[arg(long)]
    write_page: bool,
}

/// Returns the CPU seconds that the whole machine has used since boot.
fn cpu_seconds() -> Outcome<f64> {
    let stat = fs::read_to_string("/proc/stat").map_err(|error| error.to_string())?;
    let first = stat.lines().next().unwrap_or_default();
    let ticks: Vec<u64> = first.split_whitespace().flat_map(str::parse).collect();
    // The columns after the label are user, nice, system, idle, iowait, irq, softirq and steal, in
    // units of 1/100 s.
    let busy = |index: &usize| ![3, 4].contains(index) && *index < 7;
    let sum: u64 = (0..ticks.len()).filter(busy).map(|index| ticks[index]).sum();
    Ok(sum as f64 / 100.0)
}

/// Drops the data of all files below a directory from the page cache. `run_all` calls this function
/// for the mount of a file system, and for the directory in which its servers store their data.
///
/// The function drops one file at a time. The benchmark does not use `/proc/sys/vm/drop_caches`,
/// which drops the caches of the whole machine and needs root. A write to that file also waits for
/// every mounted file system, and never ends if one of the file systems hangs.
fn drop_cached_data(directory: &Path) -> Outcome {
    let named = |error: std::io::Error| {
        format!("cannot drop the cached data below {}: {error}", directory.display())
    };
    for entry in fs::read_dir(directory).map_err(named)? {
        let entry = entry.map_err(named)?;
        let kind = entry.file_type().map_err(named)?;
        if kind.is_dir() {
            drop_cached_data(&entry.path())?;
        } else if kind.is_file() {
            // A server may remove its own files in the meantime.
            let Ok(file) = fs::File::open(entry.path()) else { continue };
            file.sync_data().map_err(named)?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
                .map_err(|error| named(error.into()))?;
        }
    }
    Ok(())
}

/// Starts this program again as one worker process of a workload, and waits until the worker is
/// ready.
fn spawn(worker: &Worker) -> Outcome<Child> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let name = clap::ValueEnum::to_possible_value(&worker.workload).expect("no value is hidden");
    let mut child = Command::new(program)
        .args(["bench-worker", name.get_name()])
        .arg(&worker.directory)
        .args(["--file-bytes", &worker.file_bytes.to_string()])
        .args(["--count", &worker.count.to_string(), "--index", &worker.index.to_string()])
        .args(["--processes", &worker.processes.to_string(), "--archive"])
        .arg(&worker.archive)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let mut line = String::new();
    let stdout = child.stdout.take().expect("the stream is a pipe");
    BufReader::new(stdout).read_line(&mut line).map_err(|error| error.to_string())?;
    if line.trim() == "ready" {
        Ok(child)
    } else {
        Err("a worker process of the workload failed; its error is above".into())
    }
}

/// Runs all workers of a workload at the same time. Returns the seconds from their common start to
/// the end of the last worker, and the CPU seconds that the machine used in this time.
fn measure(workers: &[Worker]) -> Outcome<(f64, f64)> {
    let mut children = workers.iter().map(spawn).collect::<Outcome<Vec<_>>>()?;
    let cpu = cpu_seconds()?;
    let start = Instant::now();
    for child in &mut children {
        let mut stdin = child.stdin.take().expect("the stream is a pipe");
        stdin.write_all(b"go\n").map_err(|error| error.to_string())?;
    }
    let ends: Vec<_> = children.iter_mut().map(Child::wait).collect();
    let seconds = start.elapsed().as_secs_f64();
    let cpu = cpu_seconds()? - cpu;
    for end in ends {
        if !end.map_err(|error| error.to_string())?.success() {
            return Err("a worker process of the workload failed; its error is above".into());
        }
    }
    Ok((seconds, cpu))
}

fn make_directories(top: &Path, count: u64) -> Outcome<Vec<PathBuf>> {
    let paths: Vec<_> = (0..count).map(|index| top.join(format!("process-{index}"))).collect();
    for path in &paths {
        fs::create_dir_all(path)
            .map_err(|error| format!("cannot create {}: {error}", path.display()))?;
    }
    Ok(paths)
}

impl Options {
    /// Whether a workload is measured with this number of processes.
    fn includes(&self, workload: Workload, processes: u64) -> bool {
        let is_wanted = self.workloads.is_empty() || self.workloads.contains(&workload);
        is_wanted && (processes == 1 || !workload.has_one_process())
    }

    /// Returns the number of operations that each process of a workload performs.
    fn count(&self, workload: Workload, processes: u64) -> u64 {
        match workload {
            Workload::RandomWrite | Workload::RandomRead => self.blocks / processes,
            Workload::AppendSync | Workload::Sqlite => self.transactions,
            Workload::TreeUnpack | Workload::TreePack | Workload::TreeRemove => self.tree_files,
            _ => self.files,
        }
    }
}

/// Runs all selected workloads on one file system.
fn run_all(options: &Options, running: &MountedSystem, report: &mut Report) -> Outcome {
    for &processes in &options.processes {
        let top = running.mount_point.join(format!("with-{processes}"));
        let directories = make_directories(&top, processes)?;
        let file_bytes = (options.data_mib / processes) << 20;
        for workload in Workload::ALL {
            if !options.includes(workload, processes) {
                continue;
            }
            let count = options.count(workload, processes);
            let worker = |(index, directory): (usize, &PathBuf)| Worker {
                workload,
                directory: directory.clone(),
                file_bytes,
                count,
                index: index as u64,
                processes,
                archive: running.archive(),
            };
            let workers: Vec<_> = directories.iter().enumerate().map(worker).collect();
            running.wait_for_writeback()?;
            if workload.is_cold() {
                // Drop the caches of the clients before the caches of the servers.
                drop_cached_data(&top)?;
                drop_cached_data(&running.directory)?;
            }
            let (seconds, cpu) = measure(&workers)?;
            let amount = if workload.is_sequential() { file_bytes >> 20 } else { count };
            let measurement = Measurement {
                system: running.system,
                workload,
                processes,
                amount: (amount * processes) as f64,
                seconds,
                cpu,
            };
            println!("{}", report::progress_line(&measurement));
            report.add(measurement);
        }
        fs::remove_dir_all(&top)
            .map_err(|error| format!("cannot remove {}: {error}", top.display()))?;
    }
    Ok(())
}

/// Measures all file systems one at a time, and prints the tables.
///
/// # Errors
/// Describes the reason why a file system could not be started or measured.
pub(crate) fn run(options: &Options) -> Outcome {
    let is_wanted = |system: &System| {
        if options.systems.is_empty() {
            system.is_measured_by_default()
        } else {
            options.systems.contains(system)
        }
    };
    let systems: Vec<_> = System::ALL.into_iter().filter(is_wanted).collect();
    if systems.iter().any(|system| system.is_skep()) {
        call(env!("CARGO"), &["build", "--release", "--package", "skep-ctl"], &[])?;
    }
    // The path must be canonical like the paths in `/proc/mounts`, because
    // `MountedSystem::is_mounted` compares this path with these paths.
    let named = |error: std::io::Error| {
        format!("cannot use the directory {}: {error}", options.directory.display())
    };
    fs::create_dir_all(&options.directory).map_err(named)?;
    let top = options.directory.canonicalize().map_err(named)?;
    let mut report = Report::new(&top, &systems, options.rounds)?;
    for system in systems {
        println!("== {}", system.label());
        let directory = top.join(system.label().to_lowercase());
        if directory.exists() {
            return Err(format!(
                "cannot use {}: it exists already; remove it",
                directory.display()
            ));
        }
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let megabytes = (options.data_mib * 3).to_string();
        output(program.to_str().unwrap_or_default(), &["bench-touch", &megabytes])?;
        let running = system.start(&directory)?;
        make_archive(&directory, options.tree_files)?;
        for _ in 0..options.rounds {
            run_all(options, &running, &mut report)?;
        }
    }
    let page = report.page();
    println!("\n{page}");
    if options.write_page {
        let path = root().join("docs/benchmarks.md");
        let named = |error: std::io::Error| format!("cannot update {}: {error}", path.display());
        let earlier = fs::read_to_string(&path).map_err(named)?;
        fs::write(&path, page + report::written_by_people(&earlier)).map_err(named)?;
        fs::write(path.with_extension("csv"), report.csv()).map_err(named)?;
    }
    Ok(())
}
