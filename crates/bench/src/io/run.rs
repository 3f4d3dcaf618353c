//! The phases of a run of `skep bench io`, in the order of IOR. The loop in [`crate::workload`]
//! runs these phases.

use super::plan::{Phase, Plan};
use crate::launcher::Host;
use crate::progress::Progress;
use crate::tool::{Runner, Work};
use crate::workload::{self, Common, Outcome, Recording, Workload};
use skep_types::Result;
use std::path::PathBuf;

/// Runs a plan with `processes_per_host` processes on each host. The launcher assigns ranks to the
/// hosts in turn. If `runner` names an external program, that program runs instead of the built-in
/// engine.
///
/// # Errors
/// - `InvalidArgument` if the plan cannot be run.
/// - Otherwise the reason why there is no result. Examples: the external program is missing or does
///   not support the plan, a host is unreachable, a file exists already, or a disk is full.
///
/// A run that fails after its first result returns an outcome and no error. [`Outcome::failure`]
/// then contains the reason why results are missing.
pub fn run(
    runner: Option<&Runner>,
    plan: &Plan,
    hosts: &[Host],
    processes_per_host: u32,
    progress: &mut dyn FnMut(Progress),
) -> Result<Outcome<Plan>> {
    workload::run(runner, plan, hosts, processes_per_host, progress)
}

impl Workload for Plan {
    fn check(&self, processes: u32) -> Result<()> {
        Self::check(self, processes)
    }

    fn draw_signature(&mut self, is_own: bool) {
        if is_own && self.is_stamped() {
            self.signature.get_or_insert_with(|| skep_env::random_u64() as u32);
        }
    }

    fn work(&self) -> Work {
        Work::Io(self.clone())
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(&self.path)
    }

    fn common(&self) -> Common<'_> {
        Common {
            repetitions: self.repetitions,
            before_phase: self.before_phase.as_deref(),
            keep_caches: self.keep_caches,
            server_hosts: &self.server_hosts,
            patience_s: self.patience_s,
        }
    }

    fn phases(&self, repetition: u32, processes: u32, _is_own: bool) -> Vec<workload::Phase> {
        let total = self.total_bytes(processes).unwrap_or(0);
        let mut phases: Vec<_> = Self::phases(self)
            .into_iter()
            .map(|phase| workload::Phase {
                name: phase.name().into(),
                total,
                is_prepared: phase != Phase::Check,
                recording: match phase {
                    Phase::Check => Recording::AddErrorsToLast,
                    _ => Recording::Keep,
                },
            })
            .collect();
        let is_last = repetition == self.repetitions;
        if self.write && !self.use_existing && !(self.keep && is_last) {
            phases.push(workload::Phase {
                name: Phase::Remove.name().into(),
                total: 0,
                is_prepared: false,
                recording: Recording::Discard,
            });
        }
        phases
    }
}
