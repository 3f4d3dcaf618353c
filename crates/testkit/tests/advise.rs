//! `skep advise` on a real cluster. The command examines small files, large files in a directory
//! with few targets, the load of a job, and the Darshan log of a program.

use serde_json::Value;
use skep_testkit::program::finish;
use skep_testkit::{Cluster, PATIENCE, Shape, cluster, files, schema, wait_for};
use std::path::Path;
use std::process::{Command, Stdio};

/// Returns the report of `skep advise` about a path.
fn advise(path: &Path, options: &[&str]) -> Value {
    let mut command = Command::new(cluster::program());
    command.arg("advise").args(options).args(["--output", "json"]).arg(path);
    let text = finish(&mut command, PATIENCE).expect_success();
    let reports: Value = serde_json::from_str(&text).expect("JSON");
    schema::check("advise", &reports);
    reports[0].clone()
}

/// Returns the message of a failed `skep advise`.
fn refused(arguments: &[&str]) -> String {
    cluster::skep([&["advise"], arguments].concat()).expect_failure()
}

/// Returns the only piece of advice in a report, and checks that the report has exactly one.
fn only(report: &Value) -> &Value {
    let advice = report["advice"].as_array().expect("a list");
    assert_eq!(advice.len(), 1, "{report:#}");
    &advice[0]
}

fn start() -> Cluster {
    let shape = Shape { storage_services: 2, targets_per_service: 2, ..Shape::default() };
    let cluster = Cluster::start(Shape { metadata_targets: 1, ..shape });
    cluster.turn_off_inline_bytes();
    cluster
}

/// Command: skep advise.
#[test]
fn advice_for_a_directory_of_small_files_is_inline_bytes() {
    let cluster = start();
    let directory = cluster.path().join("small");
    files::create_dir(&directory);
    for number in 0..120 {
        files::write(directory.join(format!("f{number}")), vec![1_u8; 1000]);
    }
    let report = advise(&directory, &[]);
    assert_eq!(report["files"], 120);
    assert_eq!(only(&report)["subject"], "inline-bytes");
    assert_eq!(only(&report)["proposed"], "4KiB");
    assert!(only(&report)["why"].to_string().contains("100 % of 120 files"), "{report:#}");
    assert_eq!(report["pattern"], "inline/from=4KiB");
    assert_eq!(report["is_applied"], false);
    // Without `--apply`, the command has not changed the directory's pattern.
    assert_eq!(advise(&directory, &[])["advice"], report["advice"]);

    assert_eq!(advise(&directory, &["--apply"])["is_applied"], true);
    let file = directory.join("new");
    files::write(&file, "x");
    let info = cluster.skep_json(&["entry", "info", file.to_str().expect("ASCII")]);
    assert_eq!(info["pattern"]["components"][0]["redundancy"], "inline", "{info:#}");
    assert_eq!(advise(&directory, &[])["advice"].as_array().map(Vec::len), Some(0));
    cluster.stop_checked(&[]);
}

#[test]
fn advice_for_large_files_changes_one_field_of_the_pattern() {
    let cluster = start();
    let directory = cluster.path().join("large");
    files::create_dir(&directory);
    let shown = directory.to_str().expect("ASCII").to_owned();
    let pattern = ["entry", "set", "--num-targets", "1", "--chunk-size", "1MiB", &shown];
    cluster::skep(pattern).expect_success();
    files::create(directory.join("sparse")).set_len(1 << 30).expect("a sparse file");
    let report = advise(&directory, &["--apply"]);
    assert_eq!(only(&report)["proposed"], "count=all");
    assert!(only(&report)["expected"].to_string().contains("4.0 times"), "{report:#}");
    assert_eq!(report["pattern"], "count=all,chunk-size=1MiB");
    files::write(directory.join("new"), "x");
    let new = directory.join("new");
    let info = cluster.skep_json(&["entry", "info", new.to_str().expect("ASCII")]);
    assert_eq!(info["pattern"]["components"][0]["targets"].as_array().map(Vec::len), Some(4));

    let log = "# nprocs: 8\n# run time: 3\nPOSIX\t-1\t7\tPOSIX_BYTES_WRITTEN\t4194304000\n\
        POSIX\t-1\t7\tPOSIX_WRITES\t1000\nPOSIX\t-1\t7\tPOSIX_ACCESS1_ACCESS\t4194304\n\
        POSIX\t-1\t7\tPOSIX_ACCESS1_COUNT\t1000\n";
    let path = cluster.data().join("darshan.txt");
    files::write(&path, log);
    let report = advise(&directory, &["--darshan", path.to_str().expect("ASCII")]);
    assert_eq!(only(&report)["subject"], "chunk-size");
    assert_eq!(report["pattern"], "count=all,chunk-size=4MiB");
    files::write(&path, "no log");
    let what = refused(&["--darshan", path.to_str().expect("ASCII"), &shown]);
    assert!(what.contains("darshan-parser LOG"), "{what}");
}

#[test]
fn advice_for_one_slow_writer_is_more_processes() {
    let cluster = start();
    let file = cluster.path().join("file");
    // Run a single process that waits for each of its requests.
    let mut dd = Command::new("dd");
    dd.args(["if=/dev/zero", "bs=256K", "count=400000", "oflag=direct"]);
    dd.arg(format!("of={}", file.display())).stdout(Stdio::null()).stderr(Stdio::null());
    let mut writer = dd.spawn().expect("dd can be started");
    let data = cluster.data().display().to_string();
    let report = wait_for("a measurement has enough requests", PATIENCE, || {
        let report = advise(cluster.path(), &["--interval", "3s", "--cluster", &data]);
        let requests = report["load"]["storage_requests"].as_u64().expect("a number");
        (requests > 100).then_some(report)
    });
    writer.kill().expect("the process runs");
    writer.wait().expect("the writer ends");
    let programs = report["advice"].as_array().expect("a list").iter();
    let programs: Vec<_> = programs.filter(|it| it["subject"] == "program").collect();
    assert!(programs.iter().any(|it| it["proposed"].to_string().contains("more")), "{report:#}");
}

#[test]
fn advise_refuses_wrong_arguments_with_the_reason() {
    let cluster = start();
    let file = cluster.path().join("file");
    files::write(&file, "x");
    let file = file.to_str().expect("ASCII");
    assert!(refused(&["--apply", file]).contains("name the directory"));
    assert!(refused(&["/"]).contains("not in a mount of Skep"));
    assert!(refused(&[]).contains("not in a mount of Skep"));
}
