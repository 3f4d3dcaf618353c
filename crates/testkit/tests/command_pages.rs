//! Runs the commands on the pages about single commands, in clusters of `skep up`, and the commands
//! on the page about metadata groups, in a cluster of separate services.
//!
//! The commands run unchanged, except for values that differ in each cluster: the trace id of an
//! operation, the process id of a mount, the ids of targets in a pattern, and the words CLIENT,
//! PATH and ID in tables. The benchmarks are shortened, and run on this host. Where a page shows
//! the output of a command, the test compares the whole output.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use skep_testkit::page::{Block, PageHost, PageNetwork, blocks, quoted};
use skep_testkit::{PATIENCE, files, wait_for};
use std::io::{BufRead, BufReader};
use std::process::Stdio;

const MOUNTING: &str = include_str!("../../../docs/operations/mounting.md");
const SETTINGS: &str = include_str!("../../../docs/operations/settings.md");
const PATTERNS: &str = include_str!("../../../docs/operations/patterns.md");
const COPYING: &str = include_str!("../../../docs/operations/copying.md");
const FSCK: &str = include_str!("../../../docs/operations/fsck.md");
const PLANNING: &str = include_str!("../../../docs/operations/planning.md");
const SIZING: &str = include_str!("../../../docs/operations/sizing.md");
const MONITORING: &str = include_str!("../../../docs/operations/monitoring.md");
const CLIENTS: &str = include_str!("../../../docs/operations/clients.md");
const BENCHMARKS: &str = include_str!("../../../docs/operations/benchmarks-built-in.md");
const METADATA_GROUPS: &str = include_str!("../../../docs/operations/metadata-groups.md");
const PORTS: &str = include_str!("../../../docs/operations/ports.md");

/// The trace id on the page about monitoring.
const TRACE: &str = "0123456789abcdef000000000000002a";

/// Replacements that shorten the benchmarks on the page, and run them on this host. The caches of
/// this machine are kept, because other programs use them.
const SHORTER: &[(&str, &str)] = &[
    ("--hosts n1,n2,n3", "--hosts localhost"),
    ("--hosts n1,n2", "--hosts localhost"),
    ("-b 100g", "-b 32m"),
    ("-b 1g", "-b 32m"),
    (" -o /mnt", " --keep-caches -o /mnt"),
    ("--size 1g", "--size 1m"),
    ("--messages 32", "--messages 1"),
    ("slow-targets --repetitions", "slow-targets --size 1m --repetitions"),
    ("--repetitions 5", "--repetitions 1"),
];

/// A mount on a host with the name `node17`, which the pages use.
const MOUNT_OF_NODE17: &str = "cd /srv; unshare --uts sh -ec \
     'hostname node17; exec skep mount --cluster ./skep-data -o job_accounting /mnt/skep'";

/// A program that writes and reads files without end.
const LOAD: &str = "sh -c 'n=0; while n=$((n + 1)); do \
     seq 2000 >/mnt/skep/run/f$((n % 500)); cat /mnt/skep/run/f1; sleep 0.01; done'";

/// Suspends metadata for half a second. Meanwhile the operations of [`LOAD`] wait, so they are
/// slow.
const SUSPENSION: &str = "pids=$(sed -n 's/.*\"metadata-[12]\": \\([0-9]*\\).*/\\1/p' \
     skep-data/skep-processes.json)\n\
     kill -STOP $pids; timeout 0.5 touch /mnt/skep/run/waits || true; kill -CONT $pids";

/// A program that has a file open and locked.
const HOLDER: &str = "sh -c 'exec 9>>/mnt/skep/results/out.dat; flock 9; echo >/srv/locked; \
     exec sleep infinity'";

/// Creates a host whose `/run` is empty, and which has no settings of Skep.
fn new_host(network: &PageNetwork) -> PageHost {
    let host = network.host("server", "10.0.0.1/24");
    let command = "mount -t tmpfs tmpfs /run; rm -rf /etc/skep; mkdir -m 700 /etc/skep\n\
         mkdir -p /mnt/skep /data /archive";
    host.run(command).expect_success();
    host
}

/// Runs commands in the directory `/srv`, and returns their output.
fn in_srv(host: &PageHost, commands: &str) -> String {
    let printed = host.run(&format!("cd /srv\n{commands}")).expect_success();
    println!("{commands}\n{printed}");
    printed
}

/// Returns the blocks of a page that run on the host `name`.
fn blocks_of(page: &str, name: &str) -> Vec<Block> {
    let blocks: Vec<_> = blocks(page).into_iter().filter(|it| it.hosts == [name]).collect();
    assert!(!blocks.is_empty(), "the page has commands for the host {name}");
    blocks
}

/// Runs the commands of a page in the directory `/srv`, and returns their output.
fn run_page(host: &PageHost, page: &str) -> String {
    blocks_of(page, "server").iter().map(|block| in_srv(host, &block.commands)).collect()
}

/// Runs the commands whose output is on the page, and compares the output.
fn check_quoted(host: &PageHost, page: &str) {
    let all = quoted(page);
    assert!(!all.is_empty(), "the page has commands with their output");
    for it in all {
        // A refused command is on the page with its message, too.
        let printed = in_srv(host, &format!("{{ {}; }} 2>&1 || true", it.command));
        assert_eq!(printed.trim_end(), it.output, "{}", it.command);
    }
}

/// Command: skep mount, skep umount, skep config list, skep config get, skep config set.
/// Command: skep entry set, skep advise, skep copy, skep down, skep fsck.
/// Command: skep plan propose, skep plan predict, skep plan explain, skep plan size.
/// Command: skep bench io, skep bench net, skep bench storage, skep bench slow-targets.
#[test]
fn marked_commands_of_the_pages_on_single_commands_succeed() {
    let network = PageNetwork::new();
    let host = new_host(&network);
    for page in [PLANNING, SIZING] {
        check_quoted(&host, page);
    }
    run_page(&host, SIZING);

    in_srv(&host, "skep up --detach --no-mount");
    run_page(&host, MOUNTING);
    in_srv(&host, "skep mount --cluster ./skep-data /mnt/skep; mkdir /mnt/skep/results");
    let printed = run_page(&host, SETTINGS);
    assert!(printed.contains("low-percent"), "{printed}");
    let value = in_srv(&host, "skep config get low-percent");
    assert!(value.contains("20"), "{value}");
    check_patterns(&host);

    in_srv(&host, "seq 100000 >/data/f1; mkdir /data/d; seq 10 >/data/d/f2");
    in_srv(&host, "cp -r /data /mnt/skep/run7; cp -r /data /mnt/skep/run8");
    run_page(&host, COPYING);
    let copies = "/mnt/skep/data /archive/run7 /archive/run8";
    in_srv(&host, &format!("for copy in {copies}; do diff -r /data $copy; done"));
    check_benchmarks(&host);
    in_srv(&host, "skep umount /mnt/skep");
    let printed = run_page(&host, FSCK);
    assert!(printed.contains("No findings."), "{printed}");
}

/// Runs the commands on the page about patterns, and sets each pattern that it shows as a text.
fn check_patterns(host: &PageHost) {
    for block in blocks_of(PATTERNS, "server") {
        let is_new_start = block.commands.contains("skep up");
        if is_new_start {
            in_srv(host, "skep umount /mnt/skep; skep down");
        }
        let printed = in_srv(host, &block.commands);
        if is_new_start {
            assert!(printed.contains("rack-1") && printed.contains("rack-2"), "{printed}");
            in_srv(host, "skep mount --cluster ./skep-data /mnt/skep");
        }
    }
    let info = in_srv(host, "skep entry info /mnt/skep/results");
    assert!(info.contains("From byte 4194304"), "{info}");

    let after = PATTERNS.split("```\ncount=8").nth(1).expect("the page has patterns as texts");
    let rest = after.split("```").next().expect("the block has an end");
    let patterns = format!("count=8{rest}");
    assert_eq!(patterns.lines().count(), 3, "{patterns}");
    in_srv(host, "mkdir /mnt/skep/texts /mnt/skep/small");
    let targets = targets_of_storage(host);
    for pattern in patterns.lines() {
        let pattern = pattern.replace("3:7:12", &targets[..3].join(":"));
        in_srv(host, &format!("skep entry set --pattern {pattern} /mnt/skep/texts"));
    }

    // The page says that its output is from a cluster without inline bytes.
    in_srv(host, "skep config set inline-bytes 0");
    let file = "head -c 1000 /dev/zero >/mnt/skep/small/f$n";
    in_srv(host, &format!("for n in $(seq 120); do {file}; done"));
    check_quoted(host, PATTERNS);
    in_srv(host, "skep config set inline-bytes default");
}

/// Returns the ids of all storage targets.
fn targets_of_storage(host: &PageHost) -> Vec<String> {
    let printed = in_srv(host, "skep target list --output json");
    let targets: Value = serde_json::from_str(&printed).expect("JSON");
    let targets = targets.as_array().expect("a list").iter();
    targets.filter(|it| it["kind"] == "storage").map(|it| it["id"].to_string()).collect()
}

/// Runs the benchmarks on the page, shortened.
fn check_benchmarks(host: &PageHost) {
    in_srv(host, "mkdir -p /mnt/nfs");
    let mut printed = String::new();
    for block in blocks_of(BENCHMARKS, "server") {
        let mut commands = block.commands;
        for (long, short) in SHORTER {
            commands = commands.replace(long, short);
        }
        printed += &in_srv(host, &commands);
    }
    // With one repetition, no target can be called slow.
    assert!(printed.contains("No target is certainly slower"), "{printed}");
}

/// Command: skep up, skep monitor, skep stats, skep node disks, skep why, skep trace.
/// Command: skep client list, skep client files, skep client evict, skep session list.
/// Command: skep entry who, skep entry path, skep lock list.
#[test]
fn commands_of_the_pages_on_monitoring_and_clients_succeed() {
    let network = PageNetwork::new();
    let mut host = new_host(&network);
    let blocks = blocks_of(MONITORING, "monitor");
    let printed = in_srv(&host, &blocks[0].commands);
    assert!(printed.contains("Monitor:     http://127.0.0.1:"), "{printed}");
    prepare_for_monitors(&host);
    host.run(MOUNT_OF_NODE17).expect_success();
    in_srv(&host, "mkdir /mnt/skep/run /mnt/skep/results; echo x >/mnt/skep/results/out.dat");

    let mut is_loaded = false;
    for block in &blocks[1..] {
        if block.is_endless && !is_loaded {
            host.stop();
            host.start(LOAD);
            is_loaded = true;
        }
        if block.commands.starts_with("skep mount") {
            host.stop();
            check_clients(&mut host);
            in_srv(&host, "skep umount /mnt/skep");
        }
        match block {
            Block { is_background: true, .. } => run_monitors(&mut host, &block.commands),
            Block { is_endless: true, .. } => run_until_ctrl_c(&host, &block.commands),
            _ => drop(in_srv(&host, &substituted(&host, &block.commands))),
        }
    }
    assert!(is_loaded, "the page has commands that print until Ctrl-C");
    host.stop();
    let printed = in_srv(&host, "ls /mnt/skep; curl -s http://localhost:7490/metrics");
    assert!(printed.contains("skep_mount_operations_total"), "{printed}");
}

/// Creates the files that the settings of monitors on the page name.
fn prepare_for_monitors(host: &PageHost) {
    let token = "skep1-$(openssl rand -hex 16)-$(openssl rand -hex 32)";
    let key = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 \
         -subj /CN=monitor -keyout /etc/skep/monitor.key -out /etc/skep/monitor.pem 2>/dev/null";
    in_srv(
        host,
        &format!(
            "umask 077; cp skep-data/management/join-token /etc/skep/token\n\
             echo {token}@10.0.0.8:7400 >/etc/skep/test-token\n\
             echo {token}@10.0.8.1:7400 >/etc/skep/archive-token\n\
             echo secret >/etc/skep/influx-token; echo secret >/etc/skep/store-token\n\
             {key}; mkdir studies\n\
             echo 'ada:x:4711:4711::/home/ada:/bin/sh' >>/etc/passwd"
        ),
    );
    let clients = "cluster = \"work\"\n[clusters.work]\ntoken_file = \"/etc/skep/token\"\n\
         [clusters.test]\ntoken_file = \"/etc/skep/test-token\"\n";
    in_srv(host, &format!("cat >/etc/skep/client.toml <<'END'\n{clients}END"));
}

/// Starts the monitor of each line, and waits until its page is ready. Ends each monitor before the
/// next one starts, because all have the same directory.
fn run_monitors(host: &mut PageHost, commands: &str) {
    for command in commands.lines() {
        host.stop();
        host.start(command);
        let log = host.log();
        wait_for(command, PATIENCE, || {
            let log = files::read_to_string(&log);
            log.contains("the web page of the monitor is at").then_some(())
        });
    }
}

/// Runs each line until it has printed a line, and then ends it as Ctrl-C does.
fn run_until_ctrl_c(host: &PageHost, commands: &str) {
    for command in commands.lines() {
        // If the command prints nothing, `timeout` ends it.
        let mut shell = host.shell(&format!("cd /srv; exec timeout --signal INT 60 {command}"));
        shell.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = shell.spawn().expect("nsenter can be started");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("a line in UTF-8");
        println!("{command}\n{line}");
        let ended = child.try_wait().expect("our own child");
        assert!(ended.is_none(), "{command} has ended before Ctrl-C: {ended:?}");
        kill_process(Pid::from_child(&child), Signal::INT).expect("the process exists");
        child.wait().expect("our own child");
        assert!(!line.is_empty(), "{command}");
        if command.starts_with("skep stats") {
            assert!(line.contains("OPS/s") && line.contains("MEAN"), "{command}: {line}");
        }
    }
}

/// Replaces the trace id and the process id on the page by those of this cluster.
fn substituted(host: &PageHost, commands: &str) -> String {
    let mut commands = commands.to_owned();
    if commands.contains(TRACE) {
        in_srv(host, SUSPENSION);
        let trace = wait_for("a record of an operation", PATIENCE, || {
            let printed = in_srv(host, "skep why --interval 200ms --output json");
            let report: Value = serde_json::from_str(&printed).expect("JSON");
            Some(report["slowest"][0]["trace"].as_str()?.to_owned())
        });
        commands = commands.replace(TRACE, &trace);
    }
    if commands.contains("mount-PID.sock") {
        let sockets = in_srv(host, "ls /run/skep | grep '^mount-.*sock$'");
        let socket = sockets.lines().next().expect("a mount has a socket");
        commands = commands.replace("mount-PID.sock", socket);
    }
    commands
}

/// Runs the commands in the table on the page about clients, and the commands that evict a client.
fn check_clients(host: &mut PageHost) {
    host.start(HOLDER);
    wait_for("the file is locked", PATIENCE, || {
        host.run("test -e /srv/locked").status.success().then_some(())
    });
    let path = "/mnt/skep/results/out.dat";
    let id = in_srv(host, &format!("stat -c %i {path}"));
    let rows = CLIENTS.lines().filter(|line| line.starts_with("| "));
    let cells = rows.flat_map(|row| row.split('`').skip(1).step_by(2));
    let commands: Vec<_> = cells.filter(|cell| cell.starts_with("skep ")).collect();
    assert!(commands.len() > 8, "{commands:?}");
    for command in commands {
        let command = command.replace("CLIENT", "node17").replace("PATH", path);
        let printed = in_srv(host, &command.replace(" ID", &format!(" {}", id.trim())));
        let expected = match command.as_str() {
            "skep client list --evicted" => continue,
            it if it.starts_with("skep entry path") => "out.dat",
            _ => "node17",
        };
        assert!(printed.contains(expected), "{command}: {printed}");
    }
    let printed = run_page(host, CLIENTS);
    for words in ["1 lock would be released", " is evicted"] {
        assert!(printed.contains(words), "{printed}");
    }
    let evicted = in_srv(host, "skep client list --evicted");
    assert!(evicted.contains("node17"), "{evicted}");
    host.stop();
}

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

/// The reader of the page about metadata groups starts services between the commands, so the test
/// does this. The cluster also runs the commands on the pages about mounting and about ports that
/// need management at 10.0.0.1.
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
        "Targets 1, 3 are group 1.",
        "Targets 4, 2 are group 2.",
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

/// Starts the storage service with the command on the page about ports, and checks that it has
/// registered both addresses.
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
    // The links that the page makes are there now.
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
