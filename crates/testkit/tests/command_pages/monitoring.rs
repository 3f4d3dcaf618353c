//! Runs the commands on the pages about monitoring and clients, and the commands about a lost disk
//! on the page about administration. The cluster of `skep up` has a monitor, a mount of the host
//! `node17`, and load.

use crate::{in_srv, new_host, run_page, targets_of_storage};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use skep_testkit::page::{Block, PageHost, PageNetwork, blocks_of};
use skep_testkit::{PATIENCE, files, wait_for};
use std::io::{BufRead, BufReader};
use std::process::Stdio;

const MONITORING: &str = include_str!("../../../../docs/operations/monitoring.md");
const CLIENTS: &str = include_str!("../../../../docs/operations/clients.md");
const ADMINISTRATION: &str = include_str!("../../../../docs/operations/administration.md");

/// The trace id on the page about monitoring.
const TRACE: &str = "0123456789abcdef000000000000002a";

/// A mount on a host with the name `node17`, which the pages use.
const MOUNT_OF_NODE17: &str = "cd /srv; unshare --uts sh -ec \
     'hostname node17; exec skep mount --cluster ./skep-data -o job_accounting /mnt/skep'";

/// A program that writes and reads files without end.
const LOAD: &str = "sh -c 'n=0; while n=$((n + 1)); do \
     seq 2000 >/mnt/skep/run/f$((n % 500)); cat /mnt/skep/run/f1; sleep 0.01; done'";

/// Suspends metadata for half a second. During this time the operations of [`LOAD`] wait, so these
/// operations are slow.
const SUSPENSION: &str = "pids=$(sed -n 's/.*\"metadata-[12]\": \\([0-9]*\\).*/\\1/p' \
     skep-data/skep-processes.json)\n\
     kill -STOP $pids; timeout 0.5 touch /mnt/skep/run/waits || true; kill -CONT $pids";

/// A program that has a file open and locked.
const HOLDER: &str = "sh -c 'exec 9>>/mnt/skep/results/out.dat; flock 9; echo >/srv/locked; \
     exec sleep infinity'";

/// Command: skep up, skep monitor, skep stats, skep node disks, skep why, skep trace.
/// Command: skep client list, skep client files, skep client evict, skep session list.
/// Command: skep entry who, skep entry path, skep lock list.
/// Command: skep target remove, skep target add, skep health check.
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
    check_lost_disk(&host);
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
/// next monitor starts, because all monitors have the same directory.
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

/// Runs the command of each line until the command has printed a line, and then ends the command as
/// Ctrl-C does.
fn run_until_ctrl_c(host: &PageHost, commands: &str) {
    for command in commands.lines() {
        // If the command prints nothing, `timeout` ends the command.
        let mut shell = host.shell(&format!("cd /srv; exec timeout --signal INT 60 {command}"));
        shell.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = shell.spawn().expect("nsenter can be started");
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        output.read_line(&mut line).expect("a line in UTF-8");
        println!("{command}\n{line}");
        let ended = child.try_wait().expect("our own child");
        assert!(ended.is_none(), "{command} has ended before Ctrl-C: {ended:?}");
        kill_process(Pid::from_child(&child), Signal::INT).expect("the process exists");
        // The command also ends when its pipe has no reader, so the pipe stays open up to this
        // point.
        drop(output);
        child.wait().expect("our own child");
        assert!(!line.is_empty(), "{command}");
        if command.starts_with("skep stats") {
            assert!(line.contains("OPS/s") && line.contains("MEAN"), "{command}: {line}");
        }
    }
}

/// Replaces the trace id and the process id on the page by a trace id and a process id of this
/// cluster.
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

/// Removes the directory of a target of the service `storage-2`, and runs the commands on the page
/// about administration that belong to this loss.
fn check_lost_disk(host: &PageHost) {
    let targets = targets_of_storage(host);
    let lost = targets.iter().find(|it| it["node_name"] == "storage-2").expect("a target");
    let (id, path) = (lost["id"].to_string(), lost["path"].as_str().expect("a path"));
    let pid = "$(sed -n 's/.*\"storage-2\": \\([0-9]*\\).*/\\1/p' skep-data/skep-processes.json)";
    in_srv(
        host,
        &format!(
            "skep entry create --targets {id} /mnt/skep/lost\n\
             head -c 1000000 /dev/zero >/mnt/skep/lost; sync /mnt/skep/lost\n\
             mv {path} {path}-is-lost; kill -KILL {pid}; mkdir -p /var/log/skep"
        ),
    );
    wait_for("the service runs again without the target", PATIENCE, || {
        let list = host.run(&format!("cd /srv; skep target remove --lost {id}")).stdout;
        list.contains("marks the target as lost").then_some(())
    });
    let blocks = blocks_of(ADMINISTRATION, "storage-2");
    assert_eq!(blocks.len(), 5, "{blocks:?}");
    let commands = |number: usize| blocks[number].commands.replace(" 4", &format!(" {id}"));
    run_until_ctrl_c(host, &commands(0));
    for number in [1, 2] {
        let printed = in_srv(host, &commands(number));
        assert!(printed.contains(" /lost"), "{printed}");
    }
    // The patterns of further files also name the target, so remove these files too.
    in_srv(host, "rm -r /mnt/skep/lost /mnt/skep/run /mnt/skep/results");
    wait_for("the target is removed", PATIENCE, || {
        let removal = host.run(&format!("cd /srv\n{}", commands(3)));
        removal.status.success().then_some(())
    });
    let printed = in_srv(host, &commands(4));
    assert!(printed.contains("(/disk3/skep) is added to storage-2"), "{printed}");
}
