//! Runs fixed seeds of the simulation of one metadata group. The file also tests this simulation
//! itself: the same seed always gives the same run, and the checks find planted bugs.

mod two_threads;

use skep_sim::{GroupBug, GroupOptions, GroupReport, MOST_BLIND_PERCENT, run_group};
use std::collections::BTreeSet;
use std::ops::Range;

/// Runs seeds until `is_last` is true for a report. Returns the reports of all runs.
fn reports_until(
    seeds: Range<u64>,
    plant: Option<GroupBug>,
    is_last: impl Fn(&GroupReport) -> bool + Sync,
) -> Vec<GroupReport> {
    let run = |seed| run_group(GroupOptions { seed, plant, trace: false });
    two_threads::reports_until(seeds, run, is_last)
}

/// Runs all seeds, and returns their reports.
fn reports(seeds: Range<u64>) -> Vec<GroupReport> {
    reports_until(seeds, None, |_| false)
}

fn explain(reports: &[GroupReport]) -> String {
    let failed = reports.iter().filter_map(|report| {
        let violation = report.violation.as_ref()?;
        let command = "cargo run --release -p skep-sim -- --group --seed";
        Some(format!("{violation}\nrepeat with: {command} {}\n", report.seed))
    });
    failed.collect()
}

#[test]
fn simulation_of_a_group_with_fixed_seeds_finds_no_violation() {
    let reports = reports(1..501);
    let failed = explain(&reports);
    assert!(failed.is_empty(), "{failed}");
    let sum = |of: fn(&GroupReport) -> u64| reports.iter().map(of).sum::<u64>();
    let blind = sum(|it| u64::from(it.is_blind));
    assert!(blind * 100 <= reports.len() as u64 * MOST_BLIND_PERCENT, "{blind} were not judged");
    let (commits, take_overs) = (sum(|it| it.commits), sum(|it| it.take_overs));
    let (copies, log_reads) = (sum(|it| it.copies), sum(|it| it.log_reads));
    let leaders = sum(|it| it.leader_changes);
    println!(
        "{commits} commits, {take_overs} take-overs, {copies} copies, {log_reads} log reads, \
         {leaders} leaders"
    );
    assert!(commits > 30_000 && take_overs > 300, "the runs do something");
    assert!(copies > 100 && log_reads > 300, "members return by a copy and by the log on disk");
    assert!(leaders > 300, "the leader of management changes");
}

#[test]
fn simulation_of_a_group_gives_the_same_run_for_a_seed() {
    let run_one = |seed| run_group(GroupOptions { seed, ..GroupOptions::default() });
    for seed in 1..15 {
        assert_eq!(run_one(seed), run_one(seed), "seed {seed}");
    }
    let traces: BTreeSet<_> = (1..15).map(|seed| run_one(seed).trace).collect();
    assert_eq!(traces.len(), 14, "seeds differ from each other");
}

/// For each planted bug, the checks must report a violation that contains one of these fragments.
#[test]
fn checks_of_a_group_find_all_planted_bugs() {
    let planted = [
        (GroupBug::AnswerWithoutLease, ["replied after"].as_slice()),
        (GroupBug::DropUnsynced, &["lost by a take-over", "not in a log"]),
        (GroupBug::TrustAfterPowerLoss, &["lost by a take-over"]),
        (GroupBug::AcceptOlderEpoch, &["lost by a take-over", "differs at record"]),
        (GroupBug::AcknowledgeBeforeAppend, &["lost by a take-over", "lost by a power loss"]),
        (GroupBug::DropAlone, &["replied after", "lost by a take-over"]),
        (GroupBug::GoOnDeposed, &["is not whole"]),
        (
            GroupBug::ForgetCounted,
            &["replied after", "lost by a take-over", "differs at record", "is not whole"],
        ),
        (GroupBug::LoseCopiedChanges, &["differs at record"]),
        (GroupBug::OpenIncompleteCopy, &["differs at record"]),
        (GroupBug::TrustUnsyncedCopy, &["differs at record"]),
        (GroupBug::ReadRemovedRecords, &["differs at record"]),
        (GroupBug::ReleaseInOffice, &["replied after"]),
        (GroupBug::IgnoreGrant, &["replied after"]),
        (GroupBug::ForgetPromise, &["replied after"]),
        (GroupBug::ShortenPromise, &["replied after"]),
        (GroupBug::IgnoreWait, &["replied after"]),
        (GroupBug::LoseNotifications, &["was not notified that"]),
        (GroupBug::ShareVersions, &["have the version"]),
        (GroupBug::AnswerBeforeCommit, &["goes back"]),
        (GroupBug::ConfirmUnsynced, &["lost by a take-over", "lost by a power loss"]),
        (GroupBug::AnswerAfterStall, &["replied after"]),
    ];
    assert_eq!(planted.len(), GroupBug::ALL.len());
    for (plant, fragments) in planted {
        let is_expected = |report: &GroupReport| {
            let violation = report.violation.as_deref().unwrap_or_default();
            fragments.iter().any(|fragment| violation.contains(fragment))
        };
        // Some bugs appear only after several simultaneous faults. None of the first 2,000 seeds
        // finds `ConfirmUnsynced`, because since the fix of hole H44, a new primary marks members
        // as in sync only after the leases of its predecessor have ended.
        let first = if plant == GroupBug::ConfirmUnsynced { 2001 } else { 1 };
        let all = reports_until(first..first + 2000, Some(plant), is_expected);
        assert!(all.iter().any(is_expected), "{plant:?} is not found:\n{}", explain(&all));
    }
}
