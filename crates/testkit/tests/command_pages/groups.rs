//! Runs the commands on the page about metadata groups in one cluster of separate services. The
//! test also runs some commands on the pages about mounting and about ports: the commands that need
//! management at 10.0.0.1.

use crate::{MOUNTING, in_srv, new_host};
use serde_json::Value;
use skep_testkit::page::{PageHost, PageNetwork, blocks_of};
use skep_testkit::{PATIENCE, wait_for};

const METADATA_GROUPS: &str = include_str!("../../../../docs/operations/metadata-groups.md");
const PORTS: &str = include_str!("../../../../docs/operations/ports.md");

/// Initialises and starts a metadata service, and waits until `online` targets are online.
fn start_metadata(host: &mut PageHost, number: u32, targets: [&str; 2], online: usize) {
    let [first, second] = targets;
    let service = format!(
        "skep metadata --directory /srv/skep/metadata-{number} --listen 10.0.0.1:0 \
         --target {first} --target {second}"
    );
    start_service(host, &service, online);
}

/// Initialises and starts a service, and waits until `online` targets are online.
fn start_service(host: &mut PageHost, service: &str, online: usize) {
    let service = service.trim();
    in_srv(host, &format!("{service} --init --token-file /etc/skep/token"));
    host.start(service);
    wait_for("the targets are online", PATIENCE, || {
        let targets = host.run("skep target list --output ndjson").stdout;
        (targets.matches("\"reachability\":\"Online\"").count() == online).then_some(())
    });
}

/// Waits until a target is a serving member of its group.
fn await_member(host: &PageHost, target: u32) {
    wait_for("the new member serves", PATIENCE, || {
        let groups = host.run("skep group list --output json").stdout;
        let groups: Value = serde_json::from_str(&groups).ok()?;
        let members = groups.as_array()?.iter().flat_map(|group| group["members"].as_array());
        let mut found = members.flatten().filter(|it| it["target"] == target);
        (found.next()?["state"] == "Serving").then_some(())
    });
}

/// A reader of the page about metadata groups starts services between the commands, and the test
/// starts these services, too. The test also runs some commands on the pages about mounting and
/// about ports: the commands that need management at 10.0.0.1.
///
/// Command: skep group create, skep group add, skep group status, skep target add.
/// Command: skep target replace, skep storage, skep mount, skep umount.
#[test]
fn commands_of_the_page_on_metadata_groups_succeed() {
    let network = PageNetwork::new();
    let mut host = new_host(&network);
    start_management(&mut host);
    let blocks = blocks_of(METADATA_GROUPS, "server");
    assert_eq!(blocks.len(), 6, "{blocks:?}");
    let run = |host: &PageHost, number: usize| in_srv(host, &blocks[number].commands);

    run(&host, 0);
    start_metadata(&mut host, 1, ["/nvme0/skep-1", "/nvme0/skep-2"], 2);
    start_metadata(&mut host, 2, ["/disk1/skep-1", "/disk1/skep-2"], 4);
    wait_for("the targets wait for a group", PATIENCE, || {
        let targets = host.run("skep target list").stdout;
        (targets.matches(" Waiting ").count() == 4).then_some(())
    });
    let printed = run(&host, 1);
    for words in [
        "Group 1 consists of targets 1, 3.",
        "Group 2 consists of targets 4, 2.",
        "The namespace is divided over 2 metadata groups",
    ] {
        assert!(printed.contains(words), "{printed}");
    }
    start_storage_as_on_the_page_about_ports(&mut host);
    check_mounts(&host);
    in_srv(&host, &blocks_of(MOUNTING, "client")[0].commands);
    in_srv(&host, "for n in $(seq 50); do mkdir /mnt/skep/d$n; echo $n >/mnt/skep/d$n/f; done");

    run(&host, 2);
    let service = "skep metadata --directory /srv/skep/metadata-3 --listen 10.0.0.1:0 \
         --target /disk3/skep-meta";
    start_service(&mut host, service, 6);
    let printed = run(&host, 3);
    assert!(printed.contains("Target 6 is a member of group 1"), "{printed}");
    for title in ["LAG", "MISSING", "COPY"] {
        assert!(printed.contains(title), "{printed}");
    }
    await_member(&host, 6);
    run(&host, 4);
    let printed = run(&host, 5);
    assert!(printed.contains("Target 7 has the place of target 4 in group 2."), "{printed}");
    in_srv(&host, "cat /mnt/skep/d*/f | sort -n >found; seq 50 | cmp - found");
    in_srv(&host, "skep umount /mnt/skep");
}

/// Starts management at 10.0.0.1, and stores the token.
fn start_management(host: &mut PageHost) {
    let service = "skep management --directory /srv/skep/management";
    in_srv(host, &format!("{service} --init"));
    host.start(service);
    let token = "umask 077; skep cluster token --cluster /srv/skep/management >/etc/skep/token";
    in_srv(host, token);
    wait_for("management replies", PATIENCE, || {
        host.run("skep target list").status.success().then_some(())
    });
}

/// Starts the storage service with the command on the page about ports, and checks that the service
/// has registered both addresses.
fn start_storage_as_on_the_page_about_ports(host: &mut PageHost) {
    in_srv(host, "ip addr add 10.0.0.3/24 dev eth0; ip addr add 10.1.0.3/24 dev eth0");
    let blocks = blocks_of(PORTS, "server");
    assert_eq!(blocks.len(), 1, "{blocks:?}");
    start_service(host, &blocks[0].commands, 5);
    let nodes = in_srv(host, "skep node list");
    assert!(nodes.contains("10.0.0.3:7420") && nodes.contains("10.1.0.3:7420"), "{nodes}");
}

/// Mounts the cluster in each way on the page about mounting.
fn check_mounts(host: &PageHost) {
    for block in blocks_of(MOUNTING, "client") {
        in_srv(host, &block.commands);
        in_srv(host, "echo x >/mnt/skep/file; umount /mnt/skep");
    }
    // Run these lines last, because they use the links that earlier commands of the page create.
    let lines: Vec<_> =
        MOUNTING.lines().filter(|line| line.starts_with("10.0.0.1:7400  /mnt/skep")).collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    for line in lines {
        in_srv(host, &format!("echo '{line}' >/etc/fstab; mount /mnt/skep"));
        let found = in_srv(host, "cat /mnt/skep/file; findmnt -n -o SOURCE /mnt/skep");
        assert_eq!(found, "x\n10.0.0.1:7400\n");
        in_srv(host, "umount /mnt/skep");
    }
}
