//! Studies that run in a directory of the local file system.

use crate::{checked, interrupt, journal_of, parse, prepare, runs_of, skep};
use serde_json::{Value, json};
use skep_testkit::files;
use skep_testkit::program::run;
use skep_testkit::schema::{check, check_lines};
use skep_testkit::view::Typed;
use std::collections::BTreeSet;

/// A plan that can run on any file system, with many short runs that write very little.
const QUICK: &str = "name = 'quick'\ntitle = 'Quick'\nrepetitions = 8\nwait = ['0s', '1ms']\n\
    [factors]\ndata-size = '256KiB'\nhosts = 1\nprocesses = 2\ntransfer = '64KiB'\n\
    [[experiment]]\nname = 'operation'\ntitle = 'Write or read?'\n\
    factors = { operation = ['write', 'read'], access = ['shared-file', 'file-per-process'] }\n";

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
    // A resumed complete study has no runs left.
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
    // The metadata runs have created their directories directly in this directory.
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
    let (before, printed) = interrupt(&scratch, &study, &RUN, || ());
    assert!(
        printed.contains("Resume: skep study run ./plan.toml --directory study --resume"),
        "{printed}"
    );
    let interrupted = journal_of(&study);
    assert_eq!(interrupted[..before.len()], before);
    let count = runs_of(&study).len();
    assert!(count < 80, "the study was interrupted after {count} runs");

    // The command refuses to start an existing study a second time, and refuses to resume this
    // study with another plan.
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
