//! What administrators change and look at while a cluster runs: settings, log levels, clients and
//! their sessions.

use serde_json::{Value, json};
use skep_testkit::{Cluster, Shape, cluster, wait_for};
use std::fs;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

fn small() -> Shape {
    Shape { metadata_targets: 1, storage_services: 1, targets_per_service: 2, ..Shape::default() }
}

/// What a command that must fail says.
fn refusal(cluster: &Cluster, arguments: &[&str]) -> String {
    let data = cluster.data().display().to_string();
    let arguments = [arguments, &["--cluster", &data]].concat();
    cluster::skep(arguments).expect_failure()
}

#[test]
fn settings_change_live_and_wrong_values_are_refused_by_name() {
    let cluster = Cluster::start(small());
    let settings = cluster.skep_json(&["config", "list"]);
    let names: Vec<_> = settings.as_array().expect("a list").iter().map(|it| &it["name"]).collect();
    for name in ["lease", "heartbeat", "chunk-size", "stripe-width", "feature-level"] {
        assert!(names.contains(&&json!(name)), "{name}: {names:?}");
    }
    let shown = cluster.skep(&["config", "get", "chunk-size"]);
    for words in ["512 KiB", "64 KiB to 1 GiB, powers of two", "chunk size of new files"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    let value = |name: &str| cluster.skep_json(&["config", "get", name])["value"].clone();

    let pattern = |name: &str| -> (Value, Value) {
        let path = cluster.path().join(name);
        fs::write(&path, "x").expect("written");
        let info = cluster.skep_json(&["entry", "info", &path.display().to_string()]);
        let part = &info["pattern"]["components"][0];
        (part["chunk_bytes"].clone(), part["targets_wanted"].clone())
    };
    assert_eq!(pattern("before"), (json!(512 << 10), json!(4)));
    let dry = cluster.skep(&["config", "set", "chunk-size", "1MiB", "--dry-run"]);
    assert!(dry.contains("would be 1 MiB"), "{dry}");
    assert_eq!(value("chunk-size"), json!(512 << 10));
    cluster.skep(&["config", "set", "chunk-size", "1MiB"]);
    let changed = cluster.skep_json(&["config", "set", "stripe-width", "1"]);
    assert_eq!((&changed["before"], &changed["value"]), (&json!(4), &json!(1)));
    assert_eq!((value("chunk-size"), value("stripe-width")), (json!(1 << 20), json!(1)));
    let mut number = 0;
    wait_for("new files get the new pattern", PATIENCE, || {
        number += 1;
        (pattern(&format!("after-{number}")) == (json!(1 << 20), json!(1))).then_some(())
    });

    for (arguments, words) in [
        (["chunk-size", "100KiB"], "65536 and 131072"),
        (["chunk-size", "many"], "KiB, MiB"),
        (["lease", "1ms"], "lease: 1 ms is not between 200 and 600000 ms"),
        (["heartbeat", "4s"], "half a lease of 5000 ms"),
        (["stripe-width", "-"], "from 1 to 256"),
        (["feature-level", "2"], "feature-level"),
        (["colour", "red"], "there are lease, heartbeat"),
    ] {
        let said = refusal(&cluster, &[&["config", "set"], &arguments[..]].concat());
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
    cluster.stop();
    cluster.up().expect_success();
    assert_eq!(value("chunk-size"), json!(1 << 20));
    cluster.stop();
}
