//! `skep debug bundle`: an archive of the state of a real cluster, without its secrets.

use rustix::process::Signal;
use serde_json::Value;
use skep_testkit::program::run;
use skep_testkit::view::Typed;
use skep_testkit::{Cluster, Scratch, Shape, schema};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

fn files_below(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory").flatten() {
        match entry.path() {
            path if path.is_dir() => files_below(&path, found),
            path => found.push(path),
        }
    }
}

/// Command: skep debug bundle.
#[test]
fn debug_bundle_has_map_metrics_and_logs_but_no_secret() {
    let cluster = Cluster::start(Shape::small());
    let scratch = Scratch::new();
    let token = fs::read_to_string(cluster.data().join("management/join-token")).unwrap();
    let secret = token.split('@').next().unwrap().rsplit('-').next().unwrap().to_owned();
    let log = cluster.data().join("logs/management.log");
    let mut log = fs::OpenOptions::new().append(true).open(log).unwrap();
    writeln!(log, "planted: {} and {secret}", token.trim()).unwrap();
    let file = scratch.path().join("bundle.tar");
    let file_text = file.to_str().expect("UTF-8");
    // Suspend a service, because administrators most need a bundle while a service does not reply.
    let stopped = &cluster.processes("storage")[0];
    stopped.signal(Signal::STOP);
    let printed = cluster.try_skep(&["debug", "bundle", "--file", file_text, "--output", "json"]);
    stopped.signal(Signal::CONT);
    let printed: Value = serde_json::from_str(&printed.expect_success()).unwrap();
    schema::check("debug-bundle", &printed);
    let again = cluster.try_skep(&["debug", "bundle", "--file", file_text]);
    assert!(again.expect_failure().contains("the file exists"));

    let place = scratch.directory("unpacked");
    run("tar", ["xf", file_text, "-C", place.to_str().expect("UTF-8")]);
    let mut files = Vec::new();
    files_below(&place, &mut files);
    assert_eq!(files.len(), printed["members"].list().len());
    for path in &files {
        let text = fs::read_to_string(path).unwrap();
        assert!(!text.contains(&secret), "{} has the secret", path.display());
    }
    let read = |end: &str| {
        let path = files.iter().find(|path| path.ends_with(end));
        fs::read_to_string(path.unwrap_or_else(|| panic!("{end} is missing: {files:?}"))).unwrap()
    };
    let targets: Value = serde_json::from_str(&read("commands/target-list.json")).unwrap();
    assert_eq!(targets.list().len(), 3);
    assert!(read("commands/health-check.json").contains("storage-1"));
    assert!(read("commands/stats-node.json").contains("metadata-1"));
    assert!(read("logs/management.log").contains("planted: skep1-[removed]"));
    assert!(read("host/proc/meminfo").contains("MemTotal"));
}
