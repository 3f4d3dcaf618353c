//! Tests of the plans of upgrades.

use super::*;

#[test]
fn upgrade_restarts_one_service_at_a_time() {
    let deployment = Deployment::parse(GOOD).unwrap();
    let mut all = complete(&deployment);
    for facts in all.hosts.values_mut() {
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
    all.hosts.get_mut("m1").unwrap().running.insert(Role::Metadata, Running::Old);
    let steps = lines(&upgrade(&deployment, &program(), &all, true));
    assert_eq!(steps[2..4], ["restart: m1: stop metadata", "restart: m1: start metadata"]);
    assert!(steps.contains(&"remount: s1: unmount the cluster".to_owned()), "{steps:?}");
}

#[test]
fn upgrade_starts_services_that_an_earlier_upgrade_stopped() {
    let deployment = Deployment::parse(GOOD).unwrap();
    let mut all = complete(&deployment);
    all.hosts.get_mut("m1").unwrap().running.clear();
    all.hosts.get_mut("s1").unwrap().running.remove(&Role::Storage);
    let steps = lines(&upgrade(&deployment, &program(), &all, false));
    let expected = [
        "start: m1: start management",
        "start: m1: start metadata",
        "start: s1: start storage",
        VERIFY[0],
    ];
    assert_eq!(steps[..4], expected);
    assert!(!steps.iter().any(|step| step.contains("monitor")), "{steps:?}");
}

#[test]
fn upgrade_writes_changed_units_before_it_restarts_services() {
    let deployment = Deployment::parse(GOOD).unwrap();
    let mut all = complete(&deployment);
    for host in &deployment.hosts {
        all.hosts.get_mut(&host.name).unwrap().platform.has_systemd = true;
    }
    let steps = |all: &AllFacts| {
        let mut steps = lines(&upgrade(&deployment, &program(), all, false));
        steps.retain(|it| it.starts_with("install: ") || it.starts_with("restart: "));
        steps
    };
    assert_eq!(steps(&all), Vec::<String>::new());
    // The state after an upgrade that wrote the program, but not the units of its version.
    all.hosts.get_mut("s1").unwrap().platform.has_old_units = true;
    let expected = [
        "install: s1: write the systemd units",
        "restart: s1: stop storage",
        "restart: s1: start storage",
    ];
    assert_eq!(steps(&all), expected);
    all.hosts.get_mut("s1").unwrap().program = Some("old".into());
    assert_eq!(steps(&all)[..2], ["install: s1: install the program", expected[0]]);
    // Without systemd, there are no units.
    let platform = &mut all.hosts.get_mut("s1").unwrap().platform;
    (platform.has_systemd, platform.has_old_units) = (false, false);
    assert_eq!(steps(&all)[1], expected[1]);
    // A new program may have other units.
    all.hosts.get_mut("s1").unwrap().platform.has_systemd = true;
    assert_eq!(steps(&all)[1], expected[0]);
}
