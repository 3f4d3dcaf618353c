//! Compares the statements in docs/studies about the studies in the repository with the journals of
//! these studies.

use skep_study::journal::{self, Contents};
use skep_study::plans;
use skep_study::record::{MinMax, Record};
use skep_study::report::{ExperimentReport, Group, Report, analyse, files};
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

const MIB: f64 = (1 << 20) as f64;
/// Bandwidth of both servers' links together in the shape `scenario1`, in MiB/s. Each link has 400
/// Mbit/s.
const LINKS: f64 = 2.0 * 400e6 / 8.0 / MIB;

fn directory(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/studies").join(name)
}

/// Rounds a number as the published text rounds its numbers.
fn rounded(number: f64) -> u32 {
    number.round() as u32
}

/// Returns the mean of each group of an experiment, in the order of the groups.
fn means(report: &Report, name: &str) -> Vec<u32> {
    experiment(report, name).groups.iter().map(|group| rounded(mean(group))).collect()
}

fn study(name: &str) -> (Contents, Report) {
    let contents = journal::read(&directory(name)).expect("a journal");
    let report = analyse(&contents, false);
    assert_eq!((report.runs_done, report.runs_invalid), (report.runs_planned, 0), "{name}");
    (contents, report)
}

fn experiment<'a>(report: &'a Report, name: &str) -> &'a ExperimentReport {
    report.experiments.iter().find(|it| it.name == name).expect("an experiment")
}

/// Returns the group with the number of targets `count` and the placement policy `chooser`.
fn group<'a>(experiment: &'a ExperimentReport, count: u32, chooser: &str) -> &'a Group {
    let is_it = |group: &&Group| {
        group.settings.count == Some(count) && group.settings.chooser.as_deref() == Some(chooser)
    };
    experiment.groups.iter().find(is_it).expect("a group")
}

fn allocations(group: &Group) -> BTreeSet<MinMax> {
    group.allocations.iter().map(|it| it.min_max).collect()
}

fn mean(group: &Group) -> f64 {
    group.summary.mean / MIB
}

/// Returns the mean of all runs in `groups` that have the allocation `wanted`.
fn of_allocation<'a>(groups: impl IntoIterator<Item = &'a Group>, wanted: MinMax) -> f64 {
    let all = groups.into_iter().flat_map(|group| &group.allocations);
    let values: Vec<f64> =
        all.filter(|it| it.min_max == wanted).flat_map(|it| it.values.clone()).collect();
    values.iter().sum::<f64>() / values.len() as f64 / MIB
}

#[test]
fn published_plans_are_built_in_and_reports_match_results() {
    for name in ["scenario1", "scenario2", "concurrent", "six-targets"] {
        let (contents, report) = study(name);
        // The study `six-targets` has no predefined plan. This study was made after the other
        // studies, to answer a question that the other studies had left open.
        let ready = plans::text(name).ok();
        assert!(ready.is_some() || name == "six-targets", "{name}");
        assert!(ready.is_none_or(|ready| contents.study.plan == ready), "{name}");
        for (file, bytes) in files(&contents, &report).expect("drawn") {
            let path = directory(name).join("report").join(file);
            let published = fs::read(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
            assert!(
                published == bytes,
                "{path:?} is out of date: make it again with skep study report"
            );
        }
    }
}

#[test]
fn round_robin_allocates_as_published_and_balanced_is_best() {
    for name in ["scenario1", "scenario2"] {
        let (_, report) = study(name);
        let counts = experiment(&report, "count");
        for (count, measured, best) in [
            (1, &[(0, 1)][..], (0, 1)),
            (2, &[(0, 2), (1, 1)], (1, 1)),
            (3, &[(0, 3), (1, 2)], (1, 2)),
            (4, &[(1, 3)], (2, 2)),
            (5, &[(1, 4), (2, 3)], (2, 3)),
            (6, &[(2, 4), (3, 3)], (3, 3)),
            (7, &[(3, 4)], (3, 4)),
            (8, &[(4, 4)], (4, 4)),
        ] {
            let found = allocations(group(counts, count, "roundrobin"));
            let measured = measured.iter().map(|it| MinMax(it.0, it.1)).collect();
            assert_eq!(found, measured, "{name}, {count}");
            let found = allocations(group(counts, count, "balanced"));
            assert_eq!(found, BTreeSet::from([MinMax(best.0, best.1)]), "{name}, {count}");
        }
    }
}

#[test]
fn slow_links_make_the_busiest_server_the_limit() {
    let (_, report) = study("scenario1");
    let counts = experiment(&report, "count");
    for count in 1..=8 {
        let of_round_robin = group(counts, count, "roundrobin");
        let is_bimodal = of_round_robin.bimodality.is_some_and(|it| it.is_bimodal);
        assert_eq!(is_bimodal, [2, 3, 5, 6].contains(&count), "{count}");
        let of_balanced = group(counts, count, "balanced");
        assert!(!of_balanced.bimodality.is_some_and(|it| it.is_bimodal), "{count}");
    }
    for allocation in [(0, 1), (0, 2), (0, 3), (1, 4), (1, 3), (1, 2), (2, 4), (2, 3), (3, 4)] {
        let (least, most) = allocation;
        let expected = LINKS / 2.0 * f64::from(least + most) / f64::from(most);
        let found = of_allocation(&counts.groups, MinMax(least, most));
        assert!((found / expected - 1.0).abs() < 0.1, "{allocation:?}: {found}, not {expected}");
    }
    for even in [(1, 1), (2, 2), (3, 3), (4, 4)] {
        let found = of_allocation(&counts.groups, MinMax(even.0, even.1));
        assert!((found / LINKS - 1.0).abs() < 0.1, "{even:?}: {found}, not {LINKS}");
    }
    let of_all = |it| of_allocation(&counts.groups, it);
    let gain = of_all(MinMax(3, 3)) / of_all(MinMax(1, 3));
    assert!((1.4..1.55).contains(&gain) && rounded(gain * 100.0) == 146, "{gain}");
    // The published table. The table has the mean for each allocation.
    for (count, of_round_robin, of_balanced) in [
        (1, &[((0, 1), 47)][..], 47),
        (2, &[((0, 2), 47), ((1, 1), 94)], 94),
        (3, &[((0, 3), 47), ((1, 2), 71)], 71),
        (4, &[((1, 3), 63)], 94),
        (5, &[((1, 4), 59), ((2, 3), 78)], 78),
        (6, &[((2, 4), 70), ((3, 3), 87)], 94),
        (7, &[((3, 4), 79)], 82),
        (8, &[((4, 4), 94)], 94),
    ] {
        for ((least, most), expected) in of_round_robin {
            let found = of_allocation([group(counts, count, "roundrobin")], MinMax(*least, *most));
            assert_eq!(rounded(found), *expected, "{count}: ({least},{most})");
        }
        assert_eq!(rounded(mean(group(counts, count, "balanced"))), of_balanced, "{count}");
    }
    assert_eq!(report.runs_planned, 280);
    let even: Vec<f64> =
        [2, 4, 6, 8].iter().map(|count| mean(group(counts, *count, "balanced"))).collect();
    let least = even.iter().copied().fold(f64::MAX, f64::min);
    let most = even.iter().copied().fold(0.0, f64::max);
    assert!(most / least < 1.01 && least > 0.98 * LINKS, "{even:?}");
}

#[test]
fn bandwidth_of_slow_targets_grows_with_their_number() {
    let (contents, report) = study("scenario2");
    let counts = experiment(&report, "count");
    let of_balanced = (1..=8).map(|count| rounded(mean(group(counts, count, "balanced"))));
    assert_eq!(of_balanced.collect::<Vec<_>>(), [11, 22, 32, 43, 50, 58, 66, 80]);
    assert_eq!(means(&report, "hosts"), [21, 33, 33, 47, 83]);
    assert_eq!(means(&report, "data-size"), [82, 51, 81]);
    assert_eq!(report.runs_planned, 247);
    for chooser in ["balanced", "roundrobin"] {
        let means: Vec<f64> = (1..=8).map(|count| mean(group(counts, count, chooser))).collect();
        assert!(means.windows(2).all(|two| two[1] > two[0]), "{chooser}: {means:?}");
    }
    // With 6 targets, the placement policy `roundrobin` alternates between the two allocations.
    let of_six = |it| of_allocation([group(counts, 6, "roundrobin")], it);
    let (even, uneven) = (of_six(MinMax(3, 3)), of_six(MinMax(2, 4)));
    assert!(even > 0.95 * uneven, "{even} against {uneven}");
    assert_eq!((rounded(even), rounded(uneven)), (59, 61));
    // The published p-value, and the published numbers of runs with each allocation.
    let of_count = |count: u32| {
        let label = &group(counts, count, "roundrobin").label;
        let found = counts.of_allocations.iter().filter(|it| it.among == *label);
        found.collect::<Vec<_>>()
    };
    let [six] = of_count(6)[..] else { panic!("one comparison of two allocations") };
    assert_eq!((six.first, six.second, six.runs), (MinMax(3, 3), MinMax(2, 4), [5, 5]));
    assert!((six.welch.p - 0.35).abs() < 0.005, "{:?}", six.welch);
    for count in [2, 3, 5] {
        let [found] = of_count(count)[..] else { panic!("one comparison of two allocations") };
        assert!((0.76..0.845).contains(&found.welch.p), "{count}: {:?}", found.welch);
    }
    // The study was started once and resumed twice, which gives three records of the environment.
    // Invalid runs were repeated.
    let begun = contents.records.iter().filter(|it| matches!(it, Record::Environment(_)));
    assert_eq!((begun.count(), report.invalid.len(), report.runs_with_caches), (3, 3, 0));
    let limit = report.conclusions.iter().find(|it| it.about == "limit").expect("a limit");
    let said = "With fewer than 16 client hosts, the clients are the limit; with 16, the most";
    assert!(limit.text.starts_with(said), "{}", limit.text);
}

#[test]
fn allocation_of_slow_targets_makes_no_difference() {
    let (_, report) = study("six-targets");
    assert_eq!(report.runs_planned, 90);
    let six = experiment(&report, "six");
    let [found] = &six.of_allocations[..] else { panic!("two allocations of six targets") };
    assert_eq!((found.first, found.second, found.runs), (MinMax(3, 3), MinMax(2, 4), [5, 25]));
    assert!((found.welch.p - 0.93).abs() < 0.005, "{:?}", found.welch);
    let files_of_six = || six.groups.iter().filter(|it| it.label.contains('6'));
    let of_six = |it| rounded(10.0 * of_allocation(files_of_six(), it));
    assert_eq!([of_six(MinMax(2, 4)), of_six(MinMax(3, 3))], [568, 567]);
    let sharing = experiment(&report, "sharing").groups.iter();
    let tenths: Vec<_> = sharing.map(|it| (it.label.clone(), rounded(10.0 * mean(it)))).collect();
    assert_eq!(tenths, [("targets shared".to_owned(), 437), ("targets separate".to_owned(), 815)]);
    // The mean bandwidth of a single application that uses four targets.
    let (_, alone) = study("scenario2");
    let alone = mean(group(experiment(&alone, "count"), 4, "balanced"));
    assert_eq!(rounded(alone), 43);
}

/// Returns the mean bandwidth with a number of hosts and a second factor, in MiB/s.
fn with_hosts(
    report: &Report,
    name: &str,
    hosts: u32,
    second: impl Fn(&Group) -> Option<u32>,
    value: u32,
) -> f64 {
    let is_it = |it: &&Group| it.settings.hosts == hosts && second(it) == Some(value);
    mean(experiment(report, name).groups.iter().find(is_it).expect("a group"))
}

#[test]
fn results_agree_with_published_statements_as_described() {
    // Figure 2: the results of all data sizes are nearly equal.
    let (_, links) = study("scenario1");
    let sizes: Vec<f64> = experiment(&links, "data-size").groups.iter().map(mean).collect();
    let (least, most) =
        sizes.iter().fold((f64::MAX, 0.0_f64), |(least, most), it| (least.min(*it), most.max(*it)));
    assert_eq!(((most / least - 1.0) * 1000.0).round(), 14.0, "{sizes:?}");
    // Figure 5: twice as many processes on each host. The changes are in tenths of a percent.
    let change = |report: &Report, hosts: u32, processes: u32| {
        let of =
            |value| with_hosts(report, "processes", hosts, |it| Some(it.settings.processes), value);
        ((of(2 * processes) / of(processes) - 1.0) * 1000.0).round()
    };
    assert_eq!([1, 4, 8].map(|hosts| change(&links, hosts, 8)), [-8.0, -5.0, -26.0]);
    let (_, targets) = study("scenario2");
    let changes = [4, 16].map(|hosts| (change(&targets, hosts, 4) / 10.0).round());
    assert_eq!(changes, [-25.0, 36.0]);
    // Figure 11: hosts by targets. The rates are in tenths of MiB/s.
    let rate = |hosts, count| {
        let found = with_hosts(&targets, "hosts-by-count", hosts, |it| it.settings.count, count);
        rounded(found * 10.0)
    };
    assert_eq!([2, 8, 16].map(|hosts| rate(hosts, 1)), [112, 115, 116]);
    assert_eq!([2, 8, 16].map(|hosts| rate(hosts, 8)), [336, 461, 813]);
    // Figure 12: all applications together.
    let (_, together) = study("concurrent");
    let rates = experiment(&together, "applications").groups.iter();
    let tenths: BTreeSet<u32> = rates.map(|it| rounded(mean(it) * 10.0)).collect();
    assert_eq!((tenths.first(), tenths.last()), (Some(&944), Some(&946)));
    // Figure 13: shared and separate targets.
    let [one, two] = &experiment(&together, "sharing").groups[..] else { panic!("two groups") };
    assert!((mean(one) / mean(two) - 1.0).abs() < 0.001, "{} {}", mean(one), mean(two));
}

#[test]
fn applications_that_share_targets_lose_no_bandwidth() {
    let (_, report) = study("concurrent");
    let sharing = experiment(&report, "sharing");
    let [one, two] = &sharing.groups[..] else { panic!("shared and separate") };
    let apart = (mean(one) / mean(two) - 1.0).abs();
    assert!(apart < 0.05, "{}: {}; {}: {}", one.label, mean(one), two.label, mean(two));
    for group in [one, two] {
        assert_eq!(rounded(mean(group) * 10.0), 946, "{}", group.label);
    }
    let together = experiment(&report, "applications");
    let found: BTreeSet<(Option<u32>, u32)> = together
        .groups
        .iter()
        .map(|group| (group.settings.count, group.settings.applications))
        .collect();
    assert_eq!(found.len(), 3 * 4, "2, 4 and 8 targets, 1 to 4 applications");
    assert!(together.groups.iter().all(|it| (94.0..95.0).contains(&mean(it))));
    assert_eq!(report.runs_planned, 96);
}
