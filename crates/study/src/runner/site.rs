//! The system that a study measures: its client hosts, its mount, and the measurement of a run.

use super::files::{Target, allocation, create, pattern, set_pattern, targets};
use super::meeting::Meeting;
use super::{Bench, Measured};
use crate::aggregate::{Share, bandwidth};
use crate::plan::{Access, Operation, System};
use crate::record::{ApplicationRecord, ProcessRecord, Settings};
use skep_bench::io::{Outcome, Plan};
use skep_bench::launcher::PhaseRecord;
use skep_bench::{Host, Progress};
use skep_lab::{CpuUse, CpuWatch};
use skep_types::{Error, ErrorCode, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// The hosts and the directory that a study uses.
#[derive(Debug, Clone)]
pub struct Place {
    /// Name for people: the name of the lab, or the path of the mount.
    pub name: String,
    /// The client hosts.
    pub hosts: Vec<Host>,
    /// Hosts that run no processes, but whose caches are dropped too.
    pub server_hosts: Vec<Host>,
    /// The directory for the files of the study, as a path on each client host. `{host}` in it
    /// stands for the name of the host.
    pub path: String,
    /// The path of this directory on the host of this process.
    pub path_here: PathBuf,
    /// Whether all hosts are emulated on the host of this process. If so, the CPU of this host may
    /// be the bottleneck.
    pub is_emulated: bool,
}

/// The system that a study measures, prepared for runs.
#[derive(Debug)]
pub struct Site {
    place: Place,
    /// Name of the directory in which the study creates its files. Its parent is the directory
    /// `path` of [`Place`].
    work: String,
    /// All storage targets. `None` if the file system does not report targets.
    targets: Option<Vec<Target>>,
    /// Number of runs that this process has begun.
    turn: usize,
}

impl Site {
    /// Creates the directory `work` for the files of the study, and finds the storage targets.
    ///
    /// # Errors
    /// The error of the file system.
    pub fn open(place: Place, work: &str) -> Result<Self> {
        let site = Self { place, work: work.to_owned(), targets: None, turn: 0 };
        let directory = site.here();
        std::fs::create_dir_all(&directory)
            .map_err(|error| Error::from(error).within(directory.display()))?;
        let probe = directory.join("probe");
        let _ = std::fs::remove_file(&probe);
        create(&probe, None)?;
        let found = all_targets(&probe);
        let _ = std::fs::remove_file(&probe);
        let mut found = found?;
        if let Some(targets) = &mut found {
            targets.sort();
        }
        Ok(Self { targets: found, ..site })
    }

    /// Returns the facts about the system that the check of a plan needs.
    pub fn system(&self) -> System {
        let servers = self.targets_per_server();
        System {
            hosts: self.place.hosts.len() as u32,
            targets_per_server: servers.map(|servers| servers.into_values().collect()),
        }
    }

    /// Returns the number of storage targets of each server. `None` if the file system does not
    /// report targets.
    pub fn targets_per_server(&self) -> Option<BTreeMap<String, u32>> {
        let mut servers = BTreeMap::new();
        for target in self.targets.as_ref()? {
            *servers.entry(target.server.clone()).or_default() += 1;
        }
        Some(servers)
    }

    /// Returns the hosts and the directory that the study uses.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Removes the directory with the files of the study.
    ///
    /// # Errors
    /// The error of the file system.
    pub fn clear(&self) -> Result<()> {
        let directory = self.here();
        match std::fs::remove_dir_all(&directory) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::from(error).within(directory.display()))
            }
            _ => Ok(()),
        }
    }

    fn here(&self) -> PathBuf {
        self.place.path_here.join(&self.work)
    }

    /// Creates the files of an application, and returns the plan of its benchmark.
    fn prepare(&self, label: &str, settings: &Settings, application: u32) -> Result<Plan> {
        let all = self.targets.as_deref().unwrap_or_default();
        let pattern = pattern(settings, application, all, self.turn);
        let name = file_name(label, application);
        let here = self.here().join(&name);
        remove(&here)?;
        let mut path = format!("{}/{}/{name}", self.place.path, self.work);
        match settings.access {
            // The file is directly in the directory of the study, so that one metadata target
            // creates all such files. A policy that chooses targets in turn has a position of its
            // own on each metadata target, so files of different metadata targets could get the
            // same storage targets.
            Access::SharedFile => create(&here, pattern.as_deref())?,
            Access::FilePerProcess => {
                std::fs::create_dir(&here)
                    .map_err(|error| Error::from(error).within(here.display()))?;
                if let Some(pattern) = &pattern {
                    set_pattern(&here, pattern)?;
                }
                path.push_str("/data");
            }
        }
        let is_shared = settings.access == Access::SharedFile;
        let is_read = settings.operation == Operation::Read;
        let processes = u64::from(settings.hosts) * u64::from(settings.processes);
        Ok(Plan {
            path,
            transfer_bytes: settings.transfer_bytes,
            block_bytes: settings.data_bytes / processes,
            file_per_process: !is_shared,
            write: true,
            read: is_read,
            // Each host reads data that another host has written, so that it does not read from its
            // own cache.
            reorder: is_read,
            fsync: true,
            use_existing: is_shared,
            keep: true,
            server_hosts: self.place.server_hosts.clone(),
            ..Plan::default()
        })
    }

    /// Returns the targets of each file of an application.
    fn files_of(&self, label: &str, application: u32) -> Result<Vec<Vec<Target>>> {
        let here = self.here().join(file_name(label, application));
        let failed = |error: std::io::Error| Error::from(error).within(here.display());
        let mut paths = vec![here.clone()];
        if here.is_dir() {
            let entries = std::fs::read_dir(&here).map_err(failed)?;
            paths = entries
                .map(|entry| Ok(entry?.path()))
                .collect::<std::io::Result<_>>()
                .map_err(failed)?;
        }
        let found = paths.iter().map(|path| targets(path)).collect::<Result<Vec<_>>>()?;
        Ok(found.into_iter().flatten().collect())
    }
}

impl Bench for Site {
    fn measure(&mut self, label: &str, settings: &Settings) -> Result<Measured> {
        self.turn += 1;
        let applications: Vec<u32> = (0..settings.applications).collect();
        let plans: Vec<Plan> = applications
            .iter()
            .map(|application| self.prepare(label, settings, *application))
            .collect::<Result<_>>()?;
        let (outcomes, cpu) = together(&plans, &self.place, settings)?;
        let phase = settings.operation.word();
        let mut measured = Measured {
            applications: Vec::new(),
            caches_dropped: true,
            invalid_because: cpu.filter(|cpu| cpu.is_limit).map(|cpu| complaint(&cpu)),
            environment: outcomes.first().map(|outcome| serde_json::json!(outcome.hosts)),
        };
        for (application, outcome) in applications.iter().zip(&outcomes) {
            let record = phase_of(outcome, phase)?;
            measured.caches_dropped &= record.caches_dropped;
            let mut found = application_of(record)?;
            if let Some(all) = &self.targets {
                found.allocation = Some(allocation(&self.files_of(label, *application)?, all));
            }
            measured.applications.push(found);
        }
        for application in applications {
            remove(&self.here().join(file_name(label, application)))?;
        }
        Ok(measured)
    }

    fn hosts(&self) -> u32 {
        self.place.hosts.len() as u32
    }
}

fn file_name(label: &str, application: u32) -> String {
    format!("{label}-{}", application + 1)
}

/// Finds all storage targets. For this, it sets a stripe pattern with as many targets as possible
/// on the empty file `probe`, and reads the targets of this file.
fn all_targets(probe: &Path) -> Result<Option<Vec<Target>>> {
    if targets(probe)?.is_none() {
        return Ok(None);
    }
    set_pattern(probe, "count=all,chooser=balanced")?;
    targets(probe)
}

/// Removes a file or a directory, if it exists.
fn remove(path: &Path) -> Result<()> {
    let removed = match std::fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    };
    removed.map_err(|error| Error::from(error).within(path.display()))
}

/// Runs all applications at the same time, each on its own hosts. All processes begin when the last
/// one is ready. On an emulated cluster, measures the CPU use during the measured phase.
fn together(
    plans: &[Plan],
    place: &Place,
    settings: &Settings,
) -> Result<(Vec<Outcome>, Option<CpuUse>)> {
    let meeting = Meeting::new(plans.len());
    // The lock protects the CPU watch, which is started at the measured phase. While a thread holds
    // this lock, it takes no other lock.
    let watch: Mutex<Option<CpuWatch>> = Mutex::new(None);
    let counted = settings.operation.word();
    let one = |plan: &Plan, hosts: &[Host]| {
        let mut progress = |progress: Progress| {
            if let Progress::Phase { phase, .. } = progress
                && (phase == "write" || phase == "read")
            {
                meeting.wait();
                let mut watch = watch.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                if place.is_emulated && phase == counted && watch.is_none() {
                    *watch = Some(CpuWatch::start());
                }
            }
        };
        let outcome = skep_bench::io::run(None, plan, hosts, settings.processes, &mut progress);
        meeting.leave();
        outcome
    };
    let groups = place.hosts.chunks(settings.hosts as usize);
    let outcomes: Vec<Result<Outcome>> = std::thread::scope(|scope| {
        let threads: Vec<_> = plans
            .iter()
            .zip(groups)
            .map(|(plan, hosts)| scope.spawn(move || one(plan, hosts)))
            .collect();
        let ended = |it: std::thread::ScopedJoinHandle<'_, _>| it.join();
        let gone = |_| Err(Error::new(ErrorCode::Io, "a thread of the benchmark has failed"));
        threads.into_iter().map(|it| ended(it).unwrap_or_else(gone)).collect()
    });
    let watch = watch.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let cpu = watch.map(CpuWatch::finish);
    Ok((outcomes.into_iter().collect::<Result<_>>()?, cpu))
}

fn complaint(cpu: &CpuUse) -> String {
    format!(
        "the CPU of this host was the limit: it was busy in {} of {} samples, {:.0} % idle on \
        average",
        cpu.saturated_samples,
        cpu.samples,
        cpu.mean_idle * 100.0
    )
}

/// Returns the record of the phase with the name `phase`.
fn phase_of<'a>(outcome: &'a Outcome, phase: &str) -> Result<&'a PhaseRecord> {
    if let Some(failure) = &outcome.failure {
        return Err(Error::new(ErrorCode::Io, failure.clone()));
    }
    let found = outcome.phases.iter().rev().find(|record| record.phase == phase);
    found.ok_or_else(|| {
        Error::new(ErrorCode::Io, format!("the benchmark has no result for phase {phase}"))
    })
}

fn application_of(record: &PhaseRecord) -> Result<ApplicationRecord> {
    let processes: Vec<ProcessRecord> = record
        .processes
        .iter()
        .map(|it| ProcessRecord {
            host: it.host.clone(),
            begin_seconds: it.measure.begin_s,
            end_seconds: it.measure.end_s,
            bytes: it.measure.bytes,
        })
        .collect();
    let shares = processes.iter().map(|it| Share {
        begin_seconds: it.begin_seconds,
        end_seconds: it.end_seconds,
        bytes: it.bytes,
    });
    let bytes_per_second = bandwidth(shares)
        .ok_or_else(|| Error::new(ErrorCode::Io, "an application reports a duration of 0"))?;
    Ok(ApplicationRecord { bytes_per_second, bytes: record.bytes, processes, allocation: None })
}
