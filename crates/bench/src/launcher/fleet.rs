//! The controller's connections to all agents and workers of a run. This module starts the agents
//! and workers and waits for their answers. [`phase`] runs phases, [`ready`] prepares hosts for a
//! phase, and [`end`] ends the run.

mod end;
mod phase;
mod ready;

use super::link::{AgentEvent, Link};
use super::protocol::{Answer, Job, Order, WorkerMessage};
use super::{Host, HostRecord};
use crate::environment::{Environment, boot_id};
use crate::limits::{CLOCK_TRIPS, HEARTBEAT, MAX_WAITING, START_PATIENCE};
use crate::progress::is_interrupted;
use skep_types::{Error, ErrorCode, Result};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

/// Arguments of [`Fleet::start`].
pub(crate) struct Setup<'a> {
    pub(crate) job: Job,
    pub(crate) hosts: &'a [Host],
    /// Hosts that run no processes, but whose caches the benchmark also drops.
    pub(crate) server_hosts: &'a [Host],
    pub(crate) processes_per_host: u32,
    /// Directory or file on which the benchmark works.
    pub(crate) path: Option<PathBuf>,
    /// A phase fails if no process makes progress for this time.
    pub(crate) patience: Duration,
}

/// The agents and workers of a run.
pub(crate) struct Fleet {
    /// Connections to the agents. Agents that have workers are first in the list.
    links: Vec<Link>,
    inbox: Receiver<(usize, AgentEvent)>,
    records: Vec<HostRecord>,
    hosts: usize,
    processes: u32,
    patience: Duration,
    /// Ranks of workers that have exited.
    dead: BTreeSet<u32>,
    /// Ranks of workers that have stopped sending messages.
    hung: BTreeSet<u32>,
    /// Whether a phase has begun, so that the cleanup may have to remove files.
    has_begun: bool,
    caches_dropped: bool,
    /// Whether this run has already reported that a host cannot drop its caches. A run reports this
    /// fact only once.
    has_noted_caches: bool,
    /// Whether this run has already reported which command it runs on all hosts. A run reports this
    /// fact only once.
    has_noted_command: bool,
}

/// How the loop that waits for answers continues after an answer.
enum Turn {
    /// The loop does not wait for an answer of this kind. The answer shows no progress, so the time
    /// limit does not start anew.
    Other,
    /// The phase has made progress, so the time limit starts anew.
    Moved,
    /// All answers for which the loop waits have arrived.
    Complete,
}

fn protocol(what: &str) -> Error {
    Error::new(ErrorCode::Protocol, what)
}

impl Fleet {
    /// Starts agents on all hosts, measures the offsets of their clocks, and starts all workers.
    ///
    /// # Errors
    /// Fails if a host cannot be reached, or a process cannot be started.
    pub(crate) fn start(setup: &Setup<'_>) -> Result<Self> {
        let (sender, inbox) = sync_channel(MAX_WAITING);
        let all: Vec<&Host> = setup.hosts.iter().chain(setup.server_hosts).collect();
        let mut fleet = Self {
            links: start_links(&all, &sender)?,
            inbox,
            records: Vec::new(),
            hosts: setup.hosts.len(),
            processes: setup.processes_per_host * setup.hosts.len() as u32,
            patience: setup.patience,
            dead: BTreeSet::new(),
            hung: BTreeSet::new(),
            has_begun: false,
            caches_dropped: false,
            has_noted_caches: false,
            has_noted_command: false,
        };
        fleet.greet(&all, setup)?;
        for number in 0..fleet.links.len() {
            fleet.compare_clock(number)?;
        }
        fleet.start_workers(setup)?;
        Ok(fleet)
    }

    /// Records that the processes of an external program run on the first `count` hosts.
    pub(crate) fn mark_hosts(&mut self, count: usize) {
        self.records.iter_mut().take(count).for_each(|record| record.has_processes = true);
    }

    /// Returns the records of all hosts of the run.
    pub(crate) fn records(&self) -> Vec<HostRecord> {
        self.records.clone()
    }

    fn send_all(&mut self, order: &Order) {
        self.links.iter_mut().for_each(|link| link.send(order));
    }

    /// Passes each answer to `take` until `take` returns [`Turn::Complete`]. Fails if no process
    /// makes progress for `patience`.
    fn wait(
        &mut self,
        what: &str,
        patience: Duration,
        mut take: impl FnMut(&mut Self, usize, Answer) -> Result<Turn>,
    ) -> Result<()> {
        let mut moved = skep_env::now();
        loop {
            if is_interrupted() {
                return Err(Error::new(ErrorCode::Interrupted, "interrupted"));
            }
            match self.inbox.recv_timeout(HEARTBEAT) {
                Ok((number, AgentEvent::Answer(answer))) => match take(self, number, *answer)? {
                    Turn::Complete => return Ok(()),
                    Turn::Moved => moved = skep_env::now(),
                    Turn::Other => {}
                },
                Ok((number, AgentEvent::Ended(why))) => {
                    return Err(self.ended(number, &why));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(protocol("the connections to all hosts have ended"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if skep_env::now() - moved > patience {
                let seconds = patience.as_secs();
                let what = format!("{what}: no process made progress for {seconds} s");
                return Err(Error::new(ErrorCode::TimedOut, what));
            }
        }
    }

    fn ended(&mut self, number: usize, why: &str) -> Error {
        self.links[number].dismiss();
        if number < self.hosts {
            let hosts = self.hosts;
            let of_host = (0..self.processes).filter(|rank| *rank as usize % hosts == number);
            self.dead.extend(of_host);
        }
        let name = &self.links[number].name;
        let why =
            if why.is_empty() { "the connection has ended without an error message" } else { why };
        let what = format!("cannot reach skep on host {name}: {why}");
        Error::new(ErrorCode::Disconnected, what)
    }

    fn greet(&mut self, all: &[&Host], setup: &Setup<'_>) -> Result<()> {
        for (link, host) in self.links.iter_mut().zip(all) {
            let path = setup.path.as_ref().map(|path| path.display().to_string());
            let path = path.map(|path| path.replace("{host}", &host.name));
            link.send(&Order::Hello { path });
        }
        let mut found: Vec<Option<Environment>> = vec![None; all.len()];
        let result = self.wait("waiting for all hosts", START_PATIENCE, |_, number, answer| {
            let Answer::Hello(environment) = answer else {
                return Err(protocol(
                    "skep on a host sent an unexpected first message; use the same version on all \
                     hosts",
                ));
            };
            found[number] = Some(*environment);
            Ok(if found.iter().all(Option::is_some) { Turn::Complete } else { Turn::Moved })
        });
        if let Err(error) = result {
            let silent = found.iter().position(Option::is_none).map(|index| &all[index].name);
            return match (error.code(), silent) {
                (ErrorCode::TimedOut, Some(name)) => {
                    let seconds = START_PATIENCE.as_secs();
                    let what = format!(
                        "skep on host {name} has not answered within {seconds} s after its start; \
                         check the connection to the host"
                    );
                    Err(Error::new(ErrorCode::Disconnected, what))
                }
                _ => Err(error),
            };
        }
        for (index, (host, environment)) in all.iter().zip(found.into_iter().flatten()).enumerate()
        {
            self.records.push(HostRecord {
                name: host.name.clone(),
                has_processes: index < self.hosts,
                environment,
                clock_offset_s: 0.0,
                clock_error_s: 0.0,
            });
        }
        Ok(())
    }

    /// Measures how far a host's clock is ahead of the clock of the controller. The method makes
    /// several round trips, and uses the shortest round trip, which gives the best estimate.
    fn compare_clock(&mut self, number: usize) -> Result<()> {
        let here = boot_id();
        if !here.is_empty() && self.records[number].environment.boot_id == here {
            return Ok(());
        }
        let mut best: Option<(f64, f64)> = None;
        for _ in 0..CLOCK_TRIPS {
            let before = skep_env::now();
            self.links[number].send(&Order::Clock);
            let mut there = 0.0;
            self.wait("comparing clocks", START_PATIENCE, |_, _, answer| match answer {
                Answer::Clock(now) => {
                    there = now;
                    Ok(Turn::Complete)
                }
                _ => Ok(Turn::Other),
            })?;
            let after = skep_env::now();
            let trip = (after - before).as_secs_f64();
            let offset = there - f64::midpoint(before.as_secs_f64(), after.as_secs_f64());
            if best.is_none_or(|(quickest, _)| trip < quickest) {
                best = Some((trip, offset));
            }
        }
        if let Some((trip, offset)) = best {
            let record = &mut self.records[number];
            (record.clock_offset_s, record.clock_error_s) = (offset, trip / 2.0);
        }
        Ok(())
    }

    /// Starts all workers. The launcher assigns ranks to the hosts in turn.
    fn start_workers(&mut self, setup: &Setup<'_>) -> Result<()> {
        let (hosts, of) = (self.hosts, self.processes);
        for number in 0..hosts {
            let ranks = (0..of).filter(|rank| *rank as usize % hosts == number).collect();
            let host = self.links[number].name.clone();
            let job = Box::new(setup.job.clone());
            self.links[number].send(&Order::Start { job, ranks, of, host });
        }
        let mut missing: BTreeSet<u32> = (0..of).collect();
        self.wait("starting processes", START_PATIENCE, |fleet, number, answer| {
            match answer {
                Answer::Worker { rank, message: WorkerMessage::Ready } => missing.remove(&rank),
                other => return Err(fleet.unexpected(number, &other)),
            };
            Ok(if missing.is_empty() { Turn::Complete } else { Turn::Moved })
        })
    }

    /// Returns the error for an answer that the controller does not expect at this point. An
    /// example is a failure that the agent reports.
    fn unexpected(&mut self, number: usize, answer: &Answer) -> Error {
        let host = self.links[number].name.clone();
        match answer {
            Answer::Died { rank, how } => {
                self.dead.insert(*rank);
                let what = format!("process {rank} on host {host} has ended too early: {how}");
                Error::new(ErrorCode::Io, what)
            }
            Answer::Failed(what) => Error::new(ErrorCode::Io, format!("host {host}: {what}")),
            other => protocol(&format!(
                "skep on host {host} sent an unexpected message {other:?}; use the same version \
                 on all hosts"
            )),
        }
    }
}

fn start_links(all: &[&Host], sender: &SyncSender<(usize, AgentEvent)>) -> Result<Vec<Link>> {
    let start = |(number, host): (usize, &&Host)| Link::start(host, number, sender.clone());
    all.iter().enumerate().map(start).collect()
}
