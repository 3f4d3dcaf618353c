//! Compares the live output of `skep stats` with the results of `skep bench io` in each second.
//!
//! # Method
//! The live output and the benchmarks run in different processes, so their seconds begin at
//! different times. Therefore the test compares sums since the start of the benchmarks. A benchmark
//! reports the exact time of the end of each transfer. A live value contains the time at which the
//! services counted, and the error of this time. A service counts a transfer just before its reply,
//! and a benchmark has one transfer in progress. So a live value is at least the bytes of the
//! benchmarks at the earliest possible time. The value is at most the bytes of the benchmarks at
//! the latest possible time plus the transfers in progress. Beyond these two bounds, the test
//! allows 3 % of the bytes of a second. The test also checks that in several seconds, the bounds
//! are at most 3 % apart.

use super::bench_runs::{BenchRun, RunsById, TRANSFER, bytes_of, seconds_by};
use super::live_figures::{FIELDS, LiveFigures, LiveSample};
use rustix::time::ClockId;

/// Maximum relative difference between a measured value and its expected value.
const TOLERANCE: f64 = 0.03;

/// Maximum error of the difference between two clocks of this host, in seconds.
const CLOCK_ERROR: f64 = 0.001;

/// Whether a measured value differs from the expected value by at most 3 %.
pub(super) fn is_near(found: f64, expected: f64) -> bool {
    (found - expected).abs() <= expected * TOLERANCE
}

/// Compares the live statistics of an object (a user, job or client) with the benchmarks that cause
/// the object's load. Returns the number of exact samples. For an exact sample, the smallest and
/// the largest possible number of bytes differ by at most 3 % of the bytes of a second.
fn check_each_second(what: &str, samples: &[LiveSample], runs: &[&BenchRun]) -> usize {
    let mut exact = 0;
    for (phase, field) in FIELDS.iter().enumerate() {
        let phases = || runs.iter().map(move |run| &run.phases[phase]);
        let bytes_at = |time| phases().map(|it| it.bytes_at(time)).sum::<u64>() as f64;
        let each_second: f64 = phases().map(|it| it.bytes as f64 / it.seconds).sum();
        let in_progress = (TRANSFER * runs.len() as u64) as f64;
        let total = bytes_of(runs)[phase];
        for sample in samples {
            let (error, bytes) = (sample.error + CLOCK_ERROR, sample.bytes[phase]);
            let least = bytes_at(sample.at - error);
            let most = bytes_at(sample.at + error) + in_progress;
            let allowed = each_second * TOLERANCE;
            let is_right = (least - allowed..=most + allowed).contains(&(bytes as f64));
            assert!(is_right, "{what} {field}: {bytes} is not in {least}..{most}, {sample:?}");
            exact += usize::from(most - least <= allowed && bytes > 0 && bytes < total);
        }
        for pair in samples.windows(2) {
            let [one, next] = pair else { unreachable!("windows of two") };
            let bytes = (next.bytes[phase] - one.bytes[phase]) as f64;
            let (span, error) = (next.at - one.at, next.error + one.error + CLOCK_ERROR);
            let least = bytes / (span + error) * (1.0 - TOLERANCE);
            let most = bytes / (span - error).max(CLOCK_ERROR) * (1.0 + TOLERANCE);
            let rate = next.rates[phase];
            let is_right = (least..=most).contains(&rate);
            assert!(is_right, "{what} {field}: {rate} is not in {least}..{most}, {one:?} {next:?}");
        }
    }
    exact
}

/// Compares the totals of all groupings. A total that was counted after another total must be at
/// least as large.
fn check_sums(sums: &[(&str, Vec<LiveSample>)]) {
    let all = || sums.iter().flat_map(|(by, samples)| samples.iter().map(move |it| (by, it)));
    for (by, earlier) in all() {
        for (other, later) in all() {
            let is_earlier = earlier.at + earlier.error < later.at - later.error;
            let is_right = earlier.bytes.iter().zip(&later.bytes).all(|(one, next)| one <= next);
            assert!(!is_earlier || is_right, "by {by}: {earlier:?}, later by {other}: {later:?}");
        }
    }
}

/// Reads the live statistics until these statistics contain the whole load, and compares them with
/// the benchmarks. `runs` contains for each grouping the benchmarks of each object id.
pub(super) fn check_live(live: Vec<LiveFigures>, runs: &[RunsById<'_>]) {
    let ended = seconds_by(ClockId::Realtime);
    let mut sums = Vec::new();
    for (figures, runs) in live.into_iter().zip(runs) {
        let by = figures.by;
        let (objects, sum) = figures.read_until(ended);
        let mut exact = 0;
        for (id, runs) in runs {
            let samples = &objects[id];
            let what = format!("by {by} {id}");
            exact += check_each_second(&what, samples, runs);
            let found = samples.last().expect("a sample").bytes;
            let expected = bytes_of(runs);
            let is_right =
                found.iter().zip(&expected).all(|(it, all)| is_near(*it as f64, *all as f64));
            assert!(is_right, "{what}: {found:?} instead of {expected:?}");
        }
        assert!(exact >= 2, "by {by}: only {exact} samples are exact, at least 2 expected");
        let all: Vec<&BenchRun> = runs.values().flatten().copied().collect();
        check_each_second(&format!("sum by {by}"), &sum, &all);
        sums.push((by, sum));
    }
    check_sums(&sums);
}
