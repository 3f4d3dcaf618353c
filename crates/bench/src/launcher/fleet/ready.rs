//! Prepares the hosts before a phase: runs the command of the plan, and drops the caches.

use super::{Fleet, Turn};
use crate::launcher::protocol::{Answer, Order};
use crate::limits::CACHES_PATIENCE;
use crate::progress::Progress;
use skep_types::{Error, ErrorCode, Result};
use std::collections::BTreeSet;

impl Fleet {
    /// Prepares all hosts for a measurement. Runs `command`, if there is a command. Drops the
    /// caches of the hosts, unless `keep_caches` is set.
    ///
    /// # Errors
    /// Fails if the command fails on a host, or if an agent has exited.
    pub(crate) fn make_ready(
        &mut self,
        command: Option<&str>,
        keep_caches: bool,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<()> {
        self.run_before(command, progress)?;
        if keep_caches { Ok(()) } else { self.drop_caches(progress) }
    }

    /// Runs a shell command on all hosts that have processes. `None` means that there is no
    /// command.
    ///
    /// # Errors
    /// Fails if the command fails on a host, or if an agent has exited.
    fn run_before(
        &mut self,
        command: Option<&str>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<()> {
        let Some(command) = command else { return Ok(()) };
        if !std::mem::replace(&mut self.has_noted_command, true) {
            progress(Progress::Note(format!("on all hosts: {command}")));
        }
        let mut asked = BTreeSet::new();
        for (number, record) in self.records.iter().enumerate() {
            if record.has_processes {
                let command = command.replace("{host}", &record.name);
                self.links[number].send(&Order::Run(command));
                asked.insert(number);
            }
        }
        let problems = self.problems_of("running a command", asked, |answer| match answer {
            Answer::Ran(problem) => Ok(problem),
            other => Err(Box::new(other)),
        })?;
        match problems.into_iter().next() {
            Some(problem) => Err(Error::new(ErrorCode::Io, problem)),
            None => Ok(()),
        }
    }

    /// Waits for the answers of the agents in `asked`. Returns the problems that the agents report,
    /// each with the name of the host. `take` extracts the problem from an expected answer, and
    /// returns any other answer as an error.
    fn problems_of(
        &mut self,
        what: &str,
        mut asked: BTreeSet<usize>,
        take: impl Fn(Answer) -> std::result::Result<Option<String>, Box<Answer>>,
    ) -> Result<Vec<String>> {
        let mut problems = Vec::new();
        self.wait(what, CACHES_PATIENCE, |fleet, number, answer| {
            match take(answer) {
                Ok(problem) => {
                    let name = &fleet.links[number].name;
                    problems.extend(problem.map(|what| format!("host {name}: {what}")));
                    asked.remove(&number);
                }
                Err(other) if matches!(*other, Answer::CpuBusy(_)) => return Ok(Turn::Other),
                Err(other) => return Err(fleet.unexpected(number, &other)),
            }
            Ok(if asked.is_empty() { Turn::Complete } else { Turn::Moved })
        })?;
        Ok(problems)
    }

    /// Drops the caches on all hosts. If several hosts share a kernel, drops the caches of this
    /// kernel once. If hosts cannot drop their caches, reports the first problem, once in a run.
    ///
    /// # Errors
    /// Fails if an agent has exited.
    fn drop_caches(&mut self, progress: &mut dyn FnMut(Progress)) -> Result<()> {
        let mut kernels = BTreeSet::new();
        let mut asked = BTreeSet::new();
        for (number, record) in self.records.iter().enumerate() {
            let boot_id = &record.environment.boot_id;
            if boot_id.is_empty() || kernels.insert(boot_id.clone()) {
                asked.insert(number);
            }
        }
        asked.iter().for_each(|number| self.links[*number].send(&Order::DropCaches));
        let problems = self.problems_of("dropping caches", asked, |answer| match answer {
            Answer::CachesDropped(problem) => Ok(problem),
            other => Err(Box::new(other)),
        })?;
        self.caches_dropped = problems.is_empty();
        if let Some(problem) = problems.first().filter(|_| !self.has_noted_caches) {
            self.has_noted_caches = true;
            progress(Progress::Note(problem.clone()));
        }
        Ok(())
    }
}
