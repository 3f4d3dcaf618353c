//! Executes the runs of a study, one at a time. The module chooses the next run, writes the record
//! of each run to the journal, and decides when to stop.
//!
//! A [`Bench`] measures runs. [`Site`] implements [`Bench`] for real systems. The module writes
//! each result to the journal before the next run begins. For this reason, a study can stop or fail
//! at any time, and a user can resume the study.

mod calibration;
mod files;
mod meeting;
mod site;
mod work;

#[cfg(test)]
mod tests;

pub use site::{Place, Site};

use crate::aggregate::{Share, bandwidth};
use crate::journal::Journal;
use crate::limits::SHARED_WAIT;
use crate::order::{self, Run};
use crate::plan::{Plan, Quantity};
use crate::record::{
    ApplicationRecord, CalibratedRecord, EnvironmentRecord, Record, RunRecord, Settings,
};
use crate::report::describe;
use skep_types::{Error, ErrorCode, Result};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Maximum size of a record in bytes, without its processes and targets.
const RECORD_BYTES: u64 = 8 << 10;
/// Maximum size of one process in a record, in bytes.
const PROCESS_BYTES: u64 = 200;
/// Maximum size of one target in a record, in bytes.
const TARGET_BYTES: u64 = 12;
/// Interval at which a study that waits between two blocks checks whether the study must stop.
const TICK: Duration = Duration::from_millis(100);

/// Measures runs on a system.
pub trait Bench {
    /// Measures a run under the condition `settings`, with new files. `label` is unique among all
    /// runs, and can be used in file names.
    ///
    /// # Errors
    /// The reason why the run has no result.
    fn measure(&mut self, label: &str, settings: &Settings) -> Result<Measured>;

    /// Returns the number of client hosts of the system.
    fn hosts(&self) -> u32;
}

/// The measured result of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// The result of each application. The list has at least one application.
    pub applications: Vec<ApplicationRecord>,
    /// Whether all caches had been dropped before the measurement.
    pub caches_dropped: bool,
    /// The reason why the run is invalid, because its result does not describe the storage system.
    /// `None` if the run is valid.
    pub invalid_because: Option<String>,
    /// The description of the hosts by the benchmark. `None` means that there is no description.
    pub environment: Option<serde_json::Value>,
}

/// A progress event of a study.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The calibration tries a value, which the text describes.
    Trial(String),
    /// The calibration has found its result.
    Calibrated(CalibratedRecord),
    /// The study waits before the next block. With these waits, the load of other users affects all
    /// conditions alike.
    Wait(Duration),
    /// A run begins.
    Run {
        /// Number of runs that have a result already.
        done: usize,
        /// Number of all runs of the plan.
        all: usize,
        /// Description of the run's condition.
        condition: String,
        /// Estimated time for all remaining runs. `None` if the remaining time is not known yet.
        left: Option<Duration>,
    },
    /// A run has ended.
    Measured {
        /// The aggregate result of all applications in the run, in bytes or operations per second.
        value: f64,
        /// The quantity that the run measures.
        quantity: Quantity,
        /// Why the run is invalid. `None` if the run is valid.
        invalid_because: Option<String>,
    },
}

/// The state of a study at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// Number of runs that have a result in the journal.
    pub done: usize,
    /// Number of runs whose result in the journal is invalid.
    pub invalid: usize,
    /// Number of runs in the plan.
    pub all: usize,
}

/// How a study communicates with its caller.
pub struct Control<'a> {
    /// The caller sets this flag to make the study stop after its current run.
    pub stop: &'a AtomicBool,
    /// The runner calls this function for each progress event.
    pub tell: &'a mut dyn FnMut(Event),
    /// Returns the current time in UTC, as text for people.
    pub time: &'a dyn Fn() -> String,
    /// Shortest and longest wait between two blocks of runs.
    pub wait: (Duration, Duration),
}

impl Control<'_> {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Waits for the time `span`. Ends early if the study must stop.
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

/// Returns the shortest and the longest wait between two blocks. If the plan sets no bounds, both
/// bounds are zero on an emulated system, because such a system has no other users.
pub fn wait_of(plan: &Plan, is_emulated: bool) -> (Duration, Duration) {
    let unsaid = if is_emulated { (Duration::ZERO, Duration::ZERO) } else { SHARED_WAIT };
    plan.wait.unwrap_or(unsaid)
}

/// Executes all runs that have no valid result in the journal. `records` are the records in the
/// journal.
///
/// # Errors
/// The reason why a run has no result, or why its record could not be written. All earlier results
/// are in the journal.
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
            let settings = Settings::new(&run.condition, found.as_ref()).ok_or_else(|| {
                Error::new(ErrorCode::Io, "the calibration of the study has no result")
            })?;
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

/// Identifies a run in the journal and in file names.
struct RunName {
    label: String,
    number: u32,
    block: u32,
    experiment: String,
    repetition: u32,
}

/// Allocates disk space for the record of one run, and then measures the run.
fn one(
    name: &RunName,
    settings: Settings,
    journal: &Journal,
    bench: &mut dyn Bench,
    control: &mut Control<'_>,
) -> Result<(RunRecord, Option<serde_json::Value>)> {
    let processes = settings.processes_of_application() * u64::from(settings.applications);
    // Maximum number of targets in the record. If each process has its own file, each of these
    // files has its own targets.
    let targets = processes * u64::from(settings.count.unwrap_or(256));
    journal.reserve(RECORD_BYTES + processes * PROCESS_BYTES + targets * TARGET_BYTES)?;
    let started_at = (control.time)();
    let measured = bench.measure(&name.label, &settings).map_err(|error| {
        let what = format!("run {} ({}, {})", name.number, name.experiment, describe(&settings));
        error.within(what)
    })?;
    let processes = || measured.applications.iter().flat_map(|it| &it.processes);
    let no_duration =
        || Error::new(ErrorCode::Io, format!("run {} reports a duration of 0 s", name.number));
    let bytes_per_second = bandwidth(processes().map(Share::of_bytes)).ok_or_else(no_duration)?;
    let quantity = settings.operation.quantity();
    let operations_per_second = match quantity {
        Quantity::Bandwidth => None,
        Quantity::Transfers | Quantity::Names => {
            Some(bandwidth(processes().map(Share::of_operations)).ok_or_else(no_duration)?)
        }
    };
    (control.tell)(Event::Measured {
        value: operations_per_second.unwrap_or(bytes_per_second),
        quantity,
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
        operations_per_second,
        applications: measured.applications,
        caches_dropped: measured.caches_dropped,
        is_valid: measured.invalid_because.is_none(),
        invalid_because: measured.invalid_because,
    };
    Ok((record, measured.environment))
}

/// Measures the duration of runs, to estimate the time left.
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

    /// Returns the estimated time of `runs` further runs, without the waits. `None` if no run has
    /// ended yet.
    fn left(&self, runs: usize) -> Option<Duration> {
        (self.runs > 0).then(|| self.spent / self.runs * runs as u32)
    }
}
