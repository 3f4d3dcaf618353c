//! Runs the commands on the pages about daily work without changing them, on a host with all
//! services of a cluster, and commands on other pages in a cluster of `skep up`. Also checks that
//! the sources contain the messages on the page about troubleshooting, and that each page without
//! such commands is in a list with the reason.
//!
//! In the test, `systemctl` is a script that starts and ends the services like the shipped systemd
//! units: as the user `skep`, after root has given the files to this user. So the commands that an
//! administrator runs as root must work with services that do not run as root. `several_hosts.rs`
//! runs the commands on the page about several hosts.

use skep_testkit::page::{PageHost, PageNetwork, blocks};
use skep_testkit::{PATIENCE, files, wait_for};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

const ADMINISTRATION: &str = include_str!("../../../docs/operations/administration.md");
const PURGE: &str = include_str!("../../../docs/operations/purge.md");
const BACKUPS: &str = include_str!("../../../docs/operations/backups.md");
const UPGRADES: &str = include_str!("../../../docs/operations/upgrades.md");
const MOUNTING: &str = include_str!("../../../docs/operations/mounting.md");
const SETTINGS: &str = include_str!("../../../docs/operations/settings.md");
const PATTERNS: &str = include_str!("../../../docs/operations/patterns.md");
const COPYING: &str = include_str!("../../../docs/operations/copying.md");
const FSCK: &str = include_str!("../../../docs/operations/fsck.md");
const USER: &str = include_str!("../../../packaging/sysusers/skep.conf");
const TROUBLESHOOTING: &str = include_str!("../../../docs/operations/troubleshooting.md");

/// A script that replaces `systemctl` and accepts `start|stop|restart UNIT`. A service is ready
/// when its log contains `serves`.
const SYSTEMCTL: &str = r#"#!/bin/sh
set -e
unit=${2#skep-} kind=${2#skep-}
kind=${kind%%@*} name=${unit#*@} pid=/run/skep-$unit.pid log=/srv/log-$unit
runs() { [ -d /proc/$1 ] && ! grep -q '^State:.Z' /proc/$1/status; }
stop() {
  [ -e $pid ] || return 0
  kill $(cat $pid)
  while runs $(cat $pid); do sleep 0.02; done
  rm $pid
}
start() {
  : >$log
  service="skep $kind --config /etc/skep/$kind-$name.toml"
  $service --give-to skep >>$log 2>&1 || { cat $log >&2; exit 1; }
  setsid setpriv --reuid skep --regid skep --clear-groups --bounding-set=-all --inh-caps=-all \
    --no-new-privs $service >>$log 2>&1 </dev/null &
  echo $! >$pid
  until grep -q ' serves ' $log; do runs $(cat $pid) || { cat $log >&2; exit 1; }; sleep 0.02; done
}
case $1 in
  start) start ;;
  stop) stop ;;
  restart) stop; start ;;
esac
"#;

const SERVICES: [(&str, &str); 3] = [
    ("management", "[node]\ndirectory = \"/srv/skep/management\"\n"),
    ("metadata", "targets = [\"/nvme0/skep-meta\"]\n[node]\ndirectory = \"/srv/skep/metadata\"\n"),
    (
        "storage",
        "targets = [\"/disk1/skep\", \"/disk2/skep\"]\n[node]\ndirectory = \"/srv/skep/storage\"\n",
    ),
];

/// Writes the file `path` on the host.
fn write(host: &PageHost, path: &str, text: &str, mode: &str) {
    let command = format!("cat >{path} <<'END'\n{text}END\nchmod {mode} {path}");
    host.run(&command).expect_success();
}

/// Starts all services on a host in the way that the pages expect, and mounts the cluster.
fn set_up(host: &PageHost) {
    let works = |command: &str| host.run(command).expect_success();
    works("mkdir -p -m 700 /etc/skep; mkdir -p /run /mnt/skep /mnt/test /mnt/new-disk");
    works(&format!("id skep 2>/dev/null || systemd-sysusers - <<'END'\n{USER}END\n"));
    works("echo 10.0.0.1 management.example >>/etc/hosts; rm -f /usr/bin/systemctl");
    write(host, "/usr/bin/systemctl", SYSTEMCTL, "755");
    for (kind, settings) in SERVICES {
        write(host, &format!("/etc/skep/{kind}-a.toml"), settings, "600");
        let token = if kind == "management" { "" } else { "--token-file /etc/skep/token" };
        works(&format!("skep {kind} --init --config /etc/skep/{kind}-a.toml {token}"));
        works(&format!("systemctl start skep-{kind}@a"));
        if kind == "management" {
            let token = "skep cluster token --cluster /srv/skep/management >/etc/skep/token";
            works(&format!("umask 077; {token}; cp /etc/skep/token /etc/skep/test-token"));
        }
    }
    works("skep cluster format");
    works("ln -sf /usr/bin/skep /usr/sbin/mount.skep");
    works("echo '10.0.0.1 /mnt/skep skep defaults 0 0' >>/etc/fstab; mount /mnt/skep");
    works("skep entry set --num-targets all /mnt/skep; mkdir /mnt/skep/d");
    works("for n in 1 2 3; do seq 100000 >/mnt/skep/d/f$n; done");
}

/// Runs the command blocks of a page. After each block, calls `after`, which does the work that a
/// reader of the page does by hand.
fn run_page(host: &PageHost, page: &str, after: impl Fn(&str)) {
    let blocks = blocks(page);
    assert!(blocks.len() > 1, "the page has its commands");
    for block in blocks {
        assert_eq!(block.hosts, ["server"]);
        let printed = host.run(&block.commands).expect_success();
        println!("{}{printed}", block.commands);
        after(&block.commands);
    }
}

/// Command: skep target set-state, skep target files, skep target remove, skep node rename.
/// Command: skep cluster backup, skep cluster restore, skep purge.
#[test]
fn every_command_of_the_pages_on_daily_work_succeeds() {
    let network = PageNetwork::new();
    let host = network.host("server", "10.0.0.1/24");
    set_up(&host);
    let works = |command: &str| host.run(command).expect_success();
    let check = || {
        let sums = works("cd /mnt/skep/d; seq 100000 | cmp - f1; cmp f1 f2; cmp f2 f3; ls");
        assert_eq!(sums, "f1\nf2\nf3\n");
    };

    let settings = ADMINISTRATION.split("```toml\n").nth(1).and_then(|it| it.split("```").next());
    write(&host, "/etc/skep/client.toml", settings.expect("the page has settings"), "600");
    run_page(&host, ADMINISTRATION, |_| ());
    check();
    let targets = works("skep target list");
    assert!(targets.contains("/disk1/skep") && !targets.contains("/disk2/skep"), "{targets}");
    works("skep umount /mnt/test; rm /etc/skep/client.toml");

    works("mkdir -p /mnt/skep/scratch/alice; cd /mnt/skep/scratch/alice; echo x >young");
    works("cd /mnt/skep/scratch/alice; echo x >result; touch -d '40 days ago' result");
    run_page(&host, PURGE, |_| ());
    assert_eq!(works("ls /mnt/skep/scratch/alice"), "young\n");
    works("rm -r /mnt/skep/scratch /var/log/skep/old-files.ndjson /var/log/skep/purge.log");

    works("cp /usr/bin/skep skep");
    run_page(&host, UPGRADES, |commands| {
        if commands.contains("restart skep-management") {
            wait_for("all servers have sent a heartbeat", PATIENCE, || {
                host.run("skep health check").status.success().then_some(())
            });
        }
    });
    check();

    run_page(&host, BACKUPS, |commands| {
        if commands.contains("/mnt/new-disk") {
            works("mv /disk1/skep /srv/old-disk; mv /mnt/new-disk/skep /disk1/skep");
        }
        if commands.contains("cluster restore") {
            // The cluster stays mounted during the restore, and the mount must still work.
            check();
            wait_for("all servers have sent a heartbeat", PATIENCE, || {
                host.run("skep health check").status.success().then_some(())
            });
        }
    });
    check();
    works("skep umount /mnt/skep");
    for kind in ["storage", "metadata", "management"] {
        works(&format!("systemctl stop skep-{kind}@a"));
    }
}

/// Runs the commands of a page in the directory `/srv`, and returns their output.
fn run_in_srv(host: &PageHost, page: &str) -> String {
    let blocks = blocks(page);
    assert!(!blocks.is_empty(), "the page has commands");
    let mut printed = String::new();
    for block in blocks {
        assert_eq!(block.hosts, ["server"]);
        let commands = format!("cd /srv\n{}", block.commands);
        printed += &host.run(&commands).expect_success();
    }
    println!("{printed}");
    printed
}

/// Command: skep mount, skep umount, skep config list, skep config get, skep config set.
/// Command: skep entry set, skep advise, skep copy, skep down, skep fsck.
#[test]
fn marked_commands_of_the_pages_on_single_commands_succeed() {
    let network = PageNetwork::new();
    let host = network.host("server", "10.0.0.1/24");
    let works = |command: &str| host.run(command).expect_success();
    works("mount -t tmpfs tmpfs /run; rm -rf /etc/skep; mkdir -p /mnt/skep /data /archive");
    works("cd /srv; skep up --detach --no-mount");
    run_in_srv(&host, MOUNTING);
    works("cd /srv; skep mount --cluster ./skep-data /mnt/skep; mkdir /mnt/skep/results");

    let printed = run_in_srv(&host, SETTINGS);
    assert!(printed.contains("low-percent"), "{printed}");
    let value = works("cd /srv; skep config get low-percent");
    assert!(value.contains("20"), "{value}");
    run_in_srv(&host, PATTERNS);
    let info = works("skep entry info /mnt/skep/results");
    assert!(info.contains("From byte 4194304"), "{info}");

    works("seq 100000 >/data/f1; mkdir /data/d; seq 10 >/data/d/f2");
    works("cp -r /data /mnt/skep/run7; cp -r /data /mnt/skep/run8");
    run_in_srv(&host, COPYING);
    works("for copy in /mnt/skep/data /archive/run7 /archive/run8; do diff -r /data $copy; done");
    run_in_srv(&host, FSCK);
}

/// Pages with code blocks that no test runs as they are on the page, each with the reason. If the
/// reason names a test, this test runs the same commands with its own values.
const NOT_RUN: &[(&str, &str)] = &[
    ("benchmark-recipes.md", "takes hours, and needs hardware and programs of others"),
    ("benchmarks-built-in.md", "takes minutes on many hosts; tests/bench runs small ones"),
    ("clients.md", "the client is chosen by hand; administration.rs evicts clients"),
    ("cloud.md", "needs accounts of clouds; tests/templates runs the user data"),
    ("containers.md", "needs Podman or Kubernetes, and downloads an image"),
    ("deploying.md", "needs a hosts file of the reader; tests/deploy runs the commands"),
    ("host-images.md", "needs images of virtual machines"),
    ("lab.md", "builds its own network namespaces; lab.rs runs the commands"),
    ("logical-volumes.md", "needs a free disk, and LVM works on the whole host"),
    ("metadata-groups.md", "each section needs another cluster; tests/metadata_groups runs these"),
    ("ondemand.md", "needs Slurm; ondemand.rs runs prolog, epilog and commands"),
    ("output.md", "has an error and no commands; output.rs checks the errors"),
    ("planning.md", "needs measurements of the reader; plan.rs runs the commands"),
    ("ports.md", "needs a host in two networks; several_hosts.rs checks advertised addresses"),
    ("sizing.md", "the sizes are compared with the program by crates/ctl/src/sizing_page.rs"),
    ("studies.md", "takes minutes to hours; studies.rs runs small studies"),
    ("systemd.md", "needs systemd as the first process; service_user.rs checks the units"),
    ("tuning.md", "changes settings of the whole host; tune.rs runs the commands"),
];

#[test]
fn each_page_without_a_tested_command_has_a_reason() {
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operations");
    let mut without = Vec::new();
    for entry in files::read_dir(&pages) {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|it| it != "md") {
            continue;
        }
        let page = files::read_to_string(&path);
        let has_blocks = page.lines().any(|line| line.trim_start().starts_with("```"));
        if has_blocks && blocks(&page).is_empty() {
            let name = path.file_name().and_then(|it| it.to_str()).expect("a name in ASCII");
            without.push(name.to_owned());
        }
    }
    without.sort();
    let listed: Vec<_> = NOT_RUN.iter().map(|(page, _)| (*page).to_owned()).collect();
    assert_eq!(without, listed, "pages without a tested command, and the list with reasons");
}

/// Messages that come from the kernel or the C library, so the sources do not contain them.
const OF_THE_SYSTEM: &[&str] = &["Connection refused"];

/// Returns the messages in the first column of the tables on the page, and the texts that a log
/// `has` by this column.
fn messages() -> Vec<String> {
    let mut found = Vec::new();
    let mut is_table_of_messages = false;
    for line in TROUBLESHOOTING.lines() {
        let cells: Vec<&str> = line.split('|').collect();
        match cells.get(1).map(|cell| cell.trim()) {
            None => is_table_of_messages = false,
            Some("message") => is_table_of_messages = true,
            Some(cell) if is_table_of_messages || cell.contains(" says `") => {
                found.extend(cell.split('`').skip(1).step_by(2).map(str::to_owned));
            }
            // Other quotes in such a cell are errors of the system or names.
            Some(cell) => {
                let quotes = cell.split(" has `").skip(1).filter_map(|it| it.split('`').next());
                found.extend(quotes.map(str::to_owned));
            }
        }
    }
    found
}

/// Appends the text of all sources below a directory. Omits line breaks within string literals.
fn collect(directory: &Path, all: &mut String) {
    for entry in files::read_dir(directory) {
        let path: PathBuf = entry.expect("an entry").path();
        if path.is_dir() {
            collect(&path, all);
        } else if path.extension().is_some_and(|it| it == "rs") {
            let mut joins = false;
            for line in files::read_to_string(&path).lines() {
                let line = if joins { line.trim_start() } else { line };
                joins = line.ends_with('\\');
                let _ = write!(all, "{}", line.trim_end_matches('\\'));
                if !joins {
                    all.push('\n');
                }
            }
        }
    }
}

#[test]
fn each_message_of_the_troubleshooting_page_is_in_the_sources() {
    let mut sources = String::new();
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for entry in files::read_dir(&crates) {
        let path = entry.expect("an entry").path();
        if !path.ends_with("testkit") && !path.ends_with("xtask") {
            collect(&path.join("src"), &mut sources);
        }
    }
    let messages = messages();
    assert!(messages.len() > 12, "{messages:?}");
    for message in messages.iter().filter(|it| !OF_THE_SYSTEM.contains(&it.as_str())) {
        // In the messages on the page, ids, numbers and `...` stand for values. So compare only the
        // text between the values.
        let is_value =
            |word: &str| word.starts_with("...") || word.contains(|it: char| it.is_ascii_digit());
        let mut part = String::new();
        let mut parts = Vec::new();
        for word in message.split(' ') {
            if is_value(word) {
                parts.push(std::mem::take(&mut part));
            } else {
                part = if part.is_empty() { word.to_owned() } else { format!("{part} {word}") };
            }
        }
        parts.push(part);
        for part in parts.iter().filter(|part| part.len() > 2) {
            assert!(sources.contains(part.as_str()), "no source has '{part}' of '{message}'");
        }
    }
}

#[test]
fn systemctl_stand_in_returns_when_the_service_is_ready() {
    let network = PageNetwork::new();
    let host = network.host("server", "10.0.0.1/24");
    set_up(&host);
    host.run("systemctl restart skep-storage@a && skep health check").expect_success();
    let gone = host.run("systemctl stop skep-storage@a; skep health check");
    assert!(!gone.status.success(), "{}", gone.stdout);
    host.run("systemctl start skep-storage@a").expect_success();
    wait_for("the cluster is healthy again", PATIENCE, || {
        host.run("skep health check").status.success().then_some(())
    });
}
