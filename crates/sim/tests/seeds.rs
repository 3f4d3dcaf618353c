//! Runs fixed seeds of the simulation of a cluster. In `cargo xtask ci`, the program `skep-sim`
//! runs new seeds. Also tests the simulator itself: a seed always gives the same run, and the
//! checkers find planted bugs.

mod two_threads;

use skep_sim::knobs::PlantedBug;
use skep_sim::{
    Judged, MOST_BLIND_PERCENT, MOST_LISTINGS_SKIPPED_PERCENT, MOST_SIZES_SKIPPED_PERCENT, Options,
    Report, run,
};
use std::collections::BTreeSet;
use std::ops::Range;

/// Runs seeds until `is_last` is true for a report. Returns the reports of all runs.
fn reports_until(
    seeds: Range<u64>,
    plant: Option<PlantedBug>,
    is_last: impl Fn(&Report) -> bool + Sync,
) -> Vec<Report> {
    let run = |seed| run(&Options { seed, plant, ..Options::default() });
    two_threads::reports_until(seeds, run, is_last)
}

/// Runs all seeds, and returns their reports.
fn reports(seeds: Range<u64>) -> Vec<Report> {
    reports_until(seeds, None, |_| false)
}

/// Returns the reports of failed runs.
fn failures(mut reports: Vec<Report>) -> Vec<Report> {
    reports.retain(|report| report.violation.is_some());
    reports
}

fn explain(failures: &[Report]) -> String {
    let lines = failures.iter().map(|report| {
        let violation = report.violation.as_deref().unwrap_or_default();
        let seed = report.seed;
        format!("{violation}\nrepeat with: cargo run --release -p skep-sim -- --seed {seed}\n")
    });
    lines.collect()
}

#[test]
fn simulation_of_fixed_seeds_finds_no_violation() {
    let reports = reports(1..2001);
    let blind = reports.iter().filter(|report| report.is_blind).count() as u64;
    let runs = reports.len() as u64;
    println!("{blind} of {runs} runs were not judged to their end");
    assert!(blind * 100 <= runs * MOST_BLIND_PERCENT, "{blind} of {runs} runs were not judged");
    let sum =
        |of: fn(&Report) -> Judged| reports.iter().map(of).fold(Judged::default(), Judged::plus);
    let (listings, sizes) = (sum(|it| it.listings), sum(|it| it.sizes));
    let known_sizes = sum(|it| it.known_sizes);
    println!("listings: {listings:?}, sizes: {sizes:?}, sizes in clients: {known_sizes:?}");
    assert!(listings.seen > 0 && sizes.seen > 0, "the checkers judge something");
    assert!(known_sizes.skipped < known_sizes.seen, "the checker of known sizes judges something");
    assert!(listings.is_within(MOST_LISTINGS_SKIPPED_PERCENT), "{listings:?}");
    assert!(sizes.is_within(MOST_SIZES_SKIPPED_PERCENT), "{sizes:?}");
    let failures = failures(reports);
    assert!(failures.is_empty(), "{}", explain(&failures));
}

#[test]
fn simulation_of_the_same_seed_gives_the_same_run() {
    for seed in 1..40 {
        let options = Options { seed, ..Options::default() };
        assert_eq!(run(&options), run(&options), "seed {seed}");
    }
    let traces = (1..40).map(|seed| run(&Options { seed, ..Options::default() }).trace);
    assert_eq!(traces.collect::<BTreeSet<_>>().len(), 39, "seeds differ from each other");
}

/// For each planted bug, a checker must report a violation that contains one of these text
/// fragments.
#[test]
fn checkers_find_all_planted_bugs() {
    let planted = [
        (PlantedBug::LoseCommitNotices, ["expected at some moment", "unfinished work"].as_slice()),
        (
            PlantedBug::SyncTooSoon,
            &["acknowledged as durable", "does not start", "depends on records lost"],
        ),
        (PlantedBug::ForgetSlots, &["done twice", "was done and refused", "client learns: true"]),
        (PlantedBug::IgnoreRemovals, &["has no inode"]),
        (PlantedBug::TruncateTooSoon, &["before the size is synced"]),
        (PlantedBug::ForgetTruncations, &["is not truncated"]),
        (
            PlantedBug::KeepIncarnation,
            &["the old tail", "again has bytes that a truncation removed"],
        ),
        (PlantedBug::RepeatBlindly, &["was executed twice"]),
        (PlantedBug::ReuseNumbers, &["which existed before"]),
        (PlantedBug::AnswerBeforeHeld, &["answered and lost by a take-over"]),
        (
            PlantedBug::EffectBeforeSafe,
            &["as durable and lost", "depends on records lost", "before both members synced"],
        ),
        (PlantedBug::StoreAheadOfSafe, &["is ahead of"]),
        (PlantedBug::KeepPrimarySynced, &["cannot read its log"]),
        (PlantedBug::PromoteAfterPowerLoss, &["lost by a take-over"]),
        (
            PlantedBug::AcceptOlderEpoch,
            &["different records", "is ahead of", "by a take-over", "is not in a log"],
        ),
        (PlantedBug::ObeyDeposed, &["deposed by"]),
        (PlantedBug::ForgetLocks, &["has locked"]),
        (
            PlantedBug::ForgetStarts,
            &["follows version", "of a file", "is CachedState", "had not compared"],
        ),
        (
            PlantedBug::ForgetPrepared,
            &["is reached twice", "expected", "unfinished work", "only in the stores"],
        ),
        (PlantedBug::ForgetInline, &["inline bytes", "expected at some moment"]),
        (PlantedBug::IgnoreNotifications, &["was not notified that"]),
        (PlantedBug::WriteForEvicted, &["a write of ended session"]),
        (PlantedBug::CheckBeforeWait, &["a write of ended session"]),
        (PlantedBug::HideSizes, &["its chunk files end at"]),
        (PlantedBug::OmitEntries, &[" 0 times"]),
        (PlantedBug::OmitLastInlineByte, &["other inline bytes than the file"]),
        (PlantedBug::CopyWithoutSync, &["storage has not synced its copy"]),
        (PlantedBug::HideLostInline, &["is lost and was reported as safe"]),
        (PlantedBug::HideLostChanges, &["but its client learns: false"]),
        (PlantedBug::SkipComparison, &["had not compared"]),
        (PlantedBug::SkipReplayWindow, &["before clients had replayed"]),
        (PlantedBug::ReplayWithNewId, &["was replayed as"]),
        (PlantedBug::ReplayByClient, &["after the change", "could not be replayed"]),
        (
            PlantedBug::DropKeptChanges,
            &["before clients had replayed", "neither replayed nor reported"],
        ),
        (PlantedBug::IgnoreTruncations, &["knows the size"]),
        (PlantedBug::AssumePrepared, &["participant has lost it"]),
        (PlantedBug::CommitUnasked, &["participant has lost it"]),
        (PlantedBug::ForgetRefusal, &["after its reply that it had not"]),
    ];
    for (plant, fragments) in planted {
        let is_expected = |report: &Report| {
            let violation = report.violation.as_deref().unwrap_or_default();
            fragments.iter().any(|fragment| violation.contains(fragment))
        };
        // Some bugs have an effect only after several faults at the same time.
        let all = failures(reports_until(1..2001, Some(plant), is_expected));
        assert!(all.iter().any(is_expected), "{plant:?} is not found:\n{}", explain(&all));
    }
}
