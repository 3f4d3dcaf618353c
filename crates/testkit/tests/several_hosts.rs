//! Runs the commands in `docs/operations/several-hosts.md` unchanged. These commands create a
//! cluster on several hosts. In the test, each host has a separate network and root directory.

use serde_json::Value;
use skep_testkit::page::{Block, PageHost, PageNetwork, blocks};
use skep_testkit::{PATIENCE, files, schema, wait_for};
use std::path::Path;

const PAGE: &str = include_str!("../../../docs/operations/several-hosts.md");
const TOKEN: &str = "/etc/skep/token";
const NEW_TOKEN: &str = "/etc/skep/new-token";

fn has(host: &PageHost, path: &str) -> bool {
    host.run(&format!("test -e {path}")).status.success()
}

/// A block of the page has started a service in the background on `host`. Waits until the log of
/// this service shows that the service is ready.
fn await_service(host: &PageHost) {
    await_log(host, " serves ");
}

/// Waits until the log of the newest background command of `host` contains `words`.
fn await_log(host: &PageHost, words: &str) {
    wait_for(words, PATIENCE, || files::read_to_string(host.log()).contains(words).then_some(()));
}

fn run_block(block: &Block, hosts: &mut [PageHost]) {
    for name in &block.hosts {
        let index = hosts.iter().position(|host| host.name() == name.as_str());
        let index = index.unwrap_or_else(|| panic!("the page has an unknown host {name}"));
        // Copy the tokens to all other hosts, as the page asks the reader to do.
        for token in [TOKEN, NEW_TOKEN] {
            if index > 0 && !has(&hosts[index], token) && has(&hosts[0], token) {
                hosts[index].copy_from(&hosts[0], Path::new(token));
            }
        }
        let host = &mut hosts[index];
        if block.stops_others {
            host.stop();
        }
        if block.is_background {
            host.start(&block.commands);
            let is_monitor = block.commands.starts_with("skep monitor");
            await_log(
                host,
                if is_monitor { "the web page of the monitor is at" } else { " serves " },
            );
        } else {
            let printed = host.run(&block.commands).expect_success();
            println!("{name}: {}{printed}", block.commands);
        }
    }
}

/// Waits until the metadata service uses the new token, which takes about a second.
fn await_new_token(management: &PageHost) {
    wait_for("metadata uses the new token", PATIENCE, || {
        management.run("skep transaction list").status.success().then_some(())
    });
}

#[test]
fn every_command_of_the_setup_page_succeeds() {
    let network = PageNetwork::new();
    let mut hosts: Vec<_> = [
        ("management", "10.0.0.1/24"),
        ("metadata-1", "10.0.0.2/24"),
        ("storage-1", "10.0.0.3/24"),
        ("storage-2", "10.0.0.4/24"),
        ("client-1", "10.0.0.9/24"),
        ("metadata-2", "10.0.0.5/24"),
    ]
    .map(|(name, address)| network.host(name, address))
    .into();
    let blocks = blocks(PAGE);
    assert!(blocks.len() > 10, "the page has its commands");
    for block in &blocks {
        run_block(block, &mut hosts);
        if block.commands.contains(&format!("mv {NEW_TOKEN}")) {
            await_new_token(&hosts[0]);
        }
    }
    let targets = hosts[0].run("skep target list").expect_success();
    assert_eq!(targets.matches(" Online ").count(), 7, "{targets}");
    for address in ["10.0.0.2:", "10.0.0.3:", "10.0.0.4:", "10.0.0.5:"] {
        let nodes = hosts[0].run("skep node list").expect_success();
        assert!(nodes.contains(address), "{nodes}");
    }
    assert_cluster_survives_the_loss_of(1, &mut hosts);
    for host in hosts.iter_mut().rev() {
        host.stop();
    }
}

/// Waits until both members of the metadata group serve. After that, stops the host `lost`, which
/// runs a management node and a metadata target. A client must still be able to read and write.
fn assert_cluster_survives_the_loss_of(lost: usize, hosts: &mut [PageHost]) {
    wait_for("both members serve", PATIENCE, || {
        let list = "skep group list --output ndjson | grep '\"kind\":\"metadata\"'";
        let group = hosts[0].run(list).stdout;
        (group.matches("\"state\":\"Serving\"").count() == 2).then_some(())
    });
    hosts[lost].stop();
    let client = hosts.iter().find(|host| host.name() == "client-1").expect("the client");
    client.run("skep mount --cluster 10.0.0.1 /mnt/skep").expect_success();
    assert_eq!(client.run("cat /mnt/skep/file").expect_success(), "hello\n");
    client.run("echo more >/mnt/skep/file && skep umount /mnt/skep").expect_success();
}

/// Command: skep management.
#[test]
fn management_advertises_loopback_only_on_request() {
    let network = PageNetwork::new();
    let host = network.host("m", "10.0.0.1/24");
    let init = |directory: &str, more: &str| {
        host.run(&format!("skep management --init --directory /srv/{directory} {more}"))
    };
    let one = init("one", "").expect_success();
    assert!(one.contains("management at 10.0.0.1:7400"), "{one}");
    // With two networks and no default route, management cannot choose an address.
    host.run("ip addr add 10.1.0.1/24 dev eth0").expect_success();
    let several = init("several", "").expect_failure();
    for words in ["10.0.0.1 (eth0)", "10.1.0.1 (eth0)", "--advertise"] {
        assert!(several.contains(words), "{several}");
    }
    // The failed attempt leaves no files, so that the next attempt can succeed.
    let both = "--advertise management.example --advertise 10.1.0.1";
    let both = init("several", both).expect_success();
    assert!(both.contains("management.example:7400, 10.1.0.1:7400"), "{both}");
    host.run("ip route add default via 10.1.0.254").expect_success();
    let default = init("default", "").expect_success();
    assert!(default.contains("management at 10.1.0.1:7400"), "{default}");
    assert!(default.contains("also has 10.0.0.1 (eth0)"), "{default}");
    host.run("ip addr flush dev eth0").expect_success();
    let none = init("none", "").expect_failure();
    assert!(none.contains("only loopback addresses"), "{none}");
    let alone = init("alone", "--listen 127.0.0.1").expect_success();
    assert!(alone.contains("management at 127.0.0.1:7400"), "{alone}");
    host.run("ip -6 addr add 2001:db8::1/64 dev eth0 nodad").expect_success();
    let v6 = init("v6", "--listen '[::]:7400'").expect_success();
    assert!(v6.contains("management at [2001:db8::1]:7400"), "{v6}");
}

/// The probe sends packets of 1500 bytes, the MTU of the client's interface, through a router to
/// the host of management.
///
/// Command: skep bench net.
#[test]
fn net_bench_names_a_path_with_a_smaller_mtu() {
    let network = PageNetwork::new();
    let mut server = network.host("server", "10.0.1.1/24");
    let client = network.host("client", "10.0.2.1/24");
    let router = network.host("router", "10.0.1.254/24");
    let works = |host: &PageHost, commands: &str| host.run(commands).expect_success();
    // The two networks share one switch. Without this setting, the router would redirect the hosts
    // to the direct route.
    works(
        &router,
        "ip addr add 10.0.2.254/24 dev eth0; cd /proc/sys/net/ipv4; echo 1 >ip_forward\n\
         for name in all eth0; do echo 0 >conf/$name/send_redirects; done",
    );
    works(&server, "ip route add default via 10.0.1.254");
    works(&client, "ip route add default via 10.0.2.254");
    start_management(&mut server);
    client.copy_from(&server, Path::new(TOKEN));
    let measure = "skep bench net --only-from-hosts --messages 1 --streams 1 --round-trips 1 \
                   --repetitions 1";
    let check = |arriving: u32, is_reported: bool, words: &str| {
        let result = works(&client, &format!("{measure} --output json"));
        let result: Value = serde_json::from_str(&result).expect("JSON");
        schema::check("bench-net", &result);
        let path = &result["paths"][0];
        assert_eq!(path["interface_mtu"], 1500, "{path}");
        assert_eq!(path["arriving_bytes"], arriving, "{path}");
        assert_eq!(path["is_reported"], is_reported, "{path}");
        let shown = works(&client, measure);
        assert!(shown.contains(words), "{words}: {shown}");
    };
    check(1500, false, "Packets as large as the MTU of the hosts' interfaces arrive.");
    works(&router, "ip route add 10.0.1.1/32 dev eth0 mtu 1400");
    check(1400, true, "packets of 1400 bytes arrive, a router reports that larger packets");
    works(&router, "ip route del 10.0.1.1/32 dev eth0");
    // The interface of the other host drops larger packets without a report.
    works(&server, "ip link set eth0 mtu 1400");
    check(1400, false, "packets of 1400 bytes arrive, larger packets are lost without a report");
    server.stop();
}

/// If a client connects to a storage service instead of management, the client fails immediately
/// with the reason. A mount of an unformatted cluster also fails immediately with the reason.
#[test]
fn errors_name_wrong_addresses_and_unformatted_clusters() {
    let network = PageNetwork::new();
    let mut host = network.host("all", "10.0.0.1/24");
    start_management(&mut host);
    let storage = "skep storage --directory /srv/s --target /disk1/skep";
    let without = host.run(&format!("{storage} --token-file {TOKEN}")).expect_failure();
    assert!(without.contains("--init --token-file"), "{without}");
    host.run(&format!("{storage} --init --token-file {TOKEN}")).expect_success();
    host.start(storage);
    await_service(&host);
    let wrong = host.run("skep mount --cluster 10.0.0.1:7420 --retry 0 /mnt").expect_failure();
    for words in ["10.0.0.1:7420", "not management", "7400"] {
        assert!(wrong.contains(words), "{words}: {wrong}");
    }
    let unformatted = host.run("skep mount --cluster 10.0.0.1 --retry 3 /mnt").expect_failure();
    assert!(unformatted.contains("skep: cannot mount yet"), "{unformatted}");
    assert!(unformatted.contains("`skep cluster format`"), "{unformatted}");
    // The waiting mount retries, but must not register a new client at each retry.
    let clients = host.run("skep node list").expect_success();
    assert_eq!(clients.matches("client").count(), 0, "{clients}");
    host.run("skep cluster format").expect_failure();
    host.stop();
}

/// Starts management on a host, and writes the token for the services on this host.
fn start_management(host: &mut PageHost) {
    host.run("skep management --init --directory /srv/m").expect_success();
    host.start("skep management --directory /srv/m");
    await_service(host);
    host.run(
        "umask 077; mkdir -p /etc/skep; skep cluster token --cluster /srv/m > /etc/skep/token",
    )
    .expect_success();
}

/// Starts management, a metadata and a storage service on one host.
fn start_services(host: &mut PageHost) {
    start_management(host);
    for service in [METADATA, STORAGE] {
        host.run(&format!("{service} --init --token-file {TOKEN}")).expect_success();
        host.start(service);
        await_service(host);
    }
}

/// Starts the services of a cluster on one host, and formats the cluster.
fn start_cluster(host: &mut PageHost) {
    start_services(host);
    host.run("skep cluster format").expect_success();
}

const METADATA: &str = "skep metadata --directory /srv/meta --target /nvme0/skep";
const STORAGE: &str = "skep storage --directory /srv/storage --target /disk1/skep";

/// When a group does not reply, the log of the mount names the group. After the return of the
/// group, the log has another line. The file is larger than its inline bytes, so writes need the
/// storage service.
#[test]
fn mount_logs_the_loss_and_return_of_a_group() {
    let network = PageNetwork::new();
    let (mut host, mut storage) =
        (network.host("all", "10.0.0.1/24"), network.host("s", "10.0.0.3/24"));
    start_management(&mut host);
    storage.copy_from(&host, Path::new(TOKEN));
    host.run(&format!("{METADATA} --init --token-file {TOKEN}")).expect_success();
    host.start(METADATA);
    await_service(&host);
    storage.run(&format!("{STORAGE} --init --token-file {TOKEN}")).expect_success();
    storage.start(STORAGE);
    await_service(&storage);
    host.run("skep cluster format; mkdir -p /mnt/a; skep mount /mnt/a").expect_success();
    host.run("head -c 100K /dev/urandom > /mnt/a/file; sync /mnt/a/file").expect_success();
    storage.stop();
    host.start("sh -c 'echo more >> /mnt/a/file; exec sleep infinity'");
    let logs = |words: &str| {
        let grep = format!("grep '{words}' /var/log/skep/mount-mnt-a.log");
        wait_for(words, PATIENCE, || {
            let found = host.run(&grep);
            found.status.success().then_some(found.stdout)
        })
    };
    let lost = logs("group g[0-9]* has not answered for [0-9]* s, since ");
    assert!(lost.contains("WARN") && lost.contains(" wait"), "{lost}");
    assert!(lost.contains("Connection refused"), "{lost}");
    storage.start(STORAGE);
    logs("answers again after");
    let first = logs("mounts the cluster at 10.0.0.1:7400 on /mnt/a");
    assert!(first.contains("skep 0."), "{first}");
    host.run("cat /mnt/a/file; skep umount --lazy /mnt/a").expect_success();
    host.stop();
    storage.stop();
}

/// Management continues without a restart after its full disk has got free space.
#[test]
fn management_recovers_from_a_full_disk() {
    let network = PageNetwork::new();
    let mut host = network.host("all", "10.0.0.1/24");
    let file = host.run("mkdir -p /srv/m; mount -t tmpfs -o size=24m none /srv/m");
    file.expect_success();
    start_management(&mut host);
    // The command log has preallocated space. So a full disk does not stop management immediately.
    host.run("dd if=/dev/zero of=/srv/m/filler bs=4k || true").expect_success();
    host.run("skep config set lease 60s").expect_success();
    host.stop();
    // Replace the log by a copy, because the copy has no preallocated space.
    let copy = "cd /srv/m; rm filler; cp raft-log new; mv new raft-log; \
                dd if=/dev/zero of=filler bs=4k || true";
    host.run(copy).expect_success();
    host.start("skep management --directory /srv/m");
    wait_for("the full disk is logged", PATIENCE, || {
        let log = files::read_to_string(host.log());
        let is_full = log.contains("ERROR management cannot store a change");
        (is_full && log.contains("the disk is full")).then_some(())
    });
    host.run("rm /srv/m/filler").expect_success();
    await_service(&host);
    host.run("skep config set lease 70s").expect_success();
    let lease = host.run("skep config get lease").expect_success();
    assert!(lease.contains("70s") || lease.contains("70 s"), "{lease}");
    host.stop();
}

/// Starts a further management node on a host, and runs the command on the host `first` that makes
/// this node a member.
fn add_management(host: &mut PageHost, first: &PageHost) {
    let join = "skep management --init --join --token-file /etc/skep/token --directory /srv/m";
    host.run(join).expect_success();
    host.start("skep management --directory /srv/m");
    await_service(host);
    let name = format!("management-{}", if host.name() == "b" { 2 } else { 3 });
    let add = format!("skep management add $(skep node list | awk '/{name}/ {{ print $1 }}')");
    wait_for("the node is a member", PATIENCE, || first.run(&add).status.success().then_some(()));
}

/// Regression test: commands and new mounts failed when the only management node in their token was
/// down, although the other nodes served.
#[test]
fn hosts_use_all_management_nodes_after_their_first_contact() {
    let network = PageNetwork::new();
    let [mut first, mut b, mut c, client, late] =
        [("a", 1), ("b", 2), ("c", 3), ("client", 8), ("late", 9)]
            .map(|(name, number)| network.host(name, &format!("10.0.0.{number}/24")));
    start_management(&mut first);
    for host in [&b, &c, &client, &late] {
        host.copy_from(&first, Path::new(TOKEN));
    }
    for service in [METADATA, STORAGE] {
        b.run(&format!("{service} --init --token-file {TOKEN}")).expect_success();
        b.start(service);
        await_service(&b);
    }
    first.run("skep cluster format").expect_success();
    client.run("mkdir -p /mnt/a; skep mount /mnt/a; echo x >/mnt/a/file").expect_success();
    add_management(&mut b, &first);
    add_management(&mut c, &first);
    // The services and the mount have received the map with the new nodes.
    for host in [&b, &client] {
        wait_for("the host has learned the addresses", PATIENCE, || {
            let found = host.run("cat /var/cache/skep/*.management");
            let has_all = ["10.0.0.2:7400", "10.0.0.3:7400"].map(|it| found.stdout.contains(it));
            (has_all == [true; 2]).then_some(())
        });
    }
    first.stop();
    wait_for("another node leads", PATIENCE, || {
        client.run("skep management status").status.success().then_some(())
    });
    b.run("skep config set stripe-width 16; skep management status").expect_success();
    client.run("mkdir -p /mnt/b; skep mount --retry 0 /mnt/b; cat /mnt/b/file").expect_success();
    let health = client.run("skep health check").expect_failure();
    assert!(health.contains("management-1 [ID: 1] is unreachable"), "{health}");
    assert!(health.contains("the other management nodes continue"), "{health}");
    assert!(!health.contains("does not answer:"), "{health}");
    // A host without any contact has only the address in its token.
    let unknown = late.run("skep node list").expect_failure();
    assert!(unknown.contains("name one of them with --cluster ADDRESS"), "{unknown}");
    late.run("skep node list --cluster 10.0.0.3; skep node list").expect_success();
    // A new service also proves its token at the addresses that it has received from management.
    let init = late.run(&format!("{STORAGE} --init --token-file {TOKEN} 2>&1")).expect_success();
    assert!(init.contains("Initialised") && !init.contains("cannot check"), "{init}");
    // No node leads without a majority.
    c.stop();
    let lost = wait_for("`skep health check` reports the missing leader", PATIENCE, || {
        let found = client.run("skep health check");
        found.stdout.contains("management has no leader").then_some(found.stdout)
    });
    assert!(lost.contains("of its 3 nodes, management-1"), "{lost}");
    // A host without a mount checks the other services with the cluster map that its last command
    // received.
    let cached = late.run("skep health check");
    assert_eq!(cached.status.code(), Some(1), "{cached:?}");
    for words in ["of its 3 nodes", "management-2 answers, and has no leader", "Note: "] {
        assert!(cached.stdout.contains(words), "{words}: {cached:?}");
    }
    for service in ["metadata-1", "storage-1"] {
        let is_reachable = |line: &str| line.starts_with(service) && line.contains(": reachable");
        assert!(cached.stdout.lines().any(is_reachable), "{service}: {cached:?}");
    }
    // Without a cluster map, the check still reports which management nodes answer.
    let blind = late.run("rm /var/cache/skep/*.map; skep health check");
    assert_eq!(blind.status.code(), Some(1), "{blind:?}");
    for words in [
        "10.0.0.2:7400 answers, and has no leader",
        "10.0.0.3:7400 does not answer this host",
        "has no cluster map",
    ] {
        assert!(blind.stdout.contains(words), "{words}: {blind:?}");
    }
    client.run("skep umount --lazy /mnt/a; skep umount --lazy /mnt/b").expect_success();
    b.stop();
}

/// On a host that reaches no server, the first problem of the report must be the network of this
/// host. All other problems in this report follow from the missing network.
///
/// Command: skep health check.
#[test]
fn health_check_names_a_missing_network_of_this_host_first() {
    let network = PageNetwork::new();
    let [mut servers, mounted] = [("all", 1), ("mounted", 8)]
        .map(|(name, number)| network.host(name, &format!("10.0.0.{number}/24")));
    start_cluster(&mut servers);
    mounted.copy_from(&servers, Path::new(TOKEN));
    mounted.run("mkdir -p /mnt/a; skep mount /mnt/a; echo x >/mnt/a/file").expect_success();
    let first_problem = || {
        let text = mounted.run("skep health check").stdout;
        let mut problems = text.lines().skip_while(|line| !line.starts_with("- "));
        let lines = [problems.next(), problems.next()];
        (lines.map(|line| line.unwrap_or_default().to_owned()), text)
    };
    let ([problem, _], text) = first_problem();
    assert!(!problem.contains("reaches no server"), "{text}");
    mounted.run("ip link set eth0 down").expect_success();
    let ([problem, remedy], text) = first_problem();
    assert_eq!(problem, "- this host reaches no server of the cluster", "{text}");
    assert!(remedy.contains("network and the firewall of this host first"), "{text}");
    // The report still lists all servers, but does not advise the user to start their services.
    assert_eq!(text.matches("]: UNREACHABLE: ").count(), 3, "{text}");
    assert!(!text.contains("start the service there"), "{text}");
    mounted.run("ip link set eth0 up").expect_success();
    mounted.run("skep umount --lazy /mnt/a").expect_success();
    servers.stop();
}

/// A command finds its cluster as docs/operations/administration.md describes.
#[test]
fn commands_find_cluster_and_token_at_each_documented_place() {
    let network = PageNetwork::new();
    let mut host = network.host("all", "10.0.0.1/24");
    start_cluster(&mut host);
    let works = |command: &str| host.run(command).expect_success();
    works("skep node list; skep node list --cluster 10.0.0.1");
    let mistyped = host.run("skep node list --cluster wrok").expect_failure();
    assert!(mistyped.contains("wrok:7400") && mistyped.contains("resolve"), "{mistyped}");
    works("mv /etc/skep/token /srv/token");
    let none = host.run("skep node list").expect_failure();
    assert!(none.contains("/etc/skep/client.toml") && none.contains("SKEP_CLUSTER"), "{none}");
    works("SKEP_TOKEN_FILE=/srv/token skep node list");
    works("SKEP_CLUSTER=10.0.0.1 SKEP_TOKEN_FILE=/srv/token skep node list");
    works("printf '[clusters.work]\ntoken_file = \"/srv/token\"\n' > /etc/skep/client.toml");
    works(
        "skep node list; skep node list --cluster work; skep node list --cluster 10.0.0.1 \
           --token-file /srv/token",
    );
    works("mkdir -p /mnt/a; skep mount --cluster work /mnt/a; findmnt -t fuse.skep work");
    works("skep umount /mnt/a");
    host.stop();
}

/// The mount itself replies to queries about the targets of a file, if the user may read the file.
///
/// Command: skep entry info.
#[test]
fn file_info_through_a_mount_needs_read_permission_but_no_token() {
    let network = PageNetwork::new();
    let mut host = network.host("all", "10.0.0.1/24");
    start_cluster(&mut host);
    let works = |command: &str| host.run(command).expect_success();
    works("mkdir -p /mnt/a; skep mount /mnt/a; echo x > /mnt/a/file; mv /etc/skep/token /srv");
    let info = works("skep entry info /mnt/a/file");
    assert!(info.contains("Storage targets") && info.contains("storage-1"), "{info}");
    assert!(works("skep entry info /mnt/a").contains("Entry type: directory"));
    works("chmod 711 /mnt/a; chmod 600 /mnt/a/file");
    let user = "setpriv --reuid=65534 --regid=65534 --clear-groups skep entry info /mnt/a/file";
    let refused = host.run(user).expect_failure();
    assert!(refused.contains("may not read this file"), "{refused}");
    works("chmod 644 /mnt/a/file");
    works(user);
    works("skep umount /mnt/a");
    host.stop();
}

#[test]
fn processes_are_named_after_their_services() {
    let network = PageNetwork::new();
    let mut host = network.host("all", "10.0.0.1/24");
    start_services(&mut host);
    assert_eq!(host.names_of_processes(), "skep-management\nskep-metadata\nskep-storage\n");
    host.stop();
}

/// Initialises a storage service on a host, and ends the management node that the initialisation
/// needs.
fn initialise_storage(host: &mut PageHost) {
    start_management(host);
    host.run(&format!("{STORAGE} --init --token-file {TOKEN}")).expect_success();
    host.stop();
}

/// Command: skep storage.
#[test]
fn repeated_initialisation_replaces_only_the_token_of_a_service() {
    let network = PageNetwork::new();
    let mut host = network.host("all", "10.0.0.1/24");
    initialise_storage(&mut host);
    host.run("umask 077; sed s/@.*/@management.example:7400/ /etc/skep/token > /srv/new")
        .expect_success();
    let replace = format!("{STORAGE} --init --token-file /srv/new");
    let replaced = host.run(&replace).expect_success();
    assert!(replaced.contains("Replaced the token"), "{replaced}");
    host.run("cmp /srv/new /srv/storage/join-token").expect_success();
    let again = host.run(&replace).expect_failure();
    assert!(again.contains("and this token"), "{again}");
}

/// Command: skep storage.
#[test]
fn added_target_needs_no_token_but_needs_its_mounted_disk() {
    let network = PageNetwork::new();
    let mut host = network.host("all", "10.0.0.1/24");
    initialise_storage(&mut host);
    let more = format!("{STORAGE} --target /disk2/skep --init");
    let more = host.run(&more).expect_success();
    assert!(more.contains("Initialised 1 more target."), "{more}");
    // The disk of `/disk3` is in fstab, but this disk is not mounted.
    host.run("echo '/dev/none /disk3 ext4 noauto 0 0' >> /etc/fstab; umount /disk3")
        .expect_success();
    let unmounted = format!("{STORAGE} --target /disk2/skep --target /disk3/skep --init");
    let unmounted = host.run(&unmounted).expect_failure();
    assert!(unmounted.contains("/disk3") && unmounted.contains("not mounted"), "{unmounted}");
}
