//! Runs of a study, one at a time: what comes next, what is written down, when to stop.
//!
//! What is measured and how is [`Bench`]'s affair; the real one is [`Site`]. Everything that was
//! measured is in the journal before the next run begins, so that a study can be stopped, or end by
//! an error, at any time, and go on later.

mod calibration;
mod files;
mod meeting;
mod site;

#[cfg(test)]
mod tests;

pub use site::{Place, Site};

use crate::aggregate::{Share, bandwidth};
use crate::journal::Journal;
use crate::limits::SHARED_WAIT;
use crate::order::{self, Run};
use crate::plan::Plan;
use crate::record::{
    ApplicationRecord, CalibratedRecord, EnvironmentRecord, Record, RunRecord, Settings,
};
use crate::report::describe;
use skep_types::{Error, ErrorCode, Result};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Bytes of a record without its processes and targets, and some to spare.
const RECORD_BYTES: u64 = 8 << 10;
/// Bytes of a process in a record.
const PROCESS_BYTES: u64 = 200;
/// Bytes of a target in a record.
const TARGET_BYTES: u64 = 12;
/// How often a wait looks whether it is to end.
const TICK: Duration = Duration::from_millis(100);

/// What carries out a run.
pub trait Bench {
    /// Runs one condition, with files that nothing else has used. `label` is usable in names of
    /// files and the label of no other run.
    ///
    /// # Errors
    /// What kept anything from being measured.
    fn measure(&mut self, label: &str, settings: &Settings) -> Result<Measured>;

    /// Client hosts that there are.
    fn hosts(&self) -> u32;
}

/// What a run has measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// Each application; at least one.
    pub applications: Vec<ApplicationRecord>,
    /// Whether nothing was cached before what was measured.
    pub caches_dropped: bool,
    /// Why it says nothing of the system that is studied; none if it does.
    pub invalid_because: Option<String>,
    /// What the hosts are, as the benchmark says it.
    pub environment: Option<serde_json::Value>,
}

/// What a study is doing.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The first step tries something.
    Trial(String),
    /// The first step has found something.
    Calibrated(CalibratedRecord),
    /// Nothing is run for so long, so that what others do meets all conditions alike.
    Wait(Duration),
    /// A run begins.
    Run {
        /// How many are done before it.
        done: usize,
        /// Of how many.
        all: usize,
        /// What it runs.
        condition: String,
        /// What all that is left will take, by what was done until now.
        left: Option<Duration>,
    },
    /// The run has ended with so many bytes in a second.
    Measured {
        /// Of all its applications together.
        bytes_per_second: f64,
        /// Why it doesn't count.
        invalid_because: Option<String>,
    },
}

/// How a study ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// Runs in the journal.
    pub done: usize,
    /// Those of them that don't count.
    pub invalid: usize,
    /// Runs of the plan.
    pub all: usize,
}

/// What a study is run with.
pub struct Control<'a> {
    /// Set to end after the run that is going on.
    pub stop: &'a AtomicBool,
    /// Is told what happens.
    pub tell: &'a mut dyn FnMut(Event),
    /// Says what time it is, in UTC, for people.
    pub time: &'a dyn Fn() -> String,
    /// Shortest and longest wait between blocks.
    pub wait: (Duration, Duration),
}

impl Control<'_> {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Waits, unless it is to stop.
    fn wait(&mut self, span: Duration) {
        if span.is_zero() || self.is_stopped() {
            return;
        }
        (self.tell)(Event::Wait(span));
        let end = skep_env::now() + span;
        while !self.is_stopped() && skep_env::now() < end {
            std::thread::sleep(TICK.min(end.saturating_sub(skep_env::now())));
        }
    }
}

/// The wait between blocks: as the plan says, else none where nobody else uses the system.
pub fn wait_of(plan: &Plan, is_emulated: bool) -> (Duration, Duration) {
    let unsaid = if is_emulated { (Duration::ZERO, Duration::ZERO) } else { SHARED_WAIT };
    plan.wait.unwrap_or(unsaid)
}

/// Makes all runs that aren't in the journal yet, and those in it that don't count, again.
/// `records` is what it holds.
///
/// # Errors
/// What kept a run from being measured or written down. What was measured before is in the journal.
pub fn run(
    plan: &Plan,
    journal: &mut Journal,
    records: &[Record],
    bench: &mut dyn Bench,
    control: &mut Control<'_>,
) -> Result<End> {
    let runs = records.iter().filter_map(|record| match record {
        Record::Run(run) => Some(run),
        _ => None,
    });
    let mut known: BTreeSet<u32> = runs.clone().map(|run| run.run).collect();
    let finished: BTreeSet<u32> = runs.filter(|run| run.is_valid).map(|run| run.run).collect();
    let all = order::list(plan).len();
    let mut end = End { done: known.len(), invalid: known.len() - finished.len(), all };
    let found = match plan.needs_calibration() {
        true => match calibration::calibrate(plan, journal, records, bench, control)? {
            Some(found) => Some(found),
            None => return Ok(end),
        },
        false => None,
    };
    let mut pace = Pace::default();
    let mut is_first = true;
    for (share, block) in order::blocks(plan) {
        let missing: Vec<&Run> =
            block.iter().filter(|run| !finished.contains(&run.number)).collect();
        if missing.is_empty() {
            continue;
        }
        if !is_first {
            control.wait(order::wait(control.wait, share));
        }
        is_first = false;
        for run in missing {
            if control.is_stopped() {
                return Ok(end);
            }
            let settings = Settings::new(&run.condition, found.as_ref())
                .ok_or_else(|| Error::new(ErrorCode::Io, "the first step has found nothing"))?;
            let condition = format!("{}: {}", run.experiment, describe(&settings));
            let is_again = known.contains(&run.number);
            let left = pace.left(end.all - end.done + end.invalid);
            (control.tell)(Event::Run { done: end.done, all, condition, left });
            let begin = skep_env::now();
            let name = RunName {
                label: format!("run-{:06}", run.number),
                number: run.number,
                block: run.block,
                experiment: run.experiment.clone(),
                repetition: run.repetition,
            };
            let (record, environment) = one(&name, settings, journal, bench, control)?;
            let is_valid = record.is_valid;
            journal.append(&Record::Run(record))?;
            known.insert(run.number);
            if let Some(hosts) = environment.filter(|_| pace.runs == 0) {
                journal.append(&Record::Environment(EnvironmentRecord { hosts }))?;
            }
            pace.add(skep_env::now() - begin);
            end.done = known.len();
            end.invalid = end.invalid + usize::from(!is_valid) - usize::from(is_again);
        }
    }
    Ok(end)
}

/// What a run is called, in the journal and among files.
struct RunName {
    label: String,
    number: u32,
    block: u32,
    experiment: String,
    repetition: u32,
}

/// Measures one run; room for its record is set aside before.
fn one(
    name: &RunName,
    settings: Settings,
    journal: &Journal,
    bench: &mut dyn Bench,
    control: &mut Control<'_>,
) -> Result<(RunRecord, Option<serde_json::Value>)> {
    let processes = u64::from(settings.hosts) * u64::from(settings.processes);
    let processes = processes * u64::from(settings.applications);
    // The targets of each file; of all files, where each process has its own.
    let targets = processes * u64::from(settings.count.unwrap_or(256));
    journal.reserve(RECORD_BYTES + processes * PROCESS_BYTES + targets * TARGET_BYTES)?;
    let started_at = (control.time)();
    let measured = bench.measure(&name.label, &settings).map_err(|error| {
        let what = format!("run {} ({}, {})", name.number, name.experiment, describe(&settings));
        error.within(what)
    })?;
    let shares = measured.applications.iter().flat_map(|it| &it.processes);
    let shares = shares.map(|it| Share {
        begin_seconds: it.begin_seconds,
        end_seconds: it.end_seconds,
        bytes: it.bytes,
    });
    let bytes_per_second = bandwidth(shares)
        .ok_or_else(|| Error::new(ErrorCode::Io, format!("run {} took no time", name.number)))?;
    (control.tell)(Event::Measured {
        bytes_per_second,
        invalid_because: measured.invalid_because.clone(),
    });
    let record = RunRecord {
        run: name.number,
        block: name.block,
        experiment: name.experiment.clone(),
        repetition: name.repetition,
        started_at,
        settings,
        bytes_per_second,
        applications: measured.applications,
        caches_dropped: measured.caches_dropped,
        is_valid: measured.invalid_because.is_none(),
        invalid_because: measured.invalid_because,
    };
    Ok((record, measured.environment))
}

/// How long runs take.
#[derive(Debug, Default)]
struct Pace {
    spent: Duration,
    runs: u32,
}

impl Pace {
    fn add(&mut self, span: Duration) {
        self.spent += span;
        self.runs += 1;
    }

    /// What so many more will take. Waits are not in it: they are drawn.
    fn left(&self, runs: usize) -> Option<Duration> {
        (self.runs > 0).then(|| self.spent / self.runs * runs as u32)
    }
}
