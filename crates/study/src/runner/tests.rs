//! Tests the order of runs, and the state of a study that ended early. The system is artificial.

use super::*;
use crate::journal::{self, FORMAT};
use crate::record::{ProcessRecord, StudyRecord};
use std::path::Path;

const PLAN: &str = "name = 'x'\ntitle = 't'\nrepetitions = 4\nblock = 3\n\
    [factors]\ndata-size = '64MiB'\nhosts = 1\n\
    [[experiment]]\nname = 'a'\ntitle = 'a'\nfactors = { count = [1, 2] }\n\
    [[experiment]]\nname = 'b'\ntitle = 'b'\nfactors = { processes = [1, 2] }\n";

const SEARCH: &str = "name = 'x'\ntitle = 't'\nrepetitions = 2\n\
    calibration = { data-size = ['64MiB', '128MiB', '256MiB', '512MiB', '1GiB'], hosts = [1, 2, 4, 8, 16] }\n\
    [[experiment]]\nname = 'a'\ntitle = 'a'\nfactors = { processes = 2, count = [1, 4] }\n";

/// An artificial system. The bandwidth of this system grows with the number of hosts up to four,
/// and is low with little data.
struct MadeUp {
    labels: Vec<String>,
    settings: Vec<Settings>,
    /// Index of the run that fails and so ends the study. `None` if no run fails.
    fails_at: Option<usize>,
    /// Number of invalid runs. The first runs are invalid, and all later runs are valid.
    invalid: usize,
}

impl MadeUp {
    fn new() -> Self {
        Self { labels: vec![], settings: vec![], fails_at: None, invalid: 0 }
    }
}

impl Bench for MadeUp {
    fn measure(&mut self, label: &str, settings: &Settings) -> Result<Measured> {
        if self.fails_at == Some(self.labels.len()) {
            return Err(Error::new(ErrorCode::Disconnected, "host c1 is gone"));
        }
        self.labels.push(label.to_owned());
        self.settings.push(settings.clone());
        let rate = f64::from(settings.hosts.min(4)) * 1e8;
        let seconds = settings.data_bytes as f64 / rate + 0.05;
        let process = ProcessRecord {
            host: "c1".to_owned(),
            begin_seconds: 100.0,
            end_seconds: 100.0 + seconds,
            bytes: settings.data_bytes,
            operations: 0,
        };
        let application = ApplicationRecord {
            bytes_per_second: settings.data_bytes as f64 / seconds,
            operations_per_second: None,
            bytes: settings.data_bytes,
            processes: vec![process],
            latency: None,
            allocation: None,
        };
        Ok(Measured {
            applications: vec![application],
            caches_dropped: true,
            invalid_because: (self.labels.len() <= self.invalid).then(|| "too slow".to_owned()),
            environment: None,
        })
    }

    fn hosts(&self) -> u32 {
        8
    }
}

fn begin(directory: &Path, plan: &str) -> Journal {
    let study = StudyRecord {
        format: FORMAT,
        plan: plan.to_owned(),
        started_at: "2026-01-01T00:00:00Z".to_owned(),
        skep_version: "0.1.0".to_owned(),
        place: "made up".to_owned(),
        hosts: vec!["c1".to_owned()],
        targets_per_server: None,
        limit: None,
    };
    Journal::create(directory, &study).expect("a new journal")
}

/// Runs or resumes a study. Stops the study after `stop_after` runs have begun.
fn study(
    directory: &Path,
    text: &str,
    bench: &mut MadeUp,
    stop_after: Option<usize>,
) -> (Result<End>, Vec<Event>) {
    let plan = Plan::parse(text).expect("a plan");
    let (mut journal, records) = match directory.join(journal::FILE).exists() {
        true => {
            let (journal, contents) = Journal::resume(directory, &plan).expect("resumed");
            (journal, contents.records)
        }
        false => (begin(directory, text), vec![]),
    };
    let stop = AtomicBool::new(false);
    let mut events = Vec::new();
    let mut begun = 0;
    let mut tell = |event: Event| {
        begun += usize::from(matches!(event, Event::Run { .. } | Event::Trial(_)));
        if stop_after == Some(begun) {
            stop.store(true, Ordering::Relaxed);
        }
        events.push(event);
    };
    let mut control = Control {
        stop: &stop,
        tell: &mut tell,
        time: &|| "2026-01-01T00:00:00Z".to_owned(),
        wait: (Duration::ZERO, Duration::from_millis(2)),
    };
    let end = run(&plan, &mut journal, &records, bench, &mut control);
    (end, events)
}

fn runs(directory: &Path) -> Vec<u32> {
    let contents = journal::read(directory).expect("a journal");
    let runs = contents.records.iter().filter_map(|record| match record {
        Record::Run(run) => Some(run.run),
        _ => None,
    });
    runs.collect()
}

#[test]
fn every_run_happens_once_in_the_order_of_blocks() {
    let scratch = tempfile::tempdir().expect("a directory");
    let mut bench = MadeUp::new();
    let (end, events) = study(scratch.path(), PLAN, &mut bench, None);
    assert_eq!(end.expect("run"), End { done: 16, invalid: 0, all: 16 });
    let plan = Plan::parse(PLAN).expect("a plan");
    let expected: Vec<u32> =
        order::blocks(&plan).iter().flat_map(|(_, runs)| runs).map(|run| run.number).collect();
    assert_eq!(runs(scratch.path()), expected);
    let labels: BTreeSet<&String> = bench.labels.iter().collect();
    assert_eq!(labels.len(), 16, "each run has files of its own");
    let waits = events.iter().filter(|event| matches!(event, Event::Wait(_))).count();
    assert_eq!(waits, 5, "a wait between each two of the six blocks");
    let last = events.iter().rev().find_map(|event| match event {
        Event::Run { done, all, left, .. } => Some((*done, *all, left.is_some())),
        _ => None,
    });
    assert_eq!(last, Some((15, 16, true)));
    let Some(Record::Run(run)) = journal::read(scratch.path()).expect("read").records.pop() else {
        panic!("a run")
    };
    let expected = (64 << 20) as f64 / ((64 << 20) as f64 / 1e8 + 0.05);
    assert!((run.bytes_per_second / expected - 1.0).abs() < 1e-6, "{run:?}");
}

#[test]
fn a_stopped_study_resumes_with_its_next_run() {
    for stop_after in 1..16 {
        let scratch = tempfile::tempdir().expect("a directory");
        let mut bench = MadeUp::new();
        let (end, _) = study(scratch.path(), PLAN, &mut bench, Some(stop_after));
        assert_eq!(end.expect("stopped").done, stop_after, "the run in progress is completed");
        assert_eq!(runs(scratch.path()).len(), stop_after);
        let (end, _) = study(scratch.path(), PLAN, &mut bench, None);
        assert_eq!(end.expect("finished"), End { done: 16, invalid: 0, all: 16 });
        let mut all = runs(scratch.path());
        all.sort_unstable();
        assert_eq!(all, (0..16).collect::<Vec<_>>());
        assert_eq!(bench.labels.len(), 16, "no run is repeated");
    }
}

#[test]
fn resumed_study_repeats_invalid_runs() {
    let scratch = tempfile::tempdir().expect("a directory");
    let mut bench = MadeUp { invalid: 5, ..MadeUp::new() };
    let (end, _) = study(scratch.path(), PLAN, &mut bench, None);
    assert_eq!(end.expect("run"), End { done: 16, invalid: 5, all: 16 });
    let first: Vec<String> = bench.labels[..5].to_vec();
    let (end, _) = study(scratch.path(), PLAN, &mut bench, Some(2));
    assert_eq!(end.expect("stopped"), End { done: 16, invalid: 3, all: 16 });
    let (end, _) = study(scratch.path(), PLAN, &mut bench, None);
    assert_eq!(end.expect("run"), End { done: 16, invalid: 0, all: 16 });
    assert_eq!(bench.labels[16..], first, "only the invalid runs are repeated");
    let report = crate::report::analyse(&journal::read(scratch.path()).expect("a journal"), false);
    assert_eq!((report.runs_done, report.runs_invalid), (16, 0));
    let counted: usize =
        report.experiments.iter().flat_map(|it| &it.groups).map(|it| it.values.len()).sum();
    assert_eq!(counted, 16, "each run counts once");
}

#[test]
fn failed_run_preserves_earlier_results() {
    let scratch = tempfile::tempdir().expect("a directory");
    let mut bench = MadeUp { fails_at: Some(7), ..MadeUp::new() };
    let (end, _) = study(scratch.path(), PLAN, &mut bench, None);
    let error = end.expect_err("a host is gone");
    assert_eq!(error.code(), ErrorCode::Disconnected);
    assert!(error.context().starts_with("run "), "{error}");
    assert!(error.context().contains("host c1 is gone"), "{error}");
    assert_eq!(runs(scratch.path()).len(), 7);
    bench.fails_at = None;
    let (end, _) = study(scratch.path(), PLAN, &mut bench, None);
    assert_eq!(end.expect("finished").done, 16);
    assert_eq!(bench.labels.len(), 16);
}

#[test]
fn calibration_finds_the_saturation_of_bandwidth() {
    let scratch = tempfile::tempdir().expect("a directory");
    let mut bench = MadeUp::new();
    let (end, events) = study(scratch.path(), SEARCH, &mut bench, None);
    assert_eq!(end.expect("run").done, 4);
    // With 8 hosts, 64 MiB take 0.17 s and a fixed time of 0.05 s. 512 MiB take 1.34 s and the same
    // fixed time. Sizes beyond 512 MiB gain less than 5 %.
    let found = events.iter().find_map(|event| match event {
        Event::Calibrated(found) => Some(*found),
        _ => None,
    });
    let found = found.expect("found");
    assert_eq!((found.data_bytes, found.is_data_enough), (512 << 20, true));
    assert_eq!((found.hosts, found.are_hosts_enough), (4, true));
    assert!(bench.settings[..15].iter().all(|it| it.hosts == 8 && it.count == Some(4)));
    let of_runs: Vec<&Settings> = bench
        .labels
        .iter()
        .zip(&bench.settings)
        .filter(|it| it.0.starts_with("run"))
        .map(|it| it.1)
        .collect();
    assert!(of_runs.iter().all(|it| (it.data_bytes, it.hosts) == (512 << 20, 4)), "{of_runs:?}");
}

#[test]
fn stopped_calibration_resumes_with_the_same_runs() {
    let whole = tempfile::tempdir().expect("a directory");
    let mut bench = MadeUp::new();
    study(whole.path(), SEARCH, &mut bench, None).0.expect("run");
    let expected = journal::read(whole.path()).expect("read").records;
    for stop_after in [1, 4, 15, 16, 22] {
        let scratch = tempfile::tempdir().expect("a directory");
        let mut again = MadeUp::new();
        study(scratch.path(), SEARCH, &mut again, Some(stop_after)).0.expect("stopped");
        study(scratch.path(), SEARCH, &mut again, None).0.expect("run");
        assert_eq!(journal::read(scratch.path()).expect("read").records, expected, "{stop_after}");
        assert_eq!(again.labels, bench.labels, "{stop_after}");
    }
}

#[test]
fn study_in_a_lab_waits_only_if_the_plan_sets_waits() {
    let plan = Plan::parse(PLAN).expect("a plan");
    assert_eq!(wait_of(&plan, true), (Duration::ZERO, Duration::ZERO));
    assert_eq!(wait_of(&plan, false), SHARED_WAIT);
    let says = Plan::parse(&PLAN.replacen("block", "wait = ['1s', '2s']\nblock", 1)).expect("plan");
    assert_eq!(wait_of(&says, true), (Duration::from_secs(1), Duration::from_secs(2)));
}
