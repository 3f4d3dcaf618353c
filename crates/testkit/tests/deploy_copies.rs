//! `skep deploy` and clusters without a single point of failure: three management nodes and two
//! copies of metadata. The tests deploy such clusters, and convert other clusters to such clusters.
//! The program `deploy` has the tests of other clusters.

use serde_json::Value;
use skep_testkit::deploy_site::{DeploySite, LOAD, MANAGEMENT, client, storage};
use skep_testkit::{PATIENCE, schema, wait_for};
use std::time::{Duration, Instant};

/// Number of files in a metadata store that a group copies during an upgrade.
const FILES: usize = 10_000;
/// Time for which an upgrade waits for a copy at the slowest rate. After this time, the test raises
/// the rate.
const WAIT_FOR_COPY: Duration = Duration::from_secs(3);

/// Returns the entry of a host that runs management and serves metadata.
fn server(name: &str, address: u8) -> String {
    format!(
        "[[host]]\nname = \"{name}\"\naddress = \"10.0.0.{address}\"\n\
         roles = [\"management\", \"metadata\"]\nmetadata_directories = [\"/nvme0/skep\"]\n"
    )
}

/// Runs a command of `skep deploy` that succeeds, and returns its JSON output.
fn outcome(site: &DeploySite, arguments: &str) -> Value {
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

/// Returns the names of the hosts whose management node votes, and checks that one of these nodes
/// leads.
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
fn cluster_continues_without_the_host_of_the_management_leader() {
    let mut site = DeploySite::new(&["a1", "a2", "a3", "s1", "s2", "c1"]);
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
    assert!(refused.contains("the 2 other management nodes would survive fewer"), "{refused}");

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

    // The deployment restarts the services, and then upgrades the services while the load
    // continues.
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

/// Upgrades all hosts while a member of a metadata group gets its copy at the slowest rate. Checks
/// that the upgrade first waits for this copy. Raises the rate when the upgrade has waited for a
/// while.
fn upgrade_during_a_copy(site: &DeploySite) {
    site.admin.run("cp /usr/bin/skep ~root/newer; echo >>~root/newer").expect_success();
    std::thread::scope(|scope| {
        let upgrading =
            scope.spawn(|| site.deploy("upgrade --program ~root/newer 2>~root/progress"));
        // This step of the upgrade comes immediately before the first wait for copies.
        wait_for("the upgrade has found a healthy cluster", PATIENCE, || {
            let progress = site.admin.run("cat ~root/progress").stdout;
            progress.contains("wait until the cluster is healthy").then_some(())
        });
        let began = Instant::now();
        wait_for("the upgrade waits for the copy", PATIENCE, || {
            (began.elapsed() >= WAIT_FOR_COPY).then_some(())
        });
        site.run_on("m1", "skep config set metadata-copy-rate 67108864").expect_success();
        upgrading.join().expect("no panic").expect_success();
    });
    let progress = site.admin.run("cat ~root/progress").expect_success();
    println!("{progress}");
    let wait = "wait until all copies of metadata and management are complete";
    let first = progress.lines().find(|line| line.contains(wait)).expect("the upgrade waits");
    // The line ends with the duration of the step: `(3.1 s)`.
    let seconds = first.rsplit_once('(').and_then(|(_, end)| end.strip_suffix(" s)"));
    let seconds = seconds.and_then(|it| it.parse::<f64>().ok());
    assert!(seconds.is_some_and(|it| it > 2.0), "{first}");
}

/// While a member of a metadata group gets its copy, the only complete member must not stop. After
/// the upgrade, the cluster gets two further management nodes, and one new node moves to another
/// host.
///
/// Command: skep deploy upgrade, skep deploy apply.
#[test]
fn upgrade_waits_until_a_member_has_its_copy_of_metadata() {
    let mut site = DeploySite::new(&["m1", "s1", "c1", "a2"]);
    let s1 = storage("s1", 2, "storage_directories = [\"/disk1/skep\"]");
    let base = [MANAGEMENT, &s1, &client("c1", 3)].concat();
    site.write(&base);
    site.deploy("apply").expect_success();
    let many =
        format!("for number in $(seq {FILES}); do : >/mnt/skep/$number; done; sync /mnt/skep/1");
    site.host("c1").run(&many).expect_success();
    // At the slowest rate, the copy does not end before the upgrade waits for this copy.
    let settings = "skep config set metadata-copies 2 && skep config set metadata-copy-rate 65536";
    site.host("m1").run(settings).expect_success();
    let second = "[[host]]\nname = \"a2\"\naddress = \"10.0.0.4\"\nroles = [\"metadata\"]\n\
                  metadata_directories = [\"/nvme0/skep\"]\n";
    site.write(&format!("{base}{second}"));
    site.deploy("add a2").expect_success();
    let m1 = site.host("m1");
    let list = |noun: &str| -> Value {
        let text = m1.run(&format!("skep {noun} list --output json")).expect_success();
        serde_json::from_str(&text).expect("one JSON value")
    };
    let metadata_group = || {
        let groups = list("group");
        let groups = groups.as_array().expect("a list").clone();
        groups.into_iter().find(|it| it["kind"] == "metadata").expect("a metadata group")
    };
    let targets = list("target");
    let is_new = |it: &&Value| it["kind"] == "metadata" && it["group"].is_null();
    let new = targets.as_array().expect("a list").iter().find(is_new).expect("a new target");
    let add = format!("skep group add {} {}", metadata_group()["id"], new["id"]);
    m1.run(&add).expect_success();

    upgrade_during_a_copy(&site);
    let groups = site.host("m1").run("skep group list --output json").expect_success();
    let groups: Value = serde_json::from_str(&groups).expect("one JSON value");
    let group = groups.as_array().expect("a list").iter().find(|it| it["kind"] == "metadata");
    let members = group.expect("a metadata group")["members"].as_array().expect("members");
    assert_eq!(members.len(), 2, "{members:?}");
    assert!(members.iter().all(|it| it["state"] == "Serving"), "{members:?}");
    let found = site.host("c1").run("ls /mnt/skep | wc -l").expect_success();
    assert_eq!(found.trim(), FILES.to_string());
    management_grows_and_moves(&mut site, &format!("{base}{second}"));
}

/// Adds two management nodes to a running cluster that has one management node. Then moves one of
/// the new nodes to the host `c1`. `hosts` describes the hosts `m1`, `s1`, `c1` and `a2`.
fn management_grows_and_moves(site: &mut DeploySite, hosts: &str) {
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
    assert_eq!(found.trim(), FILES.to_string());
}
