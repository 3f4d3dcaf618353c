//! Groups of targets. A metadata target waits for a group, and an administrator creates this group.

use serde_json::Value;
use skep_testkit::program::Finished;
use skep_testkit::schema::check;
use skep_testkit::{PATIENCE, Scratch, cluster, wait_for};
use std::process::{Child, Command, Stdio};

/// Services that the test starts without `skep up`. Dropping this value ends the services.
#[derive(Default)]
struct Services(Vec<Child>);

impl Services {
    fn start(&mut self, arguments: &[&str]) {
        let mut command = Command::new(cluster::program());
        command.args(arguments).stderr(Stdio::null());
        self.0.push(command.spawn().expect("skep can be started"));
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        for service in &mut self.0 {
            let _ = service.kill();
            let _ = service.wait();
        }
    }
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// If the setting `metadata-copies` is above 1, management does not create a group for a new
/// metadata target. The target registers and its service becomes ready, but the target serves only
/// when it is the primary of a group.
///
/// Command: skep group create.
#[test]
fn metadata_target_serves_only_as_a_member_of_a_group() {
    let scratch = Scratch::new();
    let place = |name: &str| scratch.join(name).display().to_string();
    let management = place("m");
    let listen = ["--listen", "127.0.0.1:0"];
    let mut services = Services::default();
    let of_management = ["management", "--directory", &management];
    cluster::skep([&of_management[..], &["--init"], &listen].concat()).expect_success();
    services.start(&of_management);
    let ask = |arguments: &[&str]| -> Finished {
        cluster::skep([arguments, &["--cluster", &management, "--output", "json"]].concat())
    };
    wait_for("management answers", PATIENCE, || {
        ask(&["target", "list"]).status.success().then_some(())
    });
    ask(&["config", "set", "metadata-copies", "2"]).expect_success();
    let token = format!("{management}/join-token");
    for kind in ["metadata", "storage"] {
        let (node, target) = (place(&format!("{kind}-node")), place(&format!("{kind}-target")));
        let service = [kind, "--directory", &node, "--target", &target];
        let service = [&service[..], &listen].concat();
        cluster::skep([&service[..], &["--init", "--token-file", &token]].concat())
            .expect_success();
        services.start(&service);
    }
    let targets = wait_for("both targets are online", PATIENCE, || {
        let targets = parse(&ask(&["target", "list"]).expect_success());
        let is_online = |target: &&Value| target["reachability"] == "Online";
        let online = targets.as_array()?.iter().filter(is_online).count();
        (online == 2).then_some(targets)
    });
    // The list begins with the metadata targets, because their ids are lower than the ids of
    // storage targets.
    let waiting = &targets[0];
    assert_eq!((&waiting["kind"], &waiting["group"]), (&"metadata".into(), &Value::Null));
    assert!(targets[1]["group"].is_number(), "the setting concerns metadata targets only");
    let id = waiting["id"].to_string();

    let health = ask(&["health", "check"]);
    assert_eq!(health.status.code(), Some(1), "{}", health.stdout);
    assert!(health.stdout.contains("waits for a group"), "{}", health.stdout);
    let early = ask(&["cluster", "format"]);
    assert!(!early.status.success());
    assert!(early.stderr.contains(&format!("`skep group create {id}`")), "{}", early.stderr);

    let created = parse(&ask(&["group", "create", &id]).expect_success());
    check("group-create", &created);
    // A repetition of the command has no further effect, and its output states this fact.
    let again = parse(&ask(&["group", "create", &id]).expect_success());
    check("group-create", &again);
    for field in ["id", "target", "targets", "map_version"] {
        assert_eq!(again[field], created[field], "{field}");
    }
    assert!(again["notes"].to_string().contains("nothing was changed"), "{again}");
    let unknown = ask(&["group", "create", "77"]);
    assert!(unknown.stderr.contains("cannot find target '77'"), "{}", unknown.stderr);
    let groups = parse(&ask(&["group", "list"]).expect_success());
    check("group-list", &groups);
    let group = groups.as_array().expect("a list").iter().find(|it| it["id"] == created["id"]);
    let group = group.expect("the new group is in the list");
    assert_eq!((&group["primary"], &group["epoch"]), (&waiting["id"], &1.into()), "{group}");

    ask(&["cluster", "format"]).expect_success();
    // `skep session list` succeeds as soon as the metadata target serves.
    wait_for("the metadata target serves", PATIENCE, || {
        ask(&["session", "list"]).status.success().then_some(())
    });
}
