//! Mounts whose requests get no reply. `skep health check` reports the mount, the target for which
//! the mount waits, and the duration of this wait. With `--watch`, the command prints the start and
//! the end of the outage. The log of the mount contains the request that has waited longest.

use serde_json::Value;
use skep_testkit::health_watch::HealthWatch;
use skep_testkit::schema::check;
use skep_testkit::{Cluster, PATIENCE, Scratch, Shape, Transport, files, wait_for};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Returns the printed events in which a mount began or ended a wait for a target.
fn of_waits(watch: &HealthWatch) -> Vec<Value> {
    let is_wait = |it: &Value| it["what"].as_str().is_some_and(|it| it.contains(" for target "));
    let mut changes = watch.changes();
    changes.retain(is_wait);
    changes
}

/// Stops the storage target of a file: moves the target's directory away, and kills the storage
/// services. Returns the row of the target in `skep target list`, its directory, and the new path
/// of the directory.
fn take_target_of(cluster: &Cluster, file: &Path) -> (Value, PathBuf, PathBuf) {
    let target = cluster.entry_info(file).first_component().targets()[0];
    let targets = cluster.skep_list(&["target", "list"]);
    let target = targets.into_iter().find(|it| it["id"] == target).expect("the target of the file");
    let directory = PathBuf::from(target["path"].as_str().expect("a path"));
    let away = directory.with_extension("away");
    files::rename(&directory, &away);
    cluster.processes("storage").iter().for_each(|process| process.kill());
    (target, directory, away)
}

/// Command: skep health check, skep why.
#[test]
fn mount_is_reported_while_a_request_waits_for_a_target() {
    let mut cluster = Cluster::start(Shape::small());
    cluster.skep(&["config", "set", "heartbeat", "500ms"]);
    cluster.skep(&["config", "set", "lease", "3s"]);
    let second = cluster.mount(Transport::Device);
    let file = cluster.path().join("file");
    files::write(&file, vec![7; 1 << 20]);
    files::sync_all(&files::open(&file));
    let scratch = Scratch::new();
    let history = scratch.join("outages");
    let place = history.display().to_string();
    let watch = HealthWatch::start(&cluster, &["--interval", "500ms", "--history", &place]);
    let (target, directory, away) = take_target_of(&cluster, &file);

    let mut reader = Command::new("cat");
    let mut reader =
        reader.arg(second.path().join("file")).stdout(Stdio::null()).spawn().expect("cat");
    let wait = wait_for("the wait is reported", PATIENCE, || {
        let health = cluster.try_skep(&["health", "check", "--output", "json"]);
        let health: Value = serde_json::from_str(&health.stdout).ok()?;
        check("health-check", &health);
        health["waits"].as_array()?.first().cloned()
    });
    assert_eq!(wait["target"], target["id"]);
    assert!(wait["waits_ms"].as_u64().is_some_and(|it| it >= 5_000), "{wait}");
    let name = second.path().display().to_string();
    assert!(wait["name"].as_str().is_some_and(|it| it.contains(&name)), "{wait}");
    let shown = cluster.try_skep(&["health", "check"]).expect_failure();
    assert!(shown.contains(&format!(" for target {},", target["id"])), "{shown}");
    let report = cluster.skep_json(&["why", "--interval", "200ms"]);
    check("why", &report);
    let waiting = report["waiting"][0]["what"].as_str().expect("a wait");
    assert!(waiting.contains(&format!(" for target t{} on ", target["id"])), "{report}");

    files::rename(&away, &directory);
    let status = wait_for("the read ends", PATIENCE, || reader.try_wait().expect("ours"));
    assert!(status.success(), "{status}");
    let mainly = format!("waiting for storage target t{} on ", target["id"]);
    wait_for("the slow read names the target", PATIENCE, || {
        let report = cluster.skep_json(&["why", "--interval", "200ms"]);
        let slowest = report["slowest"].as_array().expect("a list").clone();
        let is_explained = |it: &Value| {
            let text = it["mainly"].as_str().expect("a text");
            text.contains(&mainly) && text.contains(", which did not serve the request: ")
        };
        slowest.iter().any(is_explained).then_some(())
    });
    let changes = wait_for("the outage ends", PATIENCE, || {
        Some(of_waits(&watch)).filter(|changes| changes.len() == 2)
    });
    wait_for("the history has the end", PATIENCE, || {
        let lines = String::from_utf8(files::read(&history)).expect("text");
        let last: Value = serde_json::from_str(lines.lines().last()?).expect("JSON");
        (last["change"] == "ends").then_some(())
    });
    assert_eq!(changes[0]["change"], "begins");
    assert_eq!(changes[1]["change"], "ends");
    assert_eq!(changes[0]["what"].as_str().map(|it| it.contains(&name)), Some(true));
    // The outage of the target began before the check that found the outage.
    let all = watch.changes();
    let of_target = all.iter().find(|it| {
        it["change"] == "begins" && it["what"].as_str().is_some_and(|it| it.contains("not served"))
    });
    assert!(of_target.is_some_and(|it| it["since"].is_string()), "{all:?}");
    second.unmount();
}

/// A truncation waits at a metadata target, which itself waits for the storage target. The mount
/// has no request at the stopped target, but its log and the health check must still explain why
/// the program hangs.
///
/// After the truncation has ended, `skep why` names the storage target, and not only the metadata
/// target.
///
/// Command: skep health check, skep why.
#[test]
fn request_that_waits_at_metadata_is_reported_with_its_mount() {
    let cluster = Cluster::start(Shape::small());
    let file = cluster.path().join("file");
    files::write(&file, vec![7; 1 << 20]);
    files::sync_all(&files::open(&file));
    let (target, directory, away) = take_target_of(&cluster, &file);

    let mut program = Command::new("truncate");
    let mut program = program.args(["-s", "1"]).arg(&file).spawn().expect("truncate");
    let log = || files::read_to_string(cluster.data().join("logs/mount.log"));
    let waits = format!("by process {}, for 5 s, without a reply from target t", program.id());
    wait_for("the wait is logged", PATIENCE, || log().contains(&waits).then_some(()));
    let wait = wait_for("the wait is reported", PATIENCE, || {
        let health = cluster.try_skep(&["health", "check", "--output", "json"]);
        let health: Value = serde_json::from_str(&health.stdout).ok()?;
        check("health-check", &health);
        health["waits"].as_array()?.iter().find(|it| it["group"].is_null()).cloned()
    });
    let mounted = cluster.path().display().to_string();
    assert!(wait["name"].as_str().is_some_and(|it| it.contains(&mounted)), "{wait}");
    let by = format!("by process {}", program.id());
    assert!(wait["error"].as_str().is_some_and(|it| it.contains(&by)), "{wait}");
    let report = cluster.skep_json(&["why", "--interval", "200ms"]);
    // The metadata service also reports its own waiting requests.
    let is_of_program = |it: &Value| {
        it["what"]
            .as_str()
            .is_some_and(|it| it.contains(&by) && it.contains("the oldest has waited "))
    };
    let waiting = report["waiting"].as_array().expect("a list");
    assert!(waiting.iter().any(is_of_program), "{report}");
    files::rename(&away, &directory);
    let status = wait_for("the program ends", PATIENCE, || program.try_wait().expect("ours"));
    assert!(status.success(), "{status}");
    let end = "all requests that had waited for more than 5 s have been answered";
    wait_for("the end of the wait is logged", PATIENCE, || log().contains(end).then_some(()));
    let storage = format!("waiting for storage target t{} on ", target["id"]);
    wait_for("the slow request names the storage target", PATIENCE, || {
        let report = cluster.skep_json(&["why", "--interval", "200ms"]);
        let slowest = report["slowest"].as_array().expect("a list").clone();
        let is_named = |it: &Value| {
            let text = it["mainly"].as_str().expect("a text");
            text.contains(&storage) && text.contains(", at metadata target ")
        };
        slowest.iter().any(is_named).then_some(())
    });
    cluster.stop_checked(&[]);
}
