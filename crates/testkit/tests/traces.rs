//! Records of single operations on real clusters. `skep why` lists the slowest operations, and
//! `skep why --op` shows where an operation spent its time. `skep trace` follows the
//! operations on a directory. The monitor exports the records to a collector.

use serde_json::Value;
use skep_testkit::http_request::HttpRequest;
use skep_testkit::schema;
use skep_testkit::view::Typed;
use skep_testkit::{Cluster, PATIENCE, Scratch, Shape, cluster, files, wait_for};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

/// Writes and syncs a file.
fn write_file(path: &Path, bytes: usize) {
    let mut file = File::create(path).expect("a new file");
    file.write_all(&vec![1; bytes]).expect("the file is written");
    file.sync_all().expect("the file is synced");
}

/// Returns the slow operations of mounts in the report of `skep why`, the slowest first.
fn slow_operations(cluster: &Cluster) -> Vec<Value> {
    let report = cluster.skep_json(&["why", "--interval", "200ms"]);
    schema::check("why", &report);
    let mut operations = report["slowest"].list().to_vec();
    operations.retain(|it| !it["client"].text().is_empty());
    operations
}

/// Command: skep why.
#[test]
fn slow_operation_is_explained_by_its_trace_id() {
    let rate = ["--set", "storage-3:emulation.rate=1MB"].map(String::from).to_vec();
    let shape = Shape {
        metadata_targets: 1,
        storage_services: 3,
        targets_per_service: 1,
        more: rate,
        ..Shape::default()
    };
    let cluster = Cluster::start(shape);
    let targets = cluster.skep_list(&["target", "list"]);
    let slow = targets.iter().find(|it| it["path"].text().contains("storage-3")).expect("a target");
    cluster.hand_down(cluster.path(), "count=all");
    // Repeat the write until an operation is slow mainly because of the disk. In some attempts, a
    // pause of the whole host is the longest part of the operation.
    let mut numbers = 0..64_u32;
    let operation = wait_for("a mount reports an operation that the disk slows", PATIENCE, || {
        let number = numbers.next().expect("one of 64 files is written slowly because of the disk");
        write_file(&cluster.path().join(number.to_string()), 2 << 20);
        slow_operations(&cluster).into_iter().find_map(|found| {
            let report = cluster.skep_json(&["why", "--op", found["trace"].text()]);
            let is_slow_disk = report["service"].text() == "mount"
                && report["parts"][0]["stage"].text() == "disk"
                && report["parts"][0]["share"].float() > 0.5;
            is_slow_disk.then_some(report)
        })
    });
    schema::check("why-op", &operation);
    let parts = operation["parts"].list();
    let first = &parts[0];
    assert_eq!(first["target"], slow["id"], "{operation:#}");
    assert!(first["ms"].float() > 50.0, "{operation:#}");
    let all: f64 = parts.iter().map(|part| part["share"].float()).sum();
    assert!(
        (0.9..1.01).contains(&all),
        "the parts together are the whole operation: {operation:#}"
    );
    let requests = operation["requests"].list();
    assert!(requests.iter().any(|it| it["target"] == slow["id"]), "{operation:#}");
    assert_eq!(operation["user"].number(), 0);
    // The report also has the target's own records of the same operation.
    assert!(operation["records"].number() >= 2, "{operation:#}");
    let trace = operation["trace"].text();
    let text = cluster.skep(&["why", "--op", trace.trim_start_matches('0')]);
    let expected =
        format!("%  waiting for the disk of storage target t{} on storage-3", slow["id"]);
    assert!(text.contains(&expected) && text.contains("Requests\n"), "{text}");
    let list = cluster.skep(&["why", "--interval", "200ms"]);
    assert!(list.contains(&format!("skep why --op {trace}")), "{list}");
}

/// The lines that `skep trace --output ndjson` has printed so far. Dropping this value ends the
/// command.
struct Follower {
    child: Child,
    lines: Receiver<Value>,
    seen: Vec<Value>,
}

impl Follower {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("skep can be started");
        let output = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.map_while(Result::ok) {
                let line: Value = serde_json::from_str(&line).expect("JSON");
                schema::check("trace", &line);
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines, seen: Vec::new() }
    }

    fn seen(&mut self) -> &[Value] {
        self.seen.extend(self.lines.try_iter());
        &self.seen
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Command: skep trace.
#[test]
fn trace_shows_root_all_and_users_their_own_operations() {
    const USER: &str = "60001";
    let cluster = Cluster::start(Shape::small());
    let directory = cluster.path().join("run");
    files::create_dir(&directory);
    files::set_permissions(&directory, std::fs::Permissions::from_mode(0o777));
    files::create_dir(cluster.path().join("other"));
    let scratch = Scratch::new();
    files::set_permissions(scratch.path(), std::fs::Permissions::from_mode(0o755));
    files::copy(cluster::program(), scratch.join("skep"));
    let trace = |program: &[&str]| {
        let mut command = Command::new(program[0]);
        command.args(&program[1..]).arg(scratch.join("skep")).args(["trace", "--path"]);
        command.arg(&directory).args(["--output", "ndjson"]);
        command
    };
    let mut of_root = Follower::start(trace(&["env"]));
    // An ordinary user has no token.
    let as_user = ["setpriv", "--reuid", USER, "--clear-groups"];
    let mut of_user = Follower::start(trace(&as_user));
    let by_user = || {
        let mut command = Command::new(as_user[0]);
        let name = directory.join("user");
        let script = "exec dd if=/dev/zero of=\"$0\" bs=64k count=2 conv=fsync status=none";
        command.args(&as_user[1..]).args(["sh", "-c", script]).arg(name);
        assert!(command.status().expect("dd runs").success());
    };
    let sync = wait_for("root sees the operations of both users, with requests", PATIENCE, || {
        write_file(&directory.join("root"), 2 << 20);
        write_file(&cluster.path().join("other/file"), 1 << 20);
        by_user();
        let seen = of_root.seen();
        let is_sync = |it: &&Value| it["operation"] == "fsync" && it["name"] == "root";
        seen.iter().find(|it| it["user"] == 60_001)?;
        seen.iter().find(is_sync).cloned()
    });
    assert!(!sync["requests"].list().is_empty() && sync["ms"].float() > 0.0, "{sync}");
    assert!(sync["mainly"].text().contains('%'), "{sync}");
    assert!(of_root.seen().iter().all(|it| it["name"] != "file"), "{:?}", of_root.seen());
    wait_for("the user sees their own operations", PATIENCE, || {
        by_user();
        of_user.seen().iter().find(|it| it["name"] == "user").map(drop)
    });
    let others: Vec<_> = of_user.seen().iter().filter(|it| it["user"] != 60_001).collect();
    assert_eq!(others, [] as [&Value; 0], "the user sees only their own operations");
    drop((of_root, of_user));
    trace_shows_names_and_errors(&directory, &cluster.path().join("other"));
    let path = directory.display().to_string();
    let ended = cluster::skep(["trace", "--path", &path, "--for", "200ms"]);
    assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
    let outside = cluster::skep(["trace", "--path", "/proc/self"]).expect_failure();
    assert!(outside.contains("not in a mount of Skep"), "{outside}");
    cluster.stop_checked(&[]);
}

/// Checks the lines about a missing name, a rename, and a name with a control character.
fn trace_shows_names_and_errors(directory: &Path, other: &Path) {
    let mut command = Command::new(cluster::program());
    command.args(["trace", "--output", "ndjson"]).current_dir(directory);
    let mut follower = Follower::start(command);
    let changes = [
        ("rename2", "t1", "t2"),
        ("lookup", "missing", ""),
        ("create", "a\nforged\u{1b}[2J", ""),
        ("symlink", "link", ""),
        ("unlink", "link", ""),
        // This file exists for a shorter time than the interval between two listings of the
        // directory.
        ("fsync", "short", ""),
    ];
    let mut number = 0;
    let found = wait_for("the operations have names", PATIENCE, || {
        number += 1;
        let _ = std::fs::remove_file(directory.join("t2"));
        write_file(&directory.join("t1"), 1);
        // GNU `mv` uses `renameat2`.
        let moved = Command::new("mv").args(["-n", "t1", "t2"]).current_dir(directory).status();
        assert!(moved.expect("mv runs").success());
        assert!(!directory.join("missing").exists());
        let name = "a\nforged\u{1b}[2J";
        write_file(&directory.join(name), 1);
        files::remove_file(directory.join(name));
        files::symlink("t2", directory.join("link"));
        files::remove_file(directory.join("link"));
        write_file(&directory.join("short"), 1);
        files::remove_file(directory.join("short"));
        let foreign = format!("from-outside-{number}");
        write_file(&other.join("file"), 1);
        files::rename(other.join("file"), directory.join(&foreign));
        files::remove_file(directory.join(&foreign));
        let seen = follower.seen();
        let of = |(operation, name, new_name): (&str, &str, &str)| {
            let is_such = |it: &&Value| {
                it["operation"].text().trim_end_matches('2') == operation.trim_end_matches('2')
                    && it["name"] == name
                    && it["new_name"] == new_name
            };
            seen.iter().find(is_such).cloned()
        };
        let from_outside = |it: &&Value| {
            let new_name = it["new_name"].text();
            new_name.starts_with("from-outside-") && it["name"].text().starts_with('[')
        };
        seen.iter().find(from_outside)?;
        changes.into_iter().map(of).collect::<Option<Vec<_>>>()
    });
    let errors: Vec<_> = found.iter().map(|it| it["error"].text()).collect();
    assert_eq!(errors, ["", "No such file or directory", "", "", "", ""], "{found:#?}");
}

/// Command: skep why.
#[test]
fn why_shows_users_only_their_own_slow_operations() {
    const USER: &str = "60001";
    let more = ["--set", "storage:emulation.rate=1MB"].map(String::from).to_vec();
    let cluster = Cluster::start(Shape { more, ..Shape::small() });
    let [directory, other] = ["run", "other"].map(|name| cluster.path().join(name));
    for path in [&directory, &other] {
        files::create_dir(path);
        files::set_permissions(path, std::fs::Permissions::from_mode(0o777));
    }
    let scratch = Scratch::new();
    files::set_permissions(scratch.path(), std::fs::Permissions::from_mode(0o755));
    files::copy(cluster::program(), scratch.join("skep"));
    let user = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", USER, "--clear-groups"]).args(words).current_dir(&directory);
        command.output().expect("setpriv runs")
    };
    let program = scratch.join("skep").display().to_string();
    let ask = |words: &[&str]| -> Value {
        let output = user(&[&[program.as_str()], words, &["--output", "json"]].concat());
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)))
    };
    // The slow operations of root belong to another user.
    write_file(&directory.join("root"), 2 << 20);
    let script = "dd if=/dev/zero of=own bs=1M count=2 conv=fsync status=none";
    assert!(user(&["sh", "-c", script]).status.success());
    let report = ask(&["why", ".", "--interval", "200ms"]);
    schema::check("why", &report);
    let slowest = report["slowest"].list();
    assert!(!slowest.is_empty() && slowest.iter().all(|it| it["user"] == 60_001), "{report:#}");
    let trace = slowest[0]["trace"].text();
    for words in [&["why", "--op", trace][..], &["why", "--op", trace, "."]] {
        let operation = ask(words);
        schema::check("why-op", &operation);
        assert_eq!(operation["parts"].list()[0]["stage"], "disk", "{operation:#}");
    }
    let elsewhere = ask(&["why", &other.display().to_string(), "--interval", "200ms"]);
    assert_eq!(elsewhere["slowest"].list(), [] as [Value; 0]);
    let unknown = user(&[&program, "why", "--op", "77"]);
    let message = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(message.contains("has no record of a slow operation of this user"), "{message}");
}

#[test]
fn unknown_trace_id_is_refused_with_a_fix() {
    let cluster = Cluster::start(Shape::small());
    let not_found = cluster.try_skep(&["why", "--op", "77"]);
    assert_eq!(not_found.status.code(), Some(4), "{}", not_found.stderr);
    let expected = "no service has a record of this operation";
    assert!(not_found.stderr.contains(expected), "{}", not_found.stderr);
    assert!(not_found.stderr.contains("`skep why` lists the slowest"), "{}", not_found.stderr);
    for arguments in [["--op", "t7"], ["--op", "0"]] {
        let refused = cluster.try_skep(&[&["why"], &arguments[..]].concat());
        assert!(refused.stderr.contains("32 hexadecimal digits"), "{}", refused.stderr);
    }
    let both = cluster.try_skep(&["why", "--op", "77", "--since", "5m"]);
    assert!(both.stderr.contains("cannot be used with"), "{}", both.stderr);
}

/// Receives a request of the monitor's exporter, and returns the body of this request.
fn receive(stream: &TcpStream) -> Value {
    let request = HttpRequest::read(stream, PATIENCE).expect("a request");
    assert!(request.head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{}", request.head);
    assert_eq!(request.header("content-type"), "application/json");
    serde_json::from_slice(&request.body).expect("JSON")
}

/// Starts a collector of traces. The collector replies to the first request with the error that the
/// collector is busy. Returns the address of the collector, and a channel with the requests that it
/// accepts.
fn collector() -> (String, Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address").to_string();
    let (sender, accepted) = channel();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let mut stream = stream.expect("a connection");
            let body = receive(&stream);
            let status = if number == 0 { "503 Service Unavailable" } else { "200 OK" };
            let reply = format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\n{{}}");
            stream.write_all(reply.as_bytes()).expect("the reply is sent");
            if number > 0 && sender.send(body).is_err() {
                return;
            }
        }
    });
    (address, accepted)
}

/// Checks the form of a request, and returns its spans.
fn spans(request: &Value) -> Vec<Value> {
    let mut all = Vec::new();
    for resource in request["resourceSpans"].list() {
        schema::check("otlp-resource-spans", resource);
        let scopes = resource["scopeSpans"].list().iter();
        all.extend(scopes.flat_map(|scope| scope["spans"].list().to_vec()));
    }
    let is_id = |text: &str, digits| {
        text.len() == digits && u128::from_str_radix(text, 16).is_ok_and(|id| id > 0)
    };
    for span in &all {
        assert!(is_id(span["traceId"].text(), 32) && is_id(span["spanId"].text(), 16), "{span}");
        let time = |name: &str| span[name].text().parse::<u64>().expect("nanoseconds");
        assert!(time("startTimeUnixNano") <= time("endTimeUnixNano"), "{span}");
        assert!((1..=3).contains(&span["kind"].number()), "{span}");
    }
    all
}

#[test]
fn slow_operation_is_sent_again_to_a_collector_that_was_busy() {
    let (address, accepted) = collector();
    let more = [
        "--set",
        "storage:emulation.rate=1MB",
        "--set",
        &format!("monitor:otlp.url=http://{address}/v1/traces"),
        "--set",
        "monitor:otlp.interval=1s",
    ];
    let more = more.map(String::from).to_vec();
    let cluster = Cluster::start(Shape { monitor: true, more, ..Shape::small() });
    write_file(&cluster.path().join("file"), 1 << 20);
    let mut seen: Vec<Value> = Vec::new();
    let root = wait_for("the collector has the slow operation of the mount", PATIENCE, || {
        seen.extend(accepted.try_iter().flat_map(|request| spans(&request)));
        let is_slow_root = |span: &&Value| {
            span.get("parentSpanId").is_none() && span["attributes"].to_string().contains("slow")
        };
        seen.iter().find(is_slow_root).cloned()
    });
    let of_trace: Vec<_> = seen.iter().filter(|it| it["traceId"] == root["traceId"]).collect();
    let children: Vec<_> =
        of_trace.iter().filter(|it| it.get("parentSpanId") == Some(&root["spanId"])).collect();
    assert!(!children.is_empty() && children.len() + 1 == of_trace.len(), "{of_trace:#?}");
    let waits_for_disk = |it: &Value| it["attributes"].to_string().contains("stage.disk_us");
    assert!(children.iter().any(|it| waits_for_disk(it)), "{of_trace:#?}");
    let ids: BTreeSet<_> =
        seen.iter().map(|it| (it["traceId"].to_string(), it["spanId"].to_string())).collect();
    assert_eq!(ids.len(), seen.len(), "no span is exported twice");
}
