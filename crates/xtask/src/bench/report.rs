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
    /// Amount of work: MiB for sequential workloads, operations for the others.
    pub(crate) amount: f64,
    pub(crate) seconds: f64,
    /// CPU seconds that the whole machine used.
    pub(crate) cpu: f64,
}

impl Measurement {
    fn is_sequential(&self) -> bool {
        matches!(self.workload, Workload::SequentialWrite | Workload::SequentialRead)
    }

    fn is_of(&self, system: System, workload: Workload, processes: u64) -> bool {
        (self.system, self.workload, self.processes) == (system, workload, processes)
    }

    fn rate(&self) -> f64 {
        self.amount / self.seconds
    }

    /// Returns the rate with its unit.
    fn shown_rate(&self) -> String {
        let unit = if self.is_sequential() { "MiB/s" } else { "/s" };
        format!("{} {unit}", thousands(self.rate()))
    }

    /// Returns the CPU time per GiB or per operation.
    fn shown_cpu(&self) -> String {
        if self.is_sequential() {
            format!("{:.2} s/GiB", self.cpu / (self.amount / 1024.0))
        } else {
            format!("{:.0} us", self.cpu / self.amount * 1e6)
        }
    }
}

/// Returns a measurement as a line of the progress output.
pub(crate) fn progress_line(measurement: &Measurement) -> String {
    format!(
        "{:<26} {} processes  {:>14}  {:>12} CPU",
        measurement.workload.label(),
        measurement.processes,
        measurement.shown_rate(),
        measurement.shown_cpu()
    )
}

/// Formats a number with separators between groups of three digits.
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

/// All measurements of a run, with a description of the machine.
pub(crate) struct Report {
    machine: String,
    rounds: u32,
    systems: Vec<System>,
    measurements: Vec<Measurement>,
}

impl Report {
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
        Ok(Self { machine, rounds, systems: systems.to_vec(), measurements: Vec::new() })
    }

    /// Adds a measurement, unless an earlier round of the same workload was faster.
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

    /// Returns the measured workloads in the order of `Workload::ALL`, each with its numbers of
    /// processes.
    fn rows(&self) -> Vec<(Workload, u64)> {
        let of = |workload| {
            let measured = self.measurements.iter().filter(move |m| m.workload == workload);
            measured.map(|m| m.processes).collect::<BTreeSet<_>>()
        };
        let all = Workload::ALL.into_iter();
        all.flat_map(|workload| of(workload).into_iter().map(move |it| (workload, it))).collect()
    }

    /// Returns a table with a column for each file system.
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
        page = page.replace("ROUNDS", &self.rounds.to_string());
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

const PAGE_HEAD: &str = "\
# Benchmarks

`cargo xtask bench --write-page` writes this page. One run on one machine with all daemons, \
    clients and disks
(MACHINE). **Only ratios within the run are meaningful;
do not compare rates of different machines or days.**

- *sequential*: one file for each process, transfers of 1 MiB through the page cache, `fsync` at \
    the end of
  writing. Before reading, the data of all files below the mount and below the servers' \
    directories is dropped
  from the page cache.
- *random*: blocks of 4 KiB, one at a time, at random offsets in these files.
- *create*, *stat*, *unlink*: empty files, in a separate directory for each process.
- All data that is read is compared with the written data. Each figure is the best of ROUNDS.
- Skep is a cluster of `skep up`: 2 metadata targets, 2 storage services with 4 targets each,
  `metadata.sync = interval`. GlusterFS is a volume distributed over 8 bricks. MooseFS has 4 \
    chunk servers
  with 2 directories each and one copy. Both are unchanged Debian packages.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_ratios_and_cpu_are_shown_for_each_system() {
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
    }

    #[test]
    fn thousands_are_separated() {
        assert_eq!(thousands(999.4), "999");
        assert_eq!(thousands(1_234_567.0), "1,234,567");
    }
}
