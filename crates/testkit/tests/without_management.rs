//! Management is never on the I/O path. If management is down, restarted services use their cached
//! cluster map, and the mount continues to work. A target that management has never registered must
//! wait for management. After management has restarted, the cluster map has all targets.
//!
//! The tests start each service separately, because `skep up` would also restart management.

use skep_testkit::files;
use skep_testkit::program::{Finished, finish};
use skep_testkit::{Cluster, Mounted, PATIENCE, Shape, Transport, cluster, wait_for};
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::SystemTime;

/// A service, started with the command line that `skep up` had used. Dropping this value kills the
/// service.
struct Service {
    directory: PathBuf,
    arguments: Vec<String>,
    child: Option<Child>,
}

impl Service {
    /// Starts the service for the first time, or restarts the killed service.
    fn start(&mut self) {
        let log = self.directory.join("service.log");
        let log = files::open_with(OpenOptions::new().create(true).append(true), log);
        let mut command = Command::new(cluster::program());
        command.args(&self.arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.child = Some(command.spawn().expect("skep can be started"));
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("our own child");
            child.wait().expect("our own child");
        }
    }

    fn is(&self, role: &str) -> bool {
        self.arguments[0] == role
    }

    /// Waits until the service has stored its cached cluster map after the time `since`.
    fn await_cached_map(&self, since: SystemTime) {
        wait_for("the cluster map is kept", PATIENCE, || {
            let file = fs::metadata(self.directory.join("kept-map")).ok()?;
            (file.modified().expect("a time") >= since).then_some(())
        });
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A cluster whose services are child processes of the test.
struct Loose {
    // The services must be the first field, because Rust drops fields in the order of their
    // declaration. If the cluster were dropped first, this drop would wait forever for the services
    // to end.
    services: Vec<Service>,
    mount: Mounted,
    cluster: Cluster,
}

impl Loose {
    fn start() -> Self {
        let shape = Shape { targets_per_service: 2, ..Shape::default() };
        let mut cluster = Cluster::start(shape);
        let roles = ["management", "metadata", "storage"];
        let found: Vec<_> = roles.iter().flat_map(|role| cluster.processes(role)).collect();
        let services = found.into_iter().map(|process| {
            let arguments = process.arguments[1..].to_vec();
            let at = arguments
                .iter()
                .position(|it| it == "--directory")
                .expect("the option --directory");
            Service { directory: PathBuf::from(&arguments[at + 1]), arguments, child: None }
        });
        let mut services: Vec<_> = services.collect();
        assert_eq!(services.len(), 5);
        cluster.stop();
        let since = SystemTime::now();
        services.iter_mut().for_each(Service::start);
        for service in services.iter().filter(|it| !it.is("management")) {
            service.await_cached_map(since);
        }
        let mount = cluster.mount(Transport::Uring);
        Self { services, mount, cluster }
    }

    fn of(&mut self, role: &str) -> impl Iterator<Item = &mut Service> {
        self.services.iter_mut().filter(move |it| it.is(role))
    }

    /// Restarts a storage service with a further target, which management has never registered.
    fn add_storage_target(&mut self) -> PathBuf {
        let token = self.cluster.data().join("management/join-token");
        let service = self.of("storage").next().expect("a storage service");
        let path = service.directory.join("added");
        service.kill();
        service.arguments.extend(["--target".into(), path.display().to_string()]);
        let mut initialise = Command::new(cluster::program());
        initialise.args(&service.arguments).arg("--init").arg("--token-file").arg(token);
        finish(&mut initialise, PATIENCE).expect_success();
        service.start();
        path
    }

    /// Runs `skep` with `arguments` and `--cluster` for this cluster. The command may fail.
    fn ask(&self, arguments: &[&str]) -> Finished {
        let mut command = Command::new(cluster::program());
        command.args(arguments).arg("--cluster").arg(self.cluster.data());
        finish(&mut command, PATIENCE)
    }

    /// Waits until `skep health check` succeeds and every node is online.
    fn await_healthy(&self) {
        wait_for("the cluster is healthy", PATIENCE, || {
            let check = self.ask(&["health", "check"]);
            let nodes = self.cluster.skep_list(&["node", "list"]);
            // The nodes are five services and a mount.
            let are_online =
                nodes.len() == 6 && nodes.iter().all(|node| node["reachability"] == "Online");
            (check.status.success() && are_online).then_some(())
        });
    }
}

/// Runs `body` in a thread, because `body` may wait for servers. Panics if `body` takes too long.
fn in_time(what: &'static str, body: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        body();
        done.send(()).ok();
    });
    wait_for(what, PATIENCE, || (thread.is_finished() || is_done.try_recv().is_ok()).then_some(()));
    thread.join().unwrap_or_else(|_| panic!("{what}: failed"));
}

/// Writes a tree whose directories and chunk files are on all targets.
fn write_tree(root: PathBuf) {
    for number in 0..8 {
        let directory = root.join(format!("d{number}"));
        files::create_dir_all(&directory);
        files::write(directory.join("new"), vec![number; 3 << 20]);
        files::rename(directory.join("new"), directory.join("file"));
    }
}

fn check_tree(root: &Path) {
    for number in 0..8 {
        let found = files::read(root.join(format!("d{number}/file")));
        assert!(found.len() == 3 << 20 && found.iter().all(|it| *it == number), "d{number}/file");
    }
}

/// docs/semantics.md 4.2.
#[test]
fn services_start_and_files_are_usable_without_management() {
    let mut loose = Loose::start();
    let root = loose.mount.path().to_owned();
    let (before, during) = (root.join("before"), root.join("during"));
    write_tree(before.clone());
    loose.of("management").for_each(Service::kill);
    assert!(!loose.ask(&["node", "list"]).status.success(), "management is gone");
    let health = loose.ask(&["health", "check"]);
    assert_eq!(health.status.code(), Some(1), "{}", health.stderr);
    let lines: Vec<_> = health.stdout.lines().collect();
    let problems = lines.iter().filter(|line| line.starts_with("- ")).collect::<Vec<_>>();
    assert!(problems.len() == 1 && problems[0].contains("management does not"), "{problems:?}");
    // The services show their load.
    for arguments in [&["stats", "--total", "--by", "node"][..], &["node", "disks", "--once"]] {
        let load = loose.ask(arguments);
        assert!(load.status.success(), "{load:?}");
        assert!(load.stdout.contains("cannot get statistics from management, so"), "{load:?}");
        assert!(!load.stdout.contains("cannot get statistics from storage-1"), "{load:?}");
    }
    let unchecked = lines.iter().find(|line| line.starts_with("Not checked: "));
    assert!(unchecked.is_some_and(|it| !it.contains("causes of slowness")), "{lines:?}");
    // The services show the causes of slowness.
    let mut of_path = Command::new(cluster::program());
    let of_path = finish(of_path.args(["why", "--interval", "100ms"]).arg(&root), PATIENCE);
    let target = loose.ask(&["why", "--interval", "100ms", "--target", "1"]);
    for why in [of_path, target, loose.ask(&["why", "--interval", "100ms"])] {
        assert!(why.status.success() && why.stdout.contains("No cause of slowness"), "{why:?}");
        assert!(why.stdout.contains("cannot get statistics from management, so"), "{why:?}");
        assert!(!why.stdout.contains("cannot get statistics from storage-1"), "{why:?}");
        assert!(
            why.stderr.contains("the services of the last cluster map of this host"),
            "{why:?}"
        );
    }
    let operation = loose.ask(&["why", "--op", "2a"]);
    assert!(operation.stderr.contains("no service has a record"), "{operation:?}");
    let answering = lines.iter().filter(|line| line.contains(": reachable at ")).count();
    assert_eq!(answering, 4, "the map of the mount names the other services: {lines:?}");

    // First kill and restart all services of each kind except one service, then kill and restart
    // all services.
    for skipped in [1, 0] {
        for role in ["metadata", "storage"] {
            loose.of(role).skip(skipped).for_each(Service::kill);
        }
        for role in ["metadata", "storage"] {
            loose.of(role).skip(skipped).for_each(Service::start);
        }
        let (read, wrote) = (before.clone(), during.join(skipped.to_string()));
        in_time("reads and writes without management", move || {
            check_tree(&read);
            write_tree(wrote.clone());
            check_tree(&wrote);
            files::remove_dir_all(wrote.join("d0"));
        });
    }

    let added = loose.add_storage_target();
    let read = before.clone();
    in_time("reads while a target waits for management", move || check_tree(&read));

    loose.of("management").for_each(Service::start);
    loose.await_healthy();
    wait_for("the new target has joined", PATIENCE, || {
        let targets = loose.cluster.skep_list(&["target", "list"]);
        let mut targets = targets.iter();
        let is_new = |it: &&serde_json::Value| it["path"] == added.to_string_lossy().as_ref();
        targets.find(is_new).is_some_and(|it| it["reachability"] == "Online").then_some(())
    });
    in_time("reads after the restart of management", move || {
        check_tree(&before);
        assert!(!during.join("0/d0").exists());
    });
}
