//! Tests of the checks of the hosts' facts.

use super::*;
use crate::facts::tests::fresh;
use crate::hosts::tests::GOOD;

pub(crate) fn program() -> Program {
    Program { path: "/usr/bin/skep".into(), hash: "new".into(), machine: "x86_64" }
}

/// Returns the result of the checks of fresh hosts. Before the checks, `change` changes the facts
/// about the host `s1`.
fn judged(change: impl FnOnce(&mut Facts)) -> Verdict {
    let deployment = Deployment::parse(GOOD).unwrap();
    let mut facts: BTreeMap<String, Facts> = BTreeMap::new();
    for host in &deployment.hosts {
        facts.insert(host.name.clone(), fresh(&deployment, host));
    }
    change(facts.get_mut("s1").unwrap());
    judge(&deployment, &program(), &facts)
}

#[test]
fn checks_find_no_problem_on_fresh_hosts() {
    let verdict = judged(|_| {});
    assert!(verdict.problems.is_empty() && verdict.warnings.is_empty(), "{verdict:?}");
}

#[test]
fn each_problem_names_its_host_and_a_remedy() {
    let check = |change: &dyn Fn(&mut Facts), words: &[&str]| {
        let verdict = judged(change);
        let [problem] = verdict.problems.as_slice() else { panic!("{verdict:?}") };
        assert_eq!(problem.host, "s1");
        for word in words {
            assert!(problem.problem.contains(word), "{word}: {}", problem.problem);
        }
    };
    let set_data = |facts: &mut Facts, place: &str, what: &str| {
        facts.places.insert(place.into(), Contents::Data(what.into()));
    };
    check(&|it| it.platform.kernel = "5.15.0-1-generic".into(), &["5.15.0", "Linux 5.19"]);
    check(&|it| it.platform.uring_disabled = 2, &["kernel.io_uring_disabled=0"]);
    check(&|it| it.platform.machine = "aarch64".into(), &["aarch64", "--program"]);
    check(&|it| it.platform.memory_kib = 1000, &["512 MiB"]);
    check(&|it| it.platform.has_fuse = false, &["/dev/fuse"]);
    check(&|it| it.platform.missing = vec!["mkfs.xfs".into()], &["xfsprogs"]);
    check(&|it| it.deployed = Some("other".into()), &["'other'", "destroy"]);
    check(&|it| it.program = Some("old".into()), &["/usr/bin/skep", "remove this program"]);
    check(&|it| it.token = Some(false), &["/etc/skep/token"]);
    check(&|it| it.foreign.extend([Role::Storage]), &["/srv/skep/storage"]);
    check(&|it| it.listening.extend([7420]), &["port 7420", "stop that program"]);
    check(&|it| it.mount = Some(false), &["/scratch", "mount.point"]);
    check(
        &|it| set_data(it, "/dev/nvme1n1", "the disk holds ext4"),
        &["/dev/nvme1n1", "ext4", "wipefs"],
    );
    check(
        &|it| set_data(it, "/data/skep", "the directory is not empty"),
        &["/data/skep", "empty directory"],
    );
    check(
        &|it| drop(it.places.insert("/dev/nvme1n1".into(), Contents::Missing)),
        &["no block device /dev/nvme1n1"],
    );
    let failed = Contents::Failed("a read fails (Input/output error)".into());
    check(
        &|it| drop(it.places.insert("/dev/nvme1n1".into(), failed.clone())),
        &["/dev/nvme1n1 [UUID ", "Input/output error", "umount /srv/skep/disks/nvme1n1"],
    );
    check(&|it| it.clock_offset = -90.0, &["90.0 s behind", "chrony"]);
}

/// An initialisation would make a new, empty target in the place of the lost one.
#[test]
fn lost_target_prevents_new_settings_of_its_service() {
    let lose = |facts: &mut Facts| drop(facts.places.insert("/data/skep".into(), Contents::Lost));
    let verdict = judged(lose);
    let [problem] = verdict.problems.as_slice() else { panic!("{verdict:?}") };
    for word in ["/data/skep", "mount the disk", "skep storage --init --config /etc/skep/storage-"]
    {
        assert!(problem.problem.contains(word), "{word}: {}", problem.problem);
    }
    let deployment = Deployment::parse(GOOD).unwrap();
    let hash = config_hash(&deployment, deployment.host("s1").unwrap(), Role::Storage);
    let verdict = judged(|facts| {
        lose(facts);
        facts.configs.insert(Role::Storage, hash);
    });
    assert!(verdict.problems.is_empty(), "{verdict:?}");
    assert_eq!(verdict.warnings.len(), 1, "{verdict:?}");
}

/// An administrator has already tuned the host with `skep tune apply`. If the deployment also tuned
/// the host, its removal could not restore the values from before the deployment.
#[test]
fn host_that_was_tuned_by_hand_is_not_tuned_again() {
    let found = |text: &str| {
        let deployment = Deployment::parse(text).unwrap();
        let host = deployment.host("s1").unwrap();
        let facts = Facts { tuning: Tuning::ByHand, ..fresh(&deployment, host) };
        judge(&deployment, &program(), &[("s1".to_owned(), facts)].into()).problems
    };
    assert!(found(GOOD).is_empty());
    let problems = found(&format!("tune = true{GOOD}"));
    assert!(problems[0].problem.contains("`skep tune undo`"), "{problems:?}");
}

#[test]
fn existing_installation_of_the_same_cluster_is_accepted() {
    let verdict = judged(|it| {
        it.deployed = Some("scratch".into());
        it.program = Some("old".into());
        it.program_is_ours = true;
        it.token = Some(true);
        it.running.insert(Role::Storage, crate::facts::Running::Current);
        it.listening.extend([7420]);
        it.mount = Some(true);
        it.places.insert("/dev/nvme1n1".into(), Contents::Ours);
        it.clock_offset = 2.0;
    });
    assert!(verdict.problems.is_empty(), "{verdict:?}");
    assert_eq!(verdict.warnings.len(), 1, "{verdict:?}");
}

#[test]
fn hosts_must_reach_the_services_of_all_other_hosts() {
    let deployment = Deployment::parse(GOOD).unwrap();
    let host = deployment.host("s1").unwrap();
    let peers = peers(&deployment, host);
    assert_eq!(peers.iter().map(|peer| peer.port).collect::<Vec<_>>(), [7400, 7410]);
    assert!(reach_script(&peers).contains("\n10.0.0.1 7400\n10.0.0.1 7410\nEND"));
    let output = "10.0.0.1 7410 No route to host\nnoise\n";
    let problems = judge_reach(host, &peers, output);
    let [problem] = problems.as_slice() else { panic!("{problems:?}") };
    for word in ["metadata on m1", "10.0.0.1:7410", "No route to host", "firewalls"] {
        assert!(problem.problem.contains(word), "{}", problem.problem);
    }
}

#[test]
fn kernel_of_rhel_9_gives_a_warning_and_no_problem() {
    let verdict = judged(|it| it.platform.kernel = "5.14.0-427.13.1.el9_4.x86_64".into());
    assert!(verdict.problems.is_empty(), "{verdict:?}");
    assert!(verdict.warnings[0].problem.contains("RHEL 9"), "{verdict:?}");
}

#[test]
fn kernel_releases_are_compared_by_number() {
    assert_eq!(kernel("5.14.0-427.13.1.el9_4.x86_64"), Some((5, 14)));
    assert_eq!(kernel("6.18.44-fc-v669"), Some((6, 18)));
    assert_eq!(kernel("x"), None);
    assert!((6, 1) > OLDEST_KERNEL && (5, 4) < OLDEST_KERNEL);
}

/// A host of a large cluster has thousands of peers, and each connection is a process.
#[test]
fn connections_to_peers_are_tried_in_bounded_rounds() {
    let peer = |port: u16| Peer {
        name: "m1".into(),
        role: Role::Metadata,
        address: "10.0.0.1".into(),
        port,
    };
    let peers: Vec<_> = (1..=250).map(peer).collect();
    let stubs =
        "fake() { echo 'fake: no route'; return 1; }\nwait() { echo wait; command wait; }\n";
    let script = reach_script(&peers).replace("timeout 5 bash", "fake");
    let shell =
        std::process::Command::new("sh").args(["-c", &(stubs.to_owned() + &script)]).output();
    let text = String::from_utf8(shell.unwrap().stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let ends: Vec<_> = (0..lines.len()).filter(|at| lines[*at] == "wait").collect();
    assert_eq!((ends.len(), lines.len()), (3, 253), "{text}");
    // Only two rounds begin before the second round has ended.
    assert!(ends[1] <= 201, "{ends:?}");
    assert!(lines.contains(&"10.0.0.1 250 no route"), "{text}");
}
