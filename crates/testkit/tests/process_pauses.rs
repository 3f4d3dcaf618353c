//! A suspended process logs for how long it stood still, so that its log has the cause of waits.

use skep_testkit::process::Suspended;
use skep_testkit::{Cluster, PATIENCE, Shape, files, wait_for};

/// Page: docs/operations/troubleshooting.md, "this process stood still".
#[test]
fn a_suspended_service_logs_that_it_stood_still() {
    let cluster = Cluster::start(Shape::small());
    let suspended = Suspended::of(cluster.processes("storage"));
    // This takes a lease, which is longer than the shortest time that gets a line.
    wait_for("management misses the heartbeats of storage", PATIENCE, || {
        let nodes = cluster.skep_list(&["node", "list"]);
        let is_missed =
            |it: &serde_json::Value| it["kind"] == "storage" && it["reachability"] != "Online";
        nodes.iter().any(is_missed).then_some(())
    });
    drop(suspended);
    wait_for("the line in the log", PATIENCE, || {
        let log = files::read_to_string(cluster.data().join("logs/storage-1.log"));
        log.contains("WARN this process stood still for ").then_some(())
    });
}
