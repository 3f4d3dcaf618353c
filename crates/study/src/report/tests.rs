//! Tests the reports of artificial journals from which certain conclusions must follow.

use super::*;
use crate::journal::{self, FORMAT, Journal};
use crate::order::Random;
use crate::plan::Plan;
use crate::record::{Allocation, ApplicationRecord, EnvironmentRecord, ProcessRecord, StudyRecord};
use std::path::Path;

const MIB: f64 = (1 << 20) as f64;

const PLAN: &str = "name = 'made-up'\ntitle = 'Made <up>'\nrepetitions = 20\n\
    [factors]\ndata-size = '256MiB'\nhosts = 8\n\
    [[experiment]]\nname = 'count'\ntitle = 'Who chooses?'\n\
    factors = { count = [1, 2, 3, 4, 6, 8], chooser = ['roundrobin', 'balanced'] }\n\
    [[experiment]]\nname = 'hosts'\ntitle = 'How many hosts?'\n\
    factors = { hosts = [1, 2, 4, 8], count = 8 }\n\
    [[experiment]]\nname = 'sharing'\ntitle = 'Does sharing cost?'\n\
    factors = { hosts = 4, applications = 2, count = 4, targets = ['shared', 'separate'] }\n";

/// Returns the allocation that a placement policy gives on two servers with four targets each.
fn allocation(chooser: &str, count: u32, random: &mut Random) -> MinMax {
    let uneven = random.below(2) == 0;
    match (chooser, count) {
        ("roundrobin", 2) if uneven => MinMax(0, 2),
        ("roundrobin", 3) if uneven => MinMax(0, 3),
        ("roundrobin", 4) => MinMax(1, 3),
        ("roundrobin", 6) if uneven => MinMax(2, 4),
        _ => MinMax(count / 2, count - count / 2),
    }
}

/// The limit of the artificial system: the links of its servers, or its targets.
#[derive(Clone, Copy, PartialEq)]
enum Limit {
    Links,
    Targets,
}

fn rate(limit: Limit, it: MinMax) -> f64 {
    match limit {
        Limit::Links => 50.0 * MIB * f64::from(it.0 + it.1) / f64::from(it.1),
        Limit::Targets => 10.0 * MIB * f64::from(it.0 + it.1),
    }
}

/// Creates the journal of a study. The artificial results are the results of a system with the
/// limit `limit`, and some noise.
fn study(directory: &Path, limit: Limit) -> Contents {
    made_up(directory, PLAN, &|settings, random| {
        let chooser = settings.chooser.as_deref().unwrap_or("balanced");
        let min_max = allocation(chooser, settings.count.unwrap_or(8), random);
        let clients = f64::from(settings.hosts * settings.applications) * 30.0 * MIB;
        (min_max, rate(limit, min_max).min(clients))
    })
}

/// Creates the journal of a study. `system` computes the allocations and bandwidths.
fn made_up(
    directory: &Path,
    text: &str,
    system: &dyn Fn(&Settings, &mut Random) -> (MinMax, f64),
) -> Contents {
    let plan = Plan::parse(text).expect("a plan");
    let header = StudyRecord {
        format: FORMAT,
        plan: text.to_owned(),
        started_at: "2026-01-01T00:00:00Z".to_owned(),
        skep_version: "0.1.0".to_owned(),
        place: "lab made-up".to_owned(),
        hosts: (1..=8).map(|it| format!("c{it}")).collect(),
        targets_per_server: Some([("s1".to_owned(), 4), ("s2".to_owned(), 4)].into()),
        limit: None,
    };
    let mut journal = Journal::create(directory, &header).expect("made");
    let hosts = serde_json::json!([{ "kernel": "6.1 <x>" }]);
    journal.append(&Record::Environment(EnvironmentRecord { hosts })).expect("written");
    let mut random = Random::new(4);
    for (_, block) in order::blocks(&plan) {
        for run in block {
            let settings =
                Settings::new(&run.condition, None).expect("the settings need no calibration");
            let (min_max, rate) = system(&settings, &mut random);
            let record = one(&run, settings, min_max, rate * (0.99 + 0.02 * random.share()));
            journal.append(&Record::Run(record)).expect("written");
        }
    }
    drop(journal);
    journal::read(directory).expect("a journal")
}

fn one(run: &order::Run, settings: Settings, min_max: MinMax, rate: f64) -> RunRecord {
    let applications = settings.applications;
    let application = ApplicationRecord {
        bytes_per_second: rate / f64::from(applications),
        operations_per_second: None,
        bytes: settings.data_bytes,
        processes: vec![ProcessRecord {
            host: "c1".to_owned(),
            begin_seconds: 0.25,
            end_seconds: 5.0,
            bytes: settings.data_bytes,
            operations: 0,
        }],
        latency: None,
        allocation: Some(Allocation { targets: (1..=min_max.0 + min_max.1).collect(), min_max }),
    };
    RunRecord {
        run: run.number,
        block: run.block,
        experiment: run.experiment.clone(),
        repetition: run.repetition,
        started_at: "2026-01-01T00:00:00Z".to_owned(),
        settings,
        bytes_per_second: rate,
        operations_per_second: None,
        applications: vec![application; applications as usize],
        caches_dropped: true,
        is_valid: true,
        invalid_because: None,
    }
}

fn about<'a>(report: &'a Report, subject: &str) -> Vec<&'a Conclusion> {
    report.conclusions.iter().filter(|it| it.about == subject).collect()
}

#[test]
fn report_names_slow_links_as_the_limit_from_4_hosts_on() {
    let scratch = tempfile::tempdir().expect("a directory");
    let report = analyse(&study(scratch.path(), Limit::Links), false);
    assert_eq!((report.runs_planned, report.runs_done, report.runs_invalid), (360, 360, 0));
    let names: Vec<&str> = report.experiments.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(
        names,
        ["count", "hosts", "sharing"],
        "the experiments are in the order of the plan"
    );

    let limit = about(&report, "limit");
    assert_eq!(limit.len(), 1, "{limit:?}");
    let said = "With fewer than 4 client hosts, the clients are the limit; from 4 on, the network \
                is the limit: ";
    assert!(limit[0].text.starts_with(said), "{}", limit[0].text);
    assert!(limit[0].figures.iter().any(|it| it.what == "mean of (1,3)" && it.value > 60.0));
    let chooser = about(&report, "chooser");
    assert!(chooser[0].text.contains("Use the chooser balanced"), "{}", chooser[0].text);
    let count = about(&report, "count");
    assert!(count[0].text.contains("Files of 2 targets"), "{}", count[0].text);
    assert!(count[0].text.contains("chooser balanced"), "{}", count[0].text);
    assert!(about(&report, "hosts").is_empty(), "the conclusion about the limit covers the hosts");
    let sharing = about(&report, "targets");
    assert!(sharing[0].text.contains("differ by less than 1 %"), "{}", sharing[0].text);

    // The results of round-robin have two modes with 2, 3 and 6 targets, and one mode with 4
    // targets. The results of balanced always have one mode.
    let modes: Vec<&str> = about(&report, "modes").iter().map(|it| it.text.as_str()).collect();
    let named = |what: &str| modes.iter().any(|it| it.contains(what));
    assert_eq!(modes.len(), 3, "{modes:?}");
    for count in [2, 3, 6] {
        assert!(named(&format!("count {count}, chooser roundrobin")), "{count}: {modes:?}");
    }
    assert!(named("(0,2) gives 50 MiB/s, (1,1) gives 100 MiB/s"), "{modes:?}");
}

#[test]
fn report_names_slow_targets_as_the_limit_from_4_hosts_on() {
    let scratch = tempfile::tempdir().expect("a directory");
    let report = analyse(&study(scratch.path(), Limit::Targets), false);
    let limit = about(&report, "limit");
    let said = "With fewer than 4 client hosts, the clients are the limit; from 4 on, the targets \
                are the limit: ";
    assert!(limit[0].text.starts_with(said), "{}", limit[0].text);
    let count = about(&report, "count");
    assert!(count[0].text.contains("Files of 8 targets"), "{}", count[0].text);
    assert!(about(&report, "modes").is_empty(), "the allocation makes no difference");
    let chooser = about(&report, "chooser");
    assert!(!chooser[0].text.contains("Use the chooser"), "{}", chooser[0].text);
    let lie = about(&report, "allocation");
    assert!(lie[0].text.starts_with("Allocations that do not differ"), "{}", lie[0].text);
    assert!(lie[0].text.contains("(1,1) and (0,2) (p = "), "{}", lie[0].text);
}

/// Returns the report of a study with one experiment, whose factors are `factors`. The results have
/// little noise.
fn of_factors(factors: &str, rate: &dyn Fn(&Settings) -> f64) -> Report {
    let text = format!(
        "name = 'x'\ntitle = 'x'\nrepetitions = 8\n[factors]\ndata-size = '256MiB'\nhosts = 2\n\
         [[experiment]]\nname = 'a'\ntitle = 'a'\nfactors = {{ {factors} }}\n"
    );
    let scratch = tempfile::tempdir().expect("a directory");
    let system = |settings: &Settings, _: &mut Random| (MinMax(4, 4), rate(settings) * MIB);
    analyse(&made_up(scratch.path(), &text, &system), false)
}

#[test]
fn negligible_difference_is_not_reported() {
    for (more, said) in [(1.0, "as much as one alone"), (1.2, "% more than one alone")] {
        let of = |it: &Settings| if it.applications > 1 { 90.0 * more } else { 90.0 };
        let report = of_factors("applications = [1, 2, 4]", &of);
        let text = &about(&report, "applications")[0].text;
        assert!(text.contains(said), "{text}");
    }
    // This difference of 0.5 % is significant, but smaller than the smallest difference that
    // counts.
    let sure = Welch { t: 9.0, freedom: 20.0, p: 0.0001, gain: 0.005 };
    assert!(!conclusions::is_difference(&sure));
    assert!(conclusions::is_difference(&Welch { gain: -0.02, ..sure }));
    assert!(!conclusions::is_difference(&Welch { gain: 0.5, p: 0.06, ..sure }));
    for (share, said) in [(0.004, "as much as x"), (-0.03, "3 % less than x"), (0.01, "1 % more")] {
        assert!(conclusions::against(share, "x").starts_with(said), "{share}");
    }
}

#[test]
fn report_names_a_warm_up_of_the_first_runs() {
    let scratch = tempfile::tempdir().expect("a directory");
    // The runs of each block are in the order of their numbers, and a block has at most ten runs.
    let with_first = |share: f64, every: usize| {
        let mut contents = study(&scratch.path().join(format!("{share}-{every}")), Limit::Links);
        let mut blocks = BTreeMap::new();
        for record in &mut contents.records {
            let Record::Run(run) = record else { continue };
            run.bytes_per_second = 100.0 * MIB;
            let number = blocks.len();
            let first = *blocks.entry(run.block).or_insert((run.run, number));
            if first.0 == run.run && first.1.is_multiple_of(every) {
                run.bytes_per_second *= share;
            }
        }
        analyse(&contents, false)
    };
    let report = with_first(0.8, 1);
    let found = about(&report, "warm-up");
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].text.contains("20 % below the other runs"), "{}", found[0].text);
    // The first case has too small a difference, and the second case has too few slow blocks.
    assert!(about(&with_first(0.97, 1), "warm-up").is_empty());
    assert!(about(&with_first(0.8, 2), "warm-up").is_empty());
}

#[test]
fn report_names_a_data_size_at_which_bandwidth_drops() {
    let of = |it: &Settings| if it.data_bytes == 256 << 20 { 50.0 } else { 80.0 };
    let sizes = "data-size = ['64MiB', '128MiB', '256MiB', '512MiB']";
    let report = of_factors(sizes, &of);
    let text = &about(&report, "data-size")[0].text;
    assert!(text.starts_with("From data-size 64MiB on"), "{text}");
    assert!(text.contains("but with 256MiB, bandwidth is at least 3"), "{text}");
    // A slow value at an end of the list has only one neighbour, so it is not a dip.
    let of = |it: &Settings| if it.data_bytes <= 64 << 20 { 50.0 } else { 80.0 };
    let report = of_factors(sizes, &of);
    let text = &about(&report, "data-size")[0].text;
    assert!(text.starts_with("From data-size 128MiB on") && !text.contains("but"), "{text}");
}

#[test]
fn numeric_values_are_compared_with_their_neighbours() {
    let report = of_factors("hosts = [1, 2, 4], count = [2, 8]", &|it| f64::from(it.hosts));
    let found: Vec<String> = report.experiments[0]
        .comparisons
        .iter()
        .map(|it| format!("{} {}-{} {}", it.factor.word(), it.first, it.second, it.among))
        .collect();
    assert_eq!(found.len(), 7, "{found:?}");
    assert!(found.contains(&"hosts 1-2 count 2".to_owned()), "{found:?}");
    assert!(found.contains(&"hosts 2-4 count 8".to_owned()), "{found:?}");
    assert!(found.contains(&"count 2-8 hosts 4".to_owned()), "{found:?}");
    assert!(report.experiments[0].comparisons.iter().all(|it| it.runs == [8, 8]));
}

#[test]
fn report_names_the_saturating_number_of_hosts_once() {
    let of = |hosts: &str, of: &dyn Fn(&Settings) -> f64| {
        let report = of_factors(&format!("hosts = {hosts}"), of);
        let found = about(&report, "hosts");
        assert_eq!(found.len(), 1, "{found:?}");
        found[0].text.clone()
    };
    let text = of("[1, 2, 4]", &|it| f64::from(it.hosts) * 10.0);
    assert!(text.starts_with("The clients are the limit: 4 client hosts, the most"), "{text}");
    let text = of("[1, 2, 4]", &|_| 10.0);
    assert!(text.starts_with("One client host is enough: more hosts gain less than 5 %"), "{text}");
}

#[test]
fn a_report_is_self_contained_and_reproducible() {
    let scratch = tempfile::tempdir().expect("a directory");
    let contents = study(scratch.path(), Limit::Links);
    let report = analyse(&contents, false);
    let files = files(&contents, &report).expect("drawn");
    assert_eq!(files, self::files(&contents, &analyse(&contents, false)).expect("drawn"));
    let text = |name: &str| {
        let (_, bytes) = files.iter().find(|(file, _)| file == name).expect(name);
        String::from_utf8(bytes.clone()).expect("text")
    };
    let page = text("index.html");
    for word in ["src=", "href=", "@import", "url(", "<script"] {
        assert!(!page.contains(word), "{word}: the page would load another file");
    }
    assert!(page.contains("Made &lt;up&gt;") && page.contains("6.1 &lt;x&gt;"));
    assert_eq!(
        page.matches("<svg").count(),
        7,
        "two figures for each of three experiments, and one more"
    );
    for experiment in &report.experiments {
        for figure in &experiment.figures {
            let svg = text(figure);
            assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{figure}");
        }
    }
    // The figure has one circle for each of the 240 runs. The legend has no circles.
    assert_eq!(text("count-points.svg").matches("<circle").count(), 240);
    assert!(text("count-allocations.svg").contains("(1,3)"));
    let csv = text("points.csv");
    assert_eq!(csv.lines().count(), 361);
    let columns = csv.lines().next().expect("a title").split(',').count();
    assert!(
        csv.starts_with("kind,run,") && csv.lines().next().is_some_and(|it| it.ends_with("ause"))
    );
    assert!(csv.lines().all(|line| line.split(',').count() == columns));
    let json: serde_json::Value = serde_json::from_str(&text("report.json")).expect("JSON");
    assert_eq!(json["experiments"][0]["groups"].as_array().expect("groups").len(), 12);
}

#[test]
fn statistics_exclude_invalid_runs_unless_requested() {
    let scratch = tempfile::tempdir().expect("a directory");
    let mut contents = study(scratch.path(), Limit::Links);
    for record in &mut contents.records {
        let Record::Run(run) = record else { continue };
        if run.experiment == "hosts" || run.run == 0 {
            run.is_valid = false;
            run.invalid_because = Some("the CPU was the limit, \"wholly\"".to_owned());
        }
        run.caches_dropped = run.run != 7;
    }
    let report = analyse(&contents, false);
    assert_eq!(report.runs_invalid, 81);
    assert!(report.experiments.iter().all(|it| it.name != "hosts"));
    let counted: usize = report.experiments[0].groups.iter().map(|it| it.values.len()).sum();
    assert_eq!(counted, 239);
    let all = analyse(&contents, true);
    assert_eq!((all.runs_invalid, all.includes_invalid), (81, true));
    let counted: usize =
        all.experiments.iter().flat_map(|it| &it.groups).map(|it| it.values.len()).sum();
    assert_eq!(counted, 360, "all runs if requested");
    let files = files(&contents, &report).expect("drawn");
    assert!(String::from_utf8_lossy(&files[0].1).contains("81 runs are invalid"));
    assert!(
        String::from_utf8_lossy(&files[0].1)
            .contains("Before 1 of the runs, not all caches were dropped")
    );
    assert_eq!((report.runs_with_caches, report.invalid.len()), (1, 81));
    let csv = String::from_utf8_lossy(&files[1].1).into_owned();
    let because = ",true,\"the CPU was the limit, \"\"wholly\"\"\"\n";
    assert_eq!((csv.matches(because).count(), csv.matches(",false,\n").count()), (81, 1));
}

#[test]
fn report_without_results_states_their_absence() {
    let scratch = tempfile::tempdir().expect("a directory");
    let mut contents = study(scratch.path(), Limit::Links);
    contents.records.clear();
    let report = analyse(&contents, false);
    assert!(report.experiments.is_empty() && report.conclusions.is_empty());
    let files = files(&contents, &report).expect("a page");
    assert!(String::from_utf8_lossy(&files[0].1).contains("not enough results yet"));
}
