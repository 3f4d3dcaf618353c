//! Each storage target's own speed, without network: in the manner of BeeGFS's StorageBench.
//!
//! Targets write and read files of their own (`StartBenchmark` in `skep_wire::benchmark`); this
//! starts them, asks how far they are, and sees to it that they remove their files again.
//! [`outliers`] judges what was measured.

pub mod outliers;

use crate::launcher::{Measurement, Progress, is_interrupted};
use crate::limits::{
    ASK_INTERVAL, ASK_PATIENCE, DEFAULT_PATIENCE_S, MAX_REPETITIONS, STOP_PATIENCE,
};
use crate::statistics::Summary;
use serde::{Deserialize, Serialize};
use skep_rpc::{CallOptions, Connection};
use skep_types::{Error, ErrorCode, Result};
use skep_wire::benchmark::{AskBenchmark, BenchmarkProgress, StartBenchmark, StopBenchmark};
use std::rc::Rc;
use std::time::Duration;

/// What targets are to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Plan {
    /// Files are written. They always are, since what is read must have been written; without this
    /// it isn't measured.
    pub write: bool,
    /// Files are read.
    pub read: bool,
    /// Files of each target, written and read at the same time.
    pub threads: u16,
    /// Bytes of each file.
    pub size_bytes: u64,
    /// Bytes moved at once.
    pub block_bytes: u32,
    /// How often all is done.
    pub repetitions: u32,
    /// One target after the other, instead of all at the same time.
    pub one_by_one: bool,
    /// How long targets may stand still.
    pub patience_s: u32,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            write: true,
            read: true,
            threads: 4,
            size_bytes: 256 << 20,
            block_bytes: 1 << 20,
            repetitions: 1,
            one_by_one: false,
            patience_s: DEFAULT_PATIENCE_S,
        }
    }
}

/// A target that is measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetRecord {
    /// Its id.
    pub id: u32,
    /// Id of its service.
    pub node: u32,
    /// Name of its service.
    pub node_name: String,
    /// Its directory.
    pub path: String,
}

/// One measurement of one target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The target.
    pub target: u32,
    /// `write` or `read`.
    pub phase: String,
    /// From 1.
    pub repetition: u32,
    /// Bytes of all its threads.
    pub bytes: u64,
    /// From the first thread's begin to the last one's end.
    pub seconds: f64,
    /// Bytes over the time.
    pub bandwidth_mib_per_s: f64,
    /// Whether data went past the page cache.
    pub is_direct: bool,
    /// Of each thread: begin and end, in seconds from the start.
    pub threads: Vec<(f64, f64)>,
}

/// What was measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Outcome {
    /// What was asked for.
    pub plan: Plan,
    /// Seconds since 1970 when it began.
    pub started_unix_s: i64,
    /// All targets.
    pub targets: Vec<TargetRecord>,
    /// All measurements, in order.
    pub samples: Vec<Sample>,
    /// Why it ended before all was done.
    pub failure: Option<String>,
}

impl Outcome {
    /// Bandwidths of a target in a phase.
    pub fn bandwidths(&self, target: u32, phase: &str) -> Vec<f64> {
        let of_both = self.samples.iter().filter(|it| it.target == target && it.phase == phase);
        of_both.map(|sample| sample.bandwidth_mib_per_s).collect()
    }

    /// A phase over all targets and repetitions; none if it was not measured.
    pub fn summary(&self, phase: &str) -> Option<Summary> {
        let of_phase = self.samples.iter().filter(|it| it.phase == phase);
        let rates: Vec<f64> = of_phase.map(|sample| sample.bandwidth_mib_per_s).collect();
        Summary::of(&rates)
    }
}

impl Plan {
    /// Checks what doesn't need a target to be known.
    ///
    /// # Errors
    /// `InvalidArgument` with everything that is wrong.
    pub fn check(&self) -> Result<()> {
        let mut problems = Vec::new();
        let mut must = |holds: bool, what: &str| {
            if !holds {
                problems.push(what.to_owned());
            }
        };
        must(self.write || self.read, "nothing is to be measured: neither writing nor reading");
        must(self.threads > 0, "at least one thread is needed");
        must(self.block_bytes > 0, "the block size must not be 0");
        must(
            self.size_bytes > 0 && self.size_bytes.is_multiple_of(self.block_bytes.max(1).into()),
            "the size must be a multiple of the block size",
        );
        must(
            (1..=MAX_REPETITIONS).contains(&self.repetitions),
            &format!("repetitions are 1 to {MAX_REPETITIONS}"),
        );
        must(self.patience_s > 0, "patience must not be 0");
        if problems.is_empty() {
            return Ok(());
        }
        Err(Error::new(ErrorCode::InvalidArgument, problems.join("; ")))
    }
}

/// A target and the way to it.
pub type Connected = (TargetRecord, Rc<Connection>);

fn options(patience: Duration) -> CallOptions {
    CallOptions { time_left: Some(patience), ..CallOptions::default() }
}

fn named(target: &TargetRecord, error: &Error) -> Error {
    let TargetRecord { id, node_name, .. } = target;
    let words = if error.context().is_empty() {
        error.code().to_string()
    } else {
        error.context().to_owned()
    };
    Error::new(error.code(), format!("target {id} on {node_name}: {words}"))
}

/// Measures targets. Whatever happens, they are told to remove their files; those that can't be
/// told do it when nobody asks them any more.
///
/// # Errors
/// As [`crate::io::run`].
pub async fn run(
    plan: &Plan,
    targets: &[Connected],
    progress: &mut dyn FnMut(Progress),
) -> Result<Outcome> {
    plan.check()?;
    if targets.is_empty() {
        return Err(Error::new(ErrorCode::NotFound, "there is no such storage target"));
    }
    let mut outcome = Outcome {
        plan: plan.clone(),
        started_unix_s: skep_env::wall_time().seconds,
        targets: targets.iter().map(|(target, _)| target.clone()).collect(),
        samples: Vec::new(),
        failure: None,
    };
    for repetition in 1..=plan.repetitions {
        let parts: Vec<&[Connected]> = match plan.one_by_one {
            true => targets.chunks(1).collect(),
            false => vec![targets],
        };
        for part in parts {
            let run = skep_env::random_u64().max(1);
            let measured = measure(run, repetition, part, &mut outcome, progress).await;
            let stopped = stop(run, part).await;
            if let Err(error) = measured.and(stopped) {
                outcome.failure = Some(error.context().to_owned());
                return if outcome.samples.is_empty() { Err(error) } else { Ok(outcome) };
            }
        }
    }
    Ok(outcome)
}

async fn stop(run: u64, targets: &[Connected]) -> Result<()> {
    let mut result = Ok(());
    for (target, connection) in targets {
        let stopped = connection.call(&StopBenchmark { run }, &options(STOP_PATIENCE)).await;
        result = result.and(stopped.map(drop).map_err(|error| named(target, &error)));
    }
    result
}

async fn measure(
    run: u64,
    repetition: u32,
    targets: &[Connected],
    outcome: &mut Outcome,
    progress: &mut dyn FnMut(Progress),
) -> Result<()> {
    let plan = outcome.plan.clone();
    for (is_read, phase) in [(false, "write"), (true, "read")] {
        if is_read && !plan.read {
            continue;
        }
        progress(Progress::Phase { phase: phase.into(), repetition });
        let start = StartBenchmark {
            run,
            is_read,
            streams: plan.threads,
            stream_bytes: plan.size_bytes,
            block_bytes: plan.block_bytes,
        };
        for (target, connection) in targets {
            let started = connection.call(&start, &options(ASK_PATIENCE)).await;
            started.map_err(|error| named(target, &error))?;
        }
        let patience = Duration::from_secs(plan.patience_s.into());
        let ends = wait(&start, targets, patience, progress).await?;
        if !is_read && !plan.write {
            continue;
        }
        for ((target, _), end) in targets.iter().zip(ends) {
            let sample = sample(target.id, phase, repetition, &end);
            progress(Progress::measured(Measurement::Target(sample.clone())));
            outcome.samples.push(sample);
        }
    }
    Ok(())
}

/// Waits until all targets are done.
async fn wait(
    start: &StartBenchmark,
    targets: &[Connected],
    patience: Duration,
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<BenchmarkProgress>> {
    let each = start.stream_bytes * u64::from(start.streams);
    let mut ends: Vec<Option<BenchmarkProgress>> = vec![None; targets.len()];
    let mut moved = vec![0; targets.len()];
    let mut last = skep_env::now();
    while ends.iter().any(Option::is_none) {
        if is_interrupted() {
            return Err(Error::new(ErrorCode::Interrupted, "interrupted"));
        }
        skep_env::sleep(ASK_INTERVAL).await;
        for (index, (target, connection)) in targets.iter().enumerate() {
            if ends[index].is_some() {
                continue;
            }
            let ask = AskBenchmark { run: start.run };
            let answer = connection.call(&ask, &options(ASK_PATIENCE)).await;
            let (found, _) = answer.map_err(|error| named(target, &error))?;
            if let Some(why) = &found.failure {
                return Err(named(target, &Error::new(ErrorCode::Io, why.clone())));
            }
            if found.bytes != moved[index] {
                (moved[index], last) = (found.bytes, skep_env::now());
            }
            ends[index] = found.is_over.then_some(found);
        }
        let total = each * targets.len() as u64;
        progress(Progress::Moved { done: moved.iter().sum(), total });
        if skep_env::now() - last > patience {
            let silent = ends.iter().position(Option::is_none).map(|index| &targets[index].0);
            let what = format!("nothing has moved for {} s", patience.as_secs());
            let error = Error::new(ErrorCode::TimedOut, what);
            return Err(silent.map_or_else(|| error.clone(), |target| named(target, &error)));
        }
    }
    Ok(ends.into_iter().flatten().collect())
}

fn sample(target: u32, phase: &str, repetition: u32, end: &BenchmarkProgress) -> Sample {
    let seconds = |nanoseconds: u64| nanoseconds as f64 / 1e9;
    let begin = end.streams.iter().map(|(begin, _)| *begin).min().unwrap_or(0);
    let last = end.streams.iter().map(|(_, end)| *end).max().unwrap_or(0);
    let time = seconds(last - begin).max(1e-9);
    Sample {
        target,
        phase: phase.to_owned(),
        repetition,
        bytes: end.bytes,
        seconds: time,
        bandwidth_mib_per_s: end.bytes as f64 / f64::from(1 << 20) / time,
        is_direct: end.is_direct,
        threads: end.streams.iter().map(|(begin, end)| (seconds(*begin), seconds(*end))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_counts_from_the_first_begin_to_the_last_end() {
        let end = BenchmarkProgress {
            is_over: true,
            is_direct: true,
            bytes: 8 << 20,
            streams: vec![(500_000_000, 2_000_000_000), (0, 1_000_000_000)],
            failure: None,
        };
        let sample = sample(3, "write", 1, &end);
        assert_eq!((sample.seconds, sample.bandwidth_mib_per_s), (2.0, 4.0));
        assert_eq!(sample.threads, [(0.5, 2.0), (0.0, 1.0)]);
    }

    #[test]
    fn plans_that_cannot_be_are_refused() {
        let problem = |change: fn(&mut Plan)| {
            let mut plan = Plan::default();
            change(&mut plan);
            plan.check().err().map(|error| error.context().to_owned()).unwrap_or_default()
        };
        assert_eq!(problem(|_| ()), "");
        assert!(problem(|plan| plan.size_bytes += 1).contains("multiple"));
        assert!(problem(|plan| plan.threads = 0).contains("thread"));
        assert!(problem(|plan| (plan.write, plan.read) = (false, false)).contains("nothing"));
    }
}
