//! Output for programs: JSON according to the schemas in `schemas/`, errors, and exit codes.
//! docs/operations/output.md describes which parts of the output are stable.

use rustix::process::Signal;
use serde_json::{Value, json};
use skep_testkit::files;
use skep_testkit::program::{Finished, finish};
use skep_testkit::schema::{self, check, check_lines};
use skep_testkit::view::Typed;
use skep_testkit::{Cluster, PATIENCE, Scratch, Shape, Transport, cluster, wait_for};
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Runs a command in a directory, and checks both forms of its JSON output against its schema. The
/// command runs twice, so a command with an effect must print the same value in its second run.
/// Lists must not be empty, because the test checks their entries against the schema.
fn check_command(directory: &Path, arguments: &[&str], name: &str) -> Value {
    let run = |format: &str| {
        let mut command = Command::new(cluster::program());
        command.current_dir(directory).args(arguments).args(["--output", format]);
        finish(&mut command, PATIENCE).expect_success()
    };
    let value = parse(&run("json"));
    check(name, &value);
    let by_line = check_lines(name, &run("ndjson"));
    assert_ne!(value.as_array().map(Vec::len), Some(0), "{name}: nothing to check");
    assert_eq!(value.as_array().map(Vec::len), by_line.as_array().map(Vec::len), "{name}");
    value
}

/// Checks a value that a command has printed in the format `json` or `ndjson`.
fn check_printed(name: &str, printed: &str, format: &str) {
    match format {
        "ndjson" => drop(check_lines(name, printed)),
        _ => check(name, &parse(printed)),
    }
}

/// Runs a command without `--output`. The printed table must have a header with the titles `titles`
/// (unless `titles` is empty), and a line with `words`.
fn check_table(arguments: &[&str], titles: &str, words: &[&str]) {
    let shown = cluster::skep(arguments).expect_success();
    let mut lines = shown.lines();
    if !titles.is_empty() {
        let header = lines.next().unwrap_or_default().split_whitespace().collect::<Vec<_>>();
        assert_eq!(header.join(" "), titles, "{arguments:?}: {shown}");
    }
    let has_all = |line: &str| words.iter().all(|word| line.contains(word));
    assert!(lines.any(has_all), "{arguments:?}: no line with {words:?}: {shown}");
}

/// A program that locks bytes 10 to 14 of a file with `fcntl` until the end of its input.
const LOCKER: &str = "import fcntl, sys\n\
                      with open(sys.argv[1], 'r+') as file:\n    \
                      fcntl.lockf(file, fcntl.LOCK_EX, 5, 10)\n    \
                      sys.stdin.read()\n";

fn locker(path: &Path) -> Child {
    let mut command = Command::new("python3");
    command.args(["-c", LOCKER]).arg(path).stdin(Stdio::piped());
    command.spawn().expect("python3 can be started")
}

/// Checks the output while a service is unreachable. In this state, some fields that are otherwise
/// null have a value, and some other fields are null.
fn check_output_without_a_service(cluster: &Cluster) {
    let storage = cluster.processes("storage").pop().expect("the process runs");
    storage.signal(Signal::STOP);
    let data = cluster.data().display().to_string();
    let ask = |arguments: &[&str]| {
        let more = ["--cluster", &data, "--output", "json"];
        cluster::skep([arguments, &more].concat())
    };
    let found = wait_for("`skep health check` reports the suspended service", PATIENCE, || {
        let found = ask(&["health", "check"]);
        (found.status.code() == Some(1)).then_some(found)
    });
    check("health-check", &parse(&found.stdout));
    let levels = ask(&["node", "log-level", "all"]);
    assert_eq!(levels.status.code(), Some(1), "a service did not answer: {}", levels.stdout);
    check("node-log-level", &parse(&levels.stdout));
    storage.signal(Signal::CONT);
}

/// Command: skep why.
#[test]
fn json_output_matches_its_schemas() {
    let shape = Shape { metadata_targets: 2, ..Shape::small() };
    let mut cluster = Cluster::start(shape);
    let second = cluster.mount(Transport::Device);
    let file = files::create(second.path().join("file"));
    file.lock().expect("locked");
    files::write(second.path().join("ranges"), "some text, and more");
    let locked = |count: usize, is_waiting: bool| {
        wait_for("a range is locked", PATIENCE, || {
            let locks = cluster.skep_json(&["lock", "list"]);
            let of_ranges = |it: &&Value| it["kind"] == "posix" && it["is_waiting"] == is_waiting;
            let found: Vec<_> = locks.as_array()?.iter().filter(of_ranges).cloned().collect();
            (found.len() == count).then_some(found)
        })
    };
    let mut lockers = vec![locker(&second.path().join("ranges"))];
    locked(1, false);
    lockers.push(locker(&cluster.path().join("ranges")));
    let waits = locked(1, true).remove(0);
    assert_eq!((&waits["start_byte"], &waits["end_byte"]), (&json!(10), &json!(15)), "{waits}");
    assert_eq!(waits["pid"], lockers[1].id(), "{waits}");
    let directory = cluster.data().parent().expect("a directory").to_owned();
    files::symlink(cluster.data(), directory.join("skep-data"));
    let file_path = cluster.path().join("file").display().to_string();
    let root = cluster.path().display().to_string();
    let client = cluster.skep_json(&["client", "list"])[0]["id"].to_string();
    let target =
        cluster.entry_info(Path::new(&file_path)).first_component().targets()[0].to_string();
    for (arguments, name) in [
        (&["node", "list"][..], "node-list"),
        (&["node", "log-level", "all"], "node-log-level"),
        (&["target", "list"], "target-list"),
        (&["target", "set-state", &target, "open"], "target-set-state"),
        (&["target", "files", &target, "--paths"], "target-files"),
        (&["node", "rename", "storage-1", "storage-1"], "node-rename"),
        (&["stats", "--by", "node", "--total"], "stats"),
        (&["group", "list"], "group-list"),
        (&["group", "status"], "group-status"),
        (&["client", "list"], "client-list"),
        (&["client", "files"], "client-files"),
        (&["client", "evict", &client, "--dry-run"], "client-evict"),
        (&["session", "list"], "session-list"),
        (&["lock", "list"], "lock-list"),
        (&["lock", "list", "--paths"], "lock-list"),
        (&["health", "df"], "health-df"),
        (&["health", "check"], "health-check"),
        (&["why"], "why"),
        (&["why", &file_path], "why"),
        (&["entry", "info", &file_path], "entry-info"),
        (&["entry", "info", &root], "entry-info"),
        (&["entry", "path", "0-1"], "entry-path"),
        (&["entry", "who", &file_path], "entry-who"),
        (&["entry", "set", "--num-targets", "2", &root], "entry-set"),
        (&["entry", "set", "--inherit", &root], "entry-set"),
        (&["entry", "map", &file_path], "entry-map"),
        (&["entry", "map", "--offset", "0", "--length", "2MiB", &file_path], "entry-map"),
        (&["config", "list"], "config-list"),
        (&["config", "get"], "config-list"),
        (&["config", "get", "lease"], "config-get"),
        (&["config", "set", "lease", "6s", "--dry-run"], "config-set"),
        (&["cluster", "token"], "cluster-token"),
        (&["cluster", "info"], "cluster-info"),
        (&["man", "--dir", "pages"], "man"),
    ] {
        check_command(&directory, arguments, name);
    }
    let create = |name: &str, format: &str| {
        let new = cluster.path().join(name).display().to_string();
        let arguments = ["entry", "create", "--num-targets", "2", &new, "--output", format];
        cluster::skep(arguments).expect_success()
    };
    check("entry-create", &parse(&create("new", "json")));
    check_lines("entry-create", &create("newer", "ndjson"));
    for mut locker in lockers {
        drop(locker.stdin.take());
        let status = wait_for("a locker ends", PATIENCE, || locker.try_wait().expect("ours"));
        assert!(status.success(), "{status}");
    }
    check_output_without_a_service(&cluster);
    drop(file);
    drop(second);
    cluster.kill_all();
}

/// Command: skep fsck.
#[test]
fn output_of_up_and_down_matches_its_schema() {
    let scratch = Scratch::new();
    let small = ["--metadata-targets", "1", "--storage-services", "1", "--output"];
    let up = |format: &str, more: &[&str]| {
        let mut command = Command::new(cluster::program());
        command.current_dir(scratch.path()).args(["up", "--detach"]).args(small).arg(format);
        finish(command.args(more), PATIENCE).expect_success()
    };
    check("up", &parse(&up("json", &[])));
    files::create_dir(scratch.join("more"));
    let mount = ["mount", "--cluster", "skep-data", "more", "--output"];
    let run = |arguments: &[&str]| {
        let mut command = Command::new(cluster::program());
        finish(command.current_dir(scratch.path()).args(arguments), PATIENCE).expect_success()
    };
    let mounted = parse(&run(&[&mount[..], &["json"]].concat()));
    check("mount", &mounted);
    let transport = mounted["transport"].as_str().expect("a text");
    assert!(["uring", "device"].contains(&transport), "{transport}");
    run(&["umount", "more"]);
    check_lines("mount", &run(&[&mount[..], &["ndjson"]].concat()));
    run(&["umount", "more"]);
    for format in ["json", "ndjson"] {
        let mut command = Command::new(cluster::program());
        command.current_dir(scratch.path()).args(["mount", "-f", "--cluster", "skep-data", "more"]);
        command.args(["--transport", "device", "--output", format]).stdout(Stdio::piped());
        let mut mount = command.spawn().expect("skep can be started");
        let table = || files::read_to_string("/proc/self/mounts");
        let place = scratch.join("more").display().to_string();
        wait_for("the file system is mounted", PATIENCE, || table().contains(&place).then_some(()));
        // The kernel shows a mount in its list a moment before the mount serves requests, so wait
        // for a reply.
        files::read_dir(&place);
        run(&["umount", "more"]);
        let status = wait_for("the mount ends", PATIENCE, || mount.try_wait().expect("ours"));
        assert!(status.success(), "{status}");
        let mut printed = String::new();
        mount.stdout.take().expect("a pipe").read_to_string(&mut printed).expect("a text");
        check_printed("mount", &printed, format);
        assert_eq!(parse(&printed)["transport"], "device");
    }
    assert_eq!(check_command(scratch.path(), &["down"], "down")["was_up"], true);
    assert_eq!(check_command(scratch.path(), &["fsck"], "fsck")["findings"], json!([]));
    check_lines("up", &up("ndjson", &["--no-mount"]));
    assert_eq!(parse(&run(&["down", "--output", "json"]))["was_up"], true);
}

#[test]
fn output_of_service_init_matches_its_schema() {
    let scratch = Scratch::new();
    let run = |arguments: &[&str], format: &str| {
        let mut command = Command::new(cluster::program());
        command.current_dir(scratch.path()).args(arguments).args(["--init", "--output", format]);
        let made = finish(&mut command, PATIENCE).expect_success();
        check_printed("service-init", &made, format);
        assert_eq!(parse(&made)["kind"], arguments[0]);
    };
    for format in ["json", "ndjson"] {
        let place = |name: &str| format!("{format}-{name}");
        let management = place("management");
        run(&["management", "--directory", &management], format);
        let token_file = format!("{management}/join-token");
        for kind in ["metadata", "storage"] {
            let (directory, target) = (place(kind), place(kind) + "-target");
            let places = ["--directory", &directory, "--target", &target];
            run(&[&[kind, "--token-file", &token_file], &places[..]].concat(), format);
        }
    }
}

/// Tables for people must have a header and at least one row.
///
/// Command: skep group list.
#[test]
fn tables_have_a_header_and_one_row_for_each_element() {
    let shape = Shape { metadata_targets: 2, ..Shape::small() };
    let cluster = Cluster::start(shape);
    let file = files::create(cluster.path().join("file"));
    file.lock().expect("locked");
    let mount_point = cluster.path().display().to_string();
    let data = cluster.data().display().to_string();
    let new = cluster.path().join("new").display().to_string();
    let root = mount_point.as_str();
    let check = |arguments: &[&str], titles: &str, words: &[&str]| {
        check_table(&[arguments, &["--cluster", &data]].concat(), titles, words);
    };
    check(
        &["node", "list"],
        "ID NAME HOST KIND REACHABILITY ADDRESS DOMAIN TARGETS VERSION",
        &["storage-1", "storage", "Online", "127.0.0.1:"],
    );
    check(
        &["target", "list"],
        "ID KIND REACHABILITY CONSISTENCY CONDITION POOL GROUP NODE PATH",
        &["storage", "Online", "Good", "storage-1 [ID: "],
    );
    check(
        &["group", "list"],
        "GROUP KIND EPOCH STATE TARGET PART REACHABILITY CONSISTENCY NODE",
        &["metadata", "Good", "Serving (primary)", "Online", "metadata-2 [ID: "],
    );
    let session = ["@ metadata-", " ago", root];
    check(
        &["session", "list"],
        "SESSION CLIENT HOST MOUNT POINT TARGET LAST SEEN LEASE OPEN",
        &session,
    );
    check(
        &["client", "list"],
        "ID HOST PID MOUNT POINT STATE SINCE LAST SEEN SESSIONS OPEN",
        &[root],
    );
    check(&["client", "files"], "CLIENT HOST MOUNT POINT ENTRY READERS WRITERS LOCKS", &[root]);
    check(
        &["lock", "list"],
        "ENTRY HOST MOUNT POINT PID KIND MODE BYTES STATE",
        &[root, &std::process::id().to_string(), "flock", "exclusive", "all", "held"],
    );
    check(&["config", "list"], "NAME VALUE DEFAULT RANGE MEANING", &["lease", "5 s", "200 ms"]);
    let settings = cluster.skep(&["config", "list"]);
    assert!(settings.lines().all(|line| line.len() <= 100), "{settings}");
    let sorted = ["--columns", "path,id", "--sort", "-id", "--no-header"];
    let targets = cluster.skep(&[&["target", "list"][..], &sorted].concat());
    let ids = |line: &str| line.split_whitespace().last().and_then(|id| id.parse::<u32>().ok());
    let ids: Vec<u32> = targets.lines().filter_map(ids).collect();
    assert!(ids.len() > 2 && ids.is_sorted_by(|one, next| one > next), "{targets}");
    let refused = cluster.try_skep(&["node", "list", "--columns", "size"]).expect_failure();
    assert!(refused.contains("the table has the columns ID, NAME"), "{refused}");
    check_table(&["entry", "create", "--num-targets", "2", &new], "", &[&new, "2"]);
    check_table(&["entry", "map", &new], "FROM TO CHUNK STRIPE TARGET NODE ADDRESS", &["512.0KiB"]);
    check_table(&["entry", "set", "--num-targets", "1", root], "", &[root]);
    cluster.stop();
}

#[test]
fn output_of_cluster_format_matches_its_schema() {
    ["json", "ndjson"].into_iter().for_each(format_one);
}

/// Creates a cluster with one metadata target, and formats this cluster.
fn format_one(format: &str) {
    let scratch = Scratch::new();
    let place = |name: &str| scratch.join(name).display().to_string();
    let (management, node, target) = (place("m"), place("n"), place("t"));
    let listen = ["--listen", "127.0.0.1:0"];
    // `skep management --init` chooses the port, which becomes part of the token. At its start, the
    // service must use the same port.
    let init = [&["management", "--init", "--directory", &management][..], &listen].concat();
    cluster::skep(init).expect_success();
    let start = |arguments: &[&str]| {
        let mut command = Command::new(cluster::program());
        command.args(arguments).stderr(Stdio::null());
        // Dropping the scratch directory kills this process.
        command.spawn().expect("skep can be started")
    };
    let mut running = vec![start(&["management", "--directory", &management])];
    let metadata = ["metadata", "--directory", &node, "--target", &target];
    let metadata = [&metadata[..], &listen].concat();
    let token = format!("{management}/join-token");
    let init = [&metadata[..], &["--init", "--token-file", &token]].concat();
    let ask = |arguments: &[&str]| {
        let more = ["--cluster", &management, "--output", format];
        cluster::skep([arguments, &more].concat())
    };
    wait_for("management answers", PATIENCE, || {
        ask(&["target", "list"]).status.success().then_some(())
    });
    cluster::skep(init).expect_success();
    running.push(start(&metadata));
    wait_for("the target is online", PATIENCE, || {
        let targets = ask(&["target", "list"]);
        let is_online = targets.stdout.contains("\"Online\"");
        (targets.status.success() && is_online).then_some(())
    });
    let formatted = ask(&["cluster", "format"]).expect_success();
    check_printed("cluster-format", &formatted, format);
    let formatted = parse(&formatted);
    assert_eq!(formatted["metadata_targets"], 1);
    drop(scratch);
    running.iter_mut().for_each(|service| drop(service.wait()));
}

/// Commands that print no data, or that only print a message.
const WITHOUT_SCHEMA: [&str; 3] = ["umount", "completion", "monitor"];

#[test]
fn every_command_that_prints_data_has_a_schema() {
    let scratch = Scratch::new();
    let pages = scratch.join("pages").display().to_string();
    cluster::skep(["man", "--markdown", "--dir", &pages]).expect_success();
    let mut commands = 0;
    for entry in files::read_dir(&pages) {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let name = name.trim_start_matches("skep-");
        let schema = match name {
            "management" | "metadata" | "storage" => "service-init",
            "client-stats" | "target-stats" => "stats",
            name if name.starts_with("deploy-") => "deploy",
            name if name.starts_with("ondemand-") && name != "ondemand-status" => "ondemand",
            name => name,
        };
        let is_there = schema::directory().join(format!("{schema}.json")).exists();
        assert_ne!(is_there, WITHOUT_SCHEMA.contains(&name), "{name}");
        commands += 1;
    }
    assert!(commands > 20, "{commands}");
}

/// Returns the code, the message and the exit code of a command that must fail.
fn failure(finished: &Finished) -> (String, String, i64) {
    let value = parse(&finished.stderr);
    check("error", &value);
    let error = &value["error"];
    let exit_code = error["exit_code"].as_i64().expect("a number");
    assert_eq!(finished.status.code().map(i64::from), Some(exit_code), "{}", finished.line);
    assert_eq!(finished.stdout, "", "{}", finished.line);
    let text = |name: &str| error[name].text().to_owned();
    (text("code"), text("message"), exit_code)
}

#[test]
fn errors_have_a_code_a_fix_and_an_exit_code() {
    let cluster = Cluster::start(Shape { targets_per_service: 1, ..Shape::small() });
    let data = cluster.data().display().to_string();
    let address = files::read_to_string(cluster.data().join("management/address"));
    let scratch = Scratch::new();
    let token = files::read_to_string(cluster.data().join("management/join-token"));
    let secret = token.split('-').nth(2).expect("a secret").split('@').next().expect("a secret");
    let wrong = scratch.join("token").display().to_string();
    files::write_secret(&wrong, token.replace(secret, &"0".repeat(secret.len())));
    let ask =
        |arguments: &[&str]| failure(&cluster::skep([arguments, &["--output", "json"]].concat()));
    let check = |arguments: &[&str], code: &str, exit_code: i64, words: &str| {
        let (found, message, exit) = ask(arguments);
        assert_eq!((found.as_str(), exit), (code, exit_code), "{arguments:?}: {message}");
        assert!(message.contains(words), "{arguments:?}: {message}");
    };
    for arguments in [&["node", "lst"][..], &["entry", "info", "/nowhere"]] {
        let by_line = cluster::skep([arguments, &["--output", "ndjson"]].concat());
        assert_eq!(by_line.stderr.lines().count(), 1, "{}", by_line.stderr);
        assert_eq!(failure(&by_line), ask(arguments));
    }
    check(&["node", "lst"], "Usage", 2, "list");
    check(&["config", "set", "lease", "1ms", "--cluster", &data], "InvalidArgument", 2, "600000");
    check(&["node", "log-level", "x", "--cluster", &data], "NotFound", 4, "skep node list");
    check(&["entry", "info", "/nowhere"], "NotFound", 4, "/nowhere");
    check(&["entry", "info", "/"], "InvalidArgument", 2, "findmnt");
    check(&["node", "list", "--cluster", "/nowhere"], "Configuration", 2, "/nowhere");
    let by_address = ["node", "list", "--cluster", address.trim()];
    check(&by_address, "Configuration", 2, "--token-file");
    let refused = [&by_address[..], &["--token-file", &wrong]].concat();
    check(&refused, "AuthenticationFailed", 5, "token");
    let watch = ["health", "check", "--watch", "--cluster", address.trim()];
    let refused = [&watch[..], &["--token-file", &wrong]].concat();
    check(&refused, "AuthenticationFailed", 5, &wrong);
    check(&["cluster", "format", "--cluster", &data], "Exists", 7, "formatted already");
    let no_file = [&by_address[..], &["--token-file", "/nowhere"]].concat();
    check(&no_file, "Configuration", 2, "token file /nowhere: no such file; `skep cluster token");
    let token_file = cluster.data().join("management/join-token").display().to_string();
    let astray = ["node", "list", "--cluster", "127.0.0.1:1", "--token-file", &token_file];
    check(&astray, "Disconnected", 3, "check the address");
    let root = cluster.path().display().to_string();
    check(&["entry", "who", &root], "InvalidArgument", 2, "not a regular file");
    // Each attempt to mount must fail, and its message must name the reason.
    let absent = scratch.join("absent").display().to_string();
    let of_file = scratch.join("token").display().to_string();
    let empty = scratch.directory("empty").display().to_string();
    for way in [&["--dry-run"][..], &["--foreground"], &[]] {
        let try_on = |place| [&["mount", "--cluster", &data], way, &[place]].concat();
        check(&try_on(&absent), "NotFound", 4, "absent");
        check(&try_on(&of_file), "NotDirectory", 1, "not a directory");
        check(&try_on(&root), "InUse", 1, "mounted already");
    }
    let dry_astray =
        ["mount", "--dry-run", &empty, "--cluster", "127.0.0.1:1", "--token-file", &token_file];
    check(&dry_astray, "Disconnected", 3, "check the address");
    cluster::skep(["mount", "--dry-run", "--cluster", &data, &empty]).expect_success();
    assert!(!files::read_to_string("/proc/mounts").contains(&empty));
    check(&["umount", &data], "NotFound", 4, "findmnt");
    check(&["umount", "/proc"], "InvalidArgument", 2, "the type proc");
    check(
        &["down", "--data-dir", "/nowhere"],
        "Configuration",
        2,
        "cannot find a cluster at /nowhere",
    );
    let metadata = cluster.processes("metadata").pop().expect("the process runs");
    metadata.signal(Signal::STOP);
    let (_, message, exit_code) = ask(&["session", "list", "--cluster", &data]);
    assert!(message.contains("metadata-1") && message.contains("health check"), "{message}");
    assert_eq!(exit_code, 3, "{message}");
    metadata.signal(Signal::CONT);
    cluster.stop();
    check(&["node", "list", "--cluster", &data], "Disconnected", 3, "skep up");
    check(
        &["client", "list", "--cluster", &data],
        "Disconnected",
        3,
        "check that the cluster is running",
    );
    check(
        &["config", "set", "lease", "6s", "--cluster", &data],
        "Disconnected",
        3,
        "check that the cluster is running",
    );
    check(
        &["cluster", "format", "--cluster", &data],
        "Disconnected",
        3,
        "check that the cluster is running",
    );
}

/// JSON cannot represent a name that is not UTF-8. The command replaces invalid bytes by U+FFFD,
/// and succeeds.
#[test]
fn invalid_utf8_in_printed_names_is_replaced() {
    let cluster = Cluster::start(Shape { storage_services: 1, ..Shape::default() });
    let name = OsStr::from_bytes(b"no-\xff-text");
    let (made, set) = (cluster.path().join("new").join(name), cluster.path().join(name));
    files::create_dir(cluster.path().join("new"));
    files::write(&set, "x");
    for format in ["table", "json", "ndjson"] {
        let run = |arguments: &[&str], path: &Path| {
            let all = arguments.iter().map(OsStr::new).chain([path.as_os_str()]);
            let output = ["--output", format].map(OsStr::new);
            let printed = cluster::skep(all.chain(output)).expect_success();
            let names_it = printed.contains("no-\u{fffd}-text");
            assert!(names_it || (arguments[1] == "map" && format == "table"), "{printed}");
        };
        run(&["entry", "create", "--num-targets", "1"], &made);
        run(&["entry", "set", "--num-targets", "1"], &made);
        files::remove_file(&made);
        run(&["entry", "info"], &set);
        run(&["entry", "map"], &set);
    }
    cluster.stop();
}
