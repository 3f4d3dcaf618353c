//! After a suspended process resumes, the log of the process states the length of the suspension.
//! So the log explains waits of clients.

use skep_testkit::process::Suspended;
use skep_testkit::{Cluster, PATIENCE, Shape, files, wait_for};

/// Page: docs/operations/troubleshooting.md, "this process did not run".
#[test]
fn resumed_service_logs_how_long_it_was_suspended() {
    let cluster = Cluster::start(Shape::small());
    let suspended = Suspended::of(cluster.processes("storage"));
    // Management reports missing heartbeats after the lease duration. The service logs a suspension
    // of this length.
    wait_for("management misses the heartbeats of storage", PATIENCE, || {
        let nodes = cluster.skep_list(&["node", "list"]);
        let is_missed =
            |it: &serde_json::Value| it["kind"] == "storage" && it["reachability"] != "Online";
        nodes.iter().any(is_missed).then_some(())
    });
    drop(suspended);
    wait_for("the line in the log", PATIENCE, || {
        let log = files::read_to_string(cluster.data().join("logs/storage-1.log"));
        log.contains("WARN this process did not run for ").then_some(())
    });
    cluster.stop_checked(&[]);
}
