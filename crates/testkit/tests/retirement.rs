//! The removal of a storage server from a cluster. The administrator closes the server's targets to
//! new files, empties these targets, removes them, and then removes the server. Skep refuses each
//! step that would lose data.

use rustix::process::Signal;
use skep_testkit::cluster::skep;
use skep_testkit::program::{finish, run};
use skep_testkit::{Cluster, PATIENCE, Shape, files, wait_for};
use std::path::Path;
use std::process::Command;

/// Runs a command that must fail. Returns its message.
fn refusal(cluster: &Cluster, arguments: &[&str]) -> String {
    cluster.try_skep(arguments).expect_failure()
}

/// Creates an empty file on as many targets as possible.
fn create_wide(path: &Path) {
    let path = path.display().to_string();
    skep(["entry", "create", "--num-targets", "all", &path]).expect_success();
}

/// Checks that `--directories` lists exactly the directories whose patterns name a target that is
/// open to new files.
fn check_directory_list(cluster: &Cluster, target: &str) {
    let directory = cluster.path().join("own");
    files::create_dir(&directory);
    let shown = directory.display().to_string();
    let list = ["target", "files", target, "--null", "--directories"];
    skep(["entry", "set", "--targets", target, &shown]).expect_success();
    assert_eq!(cluster.skep(&list), "/own\0");
    skep(["entry", "set", "--inherit", &shown]).expect_success();
    assert_eq!(cluster.skep(&list), "");
}

/// Command: skep target set-state, skep target files, skep target remove, skep node remove.
/// Command: skep node rename.
#[test]
fn storage_server_can_be_removed_when_it_has_no_files() {
    let shape = Shape { storage_services: 2, targets_per_service: 2, ..Shape::small() };
    let cluster = Cluster::start(shape);
    cluster.skep(&["config", "set", "heartbeat", "500ms"]);
    cluster.skep(&["config", "set", "lease", "3s"]);
    let renamed = cluster.skep(&["node", "rename", "storage-2", "rack2-old"]);
    assert!(renamed.contains("rack2-old"), "{renamed}");
    let node = "rack2-old";
    let targets = cluster.skep_list(&["target", "list"]);
    let of_node = targets.iter().filter(|it| it["node_name"] == node);
    let old: Vec<String> = of_node.map(|it| it["id"].to_string()).collect();
    assert_eq!(old.len(), 2, "{targets:?}");
    let paths: Vec<_> = (0..6).map(|number| cluster.path().join(format!("f{number}"))).collect();
    for path in &paths {
        let new = path.display().to_string();
        create_wide(path);
        files::write(path, new.repeat(100_000));
    }

    // Skep refuses to remove a target that is open to new files, and also refuses to remove this
    // target's server.
    let refused = refusal(&cluster, &["target", "remove", &old[0]]);
    assert!(refused.contains("is open to new files"), "{refused}");
    assert!(
        refused.contains("files lie on the target, and no directory's pattern names the target"),
        "{refused}"
    );
    let refused = refusal(&cluster, &["node", "remove", node]);
    assert!(refused.contains("belong to this node"), "{refused}");
    check_directory_list(&cluster, &old[0]);
    for id in &old {
        cluster.skep(&["target", "set-state", id, "closed"]);
    }
    assert!(cluster.skep(&["target", "list"]).contains(" Closed "));
    assert!(cluster.skep(&["health", "check"]).contains("The cluster is healthy"));

    // Metadata places new files only on targets that are not closed. Closed targets still serve
    // their files, and Skep refuses to remove a target that has files.
    let listed = |id: &str| cluster.skep_list(&["target", "files", id, "--paths"]);
    let before = listed(&old[0]);
    assert_eq!(before.len(), paths.len(), "{before:?}");
    assert!(before.iter().any(|it| it["path"] == "/f0"), "{before:?}");
    let for_xargs = cluster.skep(&["target", "files", &old[0], "--null"]);
    let mut for_xargs: Vec<&str> = for_xargs.trim_end_matches('\0').split('\0').collect();
    for_xargs.sort_unstable();
    assert_eq!(for_xargs, ["/f0", "/f1", "/f2", "/f3", "/f4", "/f5"]);
    let late = cluster.path().join("late");
    create_wide(&late);
    files::write(&late, "late");
    wait_for("metadata selects targets by the new cluster map", PATIENCE, || {
        let new = cluster.path().join("again");
        create_wide(&new);
        let width = cluster.entry_info(&new).first_component().targets().len();
        files::remove_file(&new);
        (width == 2).then_some(())
    });
    let refused = refusal(&cluster, &["target", "remove", &old[0]]);
    assert!(refused.contains("files lie on the target, and "), "{refused}");

    // Empty the targets as the error of `target remove` recommends: copy each file, and rename the
    // copy over the original.
    for path in paths.iter().chain([&late]) {
        let new = path.with_extension("new");
        run("cp", [path, &new].map(|it| it.display().to_string()));
        finish(Command::new("mv").arg(&new).arg(path), PATIENCE).expect_success();
    }
    for id in &old {
        let served = refusal(&cluster, &["target", "remove", "--dry-run", id]);
        assert!(served.contains("rack2-old serves this target"), "{served}");
        assert_eq!(listed(id), Vec::<serde_json::Value>::new());
    }

    let stopped = cluster.processes("storage").into_iter();
    let mut stopped = stopped.filter(|it| it.arguments.iter().any(|it| it.contains("storage-2")));
    let stopped = stopped.next().expect("the second storage service runs");
    stopped.signal(Signal::STOP);
    wait_for("management misses the heartbeats of the service", PATIENCE, || {
        cluster.skep(&["node", "list"]).contains("Offline").then_some(())
    });
    for id in &old {
        let can = cluster.skep(&["target", "remove", "--dry-run", id]);
        assert!(can.contains("can be removed"), "{can}");
        let removed = cluster.skep(&["target", "remove", id]);
        assert!(removed.contains("is removed"), "{removed}");
    }
    cluster.skep(&["node", "remove", node]);
    assert!(!cluster.skep(&["node", "list"]).contains(node));
    assert!(cluster.skep(&["health", "check"]).contains("The cluster is healthy"));
    for path in &paths {
        assert_eq!(files::read_to_string(path), path.display().to_string().repeat(100_000));
    }
    stopped.signal(Signal::CONT);
    cluster.kill_all();
}
