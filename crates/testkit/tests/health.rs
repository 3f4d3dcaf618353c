//! Findings of `skep health check` that do not make the cluster unhealthy: missing backups, and the
//! balance of work between targets. The command gets some of these findings from a monitor. The
//! tests in other files cover problems of services and targets.

use serde_json::Value;
use skep_testkit::view::Typed;
use skep_testkit::{Cluster, EndGuard, PATIENCE, Scratch, Shape, cluster, files, schema, wait_for};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

const DAY: Duration = Duration::from_secs(86_400);

/// Returns the report of `skep health check`. The exit code also depends on the free space of this
/// host, so the tests ignore the exit code.
fn health(cluster: &Cluster, more: &[&str]) -> Value {
    let checked = cluster.try_skep(&[&["health", "check", "--output", "json"], more].concat());
    let report = serde_json::from_str(&checked.stdout);
    let report = report.unwrap_or_else(|error| panic!("{error}: {checked:?}"));
    schema::check("health-check", &report);
    report
}

/// Returns the problem of the rule about backups.
fn no_backup(report: &Value) -> Option<Value> {
    report["problems"].list().iter().find(|it| it["rule"] == "no-backup").cloned()
}

fn backup(directory: &Path, copy: &Path) {
    let path = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let directory = path(directory);
    cluster::skep(["cluster", "backup", "--directory", &directory, &path(copy)]).expect_success();
}

/// Makes a backup of management, and sets the time of the backup to ten days ago. Returns
/// management's directory.
fn with_old_backup(cluster: &Cluster, scratch: &Scratch) -> PathBuf {
    let directory = cluster.data().join("management");
    backup(&directory, &scratch.path().join("old"));
    let record = File::options().write(true).open(directory.join("last-backup"));
    let record = record.expect("a backup leaves a record of its time");
    record.set_modified(SystemTime::now() - 10 * DAY).expect("the owner may set the time");
    directory
}

/// Command: skep health check, skep cluster backup, skep monitor.
#[test]
fn old_backup_is_reported_until_the_next_backup() {
    let cluster = Cluster::start(Shape { monitor: true, ..Shape::small() });
    let scratch = Scratch::new();
    let directory = with_old_backup(&cluster, &scratch);
    let found = wait_for("the monitor reports the old backup", PATIENCE, || {
        let report = health(&cluster, &[]);
        report["unchecked"].is_null().then(|| no_backup(&report)).flatten()
    });
    assert_eq!(found["what"], "the last backup of management was made 10 days ago");
    assert!(found["since"].is_string(), "the finding has its start: {found}");
    backup(&directory, &scratch.path().join("new"));
    wait_for("the new backup ends the finding", PATIENCE, || {
        no_backup(&health(&cluster, &[])).is_none().then_some(())
    });
    cluster.stop();
}

/// Command: skep health check.
#[test]
fn health_check_without_a_monitor_names_the_skipped_rules() {
    let cluster = Cluster::start(Shape::small());
    let scratch = Scratch::new();
    with_old_backup(&cluster, &scratch);
    let report = health(&cluster, &["--monitor", "127.0.0.1:1"]);
    let unchecked = report["unchecked"].text();
    assert!(unchecked.contains("cannot ask the monitor at 127.0.0.1:1"), "{unchecked}");
    let found = no_backup(&report).expect("the command itself checks the time of the last backup");
    assert!(found["since"].is_null(), "{found}");
    cluster.stop();
}

/// Command: skep health check.
#[test]
fn work_balance_counts_all_busy_metadata_targets() {
    let shape = Shape { storage_services: 1, targets_per_service: 1, ..Shape::default() };
    let cluster = Cluster::start(shape);
    let directories: Vec<_> =
        (0..16).map(|number| cluster.path().join(format!("d{number}"))).collect();
    directories.iter().for_each(files::create_dir);
    let is_done = AtomicBool::new(false);
    let balance = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                for directory in &directories {
                    files::create_dir(directory.join("new"));
                    files::remove_dir(directory.join("new"));
                }
            }
        });
        let _end = EndGuard(&is_done);
        wait_for("the command reports the balance of work", PATIENCE, || {
            let report = health(&cluster, &["--monitor", "127.0.0.1:1"]);
            let balance = report["balance"]["metadata_work"].clone();
            balance["percent"].is_number().then_some(balance)
        })
    });
    assert_eq!(balance["targets"], 2);
    let percent = balance["percent"].float();
    assert!(
        (50.0..=100.0).contains(&percent),
        "the mean of two targets is 50 to 100 % of the maximum: {balance}"
    );
    assert!(balance["highest"]["percent"].float() >= 50.0, "{balance}");
    cluster.stop();
}
