//! Runs the commands on the pages about single commands in a cluster of `skep up`. The modules run
//! the commands on the pages about monitoring and clients, and about metadata groups.
//!
//! The test replaces only values that differ in each cluster, and the words CLIENT, PATH and ID in
//! tables. The values are the trace id of an operation, the process id of a mount, and the ids of
//! targets. The test shortens the benchmarks, and runs them on this host. Where a page shows the
//! output of a command, the test compares the whole output.

mod groups;
mod monitoring;

use serde_json::Value;
use skep_testkit::page::{PageHost, PageNetwork, blocks_of, quoted};

const MOUNTING: &str = include_str!("../../../../docs/operations/mounting.md");
const SETTINGS: &str = include_str!("../../../../docs/operations/settings.md");
const PATTERNS: &str = include_str!("../../../../docs/operations/patterns.md");
const COPYING: &str = include_str!("../../../../docs/operations/copying.md");
const FSCK: &str = include_str!("../../../../docs/operations/fsck.md");
const PLANNING: &str = include_str!("../../../../docs/operations/planning.md");
const SIZING: &str = include_str!("../../../../docs/operations/sizing.md");
const BENCHMARKS: &str = include_str!("../../../../docs/operations/benchmarks-built-in.md");

/// Replacements that shorten the benchmarks on the page, and run the benchmarks on this host. The
/// replacements also keep the caches of this machine, because other programs use these caches.
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

/// The output of `darshan-parser` about a program that writes one file in parts of 4 MiB.
const DARSHAN_LOG: &str = "# nprocs: 8\n# run time: 3\n\
     POSIX\t-1\t7\tPOSIX_BYTES_WRITTEN\t4194304000\nPOSIX\t-1\t7\tPOSIX_WRITES\t1000\n\
     POSIX\t-1\t7\tPOSIX_ACCESS1_ACCESS\t4194304\nPOSIX\t-1\t7\tPOSIX_ACCESS1_COUNT\t1000\n";

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

/// Runs the commands of a page in the directory `/srv`, and returns their output.
fn run_page(host: &PageHost, page: &str) -> String {
    blocks_of(page, "server").iter().map(|block| in_srv(host, &block.commands)).collect()
}

/// Runs the commands whose output is on the page, and compares the output.
fn check_quoted(host: &PageHost, page: &str) {
    let all = quoted(page);
    assert!(!all.is_empty(), "the page has commands with their output");
    for it in all {
        // The page also shows refused commands with their messages.
        let printed = in_srv(host, &format!("{{ {}; }} 2>&1 || true", it.command));
        assert_eq!(printed.trim_end(), it.output, "{}", it.command);
    }
}

/// Command: skep mount, skep umount, skep config list, skep config get, skep config set.
/// Command: skep entry set, skep advise, skep copy, skep down, skep fsck.
/// Command: skep plan propose, skep plan predict, skep plan explain, skep plan size.
/// Command: skep bench io, skep bench net, skep bench storage, skep bench slow-targets.
#[test]
fn commands_on_the_pages_about_single_commands_succeed() {
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

/// Runs the commands on the page about patterns. Then calls `skep entry set --pattern` with each
/// pattern text on the page.
fn check_patterns(host: &PageHost) {
    // A script replaces the program of Darshan.
    let script = "printf '#!/bin/sh\\ncat /srv/log-of-darshan\\n' >/usr/bin/darshan-parser";
    in_srv(
        host,
        &format!(
            "{script}; chmod 755 /usr/bin/darshan-parser\n\
             cat >log-of-darshan <<'END'\n{DARSHAN_LOG}END"
        ),
    );
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
    let targets: Vec<_> = targets[..3].iter().map(|it| it["id"].to_string()).collect();
    for pattern in patterns.lines() {
        let pattern = pattern.replace("3:7:12", &targets.join(":"));
        in_srv(host, &format!("skep entry set --pattern {pattern} /mnt/skep/texts"));
    }

    // The output on the page is from a cluster without inline bytes.
    in_srv(host, "skep config set inline-bytes 0");
    let file = "head -c 1000 /dev/zero >/mnt/skep/small/f$n";
    in_srv(host, &format!("for n in $(seq 120); do {file}; done"));
    check_quoted(host, PATTERNS);
    in_srv(host, "skep config set inline-bytes default");
}

/// Returns all storage targets, as `skep target list` shows them.
fn targets_of_storage(host: &PageHost) -> Vec<Value> {
    let printed = in_srv(host, "skep target list --output json");
    let mut targets: Vec<Value> = serde_json::from_str(&printed).expect("a list in JSON");
    targets.retain(|it| it["kind"] == "storage");
    targets
}

/// Runs shortened benchmarks from the page.
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
    // After a single repetition, `skep bench` never reports a target as slow.
    assert!(printed.contains("No target is certainly slower"), "{printed}");
}
