//! What programs read of commands: JSON by the schemas in `schemas/`, errors and exit codes.
//! docs/operations/output.md says what may be relied on.

use rustix::process::Signal;
use serde_json::Value;
use skep_testkit::program::{Finished, finish};
use skep_testkit::{Cluster, Scratch, Shape, Transport, cluster, schema, wait_for};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

fn schemas() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/schemas")
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Checks a value against a command's schema.
fn check(name: &str, value: &Value) {
    let path = schemas().join(format!("{name}.json"));
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
    let problems = schema::problems(&parse(&text), value);
    assert_eq!(problems, Vec::<String>::new(), "{name}: {value}");
}

/// Runs a command in a directory, and checks both forms of JSON against its schema; the second run
/// of a command that changes something says the same.
fn check_command(directory: &Path, arguments: &[&str], name: &str) -> Value {
    let run = |format: &str| {
        let mut command = Command::new(cluster::program());
        command.current_dir(directory).args(arguments).args(["--output", format]);
        finish(&mut command, PATIENCE).expect_success()
    };
    let value = parse(&run("json"));
    check(name, &value);
    let lines = run("ndjson");
    match value.is_array() {
        true => check(name, &lines.lines().map(parse).collect::<Vec<_>>().into()),
        false => {
            assert_eq!(lines.lines().count(), 1, "{name}: {lines}");
            check(name, &parse(&lines));
        }
    }
    value
}

#[test]
fn what_commands_print_for_programs_is_as_their_schemas_say() {
    let shape = Shape { storage_services: 1, targets_per_service: 2, ..Shape::default() };
    let mut cluster = Cluster::start(shape);
    let second = cluster.mount(Transport::Device);
    let file = fs::File::create(second.path().join("file")).expect("created");
    file.lock().expect("locked");
    let directory = cluster.data().parent().expect("a directory").to_owned();
    std::os::unix::fs::symlink(cluster.data(), directory.join("skep-data")).expect("a link");
    let file_path = cluster.path().join("file").display().to_string();
    let root = cluster.path().display().to_string();
    for (arguments, name) in [
        (&["node", "list"][..], "node-list"),
        (&["node", "log-level", "all"], "node-log-level"),
        (&["target", "list"], "target-list"),
        (&["client", "list"], "client-list"),
        (&["session", "list"], "session-list"),
        (&["lock", "list"], "lock-list"),
        (&["health", "df"], "health-df"),
        (&["health", "check"], "health-check"),
        (&["entry", "info", &file_path], "entry-info"),
        (&["entry", "info", &root], "entry-info"),
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
        (&["man", "--dir", "pages"], "man"),
    ] {
        check_command(&directory, arguments, name);
    }
    let new = cluster.path().join("new").display().to_string();
    let create = ["entry", "create", "--num-targets", "2", &new, "--output", "json"];
    check("entry-create", &parse(&cluster::skep(create).expect_success()));
    // A service that is away: fields that are null otherwise have a value then, and others none.
    let storage = cluster.processes("storage").pop().expect("it runs");
    storage.signal(Signal::STOP);
    let data = cluster.data().display().to_string();
    let ask = |arguments: &[&str]| {
        let more = ["--cluster", &data, "--output", "json"];
        cluster::skep([arguments, &more].concat())
    };
    let found = wait_for("it is missed", PATIENCE, || {
        let found = ask(&["health", "check"]);
        (found.status.code() == Some(1)).then_some(found)
    });
    check("health-check", &parse(&found.stdout));
    check("node-log-level", &parse(&ask(&["node", "log-level", "all"]).stdout));
    storage.signal(Signal::CONT);
    drop(file);
    drop(second);
    cluster.kill_all();
}

#[test]
fn commands_that_make_and_end_clusters_have_schemas_too() {
    let scratch = Scratch::new();
    let small = ["--metadata-targets", "1", "--storage-services", "1", "--output", "json"];
    let up = |more: &[&str]| {
        let mut command = Command::new(cluster::program());
        command.current_dir(scratch.path()).args(["up", "--detach"]).args(small).args(more);
        parse(&finish(&mut command, PATIENCE).expect_success())
    };
    check("up", &up(&[]));
    fs::create_dir(scratch.join("more")).expect("a directory");
    let mount = ["mount", "--cluster", "skep-data", "--detach", "more", "--output", "json"];
    let run = |arguments: &[&str]| {
        let mut command = Command::new(cluster::program());
        finish(command.current_dir(scratch.path()).args(arguments), PATIENCE).expect_success()
    };
    check("mount", &parse(&run(&mount)));
    run(&["umount", "more"]);
    assert_eq!(check_command(scratch.path(), &["down"], "down")["was_up"], true);
    check("up", &up(&["--no-mount"]));
    assert_eq!(parse(&run(&["down", "--output", "json"]))["was_up"], true);

    let management = scratch.join("m").display().to_string();
    let made = run(&["management", "--init", "--directory", &management, "--output", "json"]);
    check("service-init", &parse(&made));
    let token_file = scratch.join("m/join-token").display().to_string();
    let storage = ["--directory", &scratch.join("s").display().to_string(), "--target", "s/t"]
        .map(str::to_owned);
    let storage = storage.each_ref().map(String::as_str);
    let init = ["storage", "--init", "--token-file", &token_file, "--output", "json"];
    check("service-init", &parse(&run(&[&init[..], &storage].concat())));
}

#[test]
fn formatting_a_cluster_has_a_schema_too() {
    let scratch = Scratch::new();
    let place = |name: &str| scratch.join(name).display().to_string();
    let (management, node, target) = (place("m"), place("n"), place("t"));
    let listen = ["--listen", "127.0.0.1:0"];
    // The port that is found here stands in the token, and is taken again at the start.
    let init = [&["management", "--init", "--directory", &management][..], &listen].concat();
    cluster::skep(init).expect_success();
    let start = |arguments: &[&str]| {
        let mut command = Command::new(cluster::program());
        command.args(arguments).stderr(Stdio::null());
        // Ended with all that works in the scratch directory.
        command.spawn().expect("skep can be started")
    };
    let mut running = vec![start(&["management", "--directory", &management])];
    let metadata = ["metadata", "--directory", &node, "--target", &target];
    let metadata = [&metadata[..], &listen].concat();
    let token = format!("{management}/join-token");
    let init = [&metadata[..], &["--init", "--token-file", &token]].concat();
    let ask = |arguments: &[&str]| {
        let more = ["--cluster", &management, "--output", "json"];
        cluster::skep([arguments, &more].concat())
    };
    wait_for("management answers", PATIENCE, || {
        ask(&["target", "list"]).status.success().then_some(())
    });
    cluster::skep(init).expect_success();
    running.push(start(&metadata));
    wait_for("the target is online", PATIENCE, || {
        let targets = ask(&["target", "list"]);
        (targets.status.success() && parse(&targets.stdout)[0]["reachability"] == "Online")
            .then_some(())
    });
    let formatted = parse(&ask(&["cluster", "format"]).expect_success());
    check("cluster-format", &formatted);
    assert_eq!(formatted["metadata_targets"], 1);
    drop(scratch);
    running.iter_mut().for_each(|service| drop(service.wait()));
}

/// Commands that print nothing, or what is no data.
const WITHOUT_SCHEMA: [&str; 2] = ["umount", "completion"];

#[test]
fn every_command_that_prints_data_has_a_schema() {
    let scratch = Scratch::new();
    let pages = scratch.join("pages").display().to_string();
    cluster::skep(["man", "--markdown", "--dir", &pages]).expect_success();
    let mut commands = 0;
    for entry in fs::read_dir(&pages).expect("pages") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let name = name.trim_start_matches("skep-");
        let schema = match name {
            "management" | "metadata" | "storage" => "service-init",
            name => name,
        };
        let is_there = schemas().join(format!("{schema}.json")).exists();
        assert_ne!(is_there, WITHOUT_SCHEMA.contains(&name), "{name}");
        commands += 1;
    }
    assert!(commands > 20, "{commands}");
}

/// Code, message and exit code of a command that must fail.
fn failure(finished: &Finished) -> (String, String, i64) {
    let value = parse(&finished.stderr);
    check("error", &value);
    let error = &value["error"];
    let exit_code = error["exit_code"].as_i64().expect("a number");
    assert_eq!(finished.status.code().map(i64::from), Some(exit_code), "{}", finished.line);
    assert_eq!(finished.stdout, "", "{}", finished.line);
    let text = |name: &str| error[name].as_str().expect("a text").to_owned();
    (text("code"), text("message"), exit_code)
}

#[test]
fn errors_have_a_code_a_way_out_and_an_exit_code() {
    let cluster = Cluster::start(Shape {
        metadata_targets: 1,
        storage_services: 1,
        targets_per_service: 1,
        ..Shape::default()
    });
    let data = cluster.data().display().to_string();
    let address = fs::read_to_string(cluster.data().join("management/address")).expect("it");
    let scratch = Scratch::new();
    let token = fs::read_to_string(cluster.data().join("management/join-token")).expect("it");
    let secret = token.split('-').nth(2).expect("a secret").split('@').next().expect("a secret");
    let wrong = scratch.join("token").display().to_string();
    fs::write(&wrong, token.replace(secret, &"0".repeat(secret.len()))).expect("written");
    let ask =
        |arguments: &[&str]| failure(&cluster::skep([arguments, &["--output", "json"]].concat()));
    let check = |arguments: &[&str], code: &str, exit_code: i64, words: &str| {
        let (found, message, exit) = ask(arguments);
        assert_eq!((found.as_str(), exit), (code, exit_code), "{arguments:?}: {message}");
        assert!(message.contains(words), "{arguments:?}: {message}");
    };
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
    check(&["cluster", "format", "--cluster", &data], "Exists", 1, "formatted already");
    let no_file = [&by_address[..], &["--token-file", "/nowhere"]].concat();
    check(&no_file, "Configuration", 2, "no token file /nowhere; `skep cluster token`");
    let token_file = cluster.data().join("management/join-token").display().to_string();
    let astray = ["node", "list", "--cluster", "127.0.0.1:1", "--token-file", &token_file];
    check(&astray, "Disconnected", 3, "is the address right?");
    let root = cluster.path().display().to_string();
    check(&["entry", "who", &root], "InvalidArgument", 2, "no regular file");
    check(&["umount", &data], "InUse", 1, "findmnt");
    check(&["down", "--data-dir", "/nowhere"], "Configuration", 2, "no cluster at /nowhere");
    let metadata = cluster.processes("metadata").pop().expect("it runs");
    metadata.signal(Signal::STOP);
    let (_, message, exit_code) = ask(&["session", "list", "--cluster", &data]);
    assert!(message.contains("metadata-1") && message.contains("health check"), "{message}");
    assert_eq!(exit_code, 3, "{message}");
    metadata.signal(Signal::CONT);
    cluster.stop();
    check(&["node", "list", "--cluster", &data], "Disconnected", 3, "skep up");
    check(&["client", "list", "--cluster", &data], "Disconnected", 3, "is it running");
    check(
        &["config", "set", "lease", "6s", "--cluster", &data],
        "Disconnected",
        3,
        "is it running",
    );
    check(&["cluster", "format", "--cluster", &data], "Disconnected", 3, "is it running");
}
