//! All agents and workers of a run, from the controller's side.

use super::link::{Heard, Link};
use super::protocol::{Answer, Job, Measure, Order, Says, Step};
use super::{Host, HostRecord, HostUse, PhaseRecord, ProcessRecord};
use crate::environment::Environment;
use crate::limits::{
    CACHES_PATIENCE, CLOCK_TRIPS, END_PATIENCE, HEARTBEAT, MAX_WAITING, START_PATIENCE,
};
use crate::progress::{Progress, is_interrupted};
use skep_types::{Error, ErrorCode, Result};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

/// What a fleet is started with.
pub(crate) struct Setup<'a> {
    pub(crate) job: Job,
    pub(crate) hosts: &'a [Host],
    /// Hosts without processes, on which caches are dropped too.
    pub(crate) server_hosts: &'a [Host],
    pub(crate) processes_per_host: u32,
    /// Where the job works.
    pub(crate) path: Option<PathBuf>,
    /// How long processes may stand still in a phase.
    pub(crate) patience: Duration,
}

/// Agents and workers.
pub(crate) struct Fleet {
    /// Those with workers first.
    links: Vec<Link>,
    inbox: Receiver<(usize, Heard)>,
    records: Vec<HostRecord>,
    hosts: usize,
    processes: u32,
    patience: Duration,
    /// Ranks of workers that have ended.
    dead: BTreeSet<u32>,
    /// Ranks of workers that don't say anything any more.
    hung: BTreeSet<u32>,
    /// Whether a phase has begun, so that there may be something to clean up.
    has_begun: bool,
    caches_dropped: bool,
    /// Whether it was said already that caches can't be dropped.
    has_noted: bool,
    /// Whether it was said already what is done on all hosts.
    has_told_command: bool,
}

/// What an answer means to who waits.
enum Turn {
    /// Nothing was waited for, or it doesn't show that anything moves.
    Other,
    /// Something has moved.
    Moved,
    /// All that was waited for has come.
    Complete,
}

/// What is known of a phase that runs.
struct Parts {
    /// By rank.
    measures: Vec<Option<Measure>>,
    moved: Vec<u64>,
    /// By host.
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
    protocol("an agent spoke of a process that there isn't")
}

fn protocol(what: &str) -> Error {
    Error::new(ErrorCode::Protocol, what)
}

impl Fleet {
    /// Starts agents on all hosts, compares clocks, and starts all workers.
    ///
    /// # Errors
    /// What keeps a host from being reached, or a process from being started.
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
            has_noted: false,
            has_told_command: false,
        };
        fleet.greet(&all, setup)?;
        for number in 0..fleet.links.len() {
            fleet.compare_clock(number)?;
        }
        fleet.start_workers(setup)?;
        Ok(fleet)
    }

    /// Says that processes run on so many of the first hosts, though they are not workers.
    pub(crate) fn mark_hosts(&mut self, count: usize) {
        self.records.iter_mut().take(count).for_each(|record| record.has_processes = true);
    }

    /// What the hosts are.
    pub(crate) fn records(&self) -> Vec<HostRecord> {
        self.records.clone()
    }

    fn tell_all(&mut self, order: &Order) {
        self.links.iter_mut().for_each(|link| link.tell(order));
    }

    /// Takes answers until all have come. Stops when nothing has moved for `patience`.
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
                Ok((number, Heard::Answer(answer))) => match take(self, number, *answer)? {
                    Turn::Complete => return Ok(()),
                    Turn::Moved => moved = skep_env::now(),
                    Turn::Other => {}
                },
                Ok((number, Heard::Ended(why))) => {
                    return Err(self.ended(number, &why));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(protocol("all agents ended")),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if skep_env::now() - moved > patience {
                let seconds = patience.as_secs();
                let what = format!("{what}: nothing has moved for {seconds} s");
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
        let why = if why.is_empty() { "no reason was given" } else { why };
        let what = format!("host {name} can't be reached, or its agent has ended: {why}");
        Error::new(ErrorCode::Disconnected, what)
    }

    fn greet(&mut self, all: &[&Host], setup: &Setup<'_>) -> Result<()> {
        for (link, host) in self.links.iter_mut().zip(all) {
            let path = setup.path.as_ref().map(|path| path.display().to_string());
            let path = path.map(|path| path.replace("{host}", &host.name));
            link.tell(&Order::Hello { path });
        }
        let mut found: Vec<Option<Environment>> = vec![None; all.len()];
        let result = self.wait("waiting for agents", START_PATIENCE, |_, number, answer| {
            let Answer::Hello(environment) = answer else {
                return Err(protocol("an agent said something before its name"));
            };
            found[number] = Some(environment);
            Ok(if found.iter().all(Option::is_some) { Turn::Complete } else { Turn::Moved })
        });
        if let Err(error) = result {
            let silent = found.iter().position(Option::is_none).map(|index| &all[index].name);
            return match (error.code(), silent) {
                (ErrorCode::TimedOut, Some(name)) => {
                    let seconds = START_PATIENCE.as_secs();
                    let what = format!("host {name} has not answered within {seconds} s");
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

    /// Finds out how far a host's clock is ahead: the quickest of some round trips says it best.
    fn compare_clock(&mut self, number: usize) -> Result<()> {
        let here = Environment::of_this_host(None).boot_id;
        if !here.is_empty() && self.records[number].environment.boot_id == here {
            return Ok(());
        }
        let mut best: Option<(f64, f64)> = None;
        for _ in 0..CLOCK_TRIPS {
            let before = skep_env::now();
            self.links[number].tell(&Order::Clock);
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

    /// Deals out ranks to hosts one by one.
    fn start_workers(&mut self, setup: &Setup<'_>) -> Result<()> {
        let (hosts, of) = (self.hosts, self.processes);
        for number in 0..hosts {
            let ranks = (0..of).filter(|rank| *rank as usize % hosts == number).collect();
            let host = self.links[number].name.clone();
            let job = setup.job.clone();
            self.links[number].tell(&Order::Start { job, ranks, of, host });
        }
        let mut missing: BTreeSet<u32> = (0..of).collect();
        self.wait("starting processes", START_PATIENCE, |fleet, number, answer| {
            match answer {
                Answer::Worker { rank, says: Says::Ready } => missing.remove(&rank),
                other => return Err(fleet.unexpected(number, &other)),
            };
            Ok(if missing.is_empty() { Turn::Complete } else { Turn::Moved })
        })
    }

    /// What an answer that nobody waits for means.
    fn unexpected(&mut self, number: usize, answer: &Answer) -> Error {
        let host = self.links[number].name.clone();
        match answer {
            Answer::Died { rank, how } => {
                self.dead.insert(*rank);
                let what = format!("process {rank} on host {host} is gone: {how}");
                Error::new(ErrorCode::Io, what)
            }
            Answer::Failed(what) => Error::new(ErrorCode::Io, format!("host {host}: {what}")),
            other => protocol(&format!("host {host} said {other:?} where nobody asked")),
        }
    }

    /// Makes all hosts ready for a measurement: by a command, if one is named, and without what
    /// their caches hold, unless that is to be kept.
    ///
    /// # Errors
    /// If the command fails anywhere, or a host has gone.
    pub(crate) fn make_ready(
        &mut self,
        command: Option<&str>,
        keep_caches: bool,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<()> {
        self.run_before(command, progress)?;
        if keep_caches { Ok(()) } else { self.drop_caches(progress) }
    }

    /// Lets a shell do something on all hosts with processes, if there is anything to do.
    ///
    /// # Errors
    /// If it fails on one of them, or a host has gone.
    fn run_before(
        &mut self,
        command: Option<&str>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<()> {
        let Some(command) = command else { return Ok(()) };
        if !std::mem::replace(&mut self.has_told_command, true) {
            progress(Progress::Note(format!("on all hosts: {command}")));
        }
        let mut asked = BTreeSet::new();
        for (number, record) in self.records.iter().enumerate() {
            if record.has_processes {
                let command = command.replace("{host}", &record.name);
                self.links[number].tell(&Order::Run(command));
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

    /// Waits until those who were asked for something that can fail have answered; gives what went
    /// wrong, with the host. `take` gives back an answer that is another one.
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

    /// Drops caches on all hosts, once for each kernel. Where that can't be, it is noted once.
    ///
    /// # Errors
    /// If a host has gone.
    fn drop_caches(&mut self, progress: &mut dyn FnMut(Progress)) -> Result<()> {
        let mut kernels = BTreeSet::new();
        let mut asked = BTreeSet::new();
        for (number, record) in self.records.iter().enumerate() {
            let boot_id = &record.environment.boot_id;
            if boot_id.is_empty() || kernels.insert(boot_id.clone()) {
                asked.insert(number);
            }
        }
        asked.iter().for_each(|number| self.links[*number].tell(&Order::DropCaches));
        let problems = self.problems_of("dropping caches", asked, |answer| match answer {
            Answer::CachesDropped(problem) => Ok(problem),
            other => Err(Box::new(other)),
        })?;
        self.caches_dropped = problems.is_empty();
        if let Some(problem) = problems.first().filter(|_| !self.has_noted) {
            self.has_noted = true;
            progress(Progress::Note(problem.clone()));
        }
        Ok(())
    }

    /// Runs a phase on all workers: a barrier, the work, and the end of the last.
    ///
    /// # Errors
    /// The first failure of any process; all have given the phase up then.
    pub(crate) fn phase(
        &mut self,
        step: &Step,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<PhaseRecord> {
        let (phase, repetition) = (step.phase.clone(), step.repetition);
        progress(Progress::Phase { phase: phase.clone(), repetition });
        self.prepare(step)?;
        self.has_begun = true;
        self.tell_all(&Order::Go);
        let (measures, busy) = self.gather(step, progress)?;
        let hosts = self.hosts;
        let processes = measures.into_iter().enumerate().map(|(rank, mut measure)| {
            let record = &self.records[rank % hosts];
            measure.begin_s -= record.clock_offset_s;
            measure.end_s -= record.clock_offset_s;
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
        self.tell_all(&Order::Prepare(step.clone()));
        let mut missing: BTreeSet<u32> = (0..self.processes).collect();
        let mut refused = Vec::new();
        let (what, patience) = (format!("preparing to {}", step.phase), self.patience);
        self.wait(&what, patience, |fleet, number, answer| {
            match answer {
                Answer::Worker { rank, says: Says::Prepared(result) } => {
                    let host = &fleet.links[number].name;
                    refused.extend(result.err().map(|why| (rank, host.clone(), why)));
                    missing.remove(&rank);
                }
                // Of the phase before.
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

    /// Waits for the end of a phase. After a failure all others are told to give up, and those that
    /// still do are waited for.
    fn gather(
        &mut self,
        step: &Step,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(Vec<Measure>, Vec<Option<f64>>)> {
        let mut parts = Parts::new(self.processes as usize, self.hosts);
        let Err(first) = self.take_parts(step, self.patience, &mut parts, progress) else {
            return Ok((parts.measures.into_iter().flatten().collect(), parts.busy));
        };
        self.tell_all(&Order::Abort);
        // Each round ends all of it or one process more.
        while !parts.is_over(&self.dead) && !is_interrupted() {
            let again = self.take_parts(step, END_PATIENCE, &mut parts, progress);
            if again.is_err_and(|error| error.code() == ErrorCode::TimedOut) {
                // Those are not to be waited for any more.
                let count = parts.measures.len() as u32;
                let is_silent = |rank: &u32| parts.measures[*rank as usize].is_none();
                self.hung.extend((0..count).filter(is_silent));
                break;
            }
        }
        Err(first)
    }

    /// Takes what workers say of a phase, until it is over or one of them fails.
    fn take_parts(
        &mut self,
        step: &Step,
        patience: Duration,
        parts: &mut Parts,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<()> {
        self.wait(&step.phase, patience, |fleet, number, answer| {
            let turn = match answer {
                Answer::Worker { rank, says: Says::Moved(amount) } => {
                    let moved = parts.moved.get_mut(rank as usize).ok_or_else(no_such_rank)?;
                    match std::mem::replace(moved, amount) == amount {
                        true => Turn::Other,
                        false => Turn::Moved,
                    }
                }
                Answer::Worker { rank, says: Says::Done { measure, failure } } => {
                    let place = parts.measures.get_mut(rank as usize).ok_or_else(no_such_rank)?;
                    *place = Some(measure);
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

    /// Ends a run. Gives why there isn't more of what was measured, if there was a failure.
    ///
    /// # Errors
    /// The failure, if nothing was measured.
    pub(crate) fn conclude(
        &mut self,
        result: Result<()>,
        was_measured: bool,
    ) -> Result<Option<String>> {
        let Err(error) = result else {
            // With what the workers made left as it is.
            self.tell_all(&Order::Finish);
            return Ok(None);
        };
        self.clean_after_failure();
        match was_measured {
            true => Ok(Some(error.context().to_owned())),
            false => Err(error),
        }
    }

    /// Whoever still can takes back what was made, for the dead too.
    fn clean_after_failure(&mut self) {
        if !self.has_begun || is_interrupted() {
            // The end of their input lets workers clean up, too.
            return;
        }
        let hosts = self.hosts;
        let is_lost = |rank: &u32| self.dead.contains(rank) || self.hung.contains(rank);
        let living: BTreeSet<u32> = (0..self.processes).filter(|rank| !is_lost(rank)).collect();
        let mut missing = living.clone();
        let Some(first) = living.first().map(|rank| *rank as usize % hosts) else { return };
        let dead: Vec<u32> = self.dead.iter().copied().collect();
        for (number, link) in self.links[..hosts].iter_mut().enumerate() {
            let dead = if number == first { dead.clone() } else { Vec::new() };
            link.tell(&Order::Clean { dead });
        }
        // That failed before: what goes wrong here would hide it.
        let _ = self.wait("cleaning up", END_PATIENCE, |fleet, _, answer| {
            match answer {
                Answer::Worker { rank, says: Says::Cleaned } => {
                    missing.remove(&rank);
                }
                Answer::Died { rank, .. } => {
                    fleet.dead.insert(rank);
                    missing.remove(&rank);
                }
                _ => {}
            }
            Ok(if missing.is_empty() { Turn::Complete } else { Turn::Other })
        });
    }
}

fn failed(rank: u32, host: &str, why: &str) -> Error {
    let code = match why.contains("No space left") {
        true => ErrorCode::NoSpace,
        false => ErrorCode::Io,
    };
    Error::new(code, format!("process {rank} on host {host}: {why}"))
}

fn start_links(all: &[&Host], sender: &SyncSender<(usize, Heard)>) -> Result<Vec<Link>> {
    let start = |(number, host): (usize, &&Host)| Link::start(host, number, sender.clone());
    all.iter().enumerate().map(start).collect()
}

impl Drop for Fleet {
    /// Lets all agents end by themselves, for as long as that may take.
    fn drop(&mut self) {
        self.links.iter_mut().for_each(Link::dismiss);
        let deadline = skep_env::now() + END_PATIENCE;
        while !self.links.iter_mut().all(Link::has_ended) && skep_env::now() < deadline {
            // Answers must be taken, or who sends them would wait.
            if self.inbox.recv_timeout(Duration::from_millis(20)).is_err() {
                std::thread::park_timeout(Duration::from_millis(5));
            }
        }
    }
}
