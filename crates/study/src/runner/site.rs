//! The system that a study measures: its client hosts, its mount, and the measurement of a run.

use super::files::{
    Target, allocation, create, has_pattern_for_each_file, pattern, set_pattern, targets, usable,
};
use super::meeting::Meeting;
use super::work::{Done, Work, is_begun_together};
use super::{Bench, Measured};
use crate::aggregate::{Share, bandwidth};
use crate::plan::{Access, Quantity, System};
use crate::record::{ApplicationRecord, LimitRecord, ProcessRecord, Settings};
use skep_bench::launcher::{HostRecord, PhaseRecord};
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
    /// Hosts that run no processes, but whose caches the study also drops.
    pub server_hosts: Vec<Host>,
    /// The directory for the files of the study, as a path on each client host. In the path,
    /// `{host}` stands for the name of the host.
    pub path: String,
    /// The path of the directory `path`, on the host of this process.
    pub path_here: PathBuf,
    /// Whether all hosts are emulated on the host of this process. On an emulated system, the CPU
    /// of this host may be the bottleneck.
    pub is_emulated: bool,
    /// The known rates of the hardware.
    pub limit: LimitRecord,
}

/// The system that a study measures, prepared for runs.
#[derive(Debug)]
pub struct Site {
    place: Place,
    /// Name of the directory in which the study creates its files. The parent of this directory is
    /// the directory `path` of [`Place`].
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
        std::fs::create_dir_all(&directory).map_err(|error| {
            Error::from(error).within(format_args!("cannot create {}", directory.display()))
        })?;
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
                Err(Error::from(error)
                    .within(format_args!("cannot remove {}", directory.display())))
            }
            _ => Ok(()),
        }
    }

    fn here(&self) -> PathBuf {
        self.place.path_here.join(&self.work)
    }

    /// Creates the files of an application, and returns its work. The benchmark itself creates the
    /// files for operations on names.
    fn prepare(&self, label: &str, settings: &Settings, application: u32) -> Result<Work> {
        let name = file_name(label, application);
        let here = self.here().join(&name);
        remove(&here)?;
        let mut path = format!("{}/{}/{name}", self.place.path, self.work);
        let server_hosts = &self.place.server_hosts;
        if settings.operation.is_on_names() {
            // Directories in the root of Skep are on all metadata servers. Directories below the
            // directory of the study would all be on the same metadata target.
            return Ok(Work::on_names(settings, self.place.path.clone(), server_hosts));
        }
        let all = usable(settings, self.targets.as_deref().unwrap_or_default());
        let pattern = |file| pattern(settings, application, file, all, self.turn);
        let has_own_patterns = has_pattern_for_each_file(settings);
        match settings.access {
            // The file is directly in the directory of the study, so that one metadata target
            // creates all such files. A policy that chooses targets in turn has a separate position
            // on each metadata target. So files of different metadata targets could get the same
            // storage targets.
            Access::SharedFile => create(&here, pattern(0).as_deref())?,
            Access::FilePerProcess => {
                std::fs::create_dir(&here).map_err(|error| {
                    Error::from(error).within(format_args!("cannot create {}", here.display()))
                })?;
                path.push_str("/data");
                if has_own_patterns {
                    for rank in 0..settings.processes_of_application() as usize {
                        // The process with the rank `rank` uses the file with this name.
                        let file = here.join(format!("data.{rank:08}"));
                        create(&file, pattern(rank).as_deref())?;
                    }
                } else if let Some(pattern) = pattern(0) {
                    set_pattern(&here, &pattern)?;
                }
            }
        }
        let is_shared = settings.access == Access::SharedFile;
        let use_existing = is_shared || has_own_patterns;
        Ok(Work::on_data(settings, path, !is_shared, use_existing, server_hosts))
    }

    /// Returns the targets of each file of an application.
    fn files_of(&self, label: &str, application: u32) -> Result<Vec<Vec<Target>>> {
        let here = self.here().join(file_name(label, application));
        let failed = |error: std::io::Error| {
            Error::from(error)
                .within(format_args!("cannot read the targets of the files in {}", here.display()))
        };
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
        let work: Vec<Work> = applications
            .iter()
            .map(|application| self.prepare(label, settings, *application))
            .collect::<Result<_>>()?;
        let (done, cpu) = together(&work, &self.place, settings)?;
        let mut measured = Measured {
            applications: Vec::new(),
            caches_dropped: true,
            invalid_because: cpu.filter(|cpu| cpu.is_limit).map(|cpu| complaint(&cpu)),
            environment: Some(serde_json::json!(hosts_of(&done))),
        };
        for (application, done) in applications.iter().zip(&done) {
            let record = done.phase(settings.operation.phase())?;
            measured.caches_dropped &= record.caches_dropped;
            let mut found = application_of(record, settings)?;
            if let (Some(all), false) = (&self.targets, settings.operation.is_on_names()) {
                let files = self.files_of(label, *application)?;
                found.allocation = Some(allocation(&files, usable(settings, all)));
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

/// Returns the descriptions of the hosts of all applications. The description contains a host that
/// several applications use, such as a server, only once.
fn hosts_of(done: &[Done]) -> Vec<&HostRecord> {
    let mut hosts: Vec<&HostRecord> = Vec::new();
    for host in done.iter().flat_map(|it| &it.hosts) {
        if hosts.iter().all(|it| it.name != host.name) {
            hosts.push(host);
        }
    }
    hosts
}

fn file_name(label: &str, application: u32) -> String {
    format!("{label}-{}", application + 1)
}

/// Finds all storage targets. For this list, the function sets a stripe pattern with as many
/// targets as possible on the empty file `probe`. Then the function reads the targets of this file.
fn all_targets(probe: &Path) -> Result<Option<Vec<Target>>> {
    if targets(probe)?.is_none() {
        return Ok(None);
    }
    set_pattern(probe, "count=all,chooser=balanced")?;
    targets(probe)
}

/// Removes a file or a directory. Ignores a missing file or directory.
fn remove(path: &Path) -> Result<()> {
    let removed = match std::fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    };
    removed.map_err(|error| {
        Error::from(error).within(format_args!("cannot remove {}", path.display()))
    })
}

/// The CPU use of this host during the measured phase.
#[derive(Default)]
struct PhaseWatch {
    running: Option<CpuWatch>,
    found: Option<CpuUse>,
}

impl PhaseWatch {
    /// Starts the measurement when the phase `counted` begins, and ends the measurement when the
    /// next phase begins.
    fn see(&mut self, phase: &str, counted: &str) {
        if phase != counted {
            self.end();
        } else if self.running.is_none() && self.found.is_none() {
            self.running = Some(CpuWatch::start());
        }
    }

    fn end(&mut self) {
        if let Some(running) = self.running.take() {
            self.found = Some(running.finish());
        }
    }
}

/// Runs all applications at the same time, each on its own hosts. All processes begin when the last
/// process is ready. On an emulated cluster, measures the CPU use during the measured phase.
fn together(
    work: &[Work],
    place: &Place,
    settings: &Settings,
) -> Result<(Vec<Done>, Option<CpuUse>)> {
    let meeting = Meeting::new(work.len());
    // The lock protects the CPU watch, which is started at the measured phase. A thread that holds
    // this lock takes no other lock.
    let watch: Mutex<PhaseWatch> = Mutex::default();
    let counted = settings.operation.phase();
    let one = |work: &Work, hosts: &[Host]| {
        let mut progress = |progress: Progress| {
            let Progress::Phase { phase, .. } = progress else { return };
            if is_begun_together(&phase) {
                meeting.wait();
            }
            if place.is_emulated {
                let mut watch = watch.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                watch.see(&phase, counted);
            }
        };
        let done = work.run(hosts, settings.processes, &mut progress);
        meeting.leave();
        done
    };
    let groups = place.hosts.chunks(settings.hosts as usize);
    let done: Vec<Result<Done>> = std::thread::scope(|scope| {
        let threads: Vec<_> = work
            .iter()
            .zip(groups)
            .map(|(work, hosts)| scope.spawn(move || one(work, hosts)))
            .collect();
        let ended = |it: std::thread::ScopedJoinHandle<'_, _>| it.join();
        let gone = |_| Err(Error::new(ErrorCode::Io, "a thread of the benchmark has failed"));
        threads.into_iter().map(|it| ended(it).unwrap_or_else(gone)).collect()
    });
    let mut watch = watch.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    watch.end();
    Ok((done.into_iter().collect::<Result<_>>()?, watch.found))
}

fn complaint(cpu: &CpuUse) -> String {
    format!(
        "the CPU of this host was the limit: the CPU was busy in {} of {} samples, {:.0} % idle on \
         average",
        cpu.saturated_samples,
        cpu.samples,
        cpu.mean_idle * 100.0
    )
}

fn application_of(record: &PhaseRecord, settings: &Settings) -> Result<ApplicationRecord> {
    let has_operations = settings.operation.quantity() != Quantity::Bandwidth;
    let processes: Vec<ProcessRecord> = record
        .processes
        .iter()
        .map(|it| ProcessRecord {
            host: it.host.clone(),
            begin_seconds: it.measure.begin_s,
            end_seconds: it.measure.end_s,
            bytes: it.measure.bytes,
            operations: if has_operations { it.measure.operations } else { 0 },
        })
        .collect();
    let no_duration = || Error::new(ErrorCode::Io, "an application reports a duration of 0 s");
    let bytes_per_second =
        bandwidth(processes.iter().map(Share::of_bytes)).ok_or_else(no_duration)?;
    let operations = bandwidth(processes.iter().map(Share::of_operations));
    Ok(ApplicationRecord {
        bytes_per_second,
        operations_per_second: operations.filter(|_| has_operations),
        bytes: record.bytes,
        latency: record.latency.as_deref().cloned(),
        processes,
        allocation: None,
    })
}
