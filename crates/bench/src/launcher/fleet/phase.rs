//! Runs one phase on all workers: waits until all workers are ready, starts them, and waits for the
//! last worker.

use super::{Fleet, Turn, protocol};
use crate::launcher::protocol::{Answer, Measure, Order, Step, WorkerMessage};
use crate::launcher::record::{HostUse, PhaseRecord, ProcessRecord};
use crate::limits::END_PATIENCE;
use crate::progress::{Progress, is_interrupted};
use skep_types::{Error, ErrorCode, Result};
use std::collections::BTreeSet;
use std::time::Duration;

/// The results of a running phase that have arrived so far from workers and agents.
struct Parts {
    /// The results of each worker, by its rank. `None` until the worker has finished the phase.
    measures: Vec<Option<Measure>>,
    moved: Vec<u64>,
    /// The share of the phase in which the CPUs of each host were busy. `None` until the agent of
    /// the host has reported the CPU use.
    busy: Vec<Option<f64>>,
}

impl Parts {
    fn new(processes: usize, hosts: usize) -> Self {
        Self { measures: vec![None; processes], moved: vec![0; processes], busy: vec![None; hosts] }
    }

    fn is_over(&self, dead: &BTreeSet<u32>) -> bool {
        let ranks = 0_u32..;
        ranks.zip(&self.measures).all(|(rank, part)| part.is_some() || dead.contains(&rank))
    }
}

fn no_such_rank() -> Error {
    protocol(
        "skep on a host reported an unknown process number (rank); use the same version on all \
         hosts",
    )
}

fn failed(rank: u32, host: &str, why: &str) -> Error {
    let code = match why.contains("No space left") {
        true => ErrorCode::NoSpace,
        false => ErrorCode::Io,
    };
    Error::new(code, format!("process {rank} on host {host}: {why}"))
}

impl Fleet {
    /// Runs a phase on all workers: waits until all workers are ready, starts them, and waits until
    /// the last worker has finished.
    ///
    /// # Errors
    /// The first failure of a worker. The method returns this error after all workers have given up
    /// the phase.
    pub(crate) fn phase(
        &mut self,
        step: &Step,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<PhaseRecord> {
        let (phase, repetition) = (step.phase.clone(), step.repetition);
        progress(Progress::Phase { phase: phase.clone(), repetition });
        self.prepare(step)?;
        self.has_begun = true;
        self.send_all(&Order::Go);
        let (measures, busy) = self.gather(step, progress)?;
        let hosts = self.hosts;
        let processes = measures.into_iter().enumerate().map(|(rank, mut measure)| {
            let record = &self.records[rank % hosts];
            measure.begin_s -= record.clock_offset_s;
            measure.end_s -= record.clock_offset_s;
            measure.samples.iter_mut().for_each(|(at, _)| *at -= record.clock_offset_s);
            for (begin, end) in measure.links.iter_mut().flat_map(|link| &mut link.streams) {
                *begin -= record.clock_offset_s;
                *end -= record.clock_offset_s;
            }
            ProcessRecord { rank: rank as u32, host: record.name.clone(), measure }
        });
        let uses = self.records[..hosts].iter().zip(busy);
        let uses = uses.map(|(record, busy)| HostUse { name: record.name.clone(), cpu_busy: busy });
        let mut record = PhaseRecord::new(phase, repetition, processes.collect(), uses.collect());
        record.caches_dropped = std::mem::take(&mut self.caches_dropped);
        Ok(record)
    }

    fn prepare(&mut self, step: &Step) -> Result<()> {
        self.send_all(&Order::Prepare(step.clone()));
        let mut missing: BTreeSet<u32> = (0..self.processes).collect();
        let mut refused = Vec::new();
        let (what, patience) = (format!("preparing to {}", step.phase), self.patience);
        self.wait(&what, patience, |fleet, number, answer| {
            match answer {
                Answer::Worker { rank, message: WorkerMessage::Prepared(result) } => {
                    let host = &fleet.links[number].name;
                    refused.extend(result.err().map(|why| (rank, host.clone(), why)));
                    missing.remove(&rank);
                }
                // This answer is late and belongs to the previous phase, so ignore it.
                Answer::CpuBusy(_) => return Ok(Turn::Other),
                other => return Err(fleet.unexpected(number, &other)),
            }
            Ok(if missing.is_empty() { Turn::Complete } else { Turn::Moved })
        })?;
        refused.sort();
        match refused.into_iter().next() {
            Some((rank, host, why)) => Err(failed(rank, &host, &why)),
            None => Ok(()),
        }
    }

    /// Waits for the end of a phase. If a worker fails, orders all workers to give up the phase,
    /// and waits for the workers that still answer.
    fn gather(
        &mut self,
        step: &Step,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(Vec<Measure>, Vec<Option<f64>>)> {
        let mut parts = Parts::new(self.processes as usize, self.hosts);
        let Err(first) = self.take_parts(step, self.patience, &mut parts, progress) else {
            return Ok((parts.measures.into_iter().flatten().collect(), parts.busy));
        };
        self.send_all(&Order::Abort);
        // After each round, either all workers have ended the phase, or one more worker is known to
        // have failed. So the number of rounds is bounded.
        while !parts.is_over(&self.dead) && !is_interrupted() {
            let again = self.take_parts(step, END_PATIENCE, &mut parts, progress);
            if again.is_err_and(|error| error.code() == ErrorCode::TimedOut) {
                // Workers without a result have stopped sending messages. Mark these workers, so
                // that the run does not wait for them at its end.
                let count = parts.measures.len() as u32;
                let is_silent = |rank: &u32| parts.measures[*rank as usize].is_none();
                self.hung.extend((0..count).filter(is_silent));
                break;
            }
        }
        Err(first)
    }

    /// Processes the reports of workers about a phase, until all workers have ended the phase or
    /// one worker has failed.
    fn take_parts(
        &mut self,
        step: &Step,
        patience: Duration,
        parts: &mut Parts,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<()> {
        self.wait(&step.phase, patience, |fleet, number, answer| {
            let turn = match answer {
                Answer::Worker { rank, message: WorkerMessage::Moved(amount) } => {
                    let moved = parts.moved.get_mut(rank as usize).ok_or_else(no_such_rank)?;
                    match std::mem::replace(moved, amount) == amount {
                        true => Turn::Other,
                        false => Turn::Moved,
                    }
                }
                Answer::Worker { rank, message: WorkerMessage::Done { measure, failure } } => {
                    let slot = parts.measures.get_mut(rank as usize).ok_or_else(no_such_rank)?;
                    *slot = Some(*measure);
                    if let Some(why) = failure {
                        return Err(failed(rank, &fleet.links[number].name, &why));
                    }
                    Turn::Moved
                }
                Answer::CpuBusy(share) => {
                    parts.busy[number] = Some(share);
                    Turn::Moved
                }
                other => return Err(fleet.unexpected(number, &other)),
            };
            progress(Progress::Moved { done: parts.moved.iter().sum(), total: step.total });
            Ok(if parts.is_over(&fleet.dead) { Turn::Complete } else { turn })
        })
    }
}
