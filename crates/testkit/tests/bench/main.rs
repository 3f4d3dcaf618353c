//! `skep bench` on real clusters with several hosts. Two mounts of one cluster stand for two hosts.
//! `skep bench` starts its processes on a host with the command of the option `--enter`. In these
//! tests this command runs the process on the same machine, and `{host}` in the path selects the
//! mount.

mod stopped_runs;

use rustix::process::{Pid, kill_process};
use serde_json::Value;
use skep_testkit::files;
use skep_testkit::program::{Finished, finish};
use skep_testkit::schema::{check, check_lines};
use skep_testkit::view::Typed;
use skep_testkit::{Cluster, Scratch, Shape, Transport, cluster, process, wait_for};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Time limit of a command. The limit is longer than in other tests, because a benchmark writes for
/// seconds on a machine that other programs use, too.
const PATIENCE: Duration = Duration::from_secs(120);
/// The option `--enter` of `skep bench`: the command that starts a process on a host. In these
/// tests, the command only sets an environment variable.
const ENTER: [&str; 2] = ["--enter", "env HOST={host}"];

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Returns a `skep bench` command that does not drop the machine's caches, because other programs
/// use these caches.
fn bench(arguments: &[&str]) -> Command {
    let mut command = Command::new(cluster::program());
    command.arg("bench").args(arguments).args(["--keep-caches"]);
    command
}

fn run(arguments: &[&str]) -> Finished {
    finish(&mut bench(arguments), PATIENCE)
}

fn small_cluster() -> Cluster {
    Cluster::start(Shape { metadata_targets: 1, targets_per_service: 2, ..Shape::default() })
}

fn names(directory: &Path) -> Vec<String> {
    let entries = files::read_dir(directory);
    let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("an entry").file_name();
    let mut names: Vec<_> = entries.map(name).map(|it| it.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Command: skep bench io.
#[test]
fn io_bench_verifies_data_that_another_mount_wrote() {
    let mut cluster = small_cluster();
    let second = cluster.mount(Transport::Device);
    let place = cluster.path().parent().expect("a directory").join("{host}/file");
    let hosts = ["--hosts", "mnt,mnt-1", "--processes-per-host", "2"];
    assert_eq!(second.path().file_name().expect("a name"), "mnt-1");
    let place = place.display().to_string();
    let common = ["io", "-o", &place, "-b", "1m", "-C", "-e", "-W", "-R", "-i", "2"];
    let sampled = ["-t", "4k", "-z", "-F", "--sample-interval", "1ms"];
    for pattern in [&["-t", "64k", "-s", "2"][..], &sampled] {
        for format in ["json", "ndjson"] {
            let output = ["--output", format];
            let all = [&common[..], pattern, &hosts, &ENTER, &output].concat();
            let value = parse(&run(&all).expect_success());
            check("bench-io", &value);
            let phases = value["phases"].list();
            let done: Vec<_> = phases.iter().map(|it| it["phase"].text()).collect();
            assert_eq!(done, ["write", "read", "write", "read"]);
            let segments = if pattern.contains(&"-s") { 2 } else { 1 };
            for phase in phases {
                assert_eq!(phase["bytes"], (4 << 20) * segments);
                assert_eq!(phase["errors"], 0);
                let processes = phase["processes"].list();
                let places: Vec<_> = processes.iter().map(|it| it["host"].as_str()).collect();
                assert_eq!(places, [Some("mnt"), Some("mnt-1"), Some("mnt"), Some("mnt-1")]);
                for process in processes {
                    let last = process["samples"].as_array().and_then(|it| it.last());
                    let expected = (pattern == sampled).then_some(&process["bytes"]);
                    assert_eq!(last.map(|sample| &sample[1]), expected, "{process}");
                }
            }
            assert_eq!(value["hosts"][1]["environment"]["mount"]["kind"], "fuse.skep");
            assert_eq!(names(cluster.path()), Vec::<String>::new());
        }
    }
    second.unmount();
    cluster.stop_checked(&[]);
}

/// Command: skep bench io, skep bench metadata.
#[test]
fn bench_options_override_the_values_of_a_preset() {
    let scratch = Scratch::new();
    let path = scratch.join("file").display().to_string();
    let measured = |arguments: &[&str]| {
        let value = parse(&run(&[arguments, &["--output", "json"]].concat()).expect_success());
        check(&format!("bench-{}", arguments[0]), &value);
        value
    };
    let io = ["io", "-o", &path, "--preset", "azure-throughput", "-t", "64k", "-b", "128k"];
    let less = ["--processes-per-host", "2", "-i", "1", "--without", "direct,reorder"];
    let value = measured(&[&io[..], &less].concat());
    let plan = &value["plan"];
    assert_eq!((&plan["preset"], &value["processes"]), (&"azure-throughput".into(), &2.into()));
    assert_eq!((&plan["transfer_bytes"], &plan["block_bytes"]), (&65536.into(), &131_072.into()));
    assert_eq!((&plan["repetitions"], &plan["file_per_process"]), (&1.into(), &true.into()));
    assert_eq!((&plan["direct"], &plan["reorder"]), (&false.into(), &false.into()));
    let value = measured(&["io", "-o", &path, "-b", "64k", "-t", "64k"]);
    assert_eq!((&value["plan"]["preset"], &value["processes"]), (&Value::Null, &1.into()));

    let directory = scratch.path().display().to_string();
    let metadata = ["metadata", "-d", &directory, "--preset", "azure-mdtest", "-I", "2"];
    let value = measured(&[&metadata[..], &["--processes-per-host", "2", "-i", "2"]].concat());
    let plan = &value["plan"];
    assert_eq!((&plan["preset"], &plan["depth"]), (&"azure-mdtest".into(), &2.into()));
    assert_eq!((&plan["create"], &plan["read"]), (&true.into(), &false.into()));
    assert_eq!(names(scratch.path()), Vec::<String>::new());

    let unknown = run(&["io", "-o", &path, "--preset", "lustre"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(unknown.expect_failure().contains("nfs-baseline"));
    let help = finish(Command::new(cluster::program()).args(["bench", "io", "--help"]), PATIENCE);
    // The help is wrapped at the width of a terminal.
    let help = help.expect_success().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.contains("-t 32m -b 4g -F -C -B -i 4 --processes-per-host 32"), "{help}");
}

#[test]
fn dry_run_of_the_tool_installer_only_lists_commands() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/install-bench-tools.sh");
    let run =
        |arguments: &[&str]| finish(Command::new("sh").arg(&script).args(arguments), PATIENCE);
    let scratch = Scratch::new();
    let prefix = scratch.path().display().to_string();
    let built = ["--dry-run", "--from-source", "--prefix", &prefix, "mpich", "mdtest", "iozone"];
    let printed = run(&built).expect_success();
    for words in ["mpich-4", "hpc/ior/archive", "iozone3_", "has the SHA-256", "No command was run"]
    {
        assert!(printed.contains(words), "{words}: {printed}");
    }
    assert!(printed.contains(&format!("--prefix={prefix}")), "{printed}");
    assert_eq!(names(scratch.path()), Vec::<String>::new());
    let refused = |arguments: &[&str], words: &str| {
        let finished = run(arguments);
        assert_eq!(finished.status.code(), Some(2), "{arguments:?}: {}", finished.stderr);
        assert!(finished.stderr.contains(words), "{arguments:?}: {}", finished.stderr);
    };
    refused(&["--dry-run", "bonnie"], "unknown program 'bonnie'");
    refused(&["--dry-run", "--source", "ior=http://x/ior.tar,1234"], "64 hexadecimal digits");
    refused(&["--dry-run", "--prefix"], "needs a value");
}

#[test]
fn io_bench_verifies_files_of_an_earlier_run() {
    let scratch = Scratch::new();
    let path = scratch.join("file").display().to_string();
    let common = ["io", "-o", &path, "-b", "256k", "-t", "4k", "-G", "7"];
    run(&[&common[..], &["-w", "-k"]].concat()).expect_success();
    let read = [&common[..], &["-r", "-R"]].concat();
    let printed = run(&read).expect_success();
    assert!(printed.contains("read") && !printed.contains("write"), "{printed}");
    let file = files::open_with(fs::OpenOptions::new().write(true), &path);
    files::write_all_at(&file, b"!", 8193);
    let printed = run(&read).expect_failure();
    assert!(printed.contains("the data of 1 transfers differs"), "{printed}");
    assert!(printed.contains("byte 8192") && printed.contains("process 0"), "{printed}");
    let printed = run(&["io", "-o", &path, "-r", "-R"]).expect_failure();
    assert!(printed.contains("-G"), "{printed}");
    assert_eq!(names(scratch.path()), ["file"]);
}

#[test]
fn io_bench_refuses_invalid_options_and_leaves_no_file() {
    let scratch = Scratch::new();
    let path = scratch.join("file").display().to_string();
    let refused = |arguments: &[&str], code: i32, words: &str| {
        let finished = run(&[&["io", "-o", &path], arguments].concat());
        assert_eq!(finished.status.code(), Some(code), "{arguments:?}: {}", finished.stderr);
        assert!(finished.stderr.contains(words), "{arguments:?}: {}", finished.stderr);
        assert_eq!(finished.stdout, "");
    };
    refused(&["-t", "3"], 2, "multiple of 8");
    refused(&["-t", "1m", "-b", "1536k"], 2, "multiple of the transfer size");
    refused(&["-t", "1x"], 2, "invalid size");
    refused(&["--processes-per-host", "0"], 2, "expected at least 1");
    refused(&["--hosts", "a,a", "--enter", "env"], 2, "listed twice");
    refused(&["--host-file", "/nowhere"], 2, "/nowhere");
    refused(&["--hosts", "a", "--enter", "false"], 3, "cannot reach skep on host a");
    refused(&["--hosts", "a", "--enter", "no-such-program"], 3, "no-such-program");
    refused(&["--hosts", "a", "--enter", "echo Welcome"], 3, "Welcome");
    refused(&["-r"], 1, "No such file");
    files::create_dir(scratch.join("small"));
    let small = scratch.join("small");
    finish(
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "none"]).arg(&small),
        PATIENCE,
    )
    .expect_success();
    let in_small = small.join("file").display().to_string();
    let full = run(&["io", "-F", "-b", "8m", "--processes-per-host", "2", "-o", &in_small]);
    let left = names(&small);
    finish(Command::new("umount").arg(&small), PATIENCE).expect_success();
    assert!(full.expect_failure().contains("No space left"));
    assert_eq!(left, Vec::<String>::new());
    files::write(&path, "precious");
    refused(&["-w"], 1, "exists");
    assert_eq!(files::read_to_string(&path), "precious");
}

/// Command: skep bench metadata.
#[test]
fn metadata_bench_covers_two_mounts_and_removes_its_files() {
    let mut cluster = small_cluster();
    let second = cluster.mount(Transport::Device);
    let place = cluster.path().parent().expect("a directory").join("{host}");
    let place = place.display().to_string();
    let hosts = ["--hosts", "mnt,mnt-1", "--processes-per-host", "2"];
    let tree = ["-z", "1", "-b", "3", "-N", "1", "-w", "100", "-e", "100", "-i", "2"];
    for (items, files) in [
        (&["-I", "5"][..], 80),
        (&["-n", "9", "-u", "-L"], 36),
        (&["-n", "9", "-u", "-L", "--separate-trees"], 36),
    ] {
        for format in ["json", "ndjson"] {
            let common = ["metadata", "-d", &place, "--output", format];
            let all = [&common[..], items, &tree, &hosts, &ENTER].concat();
            let value = parse(&run(&all).expect_success());
            check("bench-metadata", &value);
            let phases = value["phases"].list();
            let name = |phase: &Value| phase["phase"].text().to_owned();
            let names: Vec<_> = phases.iter().map(name).collect();
            assert_eq!(names.len(), 18);
            assert_eq!((names[0].as_str(), names[17].as_str()), ("tree_creation", "tree_removal"));
            for phase in phases.iter().filter(|it| !name(it).starts_with("tree")) {
                assert_eq!(phase["operations"], files, "{phase}");
            }
        }
        assert_eq!(names(cluster.path()), Vec::<String>::new());
    }
    let directory = cluster.path().display().to_string();
    let line = ["metadata", "-d", &directory, "-n", "10", "--metadata-servers", "2"];
    let table = run(&line).expect_success();
    assert!(table.contains("MEAN/s PER SERVER"), "{table}");
    assert!(table.contains("File creation") && table.contains("Tree removal"), "{table}");
    second.unmount();
    cluster.stop_checked(&[]);
}

#[test]
fn metadata_bench_refuses_invalid_options_and_leaves_no_file() {
    let scratch = Scratch::new();
    let place = scratch.path().display().to_string();
    let refused = |arguments: &[&str], code: i32, words: &str| {
        let finished = run(&[&["metadata", "-d", &place], arguments].concat());
        assert_eq!(finished.status.code(), Some(code), "{arguments:?}: {}", finished.stderr);
        assert!(finished.stderr.contains(words), "{arguments:?}: {}", finished.stderr);
        assert_eq!(finished.stdout, "");
    };
    refused(&[], 2, "number of items");
    refused(&["-n", "1", "-I", "1"], 2, "cannot be used with");
    refused(&["-n", "10", "-F", "-D"], 2, "cannot be used together");
    refused(&["-n", "10", "--separate-trees"], 2, "one tree per process (-u)");
    refused(&["-n", "10", "-z", "30", "-b", "9"], 2, "directories");
    refused(&["-n", "10", "-z", "2", "-b", "9"], 2, "has more directories than");
    refused(&["-n", "10", "-d", "/nowhere"], 2, "cannot be used multiple times");
    refused(&["-n", "10", "-T"], 1, "No such file");
    assert_eq!(names(scratch.path()), Vec::<String>::new());
    run(&["metadata", "-d", &place, "-n", "10", "-C"]).expect_success();
    refused(&["-n", "10", "-C"], 1, "test-dir.0 exists");
    run(&["metadata", "-d", &place, "-n", "10", "-r"]).expect_success();
    assert_eq!(names(scratch.path()), Vec::<String>::new());
}

#[test]
fn command_before_each_phase_can_remount_the_clients() {
    let cluster = small_cluster();
    let scratch = Scratch::new();
    let (place, log) = (scratch.directory("mnt"), scratch.join("log"));
    let skep = cluster::program().display().to_string();
    let mount =
        format!("{skep} mount --cluster {} --detach {}", cluster.data().display(), place.display());
    let unmount = format!("umount {}", place.display());
    let sh = |script: &str| finish(Command::new("sh").args(["-c", script]), PATIENCE);
    sh(&mount).expect_success();
    let path = place.join("file").display().to_string();
    let anew = format!("{unmount} && {mount} && echo {{host}} >>{}", log.display());
    let common = ["io", "-o", &path, "-b", "256k", "-R", "-i", "2", "--before-phase"];
    let limits = ["--limit", "1g", "--limit-iops", "1000"];
    let shown = run(&[&common[..], &[&anew], &limits].concat());
    let failed = run(&[&common[..], &["echo broken; exit 3"]].concat()).expect_failure();
    sh(&unmount).expect_success();
    let shown = shown.expect_success();
    assert!(shown.contains("OF LIMIT") && shown.contains("OF IO/s"), "{shown}");
    assert_eq!(files::read_to_string(&log), "localhost\n".repeat(4));
    assert!(failed.contains("localhost") && failed.contains("broken"), "{failed}");
    assert_eq!(names(cluster.path()), Vec::<String>::new());
}

#[test]
fn external_tools_run_the_phases_of_skep_bench_on_all_hosts() {
    let mut cluster = small_cluster();
    let _second = cluster.mount(Transport::Device);
    let place = cluster.path().parent().expect("a directory").join("{host}/file");
    let place = place.display().to_string();
    let hosts = ["--hosts", "mnt,mnt-1", "--processes-per-host", "2", "--output", "json"];
    let common = ["io", "--tool", "fio", "-o", &place, "-b", "1m", "-C", "-e"];
    let common = [&common[..], &ENTER, &hosts].concat();
    for pattern in [&["-t", "64k"][..], &["-t", "4k", "-z", "-B"], &["-F", "-s", "2", "-i", "2"]] {
        let value = parse(&run(&[&common[..], pattern].concat()).expect_success());
        check("bench-io", &value);
        assert_eq!(value["tool"], "fio");
        let phases = value["phases"].list();
        let (repetitions, segments) = if pattern[0] == "-F" { (2, 2) } else { (1, 1) };
        assert_eq!(phases.len(), 2 * repetitions);
        for phase in phases {
            assert_eq!(phase["bytes"], (4 << 20) * segments, "{phase}");
            for process in phase["processes"].list() {
                let command = process["command"].text();
                assert!(command.starts_with("fio ") && command.contains("/file"), "{command}");
                assert_eq!(process["reported"]["result"]["io_bytes"], (1 << 20) * segments);
            }
        }
        assert_eq!(names(cluster.path()), Vec::<String>::new());
    }
    let shown = ["io", "--tool", "fio", "-o", &place, "-b", "1m", "-F", "-k"];
    let shown = run(&[&shown[..], &hosts[..4], &ENTER].concat()).expect_success();
    assert!(shown.starts_with("by fio: "), "{shown}");
    assert_eq!(names(cluster.path()).len(), 4);
}

#[test]
fn error_names_a_missing_or_unusable_tool() {
    let scratch = Scratch::new();
    let file = scratch.join("file").display().to_string();
    let directory = scratch.path().display().to_string();
    let missing = |arguments: &[&str], words: &[&str]| {
        let mut command = bench(arguments);
        let printed = finish(command.env("PATH", "/nowhere"), PATIENCE).expect_failure();
        for word in words {
            assert!(printed.contains(word), "{word}: {printed}");
        }
    };
    missing(&["io", "--tool", "fio", "-o", &file], &["fio is not installed", "package fio"]);
    missing(&["io", "--tool", "ior", "-o", &file], &["ior is not installed", "hpc/ior"]);
    missing(&["io", "--tool", "iozone", "-F", "-o", &file], &["iozone is not", "iozone3"]);
    missing(&["metadata", "--tool", "mdtest", "-n", "1", "-d", &directory], &["mdtest is not"]);
    let refused = |arguments: &[&str], words: &str| {
        let finished = run(arguments);
        assert_eq!(finished.status.code(), Some(2), "{arguments:?}: {}", finished.stderr);
        assert!(finished.stderr.contains(words), "{arguments:?}: {}", finished.stderr);
    };
    refused(
        &["io", "--tool", "fio", "-o", &file, "-W"],
        "fio cannot run this plan: the program does not support the comparison of data",
    );
    refused(&["io", "--tool", "fio", "-o", &file, "-s", "2"], "segments (-s)");
    refused(&["io", "--tool", "fio", "-o", &file, "--mpi-io"], "MPI-IO (--mpi-io)");
    refused(&["io", "-o", &file, "--mpi-io"], "--tool");
    refused(
        &["io", "--tool", "ior", "-o", &file, "-R"],
        "ior cannot run this plan: the program does not support the comparison of data",
    );
    refused(&["io", "--tool", "iozone", "-o", &file], "use one file per process (-F)");
    refused(&["io", "--tool", "mdtest", "-o", &file], "invalid value 'mdtest'");
    files::write(&file, "precious");
    let printed = run(&["io", "--tool", "fio", "-w", "-o", &file]).expect_failure();
    assert!(printed.contains("exists"), "{printed}");
    let printed = run(&["io", "--tool", "fio", "-r", "-o", &file]).expect_failure();
    assert!(printed.contains("has 8 bytes"), "{printed}");
    assert_eq!(files::read_to_string(&file), "precious");
    run(&["io", "--tool", "fio", "-F", "-w", "-o", "/dev/null/file"]).expect_failure();
    assert_eq!(names(scratch.path()), ["file"]);
}

/// Returns a `skep bench` command for the targets of a cluster.
fn bench_targets(cluster: &Cluster, verb: &str, more: &[&str]) -> Command {
    let mut command = Command::new(cluster::program());
    command.args(["bench", verb, "--cluster"]).arg(cluster.data()).args(more);
    command
}

/// Returns the ids of the targets of the kind `kind`.
fn targets(cluster: &Cluster, kind: &str) -> Vec<String> {
    cluster.target_ids(kind).iter().map(ToString::to_string).collect()
}

/// Returns the directories that benchmarks have created on targets and have not removed.
fn left_on_targets(cluster: &Cluster) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting = vec![cluster.data().to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if entry.file_name() == "benchmark" {
                found.push(path);
            } else if path.is_dir() {
                waiting.push(path);
            }
        }
    }
    found
}

/// Command: skep bench storage, skep bench slow-targets.
#[test]
fn storage_bench_measures_all_targets_and_names_slow_targets() {
    let cluster = small_cluster();
    let run =
        |verb: &str, more: &[&str]| finish(&mut bench_targets(&cluster, verb, more), PATIENCE);
    let small = ["--size", "1m", "--block-size", "64k", "--threads", "2", "--repetitions", "3"];
    let mut measured = String::new();
    for more in [&["--output", "json"][..], &["--output", "ndjson", "--one-by-one"]] {
        measured = run("storage", &[&small, more].concat()).expect_success();
        let value = parse(&measured);
        check("bench-storage", &value);
        assert_eq!(value["targets"].list().len(), 4);
        let samples = value["samples"].list();
        assert_eq!(samples.len(), 4 * 2 * 3);
        for sample in samples {
            assert_eq!(sample["bytes"], 2 << 20);
            assert_eq!(sample["threads"].list().len(), 2);
            assert!(sample["bandwidth_mib_per_s"].float() > 0.0);
        }
        assert_eq!(left_on_targets(&cluster), Vec::<PathBuf>::new());
    }
    let ids = targets(&cluster, "storage");
    let one = run("storage", &["--targets", &ids[1], "--size", "1m", "--write"]).expect_success();
    assert!(one.contains("storage-") && !one.contains("read"), "{one}");
    // Change a stored result so that one target appears slow.
    let place = cluster.data().parent().expect("a directory").join("result.json");
    let mut value = parse(&measured);
    let third: u64 = ids[2].parse().expect("an id");
    let is_third = |sample: &Value| sample["target"].as_u64() == Some(third);
    for sample in value["samples"].as_array_mut().expect("samples") {
        let repetition = sample["repetition"].float();
        let rate = if is_third(sample) { 50.0 } else { 100.0 };
        sample["bandwidth_mib_per_s"] = (rate + repetition).into();
    }
    files::write(&place, value.to_string());
    let place = place.display().to_string();
    let judged = run("slow-targets", &["--result", &place, "--output", "json"]);
    assert_eq!(judged.status.code(), Some(1), "{}", judged.stderr);
    let judged = parse(&judged.stdout);
    check("bench-slow-targets", &judged);
    assert_eq!(judged["slow"].to_string(), format!("[{}]", ids[2]));
    let by_line = run("slow-targets", &["--result", &place, "--output", "ndjson"]);
    assert_eq!(by_line.status.code(), Some(1), "{}", by_line.stderr);
    let by_line = check_lines("bench-slow-targets", &by_line.stdout);
    assert_eq!(by_line["slow"], judged["slow"]);
    let printed = run("slow-targets", &["--result", &place]).stdout;
    let words = format!("confidence of at least 95.0 %: {}.", ids[2]);
    assert!(printed.contains(&words), "{printed}");
    let fine = ["--result", &place, "--slower-by", "60"];
    assert!(run("slow-targets", &fine).expect_success().contains("No target is certainly slower"));
    let once = ["--size", "1m", "--targets", &ids[0], "--output", "json"];
    check("bench-slow-targets", &parse(&run("slow-targets", &once).expect_success()));
}

#[test]
fn storage_bench_refuses_invalid_options_and_leaves_no_file() {
    let cluster = small_cluster();
    let run = |more: &[&str]| finish(&mut bench_targets(&cluster, "storage", more), PATIENCE);
    let refused = |more: &[&str], code: i32, words: &str| {
        let finished = run(more);
        assert_eq!(finished.status.code(), Some(code), "{more:?}: {}", finished.stderr);
        assert!(finished.stderr.contains(words), "{more:?}: {}", finished.stderr);
    };
    refused(&["--targets", "99"], 4, "storage target 99");
    refused(&["--targets", &targets(&cluster, "metadata")[0]], 4, "no storage target");
    let target = targets(&cluster, "storage").remove(0);
    refused(&["--threads", "0"], 2, "thread");
    refused(&["--threads", "1000"], 2, "threads 1000: expected 1 to 64");
    refused(&["--block-size", "5000", "--size", "5000"], 2, "a multiple of 4096");
    refused(&["--size", "1000t"], 1, "are free");
    refused(&["--repetitions", "0"], 2, "repetitions");
    assert_eq!(left_on_targets(&cluster), Vec::<PathBuf>::new());
    let endless = || {
        let mut command = bench_targets(&cluster, "storage", &["--targets", &target]);
        command.args(["--size", "16m", "--repetitions", "9999"]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("skep can be started");
        wait_for("files are written", PATIENCE, || {
            assert_eq!(child.try_wait().expect("our child"), None);
            (!left_on_targets(&cluster).is_empty()).then_some(())
        });
        child
    };
    let mut child = endless();
    kill_process(Pid::from_child(&child), process::ctrl_c()).expect("our own child");
    wait_for("the interrupted benchmark ends", PATIENCE, || child.try_wait().expect("our child"));
    assert_eq!(left_on_targets(&cluster), Vec::<PathBuf>::new());
    // After its restart, a killed service removes the files of the benchmark.
    let mut child = endless();
    cluster.processes("storage").iter().for_each(process::Process::kill);
    wait_for("the benchmark ends after the kill of its service", PATIENCE, || {
        child.try_wait().expect("our child")
    });
    wait_for("files are removed", PATIENCE, || left_on_targets(&cluster).is_empty().then_some(()));
    // If the client that started a benchmark no longer requests its progress, the target ends the
    // benchmark. After that, the target accepts the next benchmark.
    let mut child = wait_for("the service is back", PATIENCE, || {
        run(&["--targets", &target, "--size", "1m"]).status.success().then(&endless)
    });
    child.kill().expect("our own child");
    child.wait().expect("our own child");
    refused(&["--targets", &target, "--size", "1m"], 1, "another benchmark runs");
    wait_for("files are removed", PATIENCE, || left_on_targets(&cluster).is_empty().then_some(()));
    run(&["--targets", &target, "--size", "1m"]).expect_success();
}

/// Runs `skep bench` with /dev/full as standard output.
fn run_on_full(arguments: &[&str]) -> Finished {
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$0\" \"$@\" >/dev/full"]).arg(cluster::program());
    finish(command.arg("bench").args(arguments), PATIENCE)
}

/// Returns the kinds of the records in a result file.
fn kinds(file: &Path) -> Vec<String> {
    let text = files::read_to_string(file);
    assert!(text.ends_with('\n'), "{text}");
    text.lines().map(|line| parse(line)["kind"].text().to_owned()).collect()
}

#[test]
fn bench_keeps_earlier_results_when_the_disk_fills_up() {
    let cluster = small_cluster();
    let scratch = Scratch::new();
    let small = scratch.directory("small");
    let tmpfs = ["-t", "tmpfs", "-o", "size=64k", "skep-test-bench"];
    finish(Command::new("mount").args(tmpfs).arg(&small), PATIENCE).expect_success();
    let kept = small.join("kept.ndjson");
    let (file, kept_as) = (scratch.join("file").display().to_string(), kept.display().to_string());
    // After the run has begun, let another program use up all remaining space.
    let fill = format!("head -c 1m /dev/zero >{} || true", small.join("fill").display());
    let io = ["io", "-o", &file, "-t", "64k", "-i", "3", "--before-phase", &fill];
    let keep = ["--keep-caches", "--result-file", &kept_as];
    let full = run_on_full(&[&io[..], &keep].concat());
    let lines = kinds(&kept);
    let again = run(&["io", "-o", &file, "--result-file", &kept_as]);
    files::remove_file(&kept);
    let many = run(&["io", "-o", &file, "-i", "900", "--result-file", &kept_as]);
    let left = kept.exists();
    finish(Command::new("umount").arg(&small), PATIENCE).expect_success();
    let printed = full.expect_failure();
    assert!(printed.contains("standard output: No space left"), "{printed}");
    assert!(printed.contains(&format!("all 6 results are in {kept_as}")), "{printed}");
    let phases = ["phase"; 6];
    assert_eq!(lines, [&["benchmark"][..], &phases, &["end"]].concat());
    assert!(again.expect_failure().contains("exists"), "an existing file is not overwritten");
    assert!(
        many.expect_failure().contains("No space left"),
        "the run fails before its first phase"
    );
    assert!(!left && !Path::new(&file).exists());

    // Without `--result-file`, `skep bench` writes the results to standard error if standard output
    // is full.
    let printed = run_on_full(&["io", "-o", &file, "--keep-caches"]);
    let printed = printed.expect_failure();
    assert!(printed.contains("SUMMARY") && printed.contains("--result-file"), "{printed}");
    let printed = run_on_full(&["io", "-o", &file, "-b", "3"]);
    assert!(printed.expect_failure().contains("multiple"), "nothing was measured");

    let data = cluster.data().display().to_string();
    let place = cluster.path().display().to_string();
    let of_cluster = ["--cluster", &data];
    let metadata = ["metadata", "-d", &place, "-n", "5", "--keep-caches"];
    let net = [&["net", "--messages", "4", "--message-size", "64k"][..], &of_cluster].concat();
    let storage = [&["storage", "--size", "1m", "--threads", "1"][..], &of_cluster].concat();
    for (arguments, kind) in [(&metadata[..], "phase"), (&net, "link"), (&storage, "target")] {
        let kept = scratch.join(arguments[0]);
        let keep = ["--result-file", &kept.display().to_string()].map(str::to_owned);
        let keep = [keep[0].as_str(), keep[1].as_str()];
        let printed = run_on_full(&[arguments, &keep].concat());
        assert!(printed.expect_failure().contains("results are in"), "{arguments:?}");
        let lines = kinds(&kept);
        assert_eq!((lines[0].as_str(), lines[lines.len() - 1].as_str()), ("benchmark", "end"));
        assert!(lines.len() > 4 && lines[1..lines.len() - 1].iter().all(|it| it == kind));
    }
}

/// Command: skep bench net.
#[test]
fn net_bench_measures_each_pair_in_both_directions() {
    let cluster = small_cluster();
    let run = |more: &[&str]| finish(&mut bench_targets(&cluster, "net", more), PATIENCE);
    let small = ["--message-size", "64k", "--messages", "4", "--streams", "3"];
    let hosts = ["--hosts", "one,two", "--processes-per-host", "2"];
    let common = [&small[..], &hosts, &ENTER, &["--round-trips", "7"]].concat();
    let nodes = cluster.skep_list(&["node", "list"]);
    let services = nodes.iter().filter(|node| node["kind"] != "client").count();
    let sources = services - 1;
    for format in ["json", "ndjson"] {
        let output = ["--repetitions", "2", "--output", format];
        let value = parse(&run(&[&common[..], &output].concat()).expect_success());
        check("bench-net", &value);
        let pairs = value["pairs"].list();
        assert_eq!(pairs.len(), 2 * services + sources * (services - 1), "{value}");
        let samples = value["samples"].list();
        assert_eq!(samples.len(), pairs.len() * 3 * 2);
        for sample in samples {
            let pair = &pairs[sample["pair"].number() as usize];
            let processes = if pair["from_kind"] == "host" { 2 } else { 1 };
            let count = |name: &str| sample[name].list().len();
            if sample["measured"] == "round_trip" {
                assert_eq!((count("round_trips_us"), count("streams")), (7, 1), "{sample}");
                assert!(sample["round_trip_us"].float() > 0.0);
                assert_eq!(sample["bytes"], 0);
            } else {
                assert_eq!((count("round_trips_us"), count("streams")), (0, 3 * processes));
                assert_eq!(sample["bytes"], processes * 3 * 4 * (64 << 10), "{sample}");
                assert!(sample["bandwidth_mib_per_s"].float() > 0.0);
            }
        }
        assert_eq!(value["judged"].list().len(), pairs.len() * 3);
        assert_eq!(value["hosts"][1]["name"], "two");
    }
    let once = [&common[..], &["--repetitions", "1"]].concat();
    let all = ["--all-at-once", "--only-from-hosts", "--output", "json"];
    let value = parse(&run(&[&once[..], &all].concat()).expect_success());
    check("bench-net", &value);
    let totals = value["totals"].list();
    assert_eq!(totals.len(), 2);
    for total in totals {
        assert_eq!(total["bytes"], 2 * 2 * services * 3 * 4 * (64 << 10), "{total}");
    }
    assert_eq!(value["samples"].list().len(), 2 * services * 3);
    let some = ["--services", "storage-1,storage-2", "--only-between-services"];
    let shown = run(&[&once[..], &some].concat()).expect_success();
    assert!(shown.contains("storage-1") && !shown.contains("metadata"), "{shown}");
    assert!(shown.contains("SEND MiB/s") && !shown.contains("\none "), "{shown}");
}

#[test]
fn net_bench_refuses_invalid_options_and_skips_dead_nodes() {
    let cluster = small_cluster();
    let run = |more: &[&str]| finish(&mut bench_targets(&cluster, "net", more), PATIENCE);
    let refused = |more: &[&str], code: i32, words: &str| {
        let finished = run(more);
        assert_eq!(finished.status.code(), Some(code), "{more:?}: {}", finished.stderr);
        assert!(finished.stderr.contains(words), "{more:?}: {}", finished.stderr);
        assert_eq!(finished.stdout, "");
    };
    refused(&["--message-size", "5m"], 2, "at most 4194304 bytes");
    refused(&["--streams", "65"], 2, "expected 1 to 64");
    refused(&["--messages", "0"], 2, "messages 0: expected");
    refused(&["--messages", "4000000000"], 2, "over a link in one run");
    refused(&["--round-trips", "10001"], 2, "round trips");
    refused(&["--services", "nobody"], 4, "node 'nobody'");
    refused(&["--only-from-hosts", "--only-between-services"], 2, "cannot be used with");
    refused(&["--lab", "nosuchlab"], 4, "lab 'nosuchlab'");
    refused(&["--lab", "x", "--hosts", "a"], 2, "cannot be used with");
    cluster.processes("storage").iter().for_each(process::Process::kill);
    let quick = ["--messages", "1", "--streams", "1", "--round-trips", "1", "--repetitions", "1"];
    let some = ["--services", "management-1,metadata-1"];
    run(&[&quick[..], &some].concat()).expect_success();
}
