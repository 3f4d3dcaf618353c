//! Commands of administrators on a running cluster: settings, log levels, clients and their
//! sessions.

use rustix::process::Signal;
use serde_json::{Value, json};
use skep_testkit::files;
use skep_testkit::power::Disk;
use skep_testkit::program::finish;
use skep_testkit::schema::check;
use skep_testkit::view::{RULES_OF_THE_HOST, Typed};
use skep_testkit::{Cluster, PATIENCE, Scratch, Shape, Transport, cluster, wait_for};
use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Command;

/// The error number `EIO` (errno(3)).
const EIO: i32 = 5;

/// Command: skep node log-level.
#[test]
fn log_levels_change_in_running_services_and_mounts() {
    let cluster = Cluster::start(Shape::small());
    let log = |name: &str| {
        let path = cluster.data().join("logs").join(name);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let levels = |arguments: &[&str]| {
        let lines = cluster.skep_list(&[&["node", "log-level"], arguments].concat());
        lines.iter().map(|line| line["level"].text().to_owned()).collect()
    };
    let all: Vec<String> = levels(&["all"]);
    assert_eq!(all, ["info"; 3], "management, metadata, storage");
    let one: Vec<String> = levels(&["storage-1", "debug"]);
    assert_eq!(one, ["debug"]);
    cluster.skep(&["config", "set", "cleanup-interval", "100ms"]);
    wait_for("the service logs at the level debug", PATIENCE, || {
        log("storage-1.log").contains("DEBUG the clean-up of target").then_some(())
    });
    assert!(log("storage-1.log").contains("changes its log level from info to debug"));
    assert!(!log("metadata-1.log").contains("DEBUG"));
    let shown = cluster.skep(&["node", "log-level", "all"]);
    let words: Vec<&str> = shown.lines().flat_map(str::split_whitespace).collect();
    assert!(words.windows(3).any(|it| it == ["storage-1", "debug", "info"]), "{shown}");
    let all: Vec<String> = levels(&["all", "default"]);
    assert_eq!(all, ["info"; 3]);

    let client = cluster.nodes("client")[0]["id"].to_string();
    for (arguments, words) in [
        (["storage-1", "loud,=="], "log level: 'loud,=='"),
        (["nobody", "debug"], "skep node list"),
        ([client.as_str(), "loud,=="], "log level: 'loud,=='"),
    ] {
        let printed = refusal(&cluster, &[&["node", "log-level"], &arguments[..]].concat());
        assert!(printed.contains(words), "{arguments:?}: {printed}");
    }
    let mounts: Vec<String> = levels(&["mounts"]);
    assert_eq!(mounts, ["info"]);
    let one: Vec<String> = levels(&[&client, "debug,skep_client=trace"]);
    assert_eq!(one, ["debug,skep_client=trace"]);
    assert!(
        log("mount.log").contains("changes its log level from info to debug,skep_client=trace")
    );
    let one: Vec<String> = levels(&[&client, "default"]);
    assert_eq!(one, ["info"]);

    // A signal can also set the log level of a client, for example if the client does not reply to
    // commands.
    let clients = cluster.skep_json(&["client", "list"]);
    let pid = clients[0]["pid"].to_string();
    let kill = |signal: &str| {
        finish(Command::new("kill").args([signal, &pid]), PATIENCE).expect_success();
    };
    kill("-USR1");
    wait_for("the mount logs its new level", PATIENCE, || {
        log("mount.log").contains("changes its log level from info to debug\n").then_some(())
    });
    kill("-USR2");
    wait_for("the mount logs the return to its first level", PATIENCE, || {
        log("mount.log").ends_with("changes its log level from debug to info\n").then_some(())
    });
    kill("-STOP");
    let printed = refusal(&cluster, &["node", "log-level", &client]);
    kill("-CONT");
    assert!(printed.contains("did not answer for") && printed.contains("kill -USR1"), "{printed}");
    cluster.stop();
}

/// Regression test: a mount used the lease duration that was set when the mount started, and
/// ignored later settings.
#[test]
fn existing_mounts_adopt_a_shorter_lease() {
    let mut cluster = Cluster::start(Shape::small());
    cluster.skep(&["config", "set", "lease", "10min"]);
    let second = cluster.mount(Transport::Device);
    let path = second.path().join("open");
    let file = files::create(&path);
    let path = cluster.path().join("open").display().to_string();
    let opens = || cluster.skep_json(&["entry", "info", &path])["open_sessions"].clone();
    assert_eq!(opens(), json!(1));
    cluster.skep(&["config", "set", "heartbeat", "500ms"]);
    cluster.skep(&["config", "set", "lease", "3s"]);
    let clients = || cluster.nodes("client").len();
    assert_eq!(clients(), 2);
    wait_for("both sessions have the new lease duration", PATIENCE, || {
        let sessions = cluster.skep_list(&["session", "list"]);
        let is_new = |it: &Value| it["lease_ms"] == 3_000;
        (sessions.len() == 2 && sessions.iter().all(is_new)).then_some(())
    });
    second.kill();
    drop(file);
    wait_for("the killed client's session ends after seconds, not ten minutes", PATIENCE, || {
        (opens() == json!(0)).then_some(())
    });
    wait_for("management removes the killed client", PATIENCE, || (clients() == 1).then_some(()));
    // The remaining mount has kept its first session.
    files::write(cluster.path().join("alive"), "x");
    let log = files::read_to_string(cluster.data().join("logs/mount.log"));
    assert!(!log.contains("has ended the session"), "{log}");
    cluster.stop();
}

/// Command: skep client list, skep client files, skep session list, skep lock list, skep entry who.
#[test]
fn open_files_and_locks_of_clients_are_listed() {
    let mut cluster = Cluster::start(Shape { metadata_targets: 2, ..Shape::small() });
    let second = cluster.mount(Transport::Device);
    let path = second.path().join("open");
    let file = files::create(&path);
    file.lock().expect("locked");
    let path = cluster.path().join("open").display().to_string();
    let list = |arguments: &[&str]| cluster.skep_list(arguments);
    let place = second.path().display().to_string();

    let host = files::read_to_string("/proc/sys/kernel/hostname");
    for node in list(&["node", "list"]) {
        assert_eq!(node["host"], host.trim(), "{node}");
    }
    let clients = list(&["client", "list"]);
    assert_eq!(clients.len(), 2, "{clients:?}");
    let client = clients
        .iter()
        .find(|it| it["mount_point"] == place.as_str())
        .expect("the client of the mount");
    assert_eq!(client["reachability"], "Online");
    assert_eq!((&client["open_files"], &client["sessions"]), (&json!(1), &json!(1)), "{client}");
    assert!(client["silent_ms"].number() < 5_000);
    let shown = cluster.skep(&["client", "list"]);
    assert!(shown.contains(&place) && shown.contains(" ago"), "{shown}");

    let id = client["id"].to_string();
    let sessions = list(&["session", "list", "--client", &id]);
    assert_eq!(sessions.len(), 1, "{sessions:?}");
    assert_eq!((&sessions[0]["lease_ms"], &sessions[0]["open_files"]), (&json!(5_000), &json!(1)));

    let files = list(&["client", "files", &id]);
    assert_eq!(files.len(), 1, "{files:?}");
    let counts = [&files[0]["readers"], &files[0]["writers"], &files[0]["locks"]];
    assert_eq!(counts, [&json!(0), &json!(1), &json!(1)], "{files:?}");
    let entry = cluster.skep_json(&["entry", "info", &path])["entry_id"].clone();
    assert_eq!((&files[0]["entry_id"], &files[0]["session"]), (&entry, &sessions[0]["session"]));
    let own =
        clients.iter().find(|it| it["id"] != client["id"]).expect("the other client is listed");
    assert_eq!(list(&["client", "files", &own["id"].to_string()]), [] as [Value; 0]);

    let who = list(&["entry", "who", &path]);
    assert_eq!(who.len(), 1, "{who:?}");
    assert_eq!((&who[0]["client"], &who[0]["writers"]), (&client["id"], &json!(1)));
    assert_eq!(who[0]["locks"][0]["mode"], "exclusive");
    let locks = list(&["lock", "list"]);
    assert_eq!(locks.len(), 1, "{locks:?}");
    assert_eq!((&locks[0]["kind"], &locks[0]["is_waiting"]), (&json!("flock"), &json!(false)));
    assert_eq!(locks[0]["end_byte"], Value::Null);
    let mut of_path = list(&["lock", "list", &path]);
    assert_eq!(of_path[0]["path"], path.as_str());
    of_path[0]["path"] = Value::Null;
    assert_eq!(of_path, locks);
    let shown = cluster.skep(&["entry", "who", &path]);
    assert!(shown.contains("flock exclusive all by process"), "{shown}");

    drop(file);
    wait_for("no session has the file open", PATIENCE, || {
        (cluster.skep(&["entry", "who", &path]) == "No client has the file open.\n").then_some(())
    });
    assert!(list(&["lock", "list"]).is_empty());
    assert_eq!(cluster.skep(&["client", "files"]), "No client has a file open.\n");
    assert_eq!(cluster.skep(&["lock", "list"]), "No file is locked.\n");
    second.unmount();
    wait_for("the mount is gone", PATIENCE, || {
        (list(&["client", "list"]).len() == 1).then_some(())
    });
    assert!(refusal(&cluster, &["session", "list", "--client", &id]).contains("skep client list"));
    assert!(refusal(&cluster, &["client", "files", &id]).contains("skep client list"));
    assert!(refusal(&cluster, &["entry", "who", "/"]).contains("not in a mount"));
    assert!(refusal(&cluster, &["entry", "who", "/nowhere"]).contains("/nowhere"));
    cluster.stop();
}

/// Command: skep transaction list, skep transaction resolve.
#[test]
fn transactions_that_do_not_exist_cannot_be_resolved() {
    let cluster = Cluster::start(Shape::small());
    assert_eq!(cluster.skep_json(&["transaction", "list"]), json!([]));
    let printed = refusal(&cluster, &["transaction", "resolve", "1:77", "--abort"]);
    assert!(printed.contains("skep transaction list"), "{printed}");
    for wrong in [&["77", "--abort"][..], &["1:77"], &["1:77", "--abort", "--commit"]] {
        refusal(&cluster, &[&["transaction", "resolve"], wrong].concat());
    }
}

/// A dead server with two targets counts as a single problem. The problem contains the time of the
/// server's last heartbeat.
///
/// Command: skep health check.
#[test]
fn health_check_shows_the_last_heartbeat_of_a_dead_server() {
    let cluster = Cluster::start(Shape { targets_per_service: 2, ..Shape::small() });
    cluster.skep(&["config", "set", "heartbeat", "500ms"]);
    cluster.skep(&["config", "set", "lease", "1s"]);
    let storage = cluster.processes("storage").pop().expect("the process runs");
    let problems = || {
        let health = cluster.try_skep(&["health", "check", "--output", "json"]);
        let health = serde_json::from_str::<Value>(&health.stdout).expect("JSON");
        let mut problems = health["problems"].list().to_vec();
        problems.retain(|it| !RULES_OF_THE_HOST.contains(&it["rule"].text()));
        problems
    };
    assert_eq!(problems(), Vec::<Value>::new());
    storage.signal(Signal::STOP);
    let found = wait_for("`skep health check` reports the suspended server", PATIENCE, || {
        let problems = problems();
        let is_silent = |it: &&Value| it["rule"] == "service-unreachable" && !it["since"].is_null();
        problems.iter().find(is_silent)?;
        Some(problems)
    });
    let shown = cluster.try_skep(&["health", "check"]).expect_failure();
    storage.signal(Signal::CONT);
    let [problem] = &found[..] else { panic!("one problem: {found:?}") };
    assert_eq!(problem["may_be_older"], false);
    let time = problem["since"].text();
    assert!(time.ends_with('Z'), "{time}");
    assert!(shown.contains(&format!("(since {time}, for ")), "{shown}");
}

/// docs/semantics.md 3.8.
///
/// Command: skep client evict.
#[test]
fn evicted_client_loses_its_open_files_and_locks() {
    let mut cluster = Cluster::start(Shape { metadata_targets: 2, ..Shape::small() });
    let second = cluster.mount(Transport::Device);
    let place = second.path().display().to_string();
    let path = second.path().join("held");
    let held = files::create(&path);
    held.lock().expect("locked");
    files::write_all_at(&held, b"before", 0);
    let other = files::open_with(fs::File::options().write(true), cluster.path().join("held"));
    assert!(other.try_lock().is_err(), "the second mount has the lock");
    let client = || {
        let clients = cluster.skep_list(&["client", "list"]);
        clients.into_iter().find(|it| it["mount_point"] == place.as_str())
    };
    let first = client().expect("the client is listed")["id"].clone();
    let first_id = first.to_string();

    let printed = refusal(&cluster, &["client", "evict", &first_id]);
    for words in ["is alive", &place, "EIO", "--force"] {
        assert!(printed.contains(words), "{words}: {printed}");
    }
    let dry = cluster.skep(&["client", "evict", &first_id, "--dry-run"]);
    for words in ["would be evicted", "1 open file and 1 lock", "would get EIO"] {
        assert!(dry.contains(words), "{words}: {dry}");
    }
    files::write_all_at(&held, b"still", 0);
    assert!(other.try_lock().is_err(), "the second mount has the lock");
    for (name, words) in [("storage-1", "is a server"), ("4711", "skep client list")] {
        let printed = refusal(&cluster, &["client", "evict", name, "--force"]);
        assert!(printed.contains(words), "{name}: {printed}");
    }

    let evicted = cluster.skep_json(&["client", "evict", &first_id, "--force"]);
    let expected = [json!(1), json!(1), json!(false), json!(true)];
    let fields = ["open_files", "locks", "is_dry_run", "is_released"];
    assert_eq!(fields.map(|field| evicted[0][field].clone()), expected, "{evicted}");
    other.try_lock().expect("the lock is free");
    files::write_all_at(&other, b"ours", 0);
    // The bytes at the first offset are in metadata, and the bytes at the second offset are on
    // storage.
    for offset in [0, 100_000] {
        let refused = held.write_all_at(b"late", offset).expect_err("the client is evicted");
        assert_eq!(refused.raw_os_error(), Some(EIO), "{refused}");
    }
    assert_eq!(files::read(cluster.path().join("held")), b"oursle");
    drop(held);

    let listed = cluster.skep_list(&["client", "list", "--evicted"]);
    check("client-list-evicted", &Value::Array(listed.clone()));
    assert_eq!(listed.len(), 1, "{listed:?}");
    let eviction = &listed[0];
    assert_eq!((&eviction["id"], &eviction["cause"]), (&first, &json!("administrator")));
    assert!(eviction["name"].text().ends_with(&place), "{eviction}");
    let health = cluster.skep_json(&["health", "check"]);
    let notes = health["notes"].list();
    let words = format!("clients evicted in the last hour: {}", eviction["name"].text());
    assert!(notes.iter().any(|it| it["what"].text().starts_with(&words)), "{health}");

    // The evicted mount joins the cluster as a new client, without any action of an administrator.
    let second_id = wait_for("the evicted client joins again", PATIENCE, || {
        Some(client()?["id"].clone()).filter(|id| *id != first)
    });
    let path = second.path().join("new");
    wait_for("the mount creates files again", PATIENCE, || fs::write(&path, "new").ok());
    assert_eq!(files::read(cluster.path().join("new")), b"new");
    assert_eq!(files::read(second.path().join("held")), b"oursle");
    let printed = refusal(&cluster, &["client", "evict", &first_id]);
    assert!(printed.contains("skep client list"), "the client is no longer listed: {printed}");

    // The command needs no --force to evict a client that does not respond.
    second.signal(Signal::STOP);
    wait_for("the suspended client is not online", PATIENCE, || {
        client().is_none_or(|client| client["reachability"] != "Online").then_some(())
    });
    let data = cluster.data().display().to_string();
    let evicted = cluster::skep(["client", "evict", &second_id.to_string(), "--cluster", &data]);
    // The command may fail, because the client's lease may have expired before the eviction.
    assert!(
        evicted.status.success() || evicted.stderr.contains("skep node list"),
        "{}",
        evicted.stderr
    );
    wait_for("the evicted client is not listed any more", PATIENCE, || {
        client().is_none().then_some(())
    });
    let newest = cluster.skep_list(&["client", "list", "--evicted"]).remove(0);
    assert_eq!(newest["id"], second_id);
    assert!(newest["silent_ms"].number() > 0, "{newest}");
    second.signal(Signal::CONT);
    second.unmount();
    cluster.stop();
}

/// Runs a command that must fail, and returns its message.
fn refusal(cluster: &Cluster, arguments: &[&str]) -> String {
    let data = cluster.data().display().to_string();
    let arguments = [arguments, &["--cluster", &data]].concat();
    cluster::skep(arguments).expect_failure()
}

/// Command: skep config list, skep config get, skep config set.
#[test]
fn config_set_needs_no_restart_and_refuses_wrong_values() {
    let cluster = Cluster::start(Shape::small());
    let settings = cluster.skep_json(&["config", "list"]);
    let names: Vec<_> = settings.list().iter().map(|it| &it["name"]).collect();
    for name in ["lease", "heartbeat", "chunk-size", "stripe-width", "feature-level"] {
        assert!(names.contains(&&json!(name)), "{name}: {names:?}");
    }
    let shown = cluster.skep(&["config", "get", "chunk-size"]);
    for words in ["512 KiB", "64 KiB to 1 GiB, powers of two", "chunk size of new files"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    let value = |name: &str| cluster.skep_json(&["config", "get", name])["value"].clone();

    let pattern = |name: &str| {
        let path = cluster.path().join(name);
        files::write(&path, "x");
        let first = cluster.entry_info(&path).first_component();
        (first.chunk_bytes(), first.targets_wanted())
    };
    assert_eq!(pattern("before"), (512 << 10, 1));
    cluster.skep(&["config", "set", "stripe-from", "0"]);
    let dry = cluster.skep(&["config", "set", "chunk-size", "1MiB", "--dry-run"]);
    assert!(dry.contains("would be 1 MiB"), "{dry}");
    assert_eq!(value("chunk-size"), json!(512 << 10));
    cluster.skep(&["config", "set", "chunk-size", "1MiB"]);
    let changed = cluster.skep_json(&["config", "set", "stripe-width", "3"]);
    assert_eq!((&changed["before"], &changed["value"]), (&json!(32), &json!(3)));
    assert_eq!((value("chunk-size"), value("stripe-width")), (json!(1 << 20), json!(3)));
    let mut number = 0;
    wait_for("new files get the new pattern", PATIENCE, || {
        number += 1;
        (pattern(&format!("after-{number}")) == (1 << 20, 3)).then_some(())
    });

    for (arguments, words) in [
        (["chunk-size", "100KiB"], "65536 and 131072"),
        (["chunk-size", "many"], "KiB, MiB"),
        (["lease", "1ms"], "lease: 1 ms is not between 200 and 600000 ms"),
        (["heartbeat", "4s"], "half a lease of 5000 ms"),
        (["stripe-width", "-"], "from 1 to 256"),
        (["feature-level", "99"], "feature-level: 99 is not between 1 and "),
        (["low-percent", "1"], "emergency-percent of 2 % is more than a low-percent of 1 %"),
        (["low-percent", "100%"], "low-percent: 100 percent is not between 0 and 99 percent"),
        (["low-percent", "few"], "from 0 to 99"),
        (["colour", "red"], "expected one of lease, heartbeat"),
        (
            ["chooser", "best"],
            "invalid value 'best': expected one of balanced, randomized, roundrobin",
        ),
    ] {
        let printed = refusal(&cluster, &[&["config", "set"], &arguments[..]].concat());
        assert!(printed.contains(words), "{arguments:?}: {printed}");
    }
    let changed = cluster.skep(&["config", "set", "chooser", "randomized"]);
    assert!(changed.contains("randomized now; the former value was balanced"), "{changed}");
    let shown = cluster.skep_json(&["config", "get", "chooser"]);
    assert_eq!((&shown["word"], &shown["words"][0]), (&json!("randomized"), &json!("balanced")));
    let changed = cluster.skep(&["config", "set", "chooser", "default"]);
    assert!(changed.contains("balanced now; the former value was randomized"), "{changed}");
    let changed = cluster.skep_json(&["config", "set", "stripe-width", "default"]);
    assert_eq!((&changed["before"], &changed["value"]), (&json!(3), &json!(32)));
    assert_eq!(value("stripe-width"), json!(32));
    cluster.stop();
    cluster.up().expect_success();
    assert_eq!(value("chunk-size"), json!(1 << 20));
    cluster.stop();
}

/// Command: skep config set, skep health df, skep health check.
#[test]
fn cluster_settings_set_the_free_space_limits_of_targets() {
    let scratch = Scratch::new();
    // The logs and stores of the services take more than 5 % of the small disk, so each target has
    // less than 95 % free.
    let disk = Disk::new(&scratch, 512 << 20);
    let cluster = Cluster::start_in(disk.path(), Shape::small());
    let becomes = |pool: &str| {
        wait_for(&format!("all targets are {pool}"), PATIENCE, || {
            let targets = cluster.skep_json(&["health", "df"]);
            targets.list().iter().all(|it| it["pool"] == pool).then_some(())
        });
    };
    let set = |name: &str, value: &str| cluster.skep(&["config", "set", name, value]);
    let has_problem = |rule: &str| {
        let health = cluster.try_skep(&["health", "check", "--output", "json"]).stdout;
        health.contains(&format!("\"{rule}\""))
    };
    becomes("normal");
    assert!(!has_problem("target-low"));
    set("low-percent", "95%");
    becomes("low");
    assert!(has_problem("target-low"));
    set("emergency-percent", "95");
    becomes("emergency");
    assert!(has_problem("target-full"));
    // A target with more than 1 MiB of free space is never in the pool `emergency`.
    set("emergency-free", "1MiB");
    becomes("low");
    let printed = refusal(&cluster, &["config", "set", "low-percent", "default"]);
    assert!(printed.contains("change the other of the two settings first"), "{printed}");
    set("emergency-percent", "default");
    set("low-percent", "default");
    becomes("normal");
    cluster.stop();
}
