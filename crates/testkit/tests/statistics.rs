//! Metrics of services and mounts, in `skep stats` and on the pages for Prometheus.

use rustix::process::Signal;
use serde_json::Value;
use skep_testkit::power::Disk;
use skep_testkit::process::Suspended;
use skep_testkit::program::finish;
use skep_testkit::schema;
use skep_testkit::view::Typed;
use skep_testkit::{
    Cluster, PATIENCE, Scratch, Shape, Transport, cluster, eventually, files, wait_for,
};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

const MIB: usize = 1 << 20;
/// User id and group id of a user without privileges.
const NOBODY: u32 = 65_534;

fn lines(cluster: &Cluster, by: &str) -> Vec<Value> {
    let lines = cluster.skep_json(&["stats", "--by", by, "--total"]);
    schema::check("stats", &lines);
    lines.as_array().expect("an array").clone()
}

fn sum(lines: &[Value], field: &str) -> u64 {
    lines.iter().map(|line| line[field].as_u64().expect("a number")).sum()
}

fn line<'a>(lines: &'a [Value], id: &str) -> &'a Value {
    let found = lines.iter().find(|line| line["id"].text() == id);
    found.unwrap_or_else(|| panic!("no line has the id {id}: {lines:?}"))
}

/// Requests a metrics page, and returns the body of the reply.
fn page(mut stream: impl Read + Write) -> String {
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("the request is sent");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).expect("a reply");
    let (head, body) = reply.split_once("\r\n\r\n").expect("an empty line");
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    assert!(body.ends_with("# EOF\n"), "a complete page");
    body.to_owned()
}

fn page_of_service(cluster: &Cluster, service: &str) -> String {
    let file = cluster.data().join(service).join("metrics-address");
    let address = fs::read_to_string(&file).unwrap_or_else(|it| panic!("{}: {it}", file.display()));
    page(TcpStream::connect(address.trim()).expect("the service answers"))
}

fn socket_of_mount(pid: &str) -> PathBuf {
    Path::new("/run/skep").join(format!("mount-{pid}.sock"))
}

/// Adds up the samples of a metric on a page. Adds only samples whose labels contain `label`.
fn samples(page: &str, metric: &str, label: &str) -> f64 {
    let values = page.lines().filter_map(|line| {
        let (name, value) = line.rsplit_once(' ')?;
        let is_metric = name.split('{').next() == Some(metric) && name.contains(label);
        is_metric.then(|| value.parse::<f64>().expect("a number"))
    });
    values.sum()
}

/// Writes a file of `mib` MiB, and then reads the file without the page cache.
fn write_and_read(path: &Path, mib: usize) {
    fs::write(path, vec![7; mib * MIB]).expect("the file is written");
    let arguments = ["if=".to_owned() + path.to_str().expect("UTF-8"), "of=/dev/null".into()];
    let status = Command::new("dd")
        .args(arguments)
        .args(["bs=1M", "iflag=direct", "status=none"])
        .status()
        .expect("dd starts");
    assert!(status.success());
}

/// Command: skep stats.
#[test]
fn metrics_count_exactly_the_operations_of_the_test() {
    let cluster = Cluster::start(Shape::small());
    let bytes = 20 * MIB as u64;
    write_and_read(&cluster.path().join("file"), 20);
    for number in 0..30 {
        fs::create_dir(cluster.path().join(format!("d{number}"))).unwrap();
    }
    for by in ["node", "target", "client", "user", "group", "operation"] {
        let lines = lines(&cluster, by);
        let found = (sum(&lines, "written_bytes"), sum(&lines, "read_bytes"));
        assert_eq!(found, (bytes, bytes), "by {by}: {lines:?}");
    }
    let operations = lines(&cluster, "operation");
    assert_eq!(line(&operations, "make_directory")["operations"], 30);
    assert_eq!(line(&operations, "write_chunk")["written_bytes"], bytes);
    assert_eq!(line(&lines(&cluster, "user"), "0")["written_bytes"], bytes, "root wrote");

    let storage = page_of_service(&cluster, "storage-1");
    let counted = samples(&storage, "skep_storage_received_bytes_total", "write_chunk");
    assert_eq!(counted, bytes as f64);
    let of_user = samples(&storage, "skep_load_written_bytes_total", r#"by="user",id="0""#);
    assert_eq!(of_user, bytes as f64);
    let writes = samples(&storage, "skep_storage_operations_total", "write_chunk");
    let durations =
        samples(&storage, "skep_storage_operation_seconds_bucket", r#"write_chunk",le="+Inf""#);
    assert_eq!(writes, durations, "each operation has one duration");
    let metadata = page_of_service(&cluster, "metadata-1");
    assert_eq!(samples(&metadata, "skep_metadata_operations_total", "make_directory"), 30.0);
    assert!(samples(&metadata, "skep_metadata_log_bytes_total", "") > 0.0);
    wait_for("the log is synced", PATIENCE, || {
        let metadata = page_of_service(&cluster, "metadata-1");
        (samples(&metadata, "skep_metadata_log_unsynced_records", "") == 0.0).then_some(())
    });
    let management = page_of_service(&cluster, "management");
    assert!(samples(&management, "skep_management_operations_total", "heartbeat") > 0.0);
    assert!(samples(&management, "skep_host_cpus", "") >= 1.0);
    assert!(samples(&management, "process_resident_memory_bytes", "") > 0.0);

    let pid = cluster.skep_json(&["client", "list"])[0]["pid"].to_string();
    let mount = page(UnixStream::connect(socket_of_mount(&pid)).unwrap());
    assert_eq!(samples(&mount, "skep_mount_received_bytes_total", "write"), bytes as f64);
    assert_eq!(samples(&mount, "skep_mount_sent_bytes_total", "read"), bytes as f64);
    assert_eq!(samples(&mount, "skep_mount_operations_total", "mk_dir"), 30.0);
}

/// Each process counts the uses of its caches, and its recoveries with their durations.
#[test]
fn cache_hits_cache_misses_and_recoveries_are_counted() {
    let cluster = Cluster::start(Shape::small());
    let path = cluster.path().join("file");
    fs::write(&path, vec![7; MIB]).unwrap();
    for _ in 0..10 {
        fs::read(&path).unwrap();
    }
    let pid = cluster.skep_json(&["client", "list"])[0]["pid"].to_string();
    let mount = || page(UnixStream::connect(socket_of_mount(&pid)).unwrap());
    let hits = samples(&mount(), "skep_mount_cache_hits_total", r#"cache="pages""#);
    assert!((9.0..=10.0).contains(&hits), "the kernel keeps the pages of the file: {hits}");
    let storage = page_of_service(&cluster, "storage-1");
    let files = samples(&storage, "skep_storage_cache_misses_total", r#"cache="open_files""#);
    assert!(files >= 1.0, "the first write creates a chunk file: {files}");
    for of in ["open_files", "region_pages"] {
        write_and_read(&path, 1);
        let storage = page_of_service(&cluster, "storage-1");
        let hits = samples(&storage, "skep_storage_cache_hits_total", of);
        assert!(hits >= 1.0, "a later write finds {of}: {hits}");
    }
    let starts = samples(&storage, "skep_storage_recovery_seconds_count", r#"recovery="start""#);
    assert_eq!(starts, cluster.target_ids("storage").len() as f64);
    let management = page_of_service(&cluster, "management");
    assert_eq!(samples(&management, "skep_management_recovery_seconds_count", ""), 1.0);
    assert_eq!(samples(&management, "skep_management_leading", ""), 1.0);
    let entry = |of: &str| samples(&management, &format!("skep_management_log_{of}"), "");
    assert!(entry("term") >= 1.0, "{management}");
    assert!(entry("applied_entry") >= 1.0, "{management}");
    assert!(entry("last_entry") >= entry("applied_entry"), "{management}");
    let metadata = page_of_service(&cluster, "metadata-1");
    let count = |of| samples(&metadata, "skep_metadata_recovery_seconds_count", of);
    assert_eq!(count(r#"recovery="log_replay""#), cluster.target_ids("metadata").len() as f64);
    assert_eq!(count(r#"recovery="take_over""#), 0.0);
    assert!(metadata.contains("skep_metadata_cache_hits_total"), "{metadata}");
    // After the restart, the mount and the target determine which changes are lost. The mount
    // counts this step as a recovery of the kind `replay`.
    cluster.processes("metadata").into_iter().for_each(|process| process.kill());
    wait_for("a replay of the mount", PATIENCE, || {
        let count = samples(&mount(), "skep_mount_recovery_seconds_count", r#"recovery="replay""#);
        (count >= 1.0).then_some(())
    });
    cluster.stop();
}

/// Skep divides the load by the user, the group and the job of the calling program.
///
/// Command: skep client stats.
#[test]
fn load_is_accounted_by_user_group_and_job() {
    let mut cluster = Cluster::start(Shape::small());
    let mounted = cluster.mount_with(Transport::Device, "job_accounting");
    let shared = mounted.path().join("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).unwrap();
    let write = |name: &str, mib: usize, job: Option<(&str, &str)>| {
        let path = shared.join(name);
        let mut command = Command::new("dd");
        command.args(["if=/dev/zero", "bs=1M", "status=none"]);
        command.arg(format!("count={mib}")).arg(format!("of={}", path.display()));
        command.envs(job).uid(NOBODY).gid(NOBODY);
        assert!(command.status().unwrap().success());
    };
    write("one", 3, Some(("SLURM_JOB_ID", "4711")));
    write("two", 2, Some(("PBS_JOBID", "12.server")));
    write("three", 1, None);
    fs::write(shared.join("of-root"), vec![1; 5 * MIB]).unwrap();
    let written = |by: &str, id: &str| line(&lines(&cluster, by), id)["written_bytes"].clone();
    let mib = |count: usize| Value::from(count * MIB);
    assert_eq!(written("user", "65534"), mib(6));
    assert_eq!(written("group", "65534"), mib(6));
    assert_eq!(written("user", "0"), mib(5));
    assert_eq!(written("job", "4711"), mib(3));
    assert_eq!(written("job", "12"), mib(2));
    let clients = cluster.skep_list(&["client", "stats", "--total"]);
    assert_eq!(sum(&clients, "written_bytes"), 11 * MIB as u64, "the sum of both mounts");
    let names: Vec<_> = clients.iter().map(|line| line["name"].text()).collect();
    assert!(names.iter().any(|name| name.ends_with(mounted.path().to_str().unwrap())), "{names:?}");
    mounted.unmount();
}

/// The mount option `job_variables` names the environment variables with the id of a job. The
/// option reaches the process of a background mount. The command refuses a wrong name.
///
/// Command: skep mount.
#[test]
fn mount_option_names_the_variables_with_the_job_id() {
    let cluster = Cluster::start(Shape::small());
    let directory = cluster.data().with_file_name("mnt-jobs");
    fs::create_dir(&directory).unwrap();
    let mount = |option: [&str; 2]| {
        let directory = directory.to_str().expect("UTF-8");
        cluster.try_skep(&["mount", option[0], option[1], directory])
    };
    for wrong in [["-o", "job_variables=A:7B"], ["--job-variables", "A:7B"]] {
        let refusal = mount(wrong).expect_failure();
        assert!(refusal.contains("environment variable '7B'"), "{refusal}");
    }
    mount(["-o", "job_variables=LSB_JOBID:MY_JOB"]).expect_success();
    let write = |name: &str, mib: usize, variables: &[(&str, &str)]| {
        let of = format!("of={}", directory.join(name).display());
        let mut command = Command::new("dd");
        command.args(["if=/dev/zero", "bs=1M", "status=none", &of]).arg(format!("count={mib}"));
        command.env_remove("LSB_JOBID").env_remove("MY_JOB").envs(variables.iter().copied());
        assert!(command.status().unwrap().success());
    };
    let all = [("MY_JOB", "81"), ("LSB_JOBID", "77[5]"), ("SLURM_JOB_ID", "4711")];
    let one = [("MY_JOB", "82"), ("LSB_JOBID", "")];
    for (job, mib, variables) in [("77", 3, &all[..]), ("82", 2, &one[..])] {
        // On a busy host, the mount may read the variables of a program too late. The mount then
        // counts the load of this program without a job. So the test starts more programs.
        wait_for(&format!("the load of job {job}"), PATIENCE, || {
            write(job, mib, variables);
            let jobs = lines(&cluster, "job");
            let of_job = jobs.iter().find(|line| line["id"].text() == job)?;
            (of_job["written_bytes"].number() >= (mib * MIB) as u64).then_some(())
        });
    }
    write("other", 1, &[("SLURM_JOB_ID", "4711")]);
    finish(Command::new("umount").arg(&directory), PATIENCE).expect_success();
    let jobs = lines(&cluster, "job");
    let others = ["81", "4711"].map(|job| jobs.iter().any(|line| line["id"].text() == job));
    assert_eq!(others, [false; 2], "{jobs:?}");
}

/// Command: skep why.
#[test]
fn why_explains_the_requests_of_one_user_or_job() {
    let mut cluster = Cluster::start(Shape::small());
    let mounted = cluster.mount_with(Transport::Device, "job_accounting");
    let own = mounted.path().join("own");
    fs::create_dir(&own).unwrap();
    fs::set_permissions(&own, fs::Permissions::from_mode(0o777)).unwrap();
    let (is_done, file) = (Arc::new(AtomicBool::new(false)), own.join("file"));
    let stop = Arc::clone(&is_done);
    let load = std::thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            let mut command = Command::new("dd");
            command.args(["if=/dev/zero", "bs=200k", "count=1", "conv=fsync", "status=none"]);
            command.arg(format!("of={}", file.display())).env("SLURM_JOB_ID", "4711");
            assert!(command.uid(NOBODY).gid(NOBODY).status().unwrap().success());
        }
    });
    let why = |option: &str, name: &str| {
        let report = cluster.skep_json(&["why", option, name, "--interval", "500ms"]);
        schema::check("why", &report);
        report
    };
    for (option, name) in [("--user", "65534"), ("--job", "4711")] {
        let report = wait_for("the requests are explained", PATIENCE, || {
            let report = why(option, name);
            (report["requests"].as_u64()? > 0 && report["seconds"].as_f64()? > 0.0)
                .then_some(report)
        });
        let shares = report["phases"].as_array().unwrap().iter();
        let sum: f64 = shares.map(|phase| phase["share"].as_f64().unwrap()).sum();
        assert!((0.5..1.001).contains(&sum), "{report}");
    }
    let others = [why("--user", "12345"), why("--job", "12")];
    is_done.store(true, Ordering::Relaxed);
    load.join().expect("no panic");
    assert!(others.iter().all(|report| report["requests"] == 0), "{others:?}");
    let unknown = cluster.try_skep(&["why", "--user", "no-such-user"]).expect_failure();
    assert!(unknown.contains("use the user id"), "{unknown}");
    mounted.unmount();
}

/// The sum over the lines of all intervals must be the number of operations of the test.
#[test]
fn live_statistics_add_up_to_the_operations_of_the_test() {
    let cluster = Cluster::start(Shape::small());
    let mut command = Command::new(cluster::program());
    command.args(["stats", "--by", "node", "--interval", "200ms", "--output", "ndjson"]);
    command.arg("--cluster").arg(cluster.data()).stdout(Stdio::piped());
    let mut showing = command.spawn().unwrap();
    let mut shown = BufReader::new(showing.stdout.take().unwrap()).lines();
    let first = shown.next().unwrap().unwrap();
    assert!(first.contains("operations_per_second"), "{first}");
    write_and_read(&cluster.path().join("file"), 20);
    let (mut written, mut read) = (0, 0);
    let deadline = Instant::now() + PATIENCE;
    while (written, read) != (20 * MIB as u64, 20 * MIB as u64) {
        let line: Value = serde_json::from_str(&shown.next().unwrap().unwrap()).unwrap();
        written += line["written_bytes"].as_u64().unwrap();
        read += line["read_bytes"].as_u64().unwrap();
        assert!(
            Instant::now() < deadline,
            "the lines show only {written} written and {read} read bytes"
        );
        assert!(written <= 20 * MIB as u64 && read <= 20 * MIB as u64, "{written} and {read}");
    }
    showing.kill().unwrap();
    showing.wait().unwrap();
}

/// Before the fix, the command ended at the first request that management did not answer. So a
/// recording of the load ended with the first outage. Output for programs did not name the services
/// that had not replied.
///
/// Command: skep stats.
#[test]
fn series_of_statistics_continues_after_an_outage() {
    let (cluster, scratch) = (Cluster::start(Shape::small()), Scratch::new());
    let warnings = scratch.join("warnings");
    let mut command = Command::new(cluster::program());
    command.args(["stats", "--by", "node", "--interval", "200ms", "--output", "ndjson"]);
    command.arg("--cluster").arg(cluster.data()).stdout(Stdio::piped());
    let mut showing = command.stderr(files::create(&warnings)).spawn().unwrap();
    let mut shown = BufReader::new(showing.stdout.take().unwrap()).lines();
    let mut next_time_s = || {
        let line = shown.next().expect("the series continues").unwrap();
        serde_json::from_str::<Value>(&line).unwrap()["at_unix_s"].as_f64().expect("a number")
    };
    next_time_s();
    for (role, warning) in [
        ("storage", "cannot get statistics from storage-1"),
        ("management", "cannot get statistics from management, so these are the services"),
    ] {
        let suspended = Suspended::of(cluster.processes(role));
        wait_for(warning, PATIENCE, || {
            files::read_to_string(&warnings).contains(warning).then_some(())
        });
        // The services that reply have lines during the outage too.
        let warned = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        while next_time_s() < warned.as_secs_f64() {}
        drop(suspended);
        let resumed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        while next_time_s() < resumed.as_secs_f64() {}
    }
    showing.kill().unwrap();
    showing.wait().unwrap();
}

/// If the command did not end, a pipe such as `skep stats | head -1` would never end.
///
/// Command: skep stats, skep node disks, skep trace, skep health check.
#[test]
fn endless_commands_end_when_the_reader_of_their_pipe_ends() {
    let cluster = Cluster::start(Shape::small());
    let mount = cluster.path().display().to_string();
    for arguments in [
        &["stats", "--interval", "200ms"][..],
        &["stats", "--interval", "1h"],
        &["stats", "--mount", &mount, "--by", "user", "--interval", "200ms"],
        &["stats", "--mount", &mount, "--by", "user", "--interval", "1h"],
        &["node", "disks", "--interval", "200ms"],
        &["node", "disks", "--interval", "1h"],
        &["health", "check", "--watch", "--interval", "200ms"],
        &["health", "check", "--watch", "--interval", "1h"],
        &["trace", "--path", &mount],
    ] {
        let mut command = Command::new(cluster::program());
        command.args(arguments).stdout(Stdio::piped());
        if !arguments.contains(&mount.as_str()) {
            command.arg("--cluster").arg(cluster.data());
        }
        let mut endless = command.spawn().expect("a started command");
        drop(endless.stdout.take());
        let ended = eventually(PATIENCE, || endless.try_wait().expect("a status"));
        // A command that has ended cannot be killed.
        let _ = endless.kill();
        endless.wait().expect("a status");
        let (status, _) = ended.unwrap_or_else(|| panic!("skep {arguments:?} did not end"));
        assert!(status.success(), "skep {arguments:?}: {status}");
    }
}

/// Command: skep target stats.
#[test]
fn stats_refuses_wrong_options_and_names_missing_services() {
    let cluster = Cluster::start(Shape::small());
    for arguments in [
        &["stats", "--by", "moon"][..],
        &["stats", "--interval", "0s"],
        &["stats", "--interval", "5"],
        &["stats", "--total", "--once"],
        &["health", "check", "--watch", "--interval", "0s"],
    ] {
        cluster.try_skep(arguments).expect_failure();
    }
    let table = cluster.skep(&["target", "stats", "--once", "--interval", "100ms"]);
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    let csv = cluster.skep(&["target", "stats", "--total", "--output", "csv"]);
    let titles = csv.lines().next().unwrap_or_default();
    assert!(titles.split(',').any(|title| title == "written_bytes"), "{csv}");
    let stopped = &cluster.processes("storage")[0];
    stopped.signal(Signal::STOP);
    let shown = cluster.try_skep(&["stats", "--total", "--by", "node"]);
    let json = cluster.try_skep(&["stats", "--total", "--by", "node", "--output", "json"]);
    let of_stopped = ["stats", "--total", "--node", "storage-1", "--output", "json"];
    let of_stopped = cluster.try_skep(&of_stopped);
    stopped.signal(Signal::CONT);
    let text = shown.expect_success();
    assert!(text.contains("cannot get statistics from storage-1"), "{text}");
    assert!(text.contains("metadata-1"), "{text}");
    assert!(json.stderr.contains("cannot get statistics from storage-1"), "{json:?}");
    let json = json.expect_success();
    assert!(json.contains("metadata-1"), "{json}");
    // A failure prints one line to standard error and nothing to standard output.
    assert_eq!(of_stopped.status.code(), Some(3), "{of_stopped:?}");
    assert_eq!((&*of_stopped.stdout, of_stopped.stderr.lines().count()), ("", 1));
}

/// Command: skep stats, skep client stats.
#[test]
fn filter_and_node_options_select_rows_in_all_formats() {
    let cluster = Cluster::start(Shape::small());
    let bytes = 5 * MIB as u64;
    write_and_read(&cluster.path().join("file"), 5);
    let select = |arguments: &[&str]| {
        let lines = cluster.skep_json(&[&["stats", "--total"][..], arguments].concat());
        schema::check("stats", &lines);
        lines.as_array().expect("an array").clone()
    };
    let names = |lines: &[Value]| -> Vec<String> {
        lines.iter().map(|line| line["name"].text().to_owned()).collect()
    };
    let filtered = select(&["--by", "node", "--filter", "STORAGE"]);
    assert_eq!(names(&filtered), ["storage-1"]);
    assert_eq!(sum(&filtered, "written_bytes"), bytes);
    for (format, titles) in [("table", 1), ("csv", 1), ("ndjson", 0)] {
        let arguments = ["stats", "--total", "--by", "node", "--filter", "age-1"];
        let text = cluster.skep(&[&arguments[..], &["--output", format]].concat());
        let is_sum = |line: &str| line.starts_with("sum");
        let rows: Vec<_> = text.lines().skip(titles).filter(|line| !is_sum(line)).collect();
        assert!(rows.len() == 1 && rows[0].contains("storage-1"), "{format}: {text}");
    }
    let arguments = ["stats", "--total", "--by", "node", "--filter", "age-1", "--output", "xml"];
    let xml = cluster.skep(&arguments);
    assert!(xml.contains("storage-1") && !xml.contains("metadata-1"), "{xml}");

    // The load of the storage service must be equal in each grouping: by target, by request and by
    // user.
    let of_node = |by| select(&["--by", by, "--node", "storage-1"]);
    assert_eq!((names(&of_node("target")).len(), of_node("node").len()), (2, 1));
    for by in ["node", "target", "client", "user", "group", "operation"] {
        let found = of_node(by);
        let moved = (sum(&found, "written_bytes"), sum(&found, "read_bytes"));
        assert_eq!(moved, (bytes, bytes), "by {by}: {found:?}");
    }
    assert!(of_node("operation").iter().all(|line| line["service"].text() == "storage"));
    let of_metadata = select(&["--by", "user", "--node", "metadata-1"]);
    assert_eq!(sum(&of_metadata, "written_bytes"), 0);
    assert!(sum(&of_metadata, "operations") > 0);
    let one = ["--by", "operation", "--node", "storage-1", "--filter", "write_"];
    assert_eq!(sum(&select(&one), "read_bytes"), 0);

    let unmatched = ["stats", "--total", "--by", "node", "--filter", "storge-1"];
    let table = cluster.skep(&unmatched);
    assert!(table.contains("no node with load matches"), "{table}");
    assert!(table.contains("(similar: storage-1"), "{table}");
    let json = cluster.try_skep(&[&unmatched[..], &["--output", "json"]].concat());
    assert!(json.stderr.contains("(similar: storage-1"), "{json:?}");
    assert_eq!(json.expect_success().trim(), "[]");
    for (node, hint) in [("storge-1", "(similar: storage-1"), ("n999", "skep node list")] {
        let refused = cluster.try_skep(&["stats", "--once", "--node", node]).expect_failure();
        assert!(refused.contains(hint), "{refused}");
    }
    let mount = cluster.skep_json(&["client", "list"])[0]["name"].text().to_owned();
    let refused = cluster.try_skep(&["stats", "--once", "--node", &mount]).expect_failure();
    assert!(refused.contains("this node is a client"), "{refused}");
}

/// Command: skep node disks.
#[test]
fn disks_of_hosts_are_shown_with_the_statistics_of_iostat() {
    let scratch = Scratch::new();
    // The disk of the cluster is a loop device, on which only this test writes.
    let disk = Disk::new(&scratch, 512 << 20);
    let cluster = Cluster::start_in(disk.path(), Shape::small());
    let (is_done, path) = (Arc::new(AtomicBool::new(false)), cluster.path().join("file"));
    let writer = {
        let is_done = Arc::clone(&is_done);
        std::thread::spawn(move || {
            let file = files::create(&path);
            while !is_done.load(Ordering::Relaxed) {
                files::write_all_at(&file, &[7; MIB], 0);
                files::sync_all(&file);
            }
        })
    };
    let arguments = ["node", "disks", "--once", "--interval", "300ms"];
    let written = wait_for("a loop device is written", PATIENCE, || {
        let disks = cluster.skep_json(&[&arguments[..], &["--filter", "LOOP"]].concat());
        schema::check("node-disks", &disks);
        let disks = disks.as_array().expect("an array").clone();
        assert!(disks.iter().all(|it| it["disk"].text().starts_with("loop")), "{disks:?}");
        disks.into_iter().find(|it| it["written_bytes_per_second"].as_f64() > Some(0.0))
    });
    for figure in ["writes_per_second", "write_await_us", "queue", "utilisation"] {
        assert!(written[figure].as_f64() > Some(0.0), "{figure}: {written}");
    }
    assert!(written["utilisation"].as_f64() <= Some(1.0), "{written}");
    let shown = cluster.skep(&arguments);
    assert!(shown.contains("WRITTEN/s") && shown.contains("UTIL"), "{shown}");
    // All services of this cluster are on one host, so each disk must be listed only once.
    let names = |line: &str| line.split_whitespace().any(|cell| cell == written["disk"].text());
    assert_eq!(shown.lines().filter(|line| names(line)).count(), 1, "{shown}");
    is_done.store(true, Ordering::Relaxed);
    writer.join().expect("the writer ends");
    cluster.stop();
}
