//! The work of one application in a run, as the plan of a benchmark: transfers of data, or
//! operations on names.

use crate::plan::Cache;
use crate::record::Settings;
use skep_bench::launcher::{HostRecord, PhaseRecord};
use skep_bench::{Host, Progress, io, metadata};
use skep_types::{Error, ErrorCode, Result};

/// The work of an application.
#[derive(Debug, Clone)]
pub(super) enum Work {
    /// Writes and reads data.
    Data(Box<io::Plan>),
    /// Creates, stats and removes files.
    Names(Box<metadata::Plan>),
}

/// The result of an application's work.
#[derive(Debug)]
pub(super) struct Done {
    /// All hosts with their environments.
    pub(super) hosts: Vec<HostRecord>,
    phases: Vec<PhaseRecord>,
    /// Why some phases have no result. `None` if all applications have a result.
    failure: Option<String>,
}

impl Work {
    /// Returns work that transfers data. `path` is the path of the file, or of the files without
    /// their numbers. `use_existing` means that the study has created the files.
    pub(super) fn on_data(
        settings: &Settings,
        path: String,
        file_per_process: bool,
        use_existing: bool,
        server_hosts: &[Host],
    ) -> Self {
        let is_read = settings.operation.is_read();
        Self::Data(Box::new(io::Plan {
            path,
            transfer_bytes: settings.transfer_bytes,
            block_bytes: settings.bytes_of_process(),
            file_per_process,
            write: true,
            read: is_read,
            random: settings.operation.is_random(),
            // Each host reads data that another host has written, so that no host reads from its
            // own cache.
            reorder: is_read && settings.cache != Cache::Kept,
            fsync: true,
            direct: settings.cache == Cache::Bypassed,
            use_existing,
            keep: true,
            keep_caches: settings.cache == Cache::Kept,
            server_hosts: server_hosts.to_vec(),
            ..io::Plan::default()
        }))
    }

    /// Returns work on names. Each process works in its own tree, directly in the existing
    /// directory `directory`. The work always has all phases up to the removal of the files,
    /// although the study measures only one phase.
    pub(super) fn on_names(settings: &Settings, directory: String, server_hosts: &[Host]) -> Self {
        Self::Names(Box::new(metadata::Plan {
            directory,
            items: Some(u64::from(settings.files.unwrap_or(1))),
            unique_trees: true,
            separate_trees: true,
            files_only: true,
            create: true,
            stat: true,
            read: false,
            remove: true,
            // Each host uses files that another host has created, so that no host uses its own
            // cache.
            stride: u32::from(settings.cache != Cache::Kept),
            keep_caches: settings.cache == Cache::Kept,
            server_hosts: server_hosts.to_vec(),
            ..metadata::Plan::default()
        }))
    }

    /// Does the work, with `processes` processes on each host.
    ///
    /// # Errors
    /// The errors of the benchmark.
    pub(super) fn run(
        &self,
        hosts: &[Host],
        processes: u32,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Done> {
        match self {
            Self::Data(plan) => io::run(None, plan, hosts, processes, progress).map(|it| Done {
                hosts: it.hosts,
                phases: it.phases,
                failure: it.failure,
            }),
            Self::Names(plan) => metadata::run(None, plan, hosts, processes, progress)
                .map(|it| Done { hosts: it.hosts, phases: it.phases, failure: it.failure }),
        }
    }
}

impl Done {
    /// Returns the record of the phase with the name `phase`.
    ///
    /// # Errors
    /// `Io` if the work failed, or has no such phase.
    pub(super) fn phase(&self, phase: &str) -> Result<&PhaseRecord> {
        if let Some(failure) = &self.failure {
            return Err(Error::new(ErrorCode::Io, failure.clone()));
        }
        let found = self.phases.iter().rev().find(|record| record.phase == phase);
        found.ok_or_else(|| {
            Error::new(ErrorCode::Io, format!("the benchmark has no result for phase {phase}"))
        })
    }
}

/// Whether all applications of a run begin the phase with the name `phase` together. A study can
/// measure only the listed phases.
pub(super) fn is_begun_together(phase: &str) -> bool {
    ["write", "read", "file_creation", "file_stat", "file_removal"].contains(&phase)
}
