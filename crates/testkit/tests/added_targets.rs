//! Targets that an administrator adds to running services. These targets serve immediately, and
//! also after a restart of the service. The administrator can remove these targets without a
//! restart.

use skep_testkit::cluster::skep;
use skep_testkit::{Cluster, PATIENCE, Scratch, Shape, files, schema, wait_for};
use std::path::Path;

/// Creates an empty file on all targets. Returns the number of targets over which the file is
/// striped.
fn create_wide(cluster: &Cluster, name: &str) -> usize {
    let path = cluster.path().join(name);
    let text = path.display().to_string();
    skep(["entry", "create", "--num-targets", "all", &text]).expect_success();
    cluster.entry_info(&path).first_component().targets().len()
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// Command: skep target add.
#[test]
fn added_target_serves_without_a_service_restart() {
    let cluster = Cluster::start(Shape::small());
    let scratch = Scratch::new();
    let new = scratch.path().join("disk9/skep");
    let storage = cluster.processes("storage")[0].pid;

    let refused = |path: &str| cluster.try_skep(&["target", "add", "storage-1", path]);
    let relative = refused("disk9").expect_failure();
    assert!(relative.contains("absolute path"), "{relative}");
    let used = scratch.directory("used");
    files::write(used.join("file"), "data");
    let used = refused(&shown(&used)).expect_failure();
    assert!(used.contains("choose a blank directory"), "{used}");
    let inside = &cluster.skep_list(&["target", "list"])[1]["path"];
    let inside = format!("{}/inside", inside.as_str().expect("a path"));
    let inside = refused(&inside).expect_failure();
    assert!(inside.contains("a parent or a subdirectory"), "{inside}");
    let none = cluster.try_skep(&["target", "add", "management-1", "/x"]).expect_failure();
    assert!(none.contains("only metadata and storage services"), "{none}");

    let added = cluster.skep_json(&["target", "add", "storage-1", &shown(&new)]);
    schema::check("target-add", &added);
    let id = added["id"].to_string();
    let again = cluster.skep_json(&["target", "add", "storage-1", &shown(&new)]);
    assert_eq!(again["id"], added["id"], "a repeated command changes nothing");
    assert_eq!((&added["is_new"], &again["is_new"]), (&true.into(), &false.into()));
    // Metadata places files on the new target, and the mount writes to this target.
    wait_for("metadata selects targets by the new cluster map", PATIENCE, || {
        (create_wide(&cluster, "wide") == 3).then_some(()).or_else(|| {
            files::remove_file(cluster.path().join("wide"));
            None
        })
    });
    let text = "0123456789abcdef".repeat(200_000);
    files::write(cluster.path().join("wide"), &text);
    let chunks = std::fs::read_dir(new.join("chunks")).expect("the new target has chunk files");
    assert!(chunks.count() > 0);
    assert_eq!(cluster.processes("storage")[0].pid, storage, "no restart");

    // After a crash, the restarted service opens the added target.
    cluster.processes("storage")[0].kill();
    assert_eq!(files::read_to_string(cluster.path().join("wide")), text);
    let restarted = cluster.processes("storage")[0].pid;
    assert_ne!(restarted, storage);

    // The administrator removes the target without a restart of the service. The command succeeds
    // only after the target has no more files.
    cluster.skep(&["config", "set", "heartbeat", "500ms"]);
    cluster.skep(&["target", "set-state", &id, "closed"]);
    let refused = cluster.try_skep(&["target", "remove", &id]).expect_failure();
    assert!(
        refused.contains("1 file lies on the target, and no directory's pattern names the target"),
        "{refused}"
    );
    files::remove_file(cluster.path().join("wide"));
    cluster.skep(&["target", "remove", "--dry-run", &id]);
    assert_eq!(cluster.target_ids("storage").len(), 3);
    cluster.skep(&["target", "remove", &id]);
    assert_eq!(cluster.target_ids("storage").len(), 2);
    assert_eq!(create_wide(&cluster, "narrow"), 2);
    assert_eq!(cluster.processes("storage")[0].pid, restarted, "no restart");
    assert!(cluster.skep(&["health", "check"]).contains("The cluster is healthy"));
    // A restarted service does not serve the removed target.
    cluster.processes("storage")[0].kill();
    files::write(cluster.path().join("narrow"), &text);
    assert_eq!(cluster.target_ids("storage").len(), 2);
    cluster.stop_checked(&[]);
}
