//! Clusters without a single point of failure: three management nodes and two copies of metadata.

use crate::site::{LOAD, Site, client, storage};
use serde_json::Value;
use skep_testkit::{PATIENCE, schema, wait_for};

/// Returns the entry of a host that runs management and serves metadata.
fn server(name: &str, address: u8) -> String {
    format!(
        "[[host]]\nname = \"{name}\"\naddress = \"10.0.0.{address}\"\n\
         roles = [\"management\", \"metadata\"]\nmetadata_directories = [\"/nvme0/skep\"]\n"
    )
}

/// Runs a command of `skep deploy` that succeeds, and returns its JSON output.
fn outcome(site: &Site, arguments: &str) -> Value {
    let text = site.deploy(&format!("{arguments} --output json")).expect_success();
    let outcome = serde_json::from_str(&text).expect("one JSON value");
    schema::check("deploy", &outcome);
    outcome
}

/// Returns the names of the hosts whose management node has the role `role`.
fn with_role(outcome: &Value, role: &str) -> Vec<String> {
    let nodes = outcome["management"].as_array().expect("a list").iter();
    let nodes = nodes.filter(|node| node["role"] == role);
    nodes.map(|node| node["host"].as_str().expect("a name").to_owned()).collect()
}

/// Returns the names of the hosts whose management node votes, and checks that one of them leads.
fn voters(outcome: &Value) -> Vec<String> {
    let leaders = with_role(outcome, "leader");
    assert_eq!(leaders.len(), 1, "{outcome}");
    let mut voters = [leaders, with_role(outcome, "follower")].concat();
    voters.sort();
    voters
}

/// Returns the members of all metadata groups, each as text with its host and its state.
fn members(outcome: &Value) -> Vec<String> {
    let groups = outcome["metadata_groups"].as_array().expect("a list").iter();
    let members = groups.flat_map(|group| group["members"].as_array().expect("a list"));
    let text = |member: &Value, name: &str| member[name].as_str().expect("a text").to_owned();
    let member = |it: &Value| format!("{} {}", text(it, "host"), text(it, "state"));
    let mut members: Vec<_> = members.map(member).collect();
    members.sort();
    members
}

/// Command: skep deploy plan, skep deploy apply, skep deploy status, skep deploy upgrade.
/// Command: skep deploy remove, skep deploy destroy.
#[test]
fn cluster_continues_without_the_host_of_its_leader() {
    let mut site = Site::new(&["a1", "a2", "a3", "s1", "s2", "c1"]);
    let a3 = "[[host]]\nname = \"a3\"\naddress = \"10.0.0.3\"\nroles = [\"management\"]\n";
    let target = "storage_directories = [\"/disk1/skep\"]";
    let servers = [server("a1", 1), server("a2", 2), a3.to_owned()].concat();
    let others = [storage("s1", 4, target), storage("s2", 5, target), client("c1", 6)].concat();
    site.write_with("copies = 2\nmonitor = false\n", &[servers, others].concat());
    let before = site.contents();

    let planned = outcome(&site, "plan");
    assert_eq!(with_role(&planned, "missing"), ["a1", "a2", "a3"]);
    assert_eq!(members(&planned), ["a1 missing", "a2 missing"]);
    // After 17 steps, the second management node runs. The kill comes before or while `skep deploy`
    // makes this node a member.
    assert!(site.kill_after("apply", 17), "the run was interrupted");
    let applied = site.deploy("apply").expect_success();
    println!("{applied}");
    let status = outcome(&site, "status");
    assert_eq!(voters(&status), ["a1", "a2", "a3"]);
    assert_eq!(members(&status), ["a1 Serving", "a2 Serving"]);
    let addresses = "10.0.0.1:7400,10.0.0.2:7400,10.0.0.3:7400";
    let places = format!("grep -c '{addresses}' /etc/fstab /etc/skep/token");
    let found = site.host("c1").run(&places).expect_success();
    assert_eq!(found, "/etc/fstab:1\n/etc/skep/token:1\n");
    let refused = site.deploy("remove a3 --destroy-data").expect_failure();
    assert!(refused.contains("with 2 management nodes the cluster would stop"), "{refused}");

    site.host("c1").start(LOAD);
    site.await_load("c1");
    let leader = with_role(&status, "leader").remove(0);
    let end = "for file in /run/skep/*.pid; do kill -KILL $(cat $file); done";
    site.host(&leader).run(end).expect_success();
    site.await_load("c1");
    let other = if leader == "a1" { "a2" } else { "a1" };
    let other = site.host(other);
    wait_for("another host leads", PATIENCE, || {
        let status = other.run("skep management status --output json");
        let status: Value = serde_json::from_str(&status.stdout).ok()?;
        let mut nodes = status["nodes"].as_array()?.iter();
        nodes.any(|node| node["role"] == "leader" && node["name"] != leader.as_str()).then_some(())
    });

    // The deployment starts the services again, and then upgrades them while the load goes on.
    site.deploy("apply").expect_success();
    site.admin.run("cp /usr/bin/skep ~root/newer; echo >>~root/newer").expect_success();
    let upgraded = outcome(&site, "upgrade --program ~root/newer");
    let leader = with_role(&upgraded, "leader").remove(0);
    let steps = upgraded["steps"].as_array().expect("a list").iter();
    let restarted: Vec<_> = steps.filter(|it| it["step"] == "start management").collect();
    assert_eq!(restarted.len(), 3, "{upgraded}");
    assert_eq!(restarted[2]["host"], leader.as_str(), "the leader restarts last");
    site.await_load("c1");
    site.end_load("c1");
    site.deploy("destroy --destroy-data").expect_success();
    site.expect_unchanged(&before);
}

/// Gives a running cluster with one management node two more nodes, and then moves one of them to
/// the client `c1`. `hosts` describes the hosts `m1`, `s1`, `c1` and `a2`.
pub(crate) fn management_grows_and_moves(site: &mut Site, hosts: &str) {
    let settings = "copies = 2\n";
    let with = |text: &str, role: &str| {
        let roles = format!("roles = [\"{role}\"]");
        assert_eq!(text.matches(&roles).count(), 1, "{text}");
        text.replace(&roles, &format!("roles = [\"management\", \"{role}\"]"))
    };
    site.write_with(settings, &with(&with(hosts, "storage"), "metadata"));
    site.deploy("apply --program ~root/newer").expect_success();
    let status = outcome(site, "status");
    assert_eq!(voters(&status), ["a2", "m1", "s1"]);
    assert_eq!(members(&status), ["a2 Serving", "m1 Serving"]);

    site.write_with(settings, &with(&with(hosts, "storage"), "client"));
    site.deploy("apply --program ~root/newer").expect_success();
    let status = outcome(site, "status");
    assert_eq!(voters(&status), ["c1", "m1", "s1"]);
    assert_eq!(status["management"].as_array().map(Vec::len), Some(3), "{status}");
    site.host("a2").run("test -e /srv/skep/management").expect_failure();
    let found = site.host("c1").run("ls /mnt/skep | wc -l").expect_success();
    assert_eq!(found.trim(), "10000");
}
