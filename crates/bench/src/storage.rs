//! Measures the speed of each storage target, without the network, like BeeGFS's StorageBench.
//!
//! A target writes and reads its own files (`StartBenchmark` in `skep_wire::benchmark`). This
//! module starts these benchmarks, asks the targets for their progress, and ensures that the
//! targets remove their files. [`outliers`] finds slow targets in the results.

pub(crate) mod outcome;
pub mod outliers;
mod plan;

pub use outcome::{Outcome, Sample, TargetRecord};
pub use plan::Plan;

use crate::limits::{ASK_INTERVAL, ASK_PATIENCE, STOP_PATIENCE};
use crate::progress::{Measurement, Progress, is_interrupted};
use skep_rpc::{CallOptions, Connection};
use skep_types::{Error, ErrorCode, Result};
use skep_wire::benchmark::{AskBenchmark, BenchmarkProgress, StartBenchmark, StopBenchmark};
use std::rc::Rc;
use std::time::Duration;

/// The record of a target, and a connection to the target.
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

/// Measures targets. Then makes the targets remove their files, even if the measurement has failed.
/// An unreachable target gets no more requests for its progress, and removes its files by itself.
///
/// # Errors
/// The errors of [`crate::io::run`].
pub async fn run(
    plan: &Plan,
    targets: &[Connected],
    progress: &mut dyn FnMut(Progress),
) -> Result<Outcome> {
    plan.check()?;
    if targets.is_empty() {
        return Err(Error::new(
            ErrorCode::NotFound,
            "cannot measure storage targets: the plan names no target of this cluster",
        ));
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

/// Waits until all targets have finished the current phase.
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
            let what = format!("no target made progress for {} s", patience.as_secs());
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
    fn sample_lasts_from_first_thread_start_to_last_thread_end() {
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
    fn invalid_storage_plans_are_refused() {
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
