//! Queries about files through a mount, for ordinary users without the token. They return the
//! clients that use a file, its locks, its path by its id, and the space on targets. The kernel and
//! the permissions of directories limit each query to files that the user may read.

use serde_json::Value;
use skep_testkit::program::{Finished, finish};
use skep_testkit::schema::check;
use skep_testkit::{Cluster, PATIENCE, Scratch, Shape, cluster, files, wait_for};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// An ordinary user with a copy of the program, in a directory without a cluster.
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

    fn skep(&self, arguments: &[&str]) -> Finished {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.arg(self.place.join("skep")).args(arguments).current_dir(self.place.path());
        command.env_remove("SKEP_CLUSTER").env_remove("SKEP_TOKEN_FILE");
        finish(&mut command, PATIENCE)
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Command: skep entry who, skep lock list, skep health df, skep entry info.
#[test]
fn users_query_their_files_through_the_mount() {
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

    // The mount refuses queries about a file that the user may not read.
    files::set_permissions(Path::new(&file), Permissions::from_mode(0o600));
    for question in [&["entry", "who"][..], &["lock", "list"], &["entry", "info"]] {
        let refused = user.skep(&[question, &[&file]].concat()).expect_failure();
        assert!(refused.contains("may not read"), "{refused}");
    }
    drop(open);
    cluster.stop();
}

/// Command: skep entry path, skep client files.
#[test]
fn ids_resolve_to_paths_that_the_user_may_list() {
    let shape = Shape { metadata_targets: 2, ..Shape::small() };
    let cluster = Cluster::start(shape);
    let user = User::new();
    let directory = cluster.path().join("a/b");
    files::create_dir_all(&directory);
    let path = directory.join("file");
    files::write(&path, "x");
    let mount = text(cluster.path());
    let number = fs::metadata(&path).expect("it exists").ino().to_string();
    let id = cluster.skep_json(&["entry", "info", &text(&path)])["entry_id"].clone();
    let id = id.as_str().expect("a text").to_owned();

    for name in [&number, &id, &format!("{id}.1.0.0")] {
        let found = user.skep(&["entry", "path", "--mount", &mount, name]).expect_success();
        assert_eq!(found, text(&path) + "\n");
    }
    // With the token, the query needs no mount, and returns a path from the root of the file
    // system.
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
    assert!(find(&id).expect_failure().contains("its last name was removed"));
    assert!(find("nothing").expect_failure().contains("2A-1F"));
    drop(open);
    cluster.stop();
}

/// Command: skep client evict, skep client files, skep session list.
#[test]
fn clients_are_selected_by_host_or_wildcard() {
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
    assert!(server.contains("it is a server"), "{server}");
    cluster.stop();
}

/// Command: skep why.
#[test]
fn users_see_why_their_own_operations_are_slow() {
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
    // Other paths have no operation of this user.
    let other = user.skep(&["why", &text(&cluster.path().join("own/file")), "--interval", "300ms"]);
    let shown = other.expect_success();
    is_done.store(true, Ordering::Relaxed);
    load.join().expect("no panic");
    assert!(report["requests"].as_u64().is_some_and(|it| it > 0), "{report}");
    assert!(shown.contains(" added up:") || shown.contains("No request"), "{shown}");
    let refused = user.skep(&["why"]).expect_failure();
    assert!(refused.contains("cannot find a cluster"), "{refused}");
}

/// Command: skep entry set, skep node list.
#[test]
fn refusals_name_one_reason_and_its_fix() {
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
    assert!(foreign.contains("only its owner (root) and root"), "{foreign}");

    let token = text(&cluster.data().join("management/join-token"));
    let closed = ["node", "list", "--cluster", "127.0.0.1:1", "--token-file", &token];
    let closed = user.skep(&closed).expect_failure();
    let words = ["only root or its owner may read it", "skep health df PATH"];
    assert!(words.iter().all(|word| closed.contains(word)), "{closed}");

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
