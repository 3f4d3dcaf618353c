//! Reports of studies, from journals that a test has written or that are in the repository.

use crate::{checked, skep};
use serde_json::json;
use skep_testkit::view::Typed;
use skep_testkit::{Scratch, files};
use std::path::Path;

const PLAN: &str = "name = 'x'\ntitle = 'A title'\nrepetitions = 10\n\
    [factors]\ndata-size = '64MiB'\nhosts = 1\n\
    [[experiment]]\nname = 'count'\ntitle = 'Who chooses?'\n\
    factors = { count = [2, 4], chooser = ['roundrobin', 'balanced'] }\n";

/// Returns the journal of a study. In this study, a file on both servers is twice as fast as a file
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
fn study_report_fails_below_the_required_share_of_the_limit() {
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
fn study_results_are_compared_with_published_points() {
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
