//! Tests of the table of results and of the figures by number of servers, with artificial results.

use super::super::{analyse, compare, compared_files};
use super::*;
use crate::journal::FORMAT;
use crate::order;
use crate::plan::Plan;
use crate::record::{ApplicationRecord, ProcessRecord, Record, RunRecord, StudyRecord};
use skep_bench::latency::Latency;

const MIB: f64 = (1 << 20) as f64;
const PLAN: &str = "name = 'scale'\ntitle = 'Scale'\nrepetitions = 2\n\
    [limit]\nserver = '100MiB/s'\nclient = '60MiB/s'\nserver-iops = 1000\n\
    [factors]\ndata-size = '8MiB'\ndata-per = 'process'\nclients = '4x2'\n\
    access = 'file-per-process'\n\
    [[experiment]]\nname = 'bandwidth'\ntitle = 'a'\n\
    factors = { servers = [1, 2, 4], operation = ['write', 'read'] }\n\
    [[experiment]]\nname = 'cached'\ntitle = 'b'\n\
    factors = { operation = 'read', cache = 'kept' }\n\
    [[experiment]]\nname = 'iops'\ntitle = 'c'\n\
    factors = { servers = [1, 2, 4], operation = 'random-read', transfer = '4KiB' }\n\
    [[experiment]]\nname = 'names'\ntitle = 'd'\n\
    factors = { operation = ['create', 'stat'], access = 'shared-file', files = 10 }\n";

/// Returns a study of a system in which each server transfers 90 MiB/s and performs 800 operations
/// per second.
fn study(text: &str, limit: Option<LimitRecord>) -> Contents {
    let plan = Plan::parse(text).expect("a plan");
    let study = StudyRecord {
        format: FORMAT,
        plan: text.to_owned(),
        started_at: "2026-01-01T00:00:00Z".to_owned(),
        skep_version: "0.1.0".to_owned(),
        place: "mount /x".to_owned(),
        hosts: (1..=4).map(|it| format!("c{it}")).collect(),
        targets_per_server: Some((1..=4).map(|it| (format!("s{it}"), 2)).collect()),
        limit,
    };
    let directory = tempfile::tempdir().expect("a directory");
    let mut journal = crate::journal::Journal::create(directory.path(), &study).expect("made");
    for run in order::list(&plan) {
        let settings = Settings::new(&run.condition, None).expect("no calibration");
        let servers = f64::from(settings.servers.unwrap_or(4));
        let (bytes, operations) = match (settings.operation.quantity(), settings.cache) {
            (Quantity::Bandwidth, Cache::Kept) => (5000.0 * MIB, None),
            (Quantity::Bandwidth, _) => (servers * 90.0 * MIB, None),
            (Quantity::Transfers, _) => (servers * 800.0 * 4096.0, Some(servers * 800.0)),
            (Quantity::Names, _) => (0.0, Some(12_000.0)),
        };
        let process = ProcessRecord {
            host: "c1".to_owned(),
            begin_seconds: 0.0,
            end_seconds: 1.0,
            bytes: bytes as u64,
            operations: 0,
        };
        let application = ApplicationRecord {
            bytes_per_second: bytes,
            operations_per_second: operations,
            bytes: bytes as u64,
            processes: vec![process],
            latency: None,
            allocation: None,
        };
        let record = RunRecord {
            run: run.number,
            block: run.block,
            experiment: run.experiment,
            repetition: run.repetition,
            started_at: "2026-01-01T00:00:00Z".to_owned(),
            caches_dropped: settings.cache != Cache::Kept,
            settings,
            bytes_per_second: bytes,
            operations_per_second: operations,
            applications: vec![application],
            is_valid: true,
            invalid_because: None,
        };
        journal.append(&Record::Run(record)).expect("written");
    }
    drop(journal);
    crate::journal::read(directory.path()).expect("a journal")
}

fn share(row: &Row, operation: Operation) -> f64 {
    let cell = row.cell(operation, Cache::Dropped).expect("a result");
    assert_eq!(cell.runs, 2);
    cell.of_limit.expect("a limit")
}

#[test]
fn table_has_limit_and_efficiency_by_servers() {
    let contents = study(PLAN, Some(LimitRecord::default()));
    let report = analyse(&contents, false);
    let servers: Vec<_> = report.table.iter().map(|it| it.servers).collect();
    assert_eq!(servers, [Some(1), Some(2), Some(4)]);
    assert!(report.table.iter().all(|it| (it.clients, it.processes) == (4, 8)));
    assert!(report.table.iter().all(|it| it.condition.is_empty()), "{:?}", report.table);
    // Four clients can move 240 MiB/s, which is less than the 400 MiB/s of four servers.
    let limits: Vec<_> =
        report.table.iter().filter_map(|it| it.limit_bytes_per_second).map(|it| it / MIB).collect();
    assert_eq!(limits, [100.0, 200.0, 240.0]);
    let (one, four) = (&report.table[0], &report.table[2]);
    assert!((share(one, Operation::Write) - 0.9).abs() < 1e-9);
    assert!((share(four, Operation::Read) - 1.5).abs() < 1e-9);
    assert!((share(four, Operation::RandomRead) - 0.8).abs() < 1e-9);
    let cached = four.cell(Operation::Read, Cache::Kept).expect("a result");
    assert_eq!((cached.mean / MIB, cached.of_limit), (5000.0, None));
    assert!(one.cell(Operation::Read, Cache::Kept).is_none(), "it used all servers");
    assert_eq!(four.cell(Operation::Create, Cache::Dropped).map(|it| it.mean), Some(12_000.0));
    assert_eq!(report.runs_with_caches, 0, "unchanged caches were intended");
}

#[test]
fn report_files_contain_the_table_of_conditions() {
    let contents = study(PLAN, Some(LimitRecord::default()));
    let report = analyse(&contents, false);
    let files = super::super::files(&contents, &report).expect("drawn");
    let text = |name: &str| {
        let (_, bytes) = files.iter().find(|(file, _)| file == name).expect(name);
        String::from_utf8(bytes.clone()).expect("text")
    };
    let csv = text("table.csv");
    assert_eq!(csv.lines().count(), 4);
    let titles: Vec<&str> = csv.lines().next().expect("titles").split(',').collect();
    let field = |line: usize, title: &str| {
        let place = titles.iter().position(|it| *it == title).expect(title);
        csv.lines().nth(line).expect("a line").split(',').nth(place).expect("a field").to_owned()
    };
    assert_eq!((field(2, "servers"), field(2, "write_mib_s")), ("2".into(), "180.00".into()));
    assert_eq!(field(1, "random_read_io_s"), "800.00");
    assert_eq!(
        (field(3, "limit_mib_s"), field(1, "read_of_limit")),
        ("240.00".into(), "0.9000".into())
    );
    assert_eq!(
        (field(3, "cached_read_mib_s"), field(3, "create_s")),
        ("5000.00".into(), "12000.00".into())
    );
    let page = text("index.html");
    assert!(page.contains("<h2>Results</h2>") && page.contains("<th>cached read MiB/s</th>"));
    assert!(page.contains("<th>random-read % of limit</th>"));
    for name in ["scaling-bandwidth.svg", "scaling-iops.svg"] {
        // The figure has one circle for each of three numbers of servers and each operation.
        let circles = if name.contains("iops") { 3 } else { 6 };
        assert_eq!(text(name).matches("<circle").count(), circles, "{name}");
        assert!(text(name).contains("limit"), "{name}");
    }
    let points = text("points.csv");
    assert!(points.lines().all(|line| line.split(',').count() == 32), "{points}");
    assert!(points.contains(",process,4,dropped,,3200.00,"), "{points}");
}

#[test]
fn table_has_the_latencies_of_valid_runs() {
    let mut contents = study(PLAN, Some(LimitRecord::default()));
    let mut milliseconds = 0.0;
    for record in &mut contents.records {
        let Record::Run(run) = record else { continue };
        if run.settings.operation != Operation::RandomRead || run.settings.servers != Some(1) {
            continue;
        }
        // The two runs have 1 and 3 ms.
        milliseconds += if milliseconds == 0.0 { 1.0 } else { 2.0 };
        run.applications[0].latency = Some(Latency {
            p50_us: 500.0 * milliseconds,
            p90_us: 0.0,
            p99_us: 1000.0 * milliseconds,
            p999_us: 0.0,
            max_us: 0.0,
            histogram: Vec::new(),
        });
    }
    let report = analyse(&contents, false);
    let cell = report.table[0].cell(Operation::RandomRead, Cache::Dropped).expect("a result");
    assert_eq!((cell.latency_p50_us, cell.latency_p99_us), (Some(1000.0), Some(2000.0)));
    let other = report.table[1].cell(Operation::RandomRead, Cache::Dropped).expect("a result");
    assert_eq!(other.latency_p99_us, None);
    let shown = Shown::of(&report.table);
    let column = shown.titles.iter().position(|it| it == "random-read P99 us").expect("a column");
    assert_eq!([&shown.rows[0][column], &shown.rows[1][column]], ["2000", "-"]);
    assert!(!shown.titles.iter().any(|it| it.starts_with("write P99")), "{:?}", shown.titles);
    let csv = csv(&report.table);
    let titles: Vec<&str> = csv.lines().next().expect("titles").split(',').collect();
    let column = titles.iter().position(|it| *it == "random_read_p50_us").expect("a column");
    let first: Vec<&str> = csv.lines().nth(1).expect("a line").split(',').collect();
    assert_eq!((first[column], first[column + 1], first.len()), ("1000.0", "2000.0", titles.len()));
}

#[test]
fn journal_without_limits_has_a_table_only_in_comparisons() {
    let contents = study(PLAN, None);
    let report = analyse(&contents, false);
    assert!(report.table.is_empty());
    let files = super::super::files(&contents, &report).expect("drawn");
    assert!(files.iter().all(|(name, _)| name != "table.csv" && !name.starts_with("scaling")));
    let slow = PLAN.replace("name = 'scale'", "name = 'other'");
    let studies = [("b".to_owned(), study(&slow, None)), ("a".to_owned(), contents)];
    let rows = compare(&studies, false);
    let order: Vec<_> = rows.iter().map(|it| (it.servers, it.system.as_str())).collect();
    let expected = [1, 2, 4].map(|it| [(Some(it), "b"), (Some(it), "a")]).concat();
    assert_eq!(order, expected, "systems are side by side");
    let shown = Shown::of(&rows);
    assert_eq!(shown.titles[..4], ["system", "servers", "clients", "processes"]);
    assert_eq!(shown.rows[0][..4], ["b", "1", "4", "8"]);
    assert!(shown.titles.iter().all(|it| it != "condition"), "no other factor varies");
    let files = compared_files(&rows).expect("drawn");
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["index.html", "table.csv", "scaling-bandwidth.svg", "scaling-iops.svg"]);
}
