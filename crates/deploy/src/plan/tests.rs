//! Tests of the plans of deployments.

#[path = "tests/upgrades.rs"]
mod upgrades;

use super::*;
use crate::checks::tests::program;
use crate::cluster::tests::{group, led_by};
use crate::facts::tests::fresh;
use crate::hosts::Place;
use crate::hosts::tests::{GOOD, SEVERAL};

fn facts(deployment: &Deployment) -> AllFacts {
    let hosts = deployment.hosts.iter();
    let hosts = hosts.map(|host| (host.name.clone(), fresh(deployment, host))).collect();
    AllFacts { hosts, cluster: None }
}

/// Returns the facts about all hosts of a complete cluster.
fn complete(deployment: &Deployment) -> AllFacts {
    let mut all = facts(deployment);
    for host in &deployment.hosts {
        let facts = all.hosts.get_mut(&host.name).unwrap();
        facts.deployed = Some(deployment.cluster.clone());
        facts.program = Some(program().hash);
        facts.program_is_ours = true;
        facts.token = Some(true);
        facts.token_addresses = deployment.management_addresses();
        facts.fstab = fstab_hash(deployment, host);
        facts.is_formatted = true;
        facts.mount = host.has(Role::Client).then_some(true);
        for role in host.services() {
            facts.initialised.insert(role);
            facts.running.insert(role, Running::Current);
            facts.configs.insert(role, config_hash(deployment, host, role));
            facts.platform.drop_ins.extend(units::drop_in_hash(host, role).map(|it| (role, it)));
        }
        for disk in &host.disks {
            facts.places.insert(disk.device.clone(), Contents::Mounted);
        }
    }
    all
}

/// Returns one line for each step, with the phase, the host and the step.
fn lines(phases: &[Phase]) -> Vec<String> {
    let mut lines = Vec::new();
    for phase in phases {
        for host in &phase.hosts {
            let line = |action| format!("{}: {}: {action}", phase.name, host.host);
            lines.extend(host.actions.iter().map(line));
        }
    }
    lines
}

/// The steps that verify a complete cluster of the hosts file [`GOOD`].
const VERIFY: [&str; 4] = [
    "health: m1: wait until the cluster is healthy",
    "verify: write: s1: write a file through the mount",
    "verify: read: s1: read the file through the mount",
    "verify: remove: s1: remove the file",
];

#[test]
fn fresh_hosts_get_all_steps_in_their_order() {
    let deployment = Deployment::parse(GOOD).unwrap();
    let phases = apply(&deployment, &program(), &facts(&deployment));
    let expected = [
        "install: m1: install the program",
        "install: m1: write the configuration and the systemd units",
        "install: s1: install the program",
        "install: s1: write the configuration and the systemd units",
        "install: s1: format /dev/nvme1n1 for storage",
        "install: s1: format /dev/mapper/data for storage",
        "install: s1: mount the disks",
        "management: m1: initialise management",
        "management: m1: start management",
        "join: m1: write the token",
        "join: m1: initialise metadata",
        "join: m1: start metadata",
        "join: s1: write the token",
        "join: s1: initialise storage",
        "join: s1: start storage",
        "format: m1: format the cluster",
        VERIFY[0],
        "monitor: m1: start monitor",
        "mount: s1: mount the cluster",
        VERIFY[1],
        VERIFY[2],
        VERIFY[3],
    ];
    assert_eq!(lines(&phases), expected);
    assert_eq!(count(&phases), expected.len());
}

#[test]
fn complete_cluster_is_only_verified() {
    let deployment = Deployment::parse(GOOD).unwrap();
    let steps = lines(&apply(&deployment, &program(), &complete(&deployment)));
    assert_eq!(steps, VERIFY);
}

#[test]
fn interrupted_run_continues_at_the_missing_step() {
    let deployment = Deployment::parse(GOOD).unwrap();
    let mut all = complete(&deployment);
    let s1 = all.hosts.get_mut("s1").unwrap();
    s1.initialised.clear();
    s1.running.clear();
    s1.mount = None;
    s1.places.insert("/dev/nvme1n1".into(), Contents::Ours);
    let steps = lines(&apply(&deployment, &program(), &all));
    let expected = [
        "install: s1: mount the disks",
        "join: s1: initialise storage",
        "join: s1: start storage",
        VERIFY[0],
        "mount: s1: mount the cluster",
    ];
    assert_eq!(steps[..5], expected);
}

#[test]
fn new_target_restarts_only_its_own_service() {
    let deployment = Deployment::parse(GOOD).unwrap();
    let all = complete(&deployment);
    let extended = GOOD.replace("[\"/data/skep\"]", "[\"/data/skep\", \"/data/more\"]");
    let extended = Deployment::parse(&extended).unwrap();
    let steps = lines(&apply(&extended, &program(), &all));
    let expected = [
        "install: s1: write the configuration and the systemd units",
        "join: s1: stop storage",
        "join: s1: initialise storage",
        "join: s1: start storage",
    ];
    assert_eq!(steps[..4], expected);
    assert!(!steps.iter().any(|step| step.contains("m1: stop")), "{steps:?}");
}

#[test]
fn monitor_moves_and_stops_as_the_hosts_file_requests() {
    let deployment = Deployment::parse(GOOD).unwrap();
    let all = complete(&deployment);
    let of_monitor = |text: &str| {
        let changed = Deployment::parse(text).unwrap();
        let mut steps = lines(&apply(&changed, &program(), &all));
        steps.retain(|it| it.starts_with("monitor:") || it.contains("configuration"));
        steps
    };
    let started_again = |host: &str| {
        [
            format!("install: {host}: write the configuration and the systemd units"),
            "monitor: m1: stop monitor".to_owned(),
            format!("monitor: {host}: start monitor"),
        ]
    };
    let moved = GOOD.replace("[\"client\",", "[\"client\", \"monitor\",");
    assert_eq!(of_monitor(&moved), started_again("s1"));
    assert_eq!(of_monitor(&format!("monitor = false{GOOD}")), ["monitor: m1: stop monitor"]);
    let configured = GOOD.replace("[mount]", "[monitor]\nhistory = \"32 MiB\"\n[mount]");
    assert_eq!(of_monitor(&configured), started_again("m1"));
    let mut stopped = complete(&deployment);
    stopped.hosts.get_mut("m1").unwrap().running.remove(&Role::Monitor);
    let steps = lines(&apply(&deployment, &program(), &stopped));
    assert!(steps.contains(&"monitor: m1: start monitor".to_owned()), "{steps:?}");
    // In a cluster in which no monitor runs, the upgrade starts none.
    let old = stopped.hosts.get_mut("m1").unwrap();
    old.program = Some("old".into());
    let steps = lines(&upgrade(&deployment, &program(), &stopped, false));
    assert!(!steps.iter().any(|it| it.contains("monitor")), "{steps:?}");
}

#[test]
fn hosts_are_tuned_again_only_if_roles_or_targets_change() {
    let of_tuning = |text: &str, present: Tuning| {
        let changed = Deployment::parse(text).unwrap();
        let mut all = complete(&Deployment::parse(GOOD).unwrap());
        all.hosts.get_mut("s1").unwrap().tuning = present;
        let mut steps = lines(&apply(&changed, &program(), &all));
        steps.retain(|it| it.starts_with("tune: s1"));
        steps
    };
    let with = GOOD.replace("domain =", "tune = true\ndomain =");
    let of_s1 = tuning::wanted(Deployment::parse(&with).unwrap().host("s1").unwrap()).unwrap();
    let tune = ["tune: s1: tune the kernel for the roles of the host"];
    assert_eq!(of_tuning(GOOD, Tuning::Unchanged), [""; 0]);
    assert_eq!(of_tuning(GOOD, Tuning::ByHand), [""; 0]);
    assert_eq!(of_tuning(&with, Tuning::Unchanged), tune);
    assert_eq!(of_tuning(&with, Tuning::Ours(of_s1.clone())), [""; 0]);
    assert_eq!(of_tuning(&with, Tuning::Ours("unfinished".into())), tune);
    let more = with.replace("[\"/data/skep\"]", "[\"/data/skep\", \"/data/more\"]");
    assert_eq!(of_tuning(&more, Tuning::Ours(of_s1.clone())), tune);
    let restored = ["tune: s1: restore the previous kernel settings"];
    assert_eq!(of_tuning(GOOD, Tuning::Ours(of_s1)), restored);
}

#[test]
fn disk_with_data_of_the_cluster_is_never_formatted_again() {
    let deployment = Deployment::parse(GOOD).unwrap();
    let phases = apply(&deployment, &program(), &complete(&deployment));
    let formats = |phases: &[Phase]| lines(phases).iter().any(|it| it.contains("format /dev"));
    assert!(!formats(&phases));
}

/// The facts omit the configuration file of a service until the directories of the service are
/// initialised with this file.
#[test]
fn unfinished_change_of_settings_restarts_the_service() {
    let deployment = Deployment::parse(GOOD).unwrap();
    let mut all = complete(&deployment);
    all.hosts.get_mut("s1").unwrap().configs.remove(&Role::Storage);
    let steps = lines(&apply(&deployment, &program(), &all));
    let expected = [
        "install: s1: write the configuration and the systemd units",
        "join: s1: stop storage",
        "join: s1: initialise storage",
        "join: s1: start storage",
    ];
    assert_eq!(steps[..4], expected);
}

#[test]
fn apply_rewrites_units_that_differ_from_the_program() {
    let deployment = Deployment::parse(GOOD).unwrap();
    let mut all = complete(&deployment);
    let s1 = all.hosts.get_mut("s1").unwrap();
    (s1.platform.has_systemd, s1.platform.has_old_units) = (true, true);
    let written = "install: s1: write the systemd units";
    let steps = lines(&apply(&deployment, &program(), &all));
    assert_eq!(steps, [&[written][..], &VERIFY[..]].concat(), "no service restarts");
    let s1 = all.hosts.get_mut("s1").unwrap();
    s1.platform.has_old_units = false;
    let own = s1.platform.drop_ins.insert(Role::Storage, "other".into()).unwrap();
    assert_eq!(lines(&apply(&deployment, &program(), &all)), steps, "disks.conf was edited");
    let s1 = all.hosts.get_mut("s1").unwrap();
    s1.platform.drop_ins.insert(Role::Storage, own);
    s1.program = Some("old".into());
    assert_eq!(lines(&apply(&deployment, &program(), &all)), VERIFY, "it runs services");
    all.hosts.get_mut("s1").unwrap().running.clear();
    let steps = lines(&apply(&deployment, &program(), &all));
    assert_eq!(steps[..2], ["install: s1: install the program", written]);
}

#[test]
fn removal_unmounts_first_and_stops_management_last() {
    let deployment = Deployment::parse(GOOD).unwrap();
    let steps = lines(&remove(&deployment, &["m1".into(), "s1".into()], true));
    let expected = [
        "unmount: s1: unmount the cluster",
        "stop: m1: stop monitor",
        "stop: s1: stop storage",
        "stop: m1: stop metadata",
        "stop: m1: stop management",
        "remove: m1: remove all files and services of Skep",
        "remove: s1: remove all files and services of Skep",
    ];
    assert_eq!(steps, expected);
}

#[test]
fn plan_for_an_added_host_starts_no_service_of_other_hosts() {
    let deployment = Deployment::parse(GOOD).unwrap();
    let mut all = complete(&deployment);
    all.hosts.insert("s1".into(), fresh(&deployment, deployment.host("s1").unwrap()));
    all.hosts.get_mut("m1").unwrap().running.remove(&Role::Metadata);
    let steps = lines(&only(apply(&deployment, &program(), &all), "s1"));
    assert!(!steps.iter().any(|step| step.contains("m1: start")), "{steps:?}");
    assert!(steps.contains(&"join: s1: start storage".to_owned()), "{steps:?}");
    assert!(steps.contains(&VERIFY[0].to_owned()), "{steps:?}");
}

/// Returns the facts about a complete cluster of the hosts file [`SEVERAL`]. The hosts `voters` run
/// its management nodes, and the first of them leads.
fn complete_several(voters: &[&str]) -> (Deployment, AllFacts) {
    let deployment = Deployment::parse(SEVERAL).unwrap();
    let mut all = complete(&deployment);
    let groups = vec![group(4, &[("a1", "/nvme0/skep"), ("a2", "/nvme0/skep")])];
    all.cluster = Some(Cluster { copies: 2, groups, ..led_by(voters) });
    (deployment, all)
}

/// Returns the steps of the phases with these names.
fn of_phases(phases: &[Phase], names: &[&str]) -> Vec<String> {
    let mut steps = lines(phases);
    steps.retain(|step| names.iter().any(|name| step.starts_with(&format!("{name}: "))));
    steps
}

#[test]
fn further_management_nodes_join_one_after_the_other() {
    let deployment = Deployment::parse(SEVERAL).unwrap();
    let phases = apply(&deployment, &program(), &facts(&deployment));
    let expected = [
        "management: a1: initialise management",
        "management: a1: start management",
        "management: a2: write the token",
        "management: a2: initialise a further management node",
        "management: a2: start management",
        "management: a2: make the node a member of management",
        "management: a3: write the token",
        "management: a3: initialise a further management node",
        "management: a3: start management",
        "management: a3: make the node a member of management",
        "copies: a1: set the number of copies of metadata to 2",
        "join: a1: write the token",
        "join: a1: initialise metadata",
        "join: a1: start metadata",
        "join: a2: initialise metadata",
        "join: a2: start metadata",
    ];
    let names = ["management", "copies", "join", "format", "health"];
    let steps = of_phases(&phases, &names);
    assert_eq!(steps[..expected.len()], expected);
    let expected = [
        "format: a1: create a metadata group of a1:/nvme0/skep, a2:/nvme0/skep",
        "format: a1: format the cluster",
        "health: a1: wait until the cluster is healthy",
        "health: a1: wait until all copies of metadata and management are complete",
    ];
    assert_eq!(steps[steps.len() - 4..], expected);
    let of_management = phases.iter().filter(|phase| phase.name == "management");
    assert!(of_management.clone().all(|phase| phase.hosts.len() == 1));
    assert_eq!(of_management.count(), 3);
}

#[test]
fn complete_cluster_with_copies_is_only_verified() {
    let (deployment, all) = complete_several(&["a1", "a2", "a3"]);
    let steps = lines(&apply(&deployment, &program(), &all));
    assert_eq!(steps, ["health: a1: wait until the cluster is healthy"]);
    // Without an answer from management, the plan has no list of the management nodes. The plan
    // then has the step for all nodes, and the step changes nothing for a node that is already a
    // member.
    let unknown = AllFacts { cluster: None, ..all };
    let steps = lines(&apply(&deployment, &program(), &unknown));
    assert!(steps.contains(&"management: a3: make the node a member of management".to_owned()));
    assert!(!steps.iter().any(|step| step.contains("initialise")), "{steps:?}");
}

#[test]
fn initialised_management_node_that_is_no_member_joins() {
    let (deployment, mut all) = complete_several(&["a1", "a2", "a3"]);
    all.cluster.as_mut().unwrap().nodes[1].role = "none".into();
    let steps = of_phases(&apply(&deployment, &program(), &all), &["management", "join"]);
    assert_eq!(steps, ["management: a2: make the node a member of management"]);
    // An interrupted initialisation may have registered a node whose directory is incomplete.
    all.hosts.get_mut("a2").unwrap().initialised.remove(&Role::Management);
    all.hosts.get_mut("a2").unwrap().running.remove(&Role::Management);
    let steps = of_phases(&apply(&deployment, &program(), &all), &["management", "join"]);
    let expected = [
        "management: a1: remove the management node of a2 [ID: 2]",
        "management: a2: initialise a further management node",
        "management: a2: start management",
        "management: a2: make the node a member of management",
    ];
    assert_eq!(steps, expected);
}

/// The plan must not initialise a new cluster on the first host of the file while other hosts still
/// have management nodes.
#[test]
fn reinstalled_first_management_host_joins_the_cluster() {
    let (deployment, mut all) = complete_several(&["a2", "a3"]);
    all.hosts.insert("a1".into(), fresh(&deployment, deployment.host("a1").unwrap()));
    let steps = lines(&apply(&deployment, &program(), &all));
    assert!(!steps.iter().any(|step| step.ends_with("initialise management")), "{steps:?}");
    let expected = "management: a1: initialise a further management node";
    assert!(steps.contains(&expected.to_owned()), "{steps:?}");
    assert!(steps.contains(&"health: a2: wait until the cluster is healthy".to_owned()));
}

#[test]
fn one_management_node_becomes_three_in_a_running_cluster() {
    let (deployment, mut all) = complete_several(&["a1"]);
    for name in ["a2", "a3"] {
        let facts = all.hosts.get_mut(name).unwrap();
        facts.initialised.remove(&Role::Management);
        facts.running.remove(&Role::Management);
    }
    for facts in all.hosts.values_mut() {
        facts.token_addresses = vec!["10.0.0.1:7400".into()];
    }
    let steps = of_phases(&apply(&deployment, &program(), &all), &["management", "join"]);
    let management = steps.iter().filter(|step| step.starts_with("management: "));
    assert_eq!(management.count(), 8, "{steps:?}");
    let tokens: Vec<_> = steps.iter().filter(|step| step.contains("write the token")).collect();
    assert_eq!(tokens.len(), deployment.hosts.len(), "{tokens:?}");
    assert!(!steps.iter().any(|step| step.contains(": stop ")), "{steps:?}");
}

#[test]
fn new_addresses_of_management_reach_the_fstab_of_clients() {
    let text = SEVERAL.replace("[\"storage\"]", "[\"storage\", \"client\"]");
    let one = text.replacen("\"management\", \"metadata\"", "\"metadata\"", 2);
    let all = complete(&Deployment::parse(&one).unwrap());
    let deployment = Deployment::parse(&text).unwrap();
    let steps = of_phases(&apply(&deployment, &program(), &all), &["install"]);
    let configured = |host: &str| {
        let step = format!("install: {host}: write the configuration and the systemd units");
        steps.contains(&step)
    };
    assert!(["s1", "s2", "s3"].into_iter().all(configured), "{steps:?}");
}

#[test]
fn node_leaves_management_if_its_host_loses_the_role() {
    let moved = SEVERAL.replacen("\"management\", \"metadata\"", "\"metadata\"", 1);
    let moved = moved.replacen("[\"storage\"]", "[\"management\", \"storage\"]", 1);
    let deployment = Deployment::parse(&moved).unwrap();
    let (_, all) = complete_several(&["a1", "a2", "a3"]);
    let steps = of_phases(&apply(&deployment, &program(), &all), &["management", "retire"]);
    let expected = [
        "management: s1: write the token",
        "management: s1: initialise a further management node",
        "management: s1: start management",
        "management: s1: make the node a member of management",
        "retire: a1: stop management",
        "retire: a2: remove the management node of a1 [ID: 1]",
        "retire: a1: remove the directory of management",
    ];
    assert_eq!(steps, expected);
}

#[test]
fn group_with_too_few_members_gets_another_member() {
    let (deployment, mut all) = complete_several(&["a1", "a2", "a3"]);
    let cluster = all.cluster.as_mut().unwrap();
    cluster.copies = 1;
    cluster.groups[0].members.truncate(1);
    let phases = apply(&deployment, &program(), &all);
    let expected = [
        "copies: a1: set the number of copies of metadata to 2",
        "copies: a1: give metadata group 4 a copy on a2:/nvme0/skep",
    ];
    assert_eq!(of_phases(&phases, &["copies", "format"]), expected);
    // The steps for another host are left out when one host is added.
    let of_one = only(phases.clone(), "a2");
    assert_eq!(of_phases(&of_one, &["copies"]), expected);
    assert_eq!(of_phases(&only(phases, "s1"), &["copies"]), expected[..1]);
    let place = Place { host: "a2".into(), path: "/nvme0/skep".into() };
    assert_eq!(group_plan(&deployment, &all).unwrap().added, [(4, place)]);
}

#[test]
fn upgrade_restarts_the_leader_of_management_last() {
    let (deployment, mut all) = complete_several(&["a1", "a2", "a3"]);
    for facts in all.hosts.values_mut() {
        facts.program = Some("old".into());
    }
    let phases = upgrade(&deployment, &program(), &all, false);
    let steps = of_phases(&phases, &["restart"]);
    let started: Vec<_> = steps.iter().filter(|step| step.contains("start management")).collect();
    let expected = ["a2", "a3", "a1"].map(|host| format!("restart: {host}: start management"));
    assert_eq!(started, expected.iter().collect::<Vec<_>>());
}
