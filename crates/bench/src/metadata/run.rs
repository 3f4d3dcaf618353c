//! The phases of a run of `skep bench metadata`, in the order of mdtest. The loop in
//! [`crate::workload`] runs these phases.

use super::plan::Plan;
use crate::launcher::Host;
use crate::progress::Progress;
use crate::tool::{self, Runner, Work};
use crate::workload::{self, Common, Outcome, Phase, Recording, Workload};
use skep_types::Result;
use std::path::PathBuf;

/// Runs a plan with `processes_per_host` processes on each host. The launcher assigns ranks to the
/// hosts in turn. If `runner` names an external program, that program runs instead of the built-in
/// engine.
///
/// # Errors
/// The errors of [`crate::io::run`].
pub fn run(
    runner: Option<&Runner>,
    plan: &Plan,
    hosts: &[Host],
    processes_per_host: u32,
    progress: &mut dyn FnMut(Progress),
) -> Result<Outcome<Plan>> {
    workload::run(runner, plan, hosts, processes_per_host, progress)
}

fn measured((name, total): (&'static str, u64), is_prepared: bool) -> Phase {
    Phase { name: name.to_owned(), total, is_prepared, recording: Recording::Keep }
}

impl Workload for Plan {
    fn check(&self, processes: u32) -> Result<()> {
        Self::check(self, processes)
    }

    fn draw_signature(&mut self, _is_own: bool) {
        if self.create && self.remove {
            self.run.get_or_insert_with(|| skep_env::random_u64() as u32);
        }
    }

    fn work(&self) -> Work {
        Work::Metadata(self.clone())
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(&self.directory).join("test-dir.0")
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

    /// Returns the phases of a repetition. If an external program runs the benchmark (`is_own` is
    /// false), one execution of this program carries out several phases. The hosts then drop their
    /// caches only before each execution, and the last phase of the repetition removes its
    /// directory.
    fn phases(&self, _repetition: u32, processes: u32, is_own: bool) -> Vec<Phase> {
        let phases = Self::phases(self, processes);
        if is_own {
            return phases.into_iter().map(|phase| measured(phase, true)).collect();
        }
        let mut all = Vec::new();
        for execution in tool::parts(&phases) {
            let phases = execution.into_iter().enumerate();
            all.extend(phases.map(|(index, phase)| measured(phase, index == 0)));
        }
        if self.remove {
            all.push(Phase {
                name: tool::CLEAN_UP.into(),
                total: 0,
                is_prepared: false,
                recording: Recording::Discard,
            });
        }
        all
    }
}
