//! Runs the commands on the pages about daily work without changing them, on a host with all
//! services of a cluster. The tests also check that the sources contain the messages on the page
//! about troubleshooting. If no test runs some commands of a page, a list in this file must have
//! the page and the reason.
//!
//! In the test, a script replaces `systemctl`. Like the shipped systemd units, the script first
//! gives the services' files to the user `skep`, and then runs the services as this user. So the
//! commands that an administrator runs as root must work with services that do not run as root.
//! `several_hosts.rs` runs the commands on the page about several hosts, and `command_pages` runs
//! the commands on other pages.

use skep_testkit::page::{PageHost, PageNetwork, blocks_of};
use skep_testkit::{PATIENCE, files, wait_for};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

const ADMINISTRATION: &str = include_str!("../../../docs/operations/administration.md");
const PURGE: &str = include_str!("../../../docs/operations/purge.md");
const BACKUPS: &str = include_str!("../../../docs/operations/backups.md");
const UPGRADES: &str = include_str!("../../../docs/operations/upgrades.md");
const SYSTEMD: &str = include_str!("../../../docs/operations/systemd.md");
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

/// Runs the command blocks of a page on the host `server`. After each block, calls `after`, which
/// does the work that a reader of the page does by hand.
fn run_page(host: &PageHost, page: &str, after: impl Fn(&str)) {
    let blocks = blocks_of(page, "server");
    assert!(blocks.len() > 1, "the page has its commands");
    for block in blocks {
        let printed = host.run(&block.commands).expect_success();
        println!("{}{printed}", block.commands);
        after(&block.commands);
    }
}

/// Command: skep target set-state, skep target files, skep target remove, skep node rename.
/// Command: skep cluster backup, skep cluster restore, skep purge, skep man, skep completion.
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
    // The pattern of this directory names the target that the page removes. The page must neither
    // lose the file whose name resembles the name of a copy, nor replace its contents.
    works("mkdir /mnt/skep/own; skep entry set --targets 3 /mnt/skep/own");
    works("cd /mnt/skep/own; echo first >f; echo second >f.new");
    run_page(&host, ADMINISTRATION, |_| ());
    check();
    assert_eq!(works("cd /mnt/skep/own; cat f f.new; ls"), "first\nsecond\nf\nf.new\n");
    works("rm -r /mnt/skep/own");
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

    works("mkdir -p /usr/share/bash-completion/completions");
    run_page(&host, SYSTEMD, |_| ());
    works("test -s /usr/share/bash-completion/completions/skep");
    works("test -s /usr/local/share/man/man8/mount.skep.8");
    assert_eq!(works("stat -c %U /disk1/skep"), "skep\n");
}

/// Pages with commands of Skep that no test runs unchanged. For each page: the number of code
/// blocks with such commands, and the reason. A test that the reason names runs the same commands
/// with its own values.
const NOT_RUN: &[(&str, usize, &str)] = &[
    ("administration.md", 4, "the death of a host, a new disk, the removal of a whole cluster"),
    ("backups.md", 3, "a cron script, lost nodes, old copies; management_nodes.rs, restored.rs"),
    ("benchmark-recipes.md", 1, "takes hours, and needs hardware and programs of others"),
    ("benchmarks-built-in.md", 3, "needs a lab, or IOR, mdtest and MPI, which few hosts have"),
    ("copying.md", 3, "needs several hosts, Slurm or a bucket; staging.rs, object_store.rs"),
    ("deploying.md", 9, "needs a hosts file of the reader; tests/deploy runs the commands"),
    ("fsck.md", 1, "copies between hosts; crates/fsck tests the check"),
    ("lab.md", 1, "uses the default name of the labs of this host; lab.rs has its own names"),
    ("ondemand.md", 6, "needs Slurm; ondemand.rs and staging.rs run prolog, epilog and commands"),
    ("several-hosts.md", 5, "ids of the cluster, and old copies; tokens.rs, restored.rs"),
    ("sizing.md", 1, "needs many disks and clients; tests/bench runs the benchmark"),
    ("studies.md", 4, "takes minutes to hours; tests/studies runs small studies"),
    ("systemd.md", 1, "needs systemd as the first process; service_user.rs checks the units"),
    ("tuning.md", 3, "changes settings of the whole host; tune.rs runs the commands"),
    ("upgrades.md", 1, "needs a program with a newer feature level"),
];

/// Returns the number of code blocks of a page that have a command of Skep and that no test runs.
fn blocks_not_run(page: &str) -> usize {
    let mut count = 0;
    // In the split page, parts with even indices are text, and parts with odd indices are code
    // blocks.
    for block in page.split("```").skip(1).step_by(2) {
        let is_run = block.starts_with("sh host=") || block.starts_with("console\n");
        let has_command = block.lines().skip(1).any(|line| {
            let line = line.trim_start();
            line.strip_prefix("$ ").unwrap_or(line).starts_with("skep ")
        });
        count += usize::from(has_command && !is_run);
    }
    count
}

#[test]
fn each_page_with_commands_that_no_test_runs_has_a_reason() {
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operations");
    let mut found = Vec::new();
    for entry in files::read_dir(&pages) {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|it| it != "md") {
            continue;
        }
        let count = blocks_not_run(&files::read_to_string(&path));
        if count > 0 {
            let name = path.file_name().and_then(|it| it.to_str()).expect("a name in ASCII");
            found.push((name.to_owned(), count));
        }
    }
    found.sort();
    let listed: Vec<_> =
        NOT_RUN.iter().map(|(page, count, _)| ((*page).to_owned(), *count)).collect();
    assert_eq!(found, listed, "pages with commands that no test runs, and the list with reasons");
}

/// Messages of the kernel or the C library, which the sources do not contain.
const OF_THE_SYSTEM: &[&str] = &["Connection refused"];

/// Returns the messages in the first column of the tables on the page. In other tables, returns the
/// quoted text after each ` has `, which names a part of a log line.
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
            // In other tables, quoted texts that do not follow ` has ` are errors of the system, or
            // names.
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
