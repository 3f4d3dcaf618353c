//! Studies: plans, journals and reports, and whole studies of real clusters.

use serde_json::{Value, json};
use skep_testkit::program::{Finished, finish};
use skep_testkit::{Scratch, cluster, schema};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

fn skep(directory: &Path, arguments: &[&str]) -> Finished {
    let mut command = Command::new(cluster::program());
    finish(command.current_dir(directory).args(arguments), PATIENCE)
}

/// Checks a value against a command's schema.
fn check(name: &str, value: &Value) {
    let schemas = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/schemas");
    let text = fs::read_to_string(schemas.join(format!("{name}.json"))).expect("a schema");
    let schema = serde_json::from_str(&text).expect("JSON");
    assert_eq!(schema::problems(&schema, value), Vec::<String>::new(), "{name}: {value}");
}

const PLAN: &str = "name = 'x'\ntitle = 'A title'\nrepetitions = 10\n\
    [factors]\ndata-size = '64MiB'\nhosts = 1\n\
    [[experiment]]\nname = 'count'\ntitle = 'Who chooses?'\n\
    factors = { count = [2, 4], chooser = ['roundrobin', 'balanced'] }\n";

/// A journal as a study writes it: files on both servers are twice as fast as those on one.
fn journal() -> String {
    let first = json!({
        "kind": "study", "format": 1, "plan": PLAN, "started_at": "2026-01-01T00:00:00Z",
        "skep_version": "0.1.0", "place": "lab x", "hosts": ["c1"],
        "targets_per_server": { "s1": 4, "s2": 4 }, "environment": null,
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
            "bytes_per_second": rate, "applications": [application], "is_valid": true,
            "invalid_because": null,
        });
        lines.push(record.to_string());
    }
    lines.join("\n") + "\n"
}

/// Command: skep study report.
#[test]
fn a_report_is_made_of_a_journal_alone() {
    let scratch = Scratch::new();
    let study = scratch.join("study");
    fs::create_dir(&study).expect("a directory");
    // The line at the end was cut off while it was written.
    let text = journal() + "{\"kind\":\"run\",\"run\":40,";
    fs::write(study.join("journal.ndjson"), &text).expect("a journal");
    let report = ["study", "report", "study", "--output", "json"];
    let value = skep(scratch.path(), &report).expect_success();
    let value: Value = serde_json::from_str(&value).expect("JSON");
    check("study-report", &value);
    assert_eq!(value["report"]["runs_done"], 40);
    let conclusions = value["report"]["conclusions"].as_array().expect("a list");
    let said = |about: &str| -> Vec<&str> {
        let about = conclusions.iter().filter(|it| it["about"] == about);
        about.map(|it| it["text"].as_str().expect("a text")).collect()
    };
    assert!(said("limit")[0].starts_with("The network is the limit"), "{conclusions:?}");
    assert!(said("chooser")[0].contains("chooser balanced"), "{conclusions:?}");
    assert!(said("modes")[0].contains("count 2, chooser roundrobin"), "{conclusions:?}");
    assert_eq!(said("modes").len(), 1);
    for file in value["files"].as_array().expect("a list") {
        let path = study.join("report").join(file.as_str().expect("a name"));
        assert!(fs::metadata(&path).expect("written").len() > 100, "{}", path.display());
    }
    assert!(study.join("report/index.html").exists());
    assert_eq!(fs::read_to_string(study.join("journal.ndjson")).expect("a file"), text);
    let shown = skep(scratch.path(), &["study", "report", "study"]).expect_success();
    assert!(shown.contains("40 of 40 runs") && shown.contains("index.html"), "{shown}");
}

#[test]
fn what_is_no_study_has_no_report() {
    let scratch = Scratch::new();
    let none = skep(scratch.path(), &["study", "report", "."]);
    assert_eq!(none.status.code(), Some(4), "{none:?}");
    assert!(none.expect_failure().contains("holds no study"));
    let damaged = journal().replacen("\"kind\":\"run\"", "\"kind\":\"rum\"", 1);
    fs::write(scratch.join("journal.ndjson"), damaged).expect("a journal");
    let refused = skep(scratch.path(), &["study", "report", "."]).expect_failure();
    assert!(refused.contains("line 2"), "{refused}");
    assert!(!scratch.join("report").exists(), "nothing is written");
}

/// Command: skep study plans, skep study plan.
#[test]
fn ready_plans_are_listed_and_printed() {
    let scratch = Scratch::new();
    let list = skep(scratch.path(), &["study", "plans", "--output", "json"]).expect_success();
    let list: Value = serde_json::from_str(&list).expect("JSON");
    check("study-plans", &list);
    for plan in list.as_array().expect("a list") {
        let name = plan["name"].as_str().expect("a name");
        let text = skep(scratch.path(), &["study", "plan", name]).expect_success();
        assert!(text.contains(&format!("name = \"{name}\"")), "{text}");
    }
    let unknown = skep(scratch.path(), &["study", "plan", "scenario9"]);
    assert_eq!(unknown.status.code(), Some(4));
    assert!(unknown.expect_failure().contains("scenario1, scenario2"));
}
