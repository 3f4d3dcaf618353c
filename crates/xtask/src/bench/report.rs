//! The results of a benchmark run, as tables.

use super::system::System;
use super::workload::Workload;
use crate::repository::{Outcome, output};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The result of one workload on one file system.
pub(crate) struct Measurement {
    pub(crate) system: System,
    pub(crate) workload: Workload,
    pub(crate) processes: u64,
    /// Amount of work: MiB for sequential workloads, and operations or files for all other
    /// workloads.
    pub(crate) amount: f64,
    pub(crate) seconds: f64,
    /// CPU seconds that the whole machine used.
    pub(crate) cpu: f64,
}

impl Measurement {
    fn is_of(&self, system: System, workload: Workload, processes: u64) -> bool {
        (self.system, self.workload, self.processes) == (system, workload, processes)
    }

    /// Returns the amount of work per second.
    pub(crate) fn rate(&self) -> f64 {
        self.amount / self.seconds
    }

    /// Returns the rate as text with its unit.
    fn shown_rate(&self) -> String {
        let unit = if self.workload.is_sequential() { "MiB/s" } else { "/s" };
        format!("{} {unit}", thousands(self.rate()))
    }

    /// Returns the CPU time per GiB or per operation, as text.
    fn shown_cpu(&self) -> String {
        if self.workload.is_sequential() {
            format!("{:.2} s/GiB", self.cpu / (self.amount / 1024.0))
        } else {
            format!("{:.0} us", self.cpu / self.amount * 1e6)
        }
    }
}

/// Formats a measurement as a line of the progress output.
pub(crate) fn progress_line(measurement: &Measurement) -> String {
    format!(
        "{:<26} {} processes  {:>14}  {:>12} CPU",
        measurement.workload.label(),
        measurement.processes,
        measurement.shown_rate(),
        measurement.shown_cpu()
    )
}

/// Formats a number with a comma between groups of three digits.
fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// All measurements of a run, with descriptions of the machine and of the measured programs.
pub(crate) struct Report {
    machine: String,
    /// The command, its date, and the versions of the measured programs.
    source: String,
    rounds: u32,
    systems: Vec<System>,
    measurements: Vec<Measurement>,
}

impl Report {
    /// Returns all measurements in the order in which they were added.
    pub(crate) fn measurements(&self) -> &[Measurement] {
        &self.measurements
    }

    /// Creates an empty report for a run whose data is below `directory`.
    ///
    /// # Errors
    /// Fails if `df` or `uname` fails.
    pub(crate) fn new(directory: &Path, systems: &[System], rounds: u32) -> Outcome<Self> {
        let path = directory.to_str().unwrap_or(".");
        let below = output("df", &["--output=fstype", path])?;
        let below = below.lines().nth(1).unwrap_or("unknown");
        let release = output("uname", &["-r"])?;
        let cpus = std::thread::available_parallelism().map_or(0, usize::from);
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kilobytes = memory.split_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok());
        let machine = format!(
            "{cpus} CPUs, {} GiB of memory, Linux {}, data on {}",
            kilobytes.unwrap_or_default() >> 20,
            release.trim(),
            below.trim()
        );
        let command: Vec<_> = std::env::args().skip(1).collect();
        let mut source = format!(
            "`cargo xtask {}`, {}, commit {}",
            command.join(" "),
            output("date", &["--iso-8601"])?.trim(),
            output("git", &["describe", "--always", "--dirty", "--abbrev=10"])?.trim()
        );
        for system in systems {
            source += &system.version()?;
        }
        let measurements = Vec::new();
        Ok(Self { machine, source, rounds, systems: systems.to_vec(), measurements })
    }

    /// Returns all measurements as comma-separated values.
    pub(crate) fn csv(&self) -> String {
        let mut text = "system,workload,processes,amount,unit,seconds,cpu_seconds\n".to_owned();
        for each in &self.measurements {
            let unit = if each.workload.is_sequential() { "MiB" } else { "operations" };
            text += &format!(
                "{},\"{}\",{},{},{unit},{:.4},{:.2}\n",
                each.system.label(),
                each.workload.label(),
                each.processes,
                each.amount,
                each.seconds,
                each.cpu
            );
        }
        text
    }

    /// Adds a measurement, unless an earlier round of the same workload was faster than this
    /// measurement.
    pub(crate) fn add(&mut self, measurement: Measurement) {
        let Measurement { system, workload, processes, .. } = measurement;
        match self.find(system, workload, processes) {
            Some(earlier) if earlier.rate() >= measurement.rate() => return,
            _ => self.measurements.retain(|m| !m.is_of(system, workload, processes)),
        }
        self.measurements.push(measurement);
    }

    fn find(&self, system: System, workload: Workload, processes: u64) -> Option<&Measurement> {
        self.measurements.iter().find(|m| m.is_of(system, workload, processes))
    }

    /// Returns the measured workloads, each with each measured number of processes. The workloads
    /// are in the order of `Workload::ALL`.
    fn rows(&self) -> Vec<(Workload, u64)> {
        let of = |workload| {
            let measured = self.measurements.iter().filter(move |m| m.workload == workload);
            measured.map(|m| m.processes).collect::<BTreeSet<_>>()
        };
        let all = Workload::ALL.into_iter();
        all.flat_map(|workload| of(workload).into_iter().map(move |it| (workload, it))).collect()
    }

    /// Returns a table that has one column for each file system.
    fn table(&self, systems: &[System], cell: impl Fn(&Measurement) -> String) -> String {
        let mut text = "| workload | processes |".to_owned();
        systems.iter().for_each(|system| text += &format!(" {} |", system.label()));
        text += "\n|---|---|";
        text += &"---|".repeat(systems.len());
        text.push('\n');
        for (workload, processes) in self.rows() {
            text += &format!("| {} | {processes} |", workload.label());
            for system in systems {
                let measurement = self.find(*system, workload, processes);
                text += &format!(" {} |", measurement.map_or("-".into(), &cell));
            }
            text.push('\n');
        }
        text
    }

    /// Returns the page with all tables.
    pub(crate) fn page(&self) -> String {
        let mut page = PAGE_HEAD.replace("MACHINE", &self.machine);
        page = page.replace("SOURCE", &self.source);
        page = page.replace("ROUNDS", &self.rounds.to_string());
        if self.systems.contains(&System::SkepLevel2) {
            page += LEVEL_2;
        }
        page += "\n## Rates\n\n";
        page += &self.table(&self.systems, Measurement::shown_rate);
        let others: Vec<_> =
            self.systems.iter().copied().filter(|system| *system != System::Skep).collect();
        if self.systems.contains(&System::Skep) && !others.is_empty() {
            page += "\n## Skep's rate as a multiple of the others'\n\n";
            page += &self.table(&others, |other| {
                let ours = self.find(System::Skep, other.workload, other.processes);
                ours.map_or("-".into(), |ours| format!("{:.2}", ours.rate() / other.rate()))
            });
        }
        page += "\n## CPU seconds of the whole machine, for a GiB or an operation\n\n";
        page += &self.table(&self.systems, Measurement::shown_cpu);
        page
    }
}

/// The heading at which the last part of the page begins. No run replaces this part, because people
/// write this part.
const WRITTEN_BY_PEOPLE: &str = "\n## Conclusions\n";

/// Returns the last part of the page, which people write and no run replaces.
pub(crate) fn written_by_people(page: &str) -> &str {
    page.find(WRITTEN_BY_PEOPLE).map_or("", |start| &page[start..])
}

const PAGE_HEAD: &str = "\
# Benchmarks

`cargo xtask bench --write-page` writes this page up to the conclusions, and its figures to \
    [benchmarks.csv](benchmarks.csv).
One run on one machine with all daemons, clients and disks: SOURCE;
MACHINE. **Only ratios within the run are meaningful;
do not compare rates of different machines or days.**

- *sequential*: one file for each process, transfers of 1 MiB through the page cache, `fsync` at \
    the end of
  writing. Before reading, the data of all files below the mount and below the servers' \
    directories is dropped
  from the page cache.
- *random*: blocks of 4 KiB, one at a time, at random offsets in these files.
- *create*, *stat*, *unlink*: empty files, in a separate directory for each process.
- *one shared file*: as *sequential*, but all processes write parts of one file, and each reads \
    the part of another.
- *append*, *small files*, *mkdir, rename, rmdir*: each process in its own directory. 500 \
    directories are in one parent, and
  in the rows *all in one parent* all directories of a process. `SQLite` commits transactions \
    of one
  row with the default journal. `tar x`, `tar c` and `rm -r` work on a tree of files of up to \
    12 KiB, 100 in each
  directory. Their rates are files per second.
- All data that is read is compared with the written data. Each figure is the best of ROUNDS.
- Skep is a cluster of `skep up`: 2 metadata targets, 2 storage services with 4 targets each,
  `metadata.sync = interval`. GlusterFS is a volume distributed over 8 bricks. MooseFS has 4 \
    chunk servers
  with 2 directories each and one copy. Both are unchanged Debian packages.
- MooseFS's servers sync no file when a program calls `fsync`: by default, a chunk server never \
    syncs (`HDD_FSYNC_BEFORE_CLOSE`
  is 0). So a power loss of its hosts can lose data that a program has synced, and its rates in \
    the rows with `fsync` and in *SQLite* contain no sync.
";

/// Describes the column of [`System::SkepLevel2`].
const LEVEL_2: &str = "\
- Skep-level-2 is the same cluster with feature level 2, on which metadata stages changes of two \
    groups
  ([how](design/0028-staged-transactions.md)). Only the rows *all in one parent* can have such \
    changes: about half of the calls
  in a directory with more than 20,000 subdirectories.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_shows_rates_ratios_and_cpu_time_of_each_system() {
        let measurement = |system, seconds| Measurement {
            system,
            workload: Workload::SequentialWrite,
            processes: 2,
            amount: 2048.0,
            seconds,
            cpu: 3.0,
        };
        let mut report = Report {
            machine: "a machine".into(),
            source: "a command".into(),
            rounds: 2,
            systems: vec![System::Local, System::Skep],
            measurements: Vec::new(),
        };
        for (system, seconds) in
            [(System::Local, 1.0), (System::Skep, 9.0), (System::Skep, 2.0), (System::Local, 3.0)]
        {
            report.add(measurement(system, seconds));
        }
        let page = report.page();
        assert!(page.contains("| sequential write, fsync | 2 | 2,048 MiB/s | 1,024 MiB/s |"));
        assert!(page.contains("| sequential write, fsync | 2 | 0.50 |"));
        assert!(page.contains("| sequential write, fsync | 2 | 1.50 s/GiB | 1.50 s/GiB |"));
        let line = "Skep,\"sequential write, fsync\",2,2048,MiB,2.0000,3.00\n";
        assert!(report.csv().contains(line), "{}", report.csv());
    }

    #[test]
    fn page_describes_the_feature_level_only_if_it_was_measured() {
        let page = |systems: &[System]| {
            let measurement = |system: &System| Measurement {
                system: *system,
                workload: Workload::MakeDirectoryWide,
                processes: 1,
                amount: 100.0,
                seconds: if *system == System::Skep { 2.0 } else { 1.0 },
                cpu: 1.0,
            };
            let report = Report {
                machine: "a machine".into(),
                source: "a command".into(),
                rounds: 1,
                systems: systems.to_vec(),
                measurements: systems.iter().map(measurement).collect(),
            };
            report.page()
        };
        assert!(!page(&[System::Local, System::Skep]).contains("feature level"));
        let both = page(&[System::Skep, System::SkepLevel2]);
        assert!(both.contains("- Skep-level-2 is the same cluster with feature level 2"), "{both}");
        assert!(both.contains("| mkdir, all in one parent | 1 | 50 /s | 100 /s |"), "{both}");
        assert!(both.contains("| mkdir, all in one parent | 1 | 0.50 |"), "{both}");
    }

    #[test]
    fn a_new_page_keeps_the_sections_written_by_people() {
        let page = "# Benchmarks\n\n## Rates\n\n## Conclusions\n\n- one\n\n## More\n";
        assert_eq!(written_by_people(page), "\n## Conclusions\n\n- one\n\n## More\n");
        assert_eq!(written_by_people("# Benchmarks\n"), "");
    }

    #[test]
    fn thousands_are_separated_by_commas() {
        assert_eq!(thousands(999.4), "999");
        assert_eq!(thousands(1_234_567.0), "1,234,567");
    }
}
