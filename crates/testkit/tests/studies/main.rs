//! Studies: plans, journals and reports, and complete studies on real clusters.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use skep_testkit::files;
use skep_testkit::lab::Lab;
use skep_testkit::program::{Finished, finish, run};
use skep_testkit::schema::{check, check_lines};
use skep_testkit::view::Typed;
use skep_testkit::{Scratch, cluster, wait_for};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Maximum duration of a whole study.
const STUDY_PATIENCE: Duration = Duration::from_secs(1200);

fn skep(directory: &Path, arguments: &[&str]) -> Finished {
    let mut command = Command::new(cluster::program());
    finish(command.current_dir(directory).args(arguments), STUDY_PATIENCE)
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Returns the complete lines of a study's journal. An empty list means that the study has no
/// journal yet.
fn journal_of(study: &Path) -> Vec<String> {
    let text = fs::read_to_string(study.join("journal.ndjson")).unwrap_or_default();
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    whole.map(|line| line.trim_end().to_owned()).collect()
}

/// Returns the runs in a study's journal.
fn runs_of(study: &Path) -> Vec<Value> {
    let records = journal_of(study).into_iter().map(|line| parse(&line));
    records.filter(|record| record["kind"] == "run").collect()
}

/// Runs a command that must succeed, and checks its output as `ndjson` and then as `json` against
/// the schema. Returns the JSON value.
fn checked(directory: &Path, arguments: &[&str], name: &str) -> Value {
    let run = |format: &str| {
        skep(directory, &[arguments, &["--output", format]].concat()).expect_success()
    };
    check_lines(name, &run("ndjson"));
    let value = parse(&run("json"));
    check(name, &value);
    value
}

const PLAN: &str = "name = 'x'\ntitle = 'A title'\nrepetitions = 10\n\
    [factors]\ndata-size = '64MiB'\nhosts = 1\n\
    [[experiment]]\nname = 'count'\ntitle = 'Who chooses?'\n\
    factors = { count = [2, 4], chooser = ['roundrobin', 'balanced'] }\n";

/// Returns the journal of a study. In this study, files on both servers are twice as fast as files
/// on one server.
fn journal() -> String {
    let first = json!({
        "kind": "study", "format": 1, "plan": PLAN, "started_at": "2026-01-01T00:00:00Z",
        "skep_version": "0.1.0", "place": "lab x", "hosts": ["c1"],
        "targets_per_server": { "s1": 4, "s2": 4 },
    });
    let mut lines = vec![first.to_string()];
    for run in 0..40_u32 {
        let (count, is_balanced) = (if run < 20 { 2 } else { 4 }, run / 10 % 2 == 1);
        let min = match (count, is_balanced) {
            (2, false) => run % 2,
            (4, false) => 1,
            _ => count / 2,
        };
        let rate = 50e6 * f64::from(count) / f64::from(count - min) + f64::from(run) * 1e4;
        let (chooser, targets) = (["roundrobin", "balanced"][usize::from(is_balanced)], [1, 5]);
        let application = json!({
            "bytes_per_second": rate, "bytes": 67_108_864,
            "processes": [
                { "host": "c1", "begin_seconds": 0.0, "end_seconds": 1.0, "bytes": 67_108_864 },
            ],
            "allocation": { "targets": targets, "min_max": [min, count - min] },
        });
        let record = json!({
            "kind": "run", "run": run, "block": run / 10, "experiment": "count",
            "repetition": run % 10 + 1, "started_at": "2026-01-01T00:00:00Z",
            "settings": {
                "data_bytes": 67_108_864, "hosts": 1, "processes": 8, "count": count,
                "chooser": chooser, "transfer_bytes": 1_048_576, "access": "shared-file",
                "operation": "write", "applications": 1, "targets": "chosen",
            },
            "bytes_per_second": rate, "applications": [application], "caches_dropped": true,
            "is_valid": true,
            "invalid_because": null,
        });
        lines.push(record.to_string());
    }
    lines.join("\n") + "\n"
}

/// Command: skep study report.
#[test]
fn study_report_needs_only_the_journal() {
    let scratch = Scratch::new();
    let study = scratch.join("study");
    files::create_dir(&study);
    // The last line is incomplete, as after an interruption of the program that writes the journal.
    let text = journal() + "{\"kind\":\"run\",\"run\":40,";
    files::write(study.join("journal.ndjson"), &text);
    let value = checked(scratch.path(), &["study", "report", "study"], "study-report");
    assert_eq!(value["report"]["runs_done"], 40);
    let conclusions = value["report"]["conclusions"].list();
    let conclusions_about = |about: &str| -> Vec<&str> {
        let about = conclusions.iter().filter(|it| it["about"] == about);
        about.map(|it| it["text"].text()).collect()
    };
    assert!(
        conclusions_about("limit")[0].starts_with("The network is the limit"),
        "{conclusions:?}"
    );
    assert!(conclusions_about("chooser")[0].contains("chooser balanced"), "{conclusions:?}");
    assert!(
        conclusions_about("modes")[0].contains("count 2, chooser roundrobin"),
        "{conclusions:?}"
    );
    assert_eq!(conclusions_about("modes").len(), 1);
    for file in value["files"].list() {
        let path = study.join("report").join(file.text());
        assert!(files::metadata(&path).len() > 100, "{}", path.display());
    }
    assert!(study.join("report/index.html").exists());
    assert_eq!(files::read_to_string(study.join("journal.ndjson")), text);
    let shown = skep(scratch.path(), &["study", "report", "study"]).expect_success();
    assert!(shown.contains("40 of 40 runs") && shown.contains("index.html"), "{shown}");
}

/// Command: skep study report.
#[test]
fn study_report_fails_below_the_required_share() {
    let scratch = Scratch::new();
    let study = scratch.join("study");
    files::create_dir(&study);
    // The two servers can move 120 MB/s, and the best result is 100 MB/s.
    let limit = "{\"limit\":{\"server_bytes_per_second\":60000000},";
    files::write(study.join("journal.ndjson"), journal().replacen('{', limit, 1));
    let report = ["study", "report", "study", "--least-share"];
    let value = checked(scratch.path(), &[&report[..], &["80"]].concat(), "study-report");
    let best = value["best_results"].list();
    assert_eq!(best.len(), 1, "{best:?}");
    assert!((0.83..0.84).contains(&best[0]["share"].float()), "{best:?}");
    let low = skep(scratch.path(), &[&report[..], &["90"]].concat());
    assert_eq!(low.status.code(), Some(1), "{low:?}");
    files::write(study.join("journal.ndjson"), journal());
    let none = skep(scratch.path(), &[&report[..], &["90"]].concat()).expect_failure();
    assert!(none.contains("no result with a limit"), "{none}");
}

/// Command: skep study published.
#[test]
fn published_points_are_beside_the_results_of_a_study() {
    let scratch = Scratch::new();
    let studies = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/studies");
    let directory = |name: &str| studies.join(name).display().to_string();
    let scenario = directory("scenario1");
    let value = checked(scratch.path(), &["study", "published", &scenario], "study-published");
    let series = value["series"].list();
    let targets = series.iter().find(|it| it["name"] == "boito-figure8-scenario1").expect("one");
    assert_eq!(targets["points"].list().len(), 3, "{targets}");
    assert!(targets["largest_difference"].float() < 0.01, "{targets}");
    let shown = skep(scratch.path(), &["study", "published", &scenario]).expect_success();
    assert!(shown.contains("4 targets as (1,3)") && shown.contains("1460 MiB/s"), "{shown}");

    let other = directory("six-targets");
    let none = skep(scratch.path(), &["study", "published", &other]);
    assert_eq!(none.status.code(), Some(4), "{none:?}");
    let own = skep(scratch.path(), &["study", "published", "--print-series"]).expect_success();
    let own = own.replace("plan = \"scenario1\"", "plan = \"six-targets\"");
    files::write(scratch.join("own.toml"), own.replace("allocation = \"(4,4)\"", "place = 1"));
    let line = ["study", "published", &scenario, "--series", "own.toml"];
    let refused = skep(scratch.path(), &line).expect_failure();
    assert!(refused.contains("boito-figure8-scenario1") && refused.contains("`at.place`"));
    files::write(scratch.join("own.toml"), own);
    let line = ["study", "published", &other, "--series", "own.toml"];
    let shown = skep(scratch.path(), &line).expect_success();
    assert!(shown.contains("Series with results for fewer than two points: "), "{shown}");
}

#[test]
fn directory_without_a_study_has_no_report() {
    let scratch = Scratch::new();
    let none = skep(scratch.path(), &["study", "report", "."]);
    assert_eq!(none.status.code(), Some(4), "{none:?}");
    assert!(none.expect_failure().contains("has no study"));
    let damaged = journal().replacen("\"kind\":\"run\"", "\"kind\":\"rum\"", 1);
    files::write(scratch.join("journal.ndjson"), damaged);
    let refused = skep(scratch.path(), &["study", "report", "."]).expect_failure();
    assert!(refused.contains("line 2"), "{refused}");
    assert!(!scratch.join("report").exists(), "nothing is written");
}

/// Command: skep study plans, skep study plan.
#[test]
fn built_in_study_plans_are_listed_and_printed() {
    let scratch = Scratch::new();
    let list = checked(scratch.path(), &["study", "plans"], "study-plans");
    for plan in list.list() {
        let name = plan["name"].text();
        let text = skep(scratch.path(), &["study", "plan", name]).expect_success();
        assert!(text.contains(&format!("name = \"{name}\"")), "{text}");
        let value = checked(scratch.path(), &["study", "plan", name], "study-plan");
        assert_eq!((&value["name"], &value["title"]), (&plan["name"], &plan["title"]));
        assert_eq!(value["lab"]["shape"], plan["lab"], "{value}");
        let experiments = value["experiments"].list();
        assert_eq!(experiments.len(), plan["experiments"].list().len());
    }
    let site = checked(scratch.path(), &["study", "plan", "site"], "study-plan");
    assert_eq!(
        (&site["shortest_wait_ms"], &site["longest_wait_ms"]),
        (&json!(60_000), &json!(1_800_000))
    );
    let factors = &site["experiments"][0]["factors"];
    assert_eq!(factors["data_bytes"], json!([null]), "the calibration determines the data size");
    assert_eq!(factors["transfer_bytes"], json!([1 << 20]));
    assert_eq!(factors["count"], json!([1, 2, 4, 8]));
    assert_eq!(factors["chooser"], json!(["balanced", "roundrobin"]));
    assert_eq!(factors["access"], json!(["shared-file"]), "the plan shows defaults, too");
    let unknown = skep(scratch.path(), &["study", "plan", "scenario9"]);
    assert_eq!(unknown.status.code(), Some(4));
    assert!(unknown.expect_failure().contains("scenario1, scenario2"));
}

/// Command: skep study run.
#[test]
fn azure_study_of_the_published_size_has_14_runs() {
    let scratch = Scratch::new();
    let dry = ["study", "run", "azure-scale", "--dry-run"];
    let planned = checked(scratch.path(), &dry, "study-run-dry");
    assert_eq!((&planned["runs"], &planned["needs_calibration"]), (&json!(14), &json!(false)));
    assert_eq!(planned["blocks"].list().len(), 14, "each run is a block");
    let conditions: BTreeSet<String> = planned["blocks"]
        .list()
        .iter()
        .flat_map(|block| block.list())
        .map(|run| run["condition"].text().to_owned())
        .collect();
    assert!(conditions.iter().any(|it| it.contains("20 servers")), "{conditions:?}");
}

/// A plan that can run on any file system, with many short runs that write very little.
const QUICK: &str = "name = 'quick'\ntitle = 'Quick'\nrepetitions = 8\nwait = ['0s', '1ms']\n\
    [factors]\ndata-size = '256KiB'\nhosts = 1\nprocesses = 2\ntransfer = '64KiB'\n\
    [[experiment]]\nname = 'operation'\ntitle = 'Write or read?'\n\
    factors = { operation = ['write', 'read'], access = ['shared-file', 'file-per-process'] }\n";

/// Writes a plan, and creates the directory in which its runs write. Returns the scratch directory,
/// and the path of the study in this directory.
fn prepare(plan: &str) -> (Scratch, PathBuf) {
    let scratch = Scratch::new();
    files::write(scratch.join("plan.toml"), plan);
    files::create_dir(scratch.join("mount"));
    let study = scratch.join("study");
    (scratch, study)
}

const RUN: [&str; 7] = ["study", "run", "./plan.toml", "--mount", "mount", "--directory", "study"];

/// Command: skep study run.
#[test]
fn study_measures_each_condition_as_often_as_planned() {
    let (scratch, study) = prepare(QUICK);
    let dry = checked(scratch.path(), &[&RUN[..], &["--dry-run"]].concat(), "study-run-dry");
    assert_eq!(dry["blocks"].list().len(), 4);
    assert!(!study.exists(), "nothing was run");
    let ended = [&RUN[..], &["--output", "json"]].concat();
    let ended = parse(&skep(scratch.path(), &ended).expect_success());
    check("study-run", &ended);
    assert_eq!((&ended["runs_done"], &ended["is_finished"]), (&json!(32), &json!(true)));
    assert!(scratch.join(ended["report"].text()).exists());
    // If a complete study is resumed, it has no runs left.
    let again = [&RUN[..], &["--resume", "--output", "ndjson"]].concat();
    let again = check_lines("study-run", &skep(scratch.path(), &again).expect_success());
    assert_eq!(again, ended);
    let planned = dry["blocks"].list().iter();
    let planned: Vec<&Value> =
        planned.flat_map(|block| block.list()).map(|run| &run["run"]).collect();
    let runs = runs_of(&study);
    assert_eq!(
        runs.iter().map(|run| &run["run"]).collect::<Vec<_>>(),
        planned,
        "the runs are in the planned order"
    );
    for run in &runs {
        let application = &run["applications"][0];
        assert_eq!(application["bytes"], 256 << 10, "{run}");
        assert_eq!(
            application["allocation"],
            Value::Null,
            "a directory outside Skep has no allocation"
        );
        let processes = application["processes"].list();
        assert_eq!(processes.len(), 2);
        let second = |name: &'static str| move |it: &Value| it[name].float();
        let begin = processes.iter().map(second("begin_seconds")).fold(f64::INFINITY, f64::min);
        let end = processes.iter().map(second("end_seconds")).fold(0.0, f64::max);
        let expected = f64::from(256 << 10) / (end - begin);
        let found = run["bytes_per_second"].float();
        assert!((found / expected - 1.0).abs() < 0.01, "{found} of {expected}");
    }
    assert_eq!(files::read_dir(scratch.join("mount")).count(), 0, "cleared");
}

/// A plan with each operation, in pairs of hosts and processes, that can run on any file system.
const OPERATIONS: &str = "name = 'operations'\ntitle = 'Operations'\nrepetitions = 1\n\
    wait = ['0s', '1ms']\n[limit]\nserver = '100MB/s'\nclient = '50MB/s'\n\
    [factors]\ndata-size = '128KiB'\ndata-per = 'process'\nclients = ['1x1', '1x2']\n\
    transfer = '64KiB'\naccess = 'file-per-process'\n\
    [[experiment]]\nname = 'data'\ntitle = 'a'\n\
    factors = { operation = ['write', 'read'], cache = ['dropped', 'kept'] }\n\
    [[experiment]]\nname = 'iops'\ntitle = 'b'\n\
    factors = { operation = ['random-write', 'random-read'], transfer = '4KiB' }\n\
    [[experiment]]\nname = 'names'\ntitle = 'c'\n\
    factors = { operation = ['create', 'stat', 'remove'], files = 20 }\n";

/// Checks the record of a run of the plan [`OPERATIONS`].
fn check_operations(run: &Value) {
    let processes = run["settings"]["processes"].number();
    let application = &run["applications"][0];
    let bytes = application["bytes"].number();
    let latency = &application["latency"];
    assert!(latency["p50_us"].float() > 0.0, "{run}");
    assert!(latency["p99_us"].float() >= latency["p50_us"].float(), "{run}");
    match run["settings"]["operation"].text() {
        "write" | "read" => {
            assert_eq!((bytes, &run["operations_per_second"]), (processes << 17, &Value::Null));
        }
        "random-write" | "random-read" => {
            assert_eq!(bytes, processes << 17);
            let each = run["bytes_per_second"].float() / run["operations_per_second"].float();
            assert!((each - 4096.0).abs() < 1.0, "{run}");
        }
        _ => {
            assert_eq!((bytes, run["settings"]["files"].number()), (0, 20));
            let operations = application["processes"].list().iter();
            let operations: u64 = operations.map(|it| it["operations"].number()).sum();
            assert_eq!(operations, 20 * processes);
        }
    }
}

/// Command: skep study compare.
#[test]
fn study_shows_data_and_metadata_rates_in_one_table() {
    let (scratch, study) = prepare(OPERATIONS);
    let ended = skep(scratch.path(), &[&RUN[..], &["--output", "json"]].concat());
    let ended = parse(&ended.expect_success());
    assert_eq!((&ended["runs_done"], &ended["is_finished"]), (&json!(18), &json!(true)));
    runs_of(&study).iter().for_each(check_operations);
    // The runs on names have created their directories directly in this one.
    assert_eq!(files::read_dir(scratch.join("mount")).count(), 0, "cleared");
    let report = checked(scratch.path(), &["study", "report", "study"], "study-report");
    let table = report["report"]["table"].list();
    let processes: Vec<u64> = table.iter().map(|it| it["processes"].number()).collect();
    assert_eq!(processes, [1, 2]);
    for row in table {
        assert_eq!((&row["servers"], row["cells"].list().len()), (&Value::Null, 9), "{row}");
        assert_eq!(row["limit_bytes_per_second"].float(), 50e6, "the rate of one client");
    }
    assert!(study.join("report/table.csv").exists());
    let varied = &report["report"]["experiments"].list()[2]["varied"];
    assert_eq!(varied, &json!(["clients", "operation"]));

    let line = ["study", "compare", "one=study", "two=study", "--directory", "both"];
    let both = checked(scratch.path(), &line, "study-compare");
    let systems: Vec<&str> = both["rows"].list().iter().map(|it| it["system"].text()).collect();
    assert_eq!(systems, ["one", "two", "one", "two"]);
    assert!(scratch.join("both/index.html").exists() && scratch.join("both/table.csv").exists());
    let shown = skep(scratch.path(), &line[..4]).expect_success();
    assert!(shown.contains("CACHED READ MiB/s") && shown.contains("two"), "{shown}");
    let twice = skep(scratch.path(), &["study", "compare", "study", "study"]);
    assert_eq!(twice.status.code(), Some(2));
    assert!(twice.expect_failure().contains("NAME=DIR"));
}

#[test]
fn calibration_chooses_data_size_and_hosts_if_omitted() {
    let plan = QUICK.replace("data-size = '256KiB'\nhosts = 1\n", "").replace(
        "[factors]",
        "calibration = { data-size = ['256KiB', '512KiB'], hosts = [1, 2], repetitions = 2 }\n\
         [factors]",
    );
    let (scratch, study) = prepare(&plan);
    skep(scratch.path(), &RUN).expect_success();
    let kinds: Vec<String> =
        journal_of(&study).iter().map(|line| parse(line)["kind"].text().to_owned()).collect();
    // The journal has two trials for each of the two sizes, and two trials with the only number of
    // hosts that is possible.
    assert_eq!(
        kinds[..8],
        ["study", "trial", "trial", "trial", "trial", "trial", "trial", "calibrated"]
    );
    let found = parse(&journal_of(&study)[7]);
    assert_eq!(found["hosts"], 1);
    assert!([256 << 10, 512 << 10].contains(&found["data_bytes"].number()));
    let runs = runs_of(&study);
    assert_eq!(runs.len(), 32);
    assert!(runs.iter().all(|run| run["settings"]["data_bytes"] == found["data_bytes"]));
    let report = skep(scratch.path(), &["study", "report", "study", "--output", "json"]);
    let report = parse(&report.expect_success());
    check("study-report", &report);
    assert_eq!(report["report"]["calibrated"]["data_bytes"], found["data_bytes"]);
    assert_eq!(report["report"]["experiments"][0]["name"], "first-step-data-size");
}

#[test]
fn interrupted_study_ends_after_its_run_and_resumes() {
    let (scratch, study) = prepare(&QUICK.replace("repetitions = 8", "repetitions = 20"));
    let mut command = Command::new(cluster::program());
    command.current_dir(scratch.path()).args(RUN).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("started");
    let before = wait_for("some runs", STUDY_PATIENCE, || {
        let lines = journal_of(&study);
        (lines.len() > 4).then_some(lines)
    });
    kill_process(Pid::from_child(&child), Signal::INT).expect("our own child");
    let status = wait_for("the interrupted study ends", STUDY_PATIENCE, || {
        child.try_wait().expect("our own child")
    });
    assert!(status.success(), "{status}");
    let mut printed = String::new();
    let mut stdout = child.stdout.take().expect("a pipe");
    std::io::Read::read_to_string(&mut stdout, &mut printed).expect("text");
    assert!(
        printed.contains("Resume: skep study run ./plan.toml --directory study --resume"),
        "{printed}"
    );
    let interrupted = journal_of(&study);
    assert_eq!(interrupted[..before.len()], before);
    let count = runs_of(&study).len();
    assert!(count < 80, "the study was interrupted after {count} runs");

    // An existing study can neither be started again nor be resumed with another plan.
    let refused = skep(scratch.path(), &RUN);
    assert_eq!(refused.status.code(), Some(7), "the study exists already");
    assert!(refused.expect_failure().contains("--resume"));
    let resume = [&RUN[..], &["--resume"]].concat();
    let plan = files::read_to_string(scratch.join("plan.toml"));
    let other = plan.replace("'Quick'", "'Another'");
    files::write(scratch.join("other.toml"), other);
    let mut mixed = resume.clone();
    mixed[2] = "./other.toml";
    let refused = skep(scratch.path(), &mixed);
    assert_eq!(refused.status.code(), Some(2));
    assert!(refused.expect_failure().contains("another plan"));
    assert_eq!(journal_of(&study), interrupted, "untouched");

    // Simulate a power loss in the middle of a line, by an incomplete last line of the journal.
    let path = study.join("journal.ndjson");
    let torn = files::read_to_string(&path) + "{\"kind\":\"run\",\"ru";
    files::write(&path, torn);
    skep(scratch.path(), &resume).expect_success();
    assert_eq!(
        journal_of(&study)[..interrupted.len()],
        interrupted,
        "the journal keeps all records"
    );
    let numbers: BTreeSet<u64> = runs_of(&study).iter().map(|run| run["run"].number()).collect();
    assert_eq!((numbers.len(), runs_of(&study).len()), (80, 80), "each run was made once");
}

#[test]
fn study_that_fills_its_disk_ends_and_keeps_its_results() {
    let (scratch, study) = prepare(QUICK);
    files::create_dir(&study);
    let mount = |options: &str| {
        let place = study.display().to_string();
        run("mount", ["-t", "tmpfs", "-o", options, "skep-test-study", &place]);
    };
    mount("size=28k");
    let full = skep(scratch.path(), &RUN);
    let kept = journal_of(&study);
    let runs = runs_of(&study);
    run("mount", ["-o", "remount,size=8m", &study.display().to_string()]);
    let resume = [&RUN[..], &["--resume"]].concat();
    let resumed = skep(scratch.path(), &resume);
    let all = journal_of(&study);
    let count = runs_of(&study).len();
    run("umount", [&study]);
    assert_eq!(full.status.code(), Some(1), "{full:?}");
    let printed = full.expect_failure();
    assert!(printed.contains("--resume") && printed.contains("no result is lost"), "{printed}");
    assert!(!runs.is_empty() && runs.len() < 32, "{}", runs.len());
    resumed.expect_success();
    assert_eq!(all[..kept.len()], kept);
    assert_eq!(count, 32);
}

#[test]
fn invalid_studies_are_refused_before_the_first_run() {
    let (scratch, study) = prepare(QUICK);
    let refused = |plan: &str, more: &[&str], code: i32, words: &[&str]| {
        files::write(scratch.join("plan.toml"), plan);
        let line = [&RUN[..], more].concat();
        let finished = skep(scratch.path(), &line);
        assert_eq!(finished.status.code(), Some(code), "{finished:?}");
        let printed = finished.expect_failure();
        assert!(words.iter().all(|word| printed.contains(word)), "{words:?}: {printed}");
        assert!(!study.exists(), "{printed}");
        assert_eq!(files::read_dir(scratch.join("mount")).count(), 0);
    };
    let counted = QUICK.replace("processes = 2", "processes = 2\ncount = 4");
    refused(&counted, &[], 2, &["operation", "`count`", "mount of Skep"]);
    let uneven = QUICK.replace("processes = 2", "processes = 3");
    refused(&uneven, &[], 2, &["./plan.toml", "`data-size`", "`processes` 3", "192KiB"]);
    let hosts = QUICK.replace("hosts = 1", "hosts = 2");
    refused(&hosts, &[], 2, &["`hosts` 2", "the system has 1"]);
    refused(&QUICK.replace("transfer", "transfers"), &[], 2, &["line", "transfers"]);
    refused(QUICK, &["--resume"], 4, &["has no study"]);
    refused(QUICK, &["--hosts", "localhost,localhost"], 2, &["localhost", "twice"]);
    let run = |line: &[&str]| skep(scratch.path(), line);
    let nowhere = run(&["study", "run", "site"]);
    assert_eq!(nowhere.status.code(), Some(2));
    assert!(nowhere.expect_failure().contains("--mount"));
    let missing = run(&["study", "run", "./none.toml", "--mount", "mount"]);
    assert_eq!(missing.status.code(), Some(4));
    let missing = run(&["study", "run", "site", "--mount", "none"]);
    assert_eq!(missing.status.code(), Some(4));
    assert_eq!(run(&["study", "run", "small", "--lab", "none"]).status.code(), Some(4));
}

/// A plan with short runs that write very little, in a lab of the study's own.
const OWN: &str = "name = 'own'\ntitle = 'Own'\nrepetitions = 3\nblock = 3\n\
    lab = { shape = 'small', targets = 1, clients = 1 }\n\
    [factors]\ndata-size = '256KiB'\nhosts = 1\nprocesses = 2\ntransfer = '64KiB'\n\
    [[experiment]]\nname = 'count'\ntitle = 'How many?'\n\
    factors = { count = [1, 2], chooser = ['balanced'] }\n";

/// Returns the arguments of `skep study run` for the plan `./plan.toml`. The study's own lab gets
/// the name of `lab`.
fn in_own_lab<'a>(lab: &'a Lab, more: &[&'a str]) -> Vec<&'a str> {
    let line = ["study", "run", "./plan.toml", "--force", "--lab-name", lab.name()];
    [&line[..], &["--directory", "study"], more].concat()
}

#[test]
fn study_removes_its_own_lab_at_its_end() {
    let (scratch, study) = prepare(OWN);
    let lab = Lab::new();
    let run = |more: &[&str]| skep(scratch.path(), &in_own_lab(&lab, more));
    let ended = parse(&run(&["--output", "json"]).expect_success());
    check("study-run", &ended);
    assert_eq!((&ended["runs_done"], &ended["runs_planned"]), (&json!(6), &json!(6)));
    assert_eq!(runs_of(&study).len(), 6);
    assert_eq!(lab.remains(), Vec::<String>::new());
    // A failed study prints the reason, and still removes its lab.
    files::remove_dir_all(&study);
    files::write(&study, "a file");
    let printed = run(&[]).expect_failure();
    assert!(printed.contains("study: File exists"), "{printed}");
    assert_eq!(lab.remains(), Vec::<String>::new());
}

/// A plan whose runs use one or both servers of a lab, with a file for each process. The links of
/// the servers are the limit.
const SERVERS: &str = "name = 'servers'\ntitle = 'Servers'\nrepetitions = 3\nblock = 1\n\
    lab = { shape = 'small', targets = 2, clients = 1 }\n\
    [factors]\ndata-size = '16MiB'\nclients = '1x2'\ntransfer = '1MiB'\n\
    access = 'file-per-process'\n\
    [[experiment]]\nname = 'servers'\ntitle = 'How many?'\nfactors = { servers = [1, 2] }\n";

#[test]
fn bandwidth_grows_with_the_servers_that_a_run_may_use() {
    let (scratch, study) = prepare(SERVERS);
    let lab = Lab::new();
    skep(scratch.path(), &in_own_lab(&lab, &[])).expect_success();
    let runs = runs_of(&study);
    assert_eq!(runs.len(), 6);
    let mut best = BTreeMap::from([(1_u64, 0.0_f64), (2, 0.0)]);
    for run in &runs {
        let servers = run["settings"]["servers"].number();
        let allocation = &run["applications"][0]["allocation"];
        assert_eq!(allocation["targets"].list().len() as u64, 2 * servers, "{run}");
        assert_eq!(allocation["min_max"], json!([2, 2]), "of the servers that the run may use");
        let rate = run["bytes_per_second"].float().max(best[&servers]);
        best.insert(servers, rate);
    }
    let ratio = best[&2_u64] / best[&1_u64];
    assert!((1.6..2.2).contains(&ratio), "two servers are {ratio} times as fast as one");
    // The link of a server in this shape has 200 Mbit/s.
    let first = parse(&journal_of(&study)[0]);
    assert_eq!(first["limit"]["server_bytes_per_second"], 25_000_000);
    let shown = skep(scratch.path(), &["study", "report", "study", "--with-invalid"]);
    assert!(shown.expect_success().contains("WRITE % OF LIMIT"));
    assert!(study.join("report/scaling-bandwidth.svg").exists());
    assert_eq!(lab.remains(), Vec::<String>::new());
}

#[test]
fn study_resumes_in_a_new_lab_after_ctrl_c() {
    let (scratch, study) = prepare(&OWN.replace("repetitions = 3", "repetitions = 15"));
    let lab = Lab::new();
    let mut command = Command::new(cluster::program());
    command.current_dir(scratch.path()).args(in_own_lab(&lab, &[])).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::null()).spawn().expect("started");
    let before = wait_for("some runs", STUDY_PATIENCE, || {
        let lines = journal_of(&study);
        (lines.len() > 4).then_some(lines)
    });
    assert_ne!(lab.remains(), Vec::<String>::new());
    kill_process(Pid::from_child(&child), Signal::INT).expect("our own child");
    let status = wait_for("the interrupted study ends", STUDY_PATIENCE, || {
        child.try_wait().expect("our own child")
    });
    assert!(status.success(), "{status}");
    let mut printed = String::new();
    let mut stdout = child.stdout.take().expect("a pipe");
    std::io::Read::read_to_string(&mut stdout, &mut printed).expect("text");
    let go_on = format!("--directory study --lab-name {} --resume", lab.name());
    assert!(printed.contains(&go_on), "{printed}");
    assert_eq!(lab.remains(), Vec::<String>::new());
    let interrupted = journal_of(&study);
    assert_eq!(interrupted[..before.len()], before, "kept");
    assert!(runs_of(&study).len() < 30, "the study was interrupted");

    skep(scratch.path(), &in_own_lab(&lab, &["--resume"])).expect_success();
    assert_eq!(
        journal_of(&study)[..interrupted.len()],
        interrupted,
        "the journal keeps all records"
    );
    // Count distinct run numbers, because the study repeats runs during which this machine was too
    // busy.
    let numbers: BTreeSet<u64> = runs_of(&study).iter().map(|run| run["run"].number()).collect();
    assert_eq!(numbers.len(), 30);
    assert_eq!(lab.remains(), Vec::<String>::new());
}

/// A short study of a whole emulated cluster must find the exact targets of each chooser, and the
/// ratios of bandwidth that follow from the placement of these targets.
#[test]
fn small_study_finds_the_known_properties_of_its_lab() {
    let scratch = Scratch::new();
    let lab = Lab::new();
    lab.call("up", &["small", "--targets", "4", "--force"]).expect_success();
    let line = ["study", "run", "small", "--lab", lab.name(), "--directory", "study"];
    let ended =
        parse(&skep(scratch.path(), &[&line[..], &["--output", "json"]].concat()).expect_success());
    check("study-run", &ended);
    let study = scratch.join("study");
    let first = parse(&journal_of(&study)[0]);
    let servers = first["targets_per_server"].as_object().expect("servers");
    assert_eq!(servers.values().collect::<Vec<_>>(), [&json!(4), &json!(4)]);
    let runs = runs_of(&study);
    assert_eq!(runs.len(), 32);

    let mut found: BTreeMap<(String, u64), BTreeMap<String, Vec<f64>>> = BTreeMap::new();
    for run in runs.iter().filter(|run| run["experiment"] == "count") {
        let allocation = &run["applications"][0]["allocation"];
        let count = run["settings"]["count"].number();
        assert_eq!(allocation["targets"].list().len() as u64, count);
        let chooser = run["settings"]["chooser"].text().to_owned();
        let rate = run["bytes_per_second"].float();
        let rates = found.entry((chooser, count)).or_default();
        rates.entry(allocation["min_max"].to_string()).or_default().push(rate);
    }
    let allocations = |chooser: &str, count: u64| -> Vec<&str> {
        found[&(chooser.to_owned(), count)].keys().map(String::as_str).collect()
    };
    assert_eq!(allocations("balanced", 2), ["[1,1]"]);
    assert_eq!(allocations("balanced", 4), ["[2,2]"]);
    assert_eq!(allocations("roundrobin", 2), ["[0,2]", "[1,1]"]);
    assert_eq!(allocations("roundrobin", 4), ["[1,3]"], "always");

    let best = |chooser: &str, count: u64, allocation: &str| {
        found[&(chooser.to_owned(), count)][allocation].iter().copied().fold(0.0, f64::max)
    };
    let ratio = |name: &str, one: f64, two: f64, expected: f64| {
        let ratio = one / two;
        assert!((ratio / expected - 1.0).abs() < 0.2, "{name}: {ratio}, not {expected}");
    };
    let even = best("balanced", 4, "[2,2]");
    ratio("(2,2) over (1,3)", even, best("roundrobin", 4, "[1,3]"), 1.5);
    ratio("(2,2) over (0,2)", even, best("roundrobin", 2, "[0,2]"), 2.0);
    ratio("(2,2) over (1,1)", even, best("balanced", 2, "[1,1]"), 1.0);

    let targets_of = |run: &Value, application: usize| -> BTreeSet<u64> {
        let targets = &run["applications"][application]["allocation"]["targets"];
        targets.list().iter().map(|it| it.number()).collect()
    };
    let mut sharing: BTreeMap<&str, f64> = BTreeMap::new();
    for run in runs.iter().filter(|run| run["experiment"] == "sharing") {
        let word = run["settings"]["targets"].text();
        let (one, two) = (targets_of(run, 0), targets_of(run, 1));
        match word {
            "shared" => assert_eq!(one, two, "{run}"),
            _ => assert!(one.is_disjoint(&two), "{run}"),
        }
        let rate = run["bytes_per_second"].float();
        let best = sharing.entry(word).or_default();
        *best = best.max(rate);
    }
    ratio("shared over separate targets", sharing["shared"], sharing["separate"], 1.0);
}
