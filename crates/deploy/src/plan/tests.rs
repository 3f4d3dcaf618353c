//! Tests of the plans of deployments.

use super::*;
use crate::checks::tests::program;
use crate::facts::tests::fresh;
use crate::hosts::tests::GOOD;

fn facts(deployment: &Deployment) -> AllFacts {
    deployment.hosts.iter().map(|host| (host.name.clone(), fresh(deployment, host))).collect()
}

/// Returns the facts about all hosts of a complete cluster.
fn complete(deployment: &Deployment) -> AllFacts {
    let mut all = facts(deployment);
    for host in &deployment.hosts {
        let facts = all.get_mut(&host.name).unwrap();
        facts.deployed = Some(deployment.cluster.clone());
        facts.program = Some(program().hash);
        facts.program_is_ours = true;
        facts.token = Some(true);
        facts.is_formatted = true;
        facts.mount = host.has(Role::Client).then_some(true);
        for role in host.services() {
            facts.initialised.insert(role);
            facts.running.insert(role, Running::Current);
            facts.configs.insert(role, config_hash(deployment, host, role));
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
    let s1 = all.get_mut("s1").unwrap();
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
    let moved = GOOD.replace("[\"client\",", "[\"client\", \"monitor\",");
    let expected = [
        "install: s1: write the configuration and the systemd units",
        "monitor: m1: stop monitor",
        "monitor: s1: start monitor",
    ];
    assert_eq!(of_monitor(&moved), expected);
    assert_eq!(of_monitor(&format!("monitor = false{GOOD}")), ["monitor: m1: stop monitor"]);
    let mut stopped = complete(&deployment);
    stopped.get_mut("m1").unwrap().running.remove(&Role::Monitor);
    let steps = lines(&apply(&deployment, &program(), &stopped));
    assert!(steps.contains(&"monitor: m1: start monitor".to_owned()), "{steps:?}");
    // In a cluster in which no monitor runs, the upgrade starts none.
    let old = stopped.get_mut("m1").unwrap();
    old.program = Some("old".into());
    let steps = lines(&upgrade(&deployment, &program(), &stopped, false));
    assert!(!steps.iter().any(|it| it.contains("monitor")), "{steps:?}");
}

#[test]
fn disk_with_data_of_the_cluster_is_never_formatted_again() {
    let deployment = Deployment::parse(GOOD).unwrap();
    let phases = apply(&deployment, &program(), &complete(&deployment));
    let formats = |phases: &[Phase]| lines(phases).iter().any(|it| it.contains("format /dev"));
    assert!(!formats(&phases));
}

#[test]
fn upgrade_restarts_one_service_at_a_time() {
    let deployment = Deployment::parse(GOOD).unwrap();
    let mut all = complete(&deployment);
    for facts in all.values_mut() {
        facts.program = Some("old".into());
    }
    let steps = lines(&upgrade(&deployment, &program(), &all, false));
    let members = "health: m1: wait until all copies of metadata and management are complete";
    let expected = [
        VERIFY[0],
        members,
        "install: m1: install the program",
        "install: s1: install the program",
        "restart: s1: stop storage",
        "restart: s1: start storage",
        VERIFY[0],
        members,
        "restart: m1: stop metadata",
        "restart: m1: start metadata",
        VERIFY[0],
        members,
        "restart: m1: stop management",
        "restart: m1: start management",
        VERIFY[0],
        members,
        "restart: m1: stop monitor",
        "restart: m1: start monitor",
    ];
    assert_eq!(steps[..18], expected);
    // After an interrupted upgrade, only services that still run the old program are restarted.
    let mut all = complete(&deployment);
    all.get_mut("m1").unwrap().running.insert(Role::Metadata, Running::Old);
    let steps = lines(&upgrade(&deployment, &program(), &all, true));
    assert_eq!(steps[2..4], ["restart: m1: stop metadata", "restart: m1: start metadata"]);
    assert!(steps.contains(&"remount: s1: unmount the cluster".to_owned()), "{steps:?}");
}

#[test]
fn removal_unmounts_first_and_stops_management_last() {
    let deployment = Deployment::parse(GOOD).unwrap();
    let steps = lines(&remove(&deployment, &["m1".into(), "s1".into()]));
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
fn plan_for_an_added_host_has_only_its_steps() {
    let deployment = Deployment::parse(GOOD).unwrap();
    let mut all = complete(&deployment);
    all.insert("s1".into(), fresh(&deployment, deployment.host("s1").unwrap()));
    all.get_mut("m1").unwrap().running.remove(&Role::Metadata);
    let steps = lines(&only(apply(&deployment, &program(), &all), "s1"));
    assert!(!steps.iter().any(|step| step.contains("m1: start")), "{steps:?}");
    assert!(steps.contains(&"join: s1: start storage".to_owned()), "{steps:?}");
    assert!(steps.contains(&VERIFY[0].to_owned()), "{steps:?}");
}
