//! `skep lab`: real labs, the rates of their links and targets, and their complete removal.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use skep_testkit::files;
use skep_testkit::lab::Lab;
use skep_testkit::program::finish;
use skep_testkit::schema::{check, check_lines};
use skep_testkit::view::Typed;
use skep_testkit::{Scratch, cluster, wait_for};
use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Time limit of a command. The limit is longer than in other tests, because a lab starts a whole
/// cluster in network namespaces with limited rates.
const PATIENCE: Duration = Duration::from_secs(240);
const NOTHING: Vec<String> = Vec::new();
/// Rates of a client's link and of a target in bytes per second, as in [`RATES`].
const LINK: f64 = 8e6;
const TARGET: f64 = 5e6;
/// Number of programs that write at the same time.
const WRITERS: u32 = 8;
/// Number of megabytes that each program writes.
const MEGABYTES: u32 = 4;
const RATES: [&str; 4] = ["--client-link", "64Mbit", "--target-rate", "5MB/s"];
const SHAPE: [&str; 7] = ["--servers", "2", "--targets", "1", "--clients", "2", "--in-memory"];

/// Runs a `skep lab` command that must succeed, and checks its output as `json` and as `ndjson`
/// against the schema. Returns the JSON value.
fn checked(lab: &Lab, verb: &str, more: &[&str]) -> Value {
    let schema = format!("lab-{verb}");
    let lines = lab.call(verb, &[&["--output", "ndjson"], more].concat()).expect_success();
    check_lines(&schema, &lines);
    let value = lab.json(verb, more);
    check(&schema, &value);
    value
}

fn kill(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("an id");
    // The process may already have ended.
    kill_process(pid, Signal::KILL).ok();
}

/// Whether a process named `sleep` is running in the lab.
fn has_sleep(lab: &Lab) -> bool {
    let name = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm"));
    lab.processes().iter().any(|pid| name(pid).is_ok_and(|name| name == "sleep\n"))
}

/// Writes new files on `targets` from client 1, and syncs them. Returns the bytes written per
/// second. Several programs write at the same time, because a single program would wait alternately
/// for the link and for the target.
fn written_rate(lab: &Lab, name: &str, targets: &str) -> f64 {
    let skep = cluster::program().display().to_string();
    let on_client = |script: &str| lab.json("run", &["--host", "c1", "--", "sh", "-c", script]);
    let create = format!(
        "set -e; for i in $(seq {WRITERS}); do {skep} entry create --targets {targets} \
         $PWD/{name}.$i; done"
    );
    let created = on_client(&create);
    assert_eq!(created["hosts"][0]["exit_code"], 0, "{created}");
    let run = on_client(&format!(
        "for i in $(seq {WRITERS}); do dd if=/dev/zero of={name}.$i bs=1000000 \
         count={MEGABYTES} conv=notrunc,fsync & done; wait"
    ));
    check("lab-run", &run);
    let host = &run["hosts"][0];
    assert_eq!(host["exit_code"], 0, "{run}");
    let bytes = f64::from(WRITERS * MEGABYTES) * 1e6;
    assert!(host["sent_bytes"].float() >= bytes, "{run}");
    bytes / host["seconds"].float()
}

/// Checks that the measured rate reaches `expected` and never exceeds it. Makes several attempts,
/// because on a busy machine the rate may stay below `expected`.
fn assert_rate(lab: &Lab, targets: &str, expected: f64) {
    let mut found = Vec::new();
    for attempt in 0..5 {
        let rate = written_rate(lab, &format!("on-{targets}-{attempt}"), targets) / expected;
        assert!(rate < 1.05, "the rate on targets {targets} is {rate} times the expected rate");
        if rate > 0.92 {
            return;
        }
        found.push(rate);
    }
    panic!("the rates on targets {targets} are {found:?} times the expected rate");
}

/// Command: skep lab up, skep lab down, skep lab status, skep lab shapes.
#[test]
fn lab_links_and_targets_have_the_requested_rates() {
    let lab = Lab::new();
    let up = lab.json("up", &[&SHAPE[..], &RATES].concat());
    check("lab-up", &up);
    assert_eq!((&up["phase"], &up["is_well"]), (&"up".into(), &true.into()), "{up}");
    let names: Vec<_> = up["hosts"].list().iter().map(|host| host["name"].clone()).collect();
    assert_eq!(names, ["m1", "s1", "s2", "c1", "c2"]);
    checked(&lab, "status", &[]);

    // Use the mounts of both hosts, from this machine and from the hosts.
    files::write(lab.mount("c1").join("greeting"), "hello");
    assert_eq!(files::read_to_string(lab.mount("c2").join("greeting")), "hello");
    let script = ["--", "sh", "-c", "cat greeting; echo $SKEP_LAB_HOST >&2"];
    let run = checked(&lab, "run", &script);
    for (host, name) in run["hosts"].list().iter().zip(["c1", "c2"]) {
        assert_eq!((&host["host"], &host["exit_code"]), (&name.into(), &0.into()));
        assert_eq!(
            (&host["stdout"], &host["stderr"]),
            (&"hello".into(), &format!("{name}\n").into())
        );
    }

    // A single target is slower than the client's link, and two targets together are faster than
    // this link. Target 1 is the metadata target.
    assert_rate(&lab, "2", TARGET);
    assert_rate(&lab, "2,3", LINK);
    let status = lab.json("status", &[]);
    let received = |host: usize| status["hosts"][host]["received_bytes"].number();
    assert!(received(1) + received(2) > 32_000_000, "{status}");

    checked(&lab, "down", &["--dry-run"]);
    assert_ne!(lab.remains(), NOTHING);
    let down = lab.json("down", &[]);
    check("lab-down", &down);
    assert_eq!(down[0]["was_there"], true);
    assert_eq!(lab.remains(), NOTHING);
    assert_eq!(lab.json("down", &[])[0]["was_there"], false);
    let gone = lab.call("status", &[]);
    assert_eq!(gone.status.code(), Some(4), "{gone:?}");
}

/// Command: skep lab run.
#[test]
fn lab_commands_return_exit_codes_and_respect_timeouts() {
    let lab = Lab::new();
    lab.call("up", &[&SHAPE[..], &["--chooser", "roundrobin"]].concat()).expect_success();
    let skep = cluster::program().display().to_string();
    let chooser = ["--host", "c1", "--", &skep, "config", "get", "chooser", "--output", "json"];
    let run = lab.json("run", &chooser);
    assert!(run["hosts"][0]["stdout"].text().contains("roundrobin"), "{run}");
    let script = "test $SKEP_LAB_HOST = c1 || exit 7";
    let run = lab.call("run", &["--output", "json", "--", "sh", "-c", script]);
    assert_eq!(run.status.code(), Some(1), "{run:?}");
    let value: Value = serde_json::from_str(&run.stdout).expect("JSON");
    assert_eq!(value["hosts"][0]["exit_code"], 0, "{value}");
    assert_eq!(value["hosts"][1]["exit_code"], 7, "{value}");
    // When the time limit has passed, `skep lab run` kills the command and all processes that the
    // command has started.
    let script = "sleep 1000 & sleep 1000; echo not reached";
    let limited = ["--host", "c1", "--timeout", "300ms", "--output", "json"];
    let run = lab.call("run", &[&limited[..], &["--", "sh", "-c", script]].concat());
    let value: Value = serde_json::from_str(&run.stdout).expect("JSON");
    check("lab-run", &value);
    let host = &value["hosts"][0];
    assert_eq!((&host["is_timed_out"], &host["stdout"]), (&true.into(), &"".into()), "{value}");
    assert!(host["seconds"].float() < 30.0, "{value}");
    wait_for("the command's own processes end", PATIENCE, || (!has_sleep(&lab)).then_some(()));
    let unknown = lab.call("run", &["--host", "c9", "--", "true"]);
    assert_eq!(unknown.status.code(), Some(4), "{unknown:?}");
    let missing = lab.json("run", &["--host", "s1", "--", "no-such-program"]);
    assert_ne!(missing["hosts"][0]["exit_code"], 0, "{missing}");
}

#[test]
fn lab_down_removes_the_remains_of_a_killed_lab() {
    let lab = Lab::new();
    lab.call("up", &SHAPE).expect_success();
    files::write(lab.mount("c1").join("data"), vec![7; 3 << 20]);
    // Let a second program run on a host of the lab.
    let mut shell = lab.command("run", &["--host", "c2", "--", "sleep", "1000"]);
    let mut shell = shell.stdout(Stdio::null()).spawn().expect("started");
    wait_for("the program on the host runs", PATIENCE, || has_sleep(&lab).then_some(()));
    let status = lab.json("status", &[]);
    for host in status["hosts"].list() {
        for process in host["processes"].list() {
            let pid = process["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
            kill(pid.expect("an id"));
        }
    }
    let ended = lab.call("status", &["--output", "json"]);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    let again = lab.call("up", &SHAPE);
    assert!(again.stderr.contains("skep lab down --name"), "{again:?}");
    lab.call("down", &[]).expect_success();
    shell.wait().expect("our own child");
    assert_eq!(lab.remains(), NOTHING);
    // A new lab can use the same name. `skep lab down` removes this lab even if the state file is
    // missing.
    lab.call("up", &SHAPE).expect_success();
    files::remove_file(lab.directory().join("lab.json"));
    lab.call("down", &[]).expect_success();
    assert_eq!(lab.remains(), NOTHING);
}

/// Returns the number of processes in the state file of a lab. Returns `None` if the lab has no
/// state file.
fn noted_processes(lab: &Lab) -> Option<usize> {
    let text = fs::read(lab.directory().join("lab.json")).ok()?;
    let state: Value = serde_json::from_slice(&text).expect("the state file is always complete");
    Some(state["processes"].list().len())
}

#[test]
fn lab_down_removes_a_lab_killed_during_its_start() {
    let lab = Lab::new();
    let namespaces = || lab.remains().iter().filter(|it| it.starts_with("skep-lab-")).count();
    // The first process in the state file is `skep lab up` itself.
    let moments: [(&str, &dyn Fn() -> bool); 6] = [
        ("the lab has a directory", &|| lab.directory().exists()),
        ("the lab has a namespace", &|| namespaces() > 0),
        ("the lab has three namespaces", &|| namespaces() > 2),
        ("management is there", &|| noted_processes(&lab) > Some(1)),
        ("storage is there", &|| noted_processes(&lab) > Some(3)),
        ("a mount is there", &|| noted_processes(&lab) > Some(5)),
    ];
    for (moment, has_come) in moments {
        let mut up = lab.command("up", &SHAPE);
        let mut up = up.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("started");
        let deadline = std::time::Instant::now() + PATIENCE;
        while !has_come() && up.try_wait().expect("our own child").is_none() {
            assert!(std::time::Instant::now() < deadline, "{moment}");
        }
        up.kill().expect("our own child");
        up.wait().expect("our own child");
        assert_ne!(lab.remains(), NOTHING, "{moment}");
        lab.call("down", &[]).expect_success();
        assert_eq!(lab.remains(), NOTHING, "{moment}");
    }
    // If `skep lab up` is still running, `skep lab down` ends that process first.
    let mut up = lab.command("up", &SHAPE);
    let mut up = up.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("started");
    wait_for("the start of the lab has begun", PATIENCE, || noted_processes(&lab));
    lab.call("down", &[]).expect_success();
    up.wait().expect("our own child");
    assert_eq!(lab.remains(), NOTHING);
}

#[test]
fn impossible_lab_is_refused_before_any_change() {
    let lab = Lab::new();
    let refused = |arguments: &[&str], exit_code: i32, words: &str| {
        let found = lab.call("up", arguments);
        assert_eq!(found.status.code(), Some(exit_code), "{found:?}");
        assert!(found.stderr.contains(words), "{words}: {found:?}");
        assert_eq!(lab.remains(), NOTHING, "{found:?}");
    };
    refused(&["--servers", "0"], 2, "servers 0");
    refused(&["--clients", "999"], 2, "1 to 250");
    refused(&["--metadata-servers", "0"], 2, "metadata servers 0");
    refused(&["--target-variability", "10%"], 2, "--target-rate");
    refused(&["--link", "fast"], 2, "400Mbit");
    refused(&["--chooser", "best"], 2, "balanced");
    refused(&["scenario9"], 2, "scenario1");
    let scratch = Scratch::new();
    let file = scratch.join("lab.toml");
    files::write(&file, "servers = 2\nlinks = \"1Gbit\"\n");
    refused(&[&file.display().to_string()], 2, "links");
    let full = scratch.directory("full");
    files::write(full.join("thesis"), "precious");
    refused(&["--directory", &full.display().to_string()], 7, "the directory is not empty");
    assert_eq!(files::read_to_string(full.join("thesis")), "precious");
    refused(&["--link", "100Gbit"], 1, "--force");
    // Read the shape of a lab from a file, without starting the lab.
    files::write(&file, "servers = 3\ntargets = 1\nlink = \"80Mbit\"\n");
    let file = file.display().to_string();
    let plan = checked(&lab, "up", &[&file, "--clients", "1", "--dry-run"]);
    assert_eq!(plan["hosts"].as_array().map(Vec::len), Some(5), "{plan}");
    assert_eq!(plan["hosts"][1]["link_bytes_per_second"], 10_000_000);
    assert_eq!(lab.remains(), NOTHING);
    // Find out whether this kernel has the module that emulates delays.
    let netem = ["--net", "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"];
    let has_netem = finish(Command::new("unshare").args(netem), PATIENCE).status.success();
    match has_netem {
        true => drop(lab.call("up", &["--delay", "1ms", "--dry-run"]).expect_success()),
        false => refused(&["--delay", "1ms"], 1, "netem"),
    }
    check("lab-shapes", &serde_json::from_str(&shapes("json")).expect("JSON"));
    let shapes = check_lines("lab-shapes", &shapes("ndjson"));
    assert!(shapes.as_array().is_some_and(|shapes| shapes.len() > 2), "{shapes}");
}

/// Command: skep lab up.
#[test]
fn lab_of_the_azure_shape_has_20_servers_and_46_clients() {
    let lab = Lab::new();
    // The test must not depend on the memory and the speed of this machine.
    let plan = checked(&lab, "up", &["azure", "--on-disk", "--force", "--dry-run"]);
    let with_role =
        |role: &str| plan["hosts"].list().iter().filter(|host| host["role"] == role).count();
    assert_eq!(["metadata", "server", "client"].map(with_role), [1, 20, 46], "{plan}");
    assert_eq!(lab.remains(), NOTHING);
}

/// Command: skep lab up.
#[test]
fn lab_spreads_directories_over_all_metadata_servers() {
    let lab = Lab::new();
    let shape = ["--servers", "1", "--targets", "1", "--clients", "1", "--in-memory"];
    let up = lab.json("up", &[&shape[..], &["--metadata-servers", "2"]].concat());
    let names: Vec<_> = up["hosts"].list().iter().map(|host| host["name"].text()).collect();
    assert_eq!(names, ["m1", "m2", "s1", "c1"], "{up}");
    let skep = cluster::program().display().to_string();
    // For a directory in the root, the hash of the directory's name selects the metadata server.
    let script = format!(
        "set -e; for d in $(seq 32); do mkdir $d; {skep} entry info --output ndjson $d; done"
    );
    let run = lab.json("run", &["--host", "c1", "--", "sh", "-c", &script]);
    assert_eq!(run["hosts"][0]["exit_code"], 0, "{run}");
    let directories: Vec<Value> = run["hosts"][0]["stdout"]
        .text()
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(directories.len(), 32, "{run}");
    for server in ["m1", "m2"] {
        let has = directories.iter().any(|it| it["metadata"]["node_name"] == server);
        assert!(has, "{server} has no directory: {run}");
    }
    lab.call("down", &[]).expect_success();
    assert_eq!(lab.remains(), NOTHING);
}

fn shapes(format: &str) -> String {
    cluster::skep(["lab", "shapes", "--output", format]).expect_success()
}

#[test]
fn lab_without_root_is_refused() {
    let scratch = Scratch::new();
    let lab = Lab::new();
    // Use a copy of the program, because other users may have no access to the build directory.
    let copy = scratch.join("skep");
    files::copy(cluster::program(), &copy);
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&copy);
    let found = finish(command.args(["lab", "up", "--name", lab.name()]), PATIENCE);
    assert_eq!(found.status.code(), Some(5), "{found:?}");
    assert!(found.stderr.contains("run skep as root"), "{found:?}");
    assert_eq!(lab.remains(), NOTHING);
}

/// Returns how often this kernel has dropped its page cache, and how often this kernel has dropped
/// its cache of names and inodes.
fn cache_drops() -> [u64; 2] {
    let text = files::read_to_string("/proc/vmstat");
    ["drop_pagecache ", "drop_slab "].map(|name| {
        let value = text.lines().find_map(|line| line.strip_prefix(name));
        value.expect("the kernel has this counter").parse().expect("a number")
    })
}

#[test]
fn benchmarks_run_on_the_hosts_of_a_lab_and_drop_caches() {
    let lab = Lab::new();
    lab.json("up", &SHAPE);
    let bench = |verb: &str, more: &[&str]| {
        let mut command = Command::new(cluster::program());
        command.args(["bench", verb, "--lab", lab.name(), "--output", "json"]).args(more);
        // Use another working directory. Relative paths are relative to the mounts of the hosts in
        // any case.
        command.current_dir("/");
        let value = finish(&mut command, PATIENCE).expect_success();
        let value: Value = serde_json::from_str(&value).expect("JSON");
        check(&format!("bench-{verb}"), &value);
        // Other programs may use the processors, so the test cannot predict whether the run counts
        // as valid.
        assert_eq!(value["is_valid"], !value["cpu"]["is_limit"].as_bool().expect("judged"));
        assert!(value["cpu"]["samples"].as_u64() > Some(0), "{value}");
        let hosts = value["hosts"].list();
        assert_eq!([&hosts[0]["name"], &hosts[1]["name"]], ["c1", "c2"]);
        value
    };
    let assert_dropped = |value: &Value, before: [u64; 2]| {
        let phases = value["phases"].list();
        assert!(!phases.is_empty());
        for phase in phases {
            assert_eq!(phase["caches_dropped"], true, "{phase}");
        }
        // Other programs may drop caches, too. So a counter may grow by more than the test itself
        // causes.
        for (before, after) in before.into_iter().zip(cache_drops()) {
            assert!(after - before >= phases.len() as u64, "{before} {after}: {value}");
        }
    };
    let before = cache_drops();
    let io = bench("io", &["-o", "file", "-t", "64k", "-b", "1m", "-C", "-R", "-i", "2"]);
    assert_eq!(io["hosts"][0]["environment"]["mount"]["kind"], "fuse.skep");
    assert_dropped(&io, before);
    let before = cache_drops();
    let metadata = bench("metadata", &["-d", ".", "-n", "20", "-F", "-N", "1"]);
    assert_dropped(&metadata, before);
    let kept = bench("io", &["-o", "file", "-b", "1m", "--keep-caches"]);
    assert_eq!(kept["phases"][0]["caches_dropped"], false);
    assert_eq!(files::read_dir(lab.mount("c2")).count(), 0);

    let small = ["--message-size", "64k", "--messages", "4", "--repetitions", "1"];
    let net = bench("net", &[&small[..], &["--services", "s1,s2"]].concat());
    let pairs = net["pairs"].list();
    let names: Vec<_> = pairs.iter().map(|it| [it["from"].as_str(), it["to"].as_str()]).collect();
    let [one, two] = [Some("s1"), Some("s2")];
    let [first, second] = [Some("c1"), Some("c2")];
    assert_eq!(
        names,
        [[first, one], [first, two], [second, one], [second, two], [one, two], [two, one]]
    );
    lab.json("down", &[]);
    assert_eq!(lab.remains(), NOTHING);
}

/// Returns a shell command whose processes use all CPUs for `seconds` seconds, even if other
/// processes compete for the CPUs.
fn hog(seconds: u32) -> String {
    let text = files::read_to_string("/proc/stat");
    let is_processor = |line: &&str| line.starts_with("cpu") && !line.starts_with("cpu ");
    let loops = text.lines().filter(is_processor).count() * 4;
    // `skep lab` does not count processes with a positive nice value as load. So these processes
    // get a negative nice value. If the kernel has autogroups, the autogroup of these processes
    // also gets this nice value.
    let endless = format!("timeout {seconds} nice -n -19 sh -c \"while :; do :; done\"");
    format!(
        "for i in $(seq {loops}); do setsid sh -c 'echo -19 >/proc/$$/autogroup; {endless}' \
         </dev/null >/dev/null 2>&1 & done"
    )
}

/// Command: skep lab run.
#[test]
fn lab_run_on_a_host_with_busy_cpus_is_marked_invalid() {
    let lab = Lab::new();
    lab.json("up", &SHAPE);
    let script = format!("{}; wait", hog(3));
    let run = lab.json("run", &["--host", "c1", "--", "sh", "-c", &script]);
    check("lab-run", &run);
    assert_eq!((&run["is_valid"], &run["cpu"]["is_limit"]), (&false.into(), &true.into()), "{run}");
    let shown = lab.call("run", &["--host", "c1", "--", "sh", "-c", &script]).expect_success();
    assert!(shown.contains("INVALID: in "), "{shown}");

    let bench = |format: &str| {
        let mut command = Command::new(cluster::program());
        command.args(["bench", "io", "--lab", lab.name(), "--output", format, "-w"]);
        command.args(["-o", "file", "-b", "1m", "--keep-caches", "--before-phase", &hog(3)]);
        finish(&mut command, PATIENCE).expect_success()
    };
    let value: Value = serde_json::from_str(&bench("json")).expect("JSON");
    check("bench-io", &value);
    assert_eq!(value["is_valid"], false, "{}", value["cpu"]);
    let shown = bench("table");
    assert!(shown.contains("SUMMARY") && shown.contains("INVALID: "), "{shown}");
    lab.json("down", &[]);
    assert_eq!(lab.remains(), NOTHING);
}
