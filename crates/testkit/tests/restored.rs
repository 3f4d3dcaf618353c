//! A metadata target whose directory an administrator has restored from a backup.

use skep_testkit::cluster::skep;
use skep_testkit::{Cluster, PATIENCE, Shape, files, schema, wait_for};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(status.expect("cp can be run").success());
}

/// docs/semantics.md 1.8. Command: skep target restored.
#[test]
fn restored_metadata_target_reuses_no_inode_number() {
    let cluster = Cluster::start(Shape::small());
    files::write(cluster.path().join("before"), "before");
    cluster.stop();
    let target = cluster.data().join("metadata-1/t1");
    let saved = target.with_extension("copy");
    copy(&target, &saved);
    cluster.up().expect_success();
    let lost = cluster.path().join("lost");
    files::write(&lost, "bytes of another file".repeat(10_000));
    let newest = files::metadata(&lost).ino();
    cluster.stop();

    files::remove_dir_all(&target);
    files::rename(&saved, &target);
    let directory = target.display().to_string();
    let marked = skep(["target", "restored", &directory, "--output", "json"]).expect_success();
    schema::check("target-restored", &serde_json::from_str(&marked).expect("the output is JSON"));
    cluster.up().expect_success();
    assert!(!lost.exists() && files::read(cluster.path().join("before")) == b"before");
    let new = cluster.path().join("new");
    files::set_len(&files::create(&new), 100_000);
    assert!(files::metadata(&new).ino() > newest, "the number belongs to another file");
    assert!(files::read(&new).iter().all(|byte| *byte == 0));

    let health = || cluster.try_skep(&["health", "check", "--output", "json"]).stdout;
    wait_for("`skep health check` reports the restored directory", PATIENCE, || {
        health().contains("restored from a backup").then_some(())
    });
    skep(["target", "restored", &directory, "--allow-removal"]).expect_success();
    wait_for("the target permits the removal", PATIENCE, || {
        (!health().contains("restored from a backup")).then_some(())
    });
    let storage = cluster.data().join("storage-1").display().to_string();
    let refused = skep(["target", "restored", &storage]).expect_failure();
    assert!(refused.contains("is not the directory of a metadata target"), "{refused}");
    // The restored metadata does not contain the file `lost`, but the chunk files of this file
    // still exist.
    cluster.stop_except(&["orphan"]);
}
