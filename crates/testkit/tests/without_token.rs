//! Queries of ordinary users without the token. A mount replies to these queries. The replies
//! contain the clients that use a file, the file's locks, the path of a file with a given id, and
//! the space on targets. The kernel and the permissions of directories restrict each query to files
//! that the user may read.

use serde_json::Value;
use skep_testkit::program::{Finished, finish};
use skep_testkit::schema::check;
use skep_testkit::{Cluster, PATIENCE, Scratch, Shape, cluster, files, wait_for};
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

/// An ordinary user with a copy of the program, in a directory outside the cluster.
struct User {
    place: Scratch,
}

impl User {
    fn new() -> Self {
        let place = Scratch::new();
        files::set_permissions(place.path(), Permissions::from_mode(0o755));
        files::copy(cluster::program(), place.join("skep"));
        Self { place }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.arg(self.place.join("skep")).args(arguments).current_dir(self.place.path());
        command.env_remove("SKEP_CLUSTER").env_remove("SKEP_TOKEN_FILE");
        command
    }

    fn skep(&self, arguments: &[&str]) -> Finished {
        finish(&mut self.command(arguments), PATIENCE)
    }

    /// Runs another program as this user.
    fn run(&self, program: &str, arguments: &[&str]) {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", program]);
        finish(command.args(arguments), PATIENCE).expect_success();
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Command: skep entry who, skep lock list, skep health df, skep entry info.
#[test]
fn users_query_their_files_through_the_mount_without_a_token() {
    let cluster = Cluster::start(Shape::small());
    let user = User::new();
    let [file, other] = ["file", "other"].map(|name| cluster.path().join(name));
    files::write(&other, "x");
    let open = files::create(&file);
    open.lock().expect("locked");
    let (file, other) = (text(&file), text(&other));
    let mount = text(cluster.path());

    let who = user.skep(&["entry", "who", &file]).expect_success();
    assert!(who.contains(&mount) && who.contains("flock exclusive all"), "{who}");
    let locks = user.skep(&["lock", "list", &file, &other]).expect_success();
    let lines: Vec<_> = locks.lines().collect();
    assert!(lines.len() == 2 && lines[1].ends_with(&file), "{locks}");
    let all = user.skep(&["health", "df", &mount]).expect_success();
    let of_file = user.skep(&["health", "df", &other]).expect_success();
    assert!(all.contains("STORAGE TARGETS") && of_file.contains("STORAGE TARGETS"), "{of_file}");
    let info = user.skep(&["entry", "info", "--recursive", &mount]).expect_success();
    for path in [&mount, &file, &other] {
        assert!(info.contains(&format!("Path: {path}\n")), "{info}");
    }

    // The kernel does not request `user` attributes of links and pipes from the mount, but the
    // command must also describe such entries.
    let (link, fifo) = (format!("{mount}/link"), format!("{mount}/fifo"));
    std::os::unix::fs::symlink("file", &link).expect("a link");
    finish(Command::new("mkfifo").arg(&fifo), PATIENCE).expect_success();
    for (path, kind) in [(&link, "symbolic link"), (&fifo, "named pipe")] {
        let info = user.skep(&["entry", "info", path]).expect_success();
        assert!(info.contains(&format!("Path: {path}\n")) && info.contains(kind), "{info}");
    }

    let of_link = user.skep(&["entry", "who", &link]).expect_failure();
    assert!(of_link.contains("the path is a symbolic link"), "{of_link}");
    let locks = user.skep(&["lock", "list", &file, "--output", "json"]).expect_success();
    let locks: Value = serde_json::from_str(&locks).expect("JSON");
    assert_eq!(locks[0]["path"], *file, "JSON has the path that the user named");

    // If Skep refuses the token, the message names a similar command that needs no token, if such a
    // command exists.
    let data = text(cluster.data());
    for (command, way_out) in [
        (&["health", "df"][..], "`skep health df PATH`"),
        (&["lock", "list"], "`skep lock list PATH`"),
        (&["why", "--op", "2a"], "`skep why --op ID PATH`"),
        (&["why", "--since", "5m"], "without other options"),
        (&["target", "list"], "ask an administrator to run this command"),
    ] {
        let refused = user.skep(&[command, &["--cluster", &data]].concat()).expect_failure();
        assert!(refused.contains("only root") && refused.contains(way_out), "{refused}");
    }

    // The mount refuses queries about a file that the user may not read.
    files::set_permissions(Path::new(&file), Permissions::from_mode(0o600));
    for question in [&["entry", "who"][..], &["lock", "list"], &["entry", "info"]] {
        let refused = user.skep(&[question, &[&file]].concat()).expect_failure();
        assert!(refused.contains("may not read"), "{refused}");
    }
    drop(open);
    cluster.stop();
}

/// Command: skep why, skep lock list.
#[test]
fn why_shows_users_the_lock_that_blocks_their_program() {
    let cluster = Cluster::start(Shape::small());
    let user = User::new();
    let directory = cluster.path().join("a");
    files::create_dir(&directory);
    files::create_dir(directory.join("b"));
    let file = directory.join("b/file");
    let open = files::create(&file);
    files::set_permissions(&file, Permissions::from_mode(0o666));
    open.lock().expect("locked");
    let (file, mount) = (text(&file), text(cluster.path()));
    let mut waiter = Command::new("setpriv");
    waiter.args(["--reuid=65534", "--regid=65534", "--clear-groups", "flock", &file, "true"]);
    let mut waiter = waiter.spawn().expect("flock can be started");
    let entry = cluster.skep_json(&["entry", "info", &file])["entry_id"].clone();
    let entry = entry.as_str().expect("a text").to_owned();

    let own = wait_for("the mount reports the wait", PATIENCE, || {
        let shown = user.skep(&["why", "--interval", "200ms", &mount]).expect_success();
        shown.contains("Waiting requests").then_some(shown)
    });
    let words = format!("process {} waits for a lock on entry {entry}, for ", waiter.id());
    assert!(own.contains(&words), "{own}");
    assert!(own.contains("skep lock list") && !own.contains("No cause"), "{own}");
    // The file lies two levels below the directory.
    let below = user.skep(&["why", "--interval", "200ms", &text(&directory)]).expect_success();
    assert!(below.contains(&words) && !below.contains("elsewhere"), "{below}");
    // A report about another file does not contain the wait, but names the command that shows the
    // wait.
    let other = text(&cluster.path().join("other"));
    files::write(Path::new(&other), "x");
    let of_other = user.skep(&["why", "--interval", "200ms", &other]).expect_success();
    assert!(!of_other.contains(&words), "{of_other}");
    let elsewhere = "1 request of this user waits elsewhere on this mount, for up to ";
    assert!(of_other.contains(elsewhere), "{of_other}");
    assert!(of_other.contains(&format!("`skep why {mount}` shows these requests")), "{of_other}");
    // The report of an administrator about the whole cluster contains the wait.
    let report = cluster.skep_json(&["why", "--interval", "200ms"]);
    check("why", &report);
    let all = report["waiting"].as_array().expect("a list");
    let lock = all.iter().find(|it| it["rule"] == "lock-wait").expect("the wait for the lock");
    let what = lock["what"].as_str().expect("a text");
    assert!(what.contains(&format!("{mount}: a request of process")), "{what}");
    assert!(what.contains(&format!("waits for a lock on entry {entry}, for ")), "{what}");

    drop(open);
    assert!(waiter.wait().expect("our own child").success(), "the lock is free");
    let report = cluster.skep_json(&["why", "--interval", "200ms"]);
    assert_eq!(report["waiting"].as_array().map(Vec::len), Some(0), "{report}");
    cluster.stop();
}

/// Command: skep entry path, skep client files.
#[test]
fn inode_ids_resolve_only_to_paths_that_the_user_may_list() {
    let shape = Shape { metadata_targets: 2, ..Shape::small() };
    let cluster = Cluster::start(shape);
    let user = User::new();
    let directory = cluster.path().join("a/b");
    files::create_dir_all(&directory);
    let path = directory.join("file");
    files::write(&path, "x");
    let mount = text(cluster.path());
    let number = fs::metadata(&path).expect("the file exists").ino().to_string();
    let id = cluster.skep_json(&["entry", "info", &text(&path)])["entry_id"].clone();
    let id = id.as_str().expect("a text").to_owned();

    for name in [&number, &id, &format!("{id}.1.0.0")] {
        let found = user.skep(&["entry", "path", "--mount", &mount, name]).expect_success();
        assert_eq!(found, text(&path) + "\n");
    }
    // With the token, the query needs no mount. The query returns a path that begins at the root of
    // the file system.
    assert_eq!(cluster.skep(&["entry", "path", &id]), "/a/b/file\n");
    let open = files::open(&path);
    let listed = cluster.skep(&["client", "files", "--paths"]);
    assert!(listed.contains("/a/b/file"), "{listed}");

    // After a rename, the query returns the new path.
    files::rename(&path, cluster.path().join("a/moved"));
    assert_eq!(cluster.skep(&["entry", "path", &id]), "/a/moved\n");
    let find = |id: &str| user.skep(&["entry", "path", "--mount", &mount, id]);
    assert_eq!(find(&id).expect_success(), text(&cluster.path().join("a/moved")) + "\n");

    files::set_permissions(cluster.path().join("a"), Permissions::from_mode(0o711));
    let refused = find(&id).expect_failure();
    assert!(refused.contains("may not list") && !refused.contains("moved"), "{refused}");

    // The query fails for a file that has lost its last name, and for an invalid id.
    files::remove_file(cluster.path().join("a/moved"));
    assert!(find(&id).expect_failure().contains("has lost its last name"));
    assert!(find("nothing").expect_failure().contains("2A-1F"));
    drop(open);
    cluster.stop();
}

/// Command: skep client evict, skep client files, skep session list.
#[test]
fn commands_select_clients_by_host_name_or_wildcard() {
    let cluster = Cluster::start(Shape::small());
    files::write(cluster.path().join("file"), "x");
    let clients = cluster.skep_json(&["client", "list"]);
    let host = clients[0]["host"].as_str().expect("a text").to_owned();
    for name in [host.clone(), format!("{}*", &host[..1])] {
        let sessions = cluster.skep_list(&["session", "list", "--client", &name]);
        assert_eq!(sessions.len(), 1, "{sessions:?}");
        let would = cluster.skep_list(&["client", "evict", "--dry-run", &name]);
        assert_eq!(would[0]["id"], clients[0]["id"], "{would:?}");
    }
    let data = text(cluster.data());
    let refuse = |name: &str| {
        let all = ["client", "evict", "--dry-run", name, "--cluster", &data];
        cluster::skep(all).expect_failure()
    };
    let unknown = refuse("no-such-*");
    assert!(unknown.contains("no client has this id, name or host"), "{unknown}");
    let server = refuse("storage-1");
    assert!(server.contains("this node is a server"), "{server}");
    cluster.stop();
}

/// Command: skep why.
#[test]
fn why_shows_users_the_causes_of_their_slow_operations() {
    let rate = ["--set", "storage:emulation.rate=1MB"].map(String::from).to_vec();
    let cluster = Cluster::start(Shape { more: rate, ..Shape::small() });
    let user = User::new();
    let own = cluster.path().join("own");
    files::create_dir(&own);
    std::os::unix::fs::chown(&own, Some(65534), Some(65534)).expect("a test of root");
    let (is_done, directory) = (Arc::new(AtomicBool::new(false)), own.clone());
    let stop = Arc::clone(&is_done);
    let load = std::thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            let mut command = Command::new("setpriv");
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "dd"]);
            command.args(["if=/dev/zero", "bs=200k", "count=1", "conv=fsync", "status=none"]);
            command.arg(format!("of={}", text(&directory.join("file"))));
            assert!(finish(&mut command, PATIENCE).status.success());
        }
    });
    let report = wait_for("the slow disk has most of the time", PATIENCE, || {
        let arguments = ["why", &text(&own), "--interval", "1s", "--output", "json"];
        let report = user.skep(&arguments);
        let report: Value = serde_json::from_str(&report.expect_success()).expect("JSON");
        check("why", &report);
        (report["phases"][0]["stage"] == "disk").then_some(report)
    });
    // On other paths, this user has had no operation.
    let other = user.skep(&["why", &text(&cluster.path().join("own/file")), "--interval", "300ms"]);
    let shown = other.expect_success();
    is_done.store(true, Ordering::Relaxed);
    load.join().expect("no panic");
    assert!(report["requests"].as_u64().is_some_and(|it| it > 0), "{report}");
    assert!(shown.contains(" added up:") || shown.contains("No request"), "{shown}");
    // If no path is given, the report covers all files on the mount of the working directory.
    let mut here = user.command(&["why", "--interval", "100ms"]);
    let here = finish(here.current_dir(cluster.path()), PATIENCE);
    assert!(here.status.success() && here.stderr.contains("own operations"), "{here:?}");
    let refused = user.skep(&["why", "--user", "1000"]).expect_failure();
    assert!(refused.contains("cannot find a cluster"), "{refused}");
}

/// The sum over all intervals must be exactly the work of the user's programs.
///
/// Command: skep stats, skep client stats.
#[test]
fn stats_shows_users_their_own_load_through_the_mount() {
    let cluster = Cluster::start(Shape::small());
    let user = User::new();
    let mount = text(cluster.path());
    let own = cluster.path().join("own");
    files::create_dir(&own);
    std::os::unix::fs::chown(&own, Some(65534), Some(65534)).expect("a test of root");
    let mut command = user.command(&["stats", "--mount", &mount, "--by", "user"]);
    command.args(["--interval", "200ms", "--output", "ndjson"]).stdout(Stdio::piped());
    let mut showing = command.spawn().expect("skep can be started");
    let lines = BufReader::new(showing.stdout.take().expect("a pipe")).lines();
    let (sender, shown) = mpsc::channel();
    std::thread::spawn(move || {
        let values = lines.map_while(Result::ok).map(|line| serde_json::from_str(&line));
        values.map_while(|value: Result<Value, _>| value.ok()).all(|it| sender.send(it).is_ok())
    });
    // The mount begins to count when it gets the first query.
    let first = wait_for("the load is shown", PATIENCE, || {
        user.run("mkdir", &["-p", &text(&own.join("a/b/c"))]);
        user.run("rm", &["-r", &text(&own.join("a"))]);
        shown.try_recv().ok()
    });
    check("stats", &Value::Array(vec![first.clone()]));
    assert_eq!((&first["id"], &first["written_bytes"]), (&"65534".into(), &0.into()));
    files::write(cluster.path().join("of-root"), vec![1; 3 << 20]);
    let zeros = format!("of={}", text(&own.join("file")));
    user.run("dd", &["if=/dev/zero", "bs=1M", "count=8", "status=none", "conv=fsync", &zeros]);
    let mut written = 0;
    wait_for("all bytes are shown", PATIENCE, || {
        let line = shown.recv_timeout(PATIENCE).expect("a line");
        assert_eq!(line["id"], "65534", "{line}");
        written += line["written_bytes"].as_u64().expect("a number");
        assert!(written <= 8 << 20, "{written}");
        (written == 8 << 20).then_some(())
    });
    showing.kill().expect("the process runs");
    showing.wait().expect("ours");

    // For root, the report contains the load of all users. Without `--mount`, a user gets the load
    // of the mount that contains the working directory.
    files::write(cluster.path().join("of-root"), vec![1; 1 << 20]);
    let once = ["--interval", "100ms", "--once"];
    let table = user.skep(&[&["client", "stats", "--mount", &mount][..], &once].concat());
    let table = table.expect_success();
    assert!(table.contains("P99") && !table.contains("QUEUED"), "{table}");
    // The requests of the command itself must not count as load, although the command looks up the
    // path of the mount for each query. For a moment, the mount may still close files of the
    // programs that have ended.
    let idle = ["stats", "--mount", &mount, "--interval", "2s", "--once", "--output", "json"];
    wait_for("an idle user has no load", PATIENCE, || {
        let shown: Value = serde_json::from_str(&user.skep(&idle).expect_success()).expect("JSON");
        (shown == Value::Array(Vec::new())).then_some(())
    });
    let refused = user.skep(&["stats", "--mount", "/"]).expect_failure();
    assert!(refused.contains("is not in a mount of Skep"), "{refused}");
    let mut here = user.command(&["stats"]);
    let here = finish(here.args(once).current_dir(cluster.path()), PATIENCE);
    assert!(here.status.success() && here.stderr.contains("own requests"), "{here:?}");
    cluster.stop();
}

/// Command: skep entry set, skep node list.
#[test]
fn refusals_to_users_name_one_reason_and_its_fix() {
    let cluster = Cluster::start(Shape::small());
    let user = User::new();
    let mount = text(cluster.path());
    let own = cluster.path().join("own");
    files::create_dir_all(&own);
    std::os::unix::fs::chown(&own, Some(65534), Some(65534)).expect("a test of root");
    let targets = cluster.skep_list(&["target", "list"]);
    let storage = targets.iter().find(|it| it["kind"] == "storage").expect("a storage target");
    let id = storage["id"].to_string();

    let listed = user.skep(&["entry", "set", "--targets", &id, &text(&own)]).expect_failure();
    let words = ["only root may list targets", "use --num-targets"];
    assert!(words.iter().all(|word| listed.contains(word)), "{listed}");
    user.skep(&["entry", "set", "--num-targets", "1", &text(&own)]).expect_success();
    let foreign = user.skep(&["entry", "set", "--num-targets", "1", &mount]).expect_failure();
    assert!(foreign.contains("can set its pattern (the owner here is root)"), "{foreign}");

    let token = text(&cluster.data().join("management/join-token"));
    let closed = ["node", "list", "--cluster", "127.0.0.1:1", "--token-file", &token];
    // The user also has no permission to read the directory of management.
    let directory = text(cluster.data());
    for closed in [&closed[..], &["node", "list", "--cluster", &directory]] {
        let closed = user.skep(closed).expect_failure();
        let words = [&*token, "only root or its owner may read this file", "skep health df PATH"];
        assert!(words.iter().all(|word| closed.contains(word)), "{closed}");
    }

    let wide = text(&own.join("wide"));
    let mut create = Command::new(cluster::program());
    create.args(["entry", "create", "--num-targets", "200", &wide]);
    let made = finish(&mut create, PATIENCE);
    assert!(made.stderr.contains("2 targets instead of 200"), "{}", made.stderr);

    let own_token = cluster.try_skep(&["cluster", "token"]);
    assert_eq!(own_token.stderr, "", "the directory of management has the newest token");
    let copy = user.place.join("token");
    files::copy(&token, &copy);
    let mut copied = Command::new(cluster::program());
    copied.args(["cluster", "token", "--token-file"]).arg(&copy);
    let copied = finish(&mut copied, PATIENCE);
    assert!(copied.status.success() && copied.stderr.contains("--cluster DIRECTORY"), "{copied:?}");
}
