//! Starts, mounts and stops a test's own cluster with the program `skep`. The test may kill the
//! processes of its cluster.

use crate::files;
use crate::process::{self, Process};
use crate::program::{Finished, clean_up, finish};
use crate::proxy::Proxy;
use crate::scratch::{Scratch, mounts_below};
use crate::shape::{Shape, Transport};
use crate::view::Typed;
use crate::wait::PATIENCE;
use crate::wait::wait_for;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Maximum time for `skep up` and `skep down` to exit. Each of these commands waits a shorter time
/// for the start or stop of a service.
const UP_PATIENCE: Duration = Duration::from_secs(200);
/// Name of an extended attribute of a mount's root directory. The attribute's value is the name of
/// the mount's transport.
pub(crate) const TRANSPORT_ATTRIBUTE: &str = "user.skep.transport";

/// Returns the path of the program under test: `skep` in the target directory of the test's own
/// build profile.
///
/// # Panics
/// Panics if the program has not been built.
pub fn program() -> PathBuf {
    let test = std::env::current_exe().expect("/proc names the executable");
    let place = test.ancestors().nth(2).expect("tests lie in target/<profile>/deps");
    let program = place.join("skep");
    assert!(
        program.exists(),
        "{} is not built: run `cargo xtask ci --only black-box`, or `cargo build -p skep-ctl` in \
         the same profile",
        program.display()
    );
    program
}

/// Runs `skep` with `arguments`, and waits until the program exits.
///
/// # Panics
/// Panics if the program runs longer than a minute.
pub fn skep(arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Finished {
    finish(Command::new(program()).args(arguments), PATIENCE)
}

/// An additional mount of a cluster. Dropping this value unmounts the file system, and kills the
/// mount process.
#[derive(Debug)]
pub struct Mounted {
    path: PathBuf,
    child: Child,
}

impl Mounted {
    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Unmounts the file system, and waits until the mount process exits without a signal.
    ///
    /// # Panics
    /// Panics if `umount` fails, or if the mount process does not exit successfully within a
    /// minute.
    pub fn unmount(mut self) {
        finish(Command::new("umount").arg(&self.path), PATIENCE).expect_success();
        self.ends();
    }

    /// Waits until the mount process exits on its own.
    ///
    /// # Panics
    /// Panics if the mount process does not exit successfully within a minute.
    pub fn wait_for_end(mut self) {
        self.ends();
    }

    fn ends(&mut self) {
        let status = wait_for("a mount's process ends", PATIENCE, || {
            self.child.try_wait().expect("our own child")
        });
        assert!(status.success(), "the mount's process ended with {status}");
    }

    /// Returns the id of the mount process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the mount process.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("our own child");
    }

    /// Kills the mount process with SIGKILL, and unmounts the dead mount.
    ///
    /// # Panics
    /// Panics if the process cannot be killed, or if `umount` fails.
    pub fn kill(mut self) {
        self.child.kill().expect("our own child");
        self.child.wait().expect("our own child");
        finish(Command::new("umount").arg("--lazy").arg(&self.path), PATIENCE).expect_success();
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_some()) {
            return;
        }
        // A test may have suspended the mount process. Without this signal, umount(8) would wait
        // forever for the process's reply to a stat.
        self.signal(Signal::CONT);
        clean_up(Command::new("umount").arg("--lazy").arg(&self.path));
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A running cluster.
#[derive(Debug)]
pub struct Cluster {
    data: PathBuf,
    mount_point: PathBuf,
    shape: Shape,
    next_mount: u32,
    // The scratch directory must be the last field, because it must be removed last. Rust drops
    // fields in the order of their declaration.
    scratch: Option<Scratch>,
}

impl Cluster {
    /// Starts a new cluster in a temporary directory. The environment variable `SKEP_TEST_PATTERN`
    /// sets the stripe pattern of the cluster's files, so that a developer can run any test with a
    /// different pattern.
    ///
    /// # Panics
    /// Panics if `skep up` fails, or if the pattern cannot be set.
    pub fn start(shape: Shape) -> Self {
        let scratch = Scratch::new();
        let mut cluster = Self::start_in(scratch.path(), shape);
        cluster.scratch = Some(scratch);
        if let Ok(pattern) = std::env::var("SKEP_TEST_PATTERN") {
            cluster.hand_down(&cluster.mount_point, &pattern);
        }
        cluster
    }

    /// Sets the stripe pattern that new files and directories in `directory` inherit.
    ///
    /// # Panics
    /// Panics if `skep entry set` fails.
    pub fn hand_down(&self, directory: &Path, pattern: &str) {
        let words = ["entry", "set", "--pattern", pattern];
        finish(Command::new(program()).args(words).arg(directory), PATIENCE).expect_success();
    }

    /// Starts a cluster with its data and mount point in `directory`. If `directory` contains the
    /// data of a stopped cluster, restarts that cluster. Then raises the feature level to the level
    /// of the shape or of the environment variable `SKEP_TEST_FEATURE_LEVEL`, whichever is higher.
    ///
    /// # Panics
    /// Panics if `skep up` fails, or if the feature level cannot be raised.
    pub fn start_in(directory: &Path, shape: Shape) -> Self {
        let (data, mount_point) = (directory.join("data"), directory.join("mnt"));
        let cluster = Self { data, mount_point, shape, next_mount: 1, scratch: None };
        cluster.up().expect_success();
        cluster.assert_transport(&cluster.mount_point, cluster.shape.transport);
        let level = cluster.shape.level_of_run();
        if level > 1 {
            cluster.raise_feature_level(level);
        }
        cluster
    }

    /// Runs `skep up --detach`, which also restarts a stopped cluster.
    ///
    /// # Panics
    /// Panics if the program runs longer than 200 s.
    pub fn up(&self) -> Finished {
        let shape = &self.shape;
        let mut command = Command::new(program());
        command.args(["up", "--detach"]);
        command.arg("--data-dir").arg(&self.data).arg("--mount-point").arg(&self.mount_point);
        command.args(["--metadata-targets", &shape.metadata_targets.to_string()]);
        command.args(["--storage-services", &shape.storage_services.to_string()]);
        command.args(["--targets-per-service", &shape.targets_per_service.to_string()]);
        command.args(["--transport", shape.transport.name()]);
        if !shape.monitor {
            command.arg("--no-monitor");
        }
        finish(command.args(&shape.more), UP_PATIENCE)
    }

    /// Stops the cluster like [`Self::stop`], and checks its stores with `skep fsck`. The check
    /// passes if all damage that it finds is of the kinds in `expected`. For example, if a power
    /// loss of a metadata target destroys the record of a file's creation, damage of the kind
    /// `orphan` may remain. `skep fsck` needs the cluster map that services store at most once a
    /// second. So the cluster must have run for a few seconds before this check.
    ///
    /// # Panics
    /// Panics like [`Self::stop`], or if the check finds other kinds of damage.
    pub fn stop_except(&self, expected: &[&str]) {
        drop(self.stop_and_list_skipped(expected));
    }

    /// Stops and checks the cluster like [`Self::stop_except`]. Returns a line for each target that
    /// `skep fsck` did not check, or did not compare with the other members of its group.
    ///
    /// # Panics
    /// Panics like [`Self::stop_except`].
    pub fn stop_and_list_skipped(&self, expected: &[&str]) -> Vec<String> {
        self.stop();
        let checked = self.check_stores(expected);
        checked.unwrap_or_else(|refusal| panic!("skep fsck: {refusal}"))
    }

    /// Stops the cluster like [`Self::stop_except`], but skips the check if the cluster has not run
    /// long enough. For example, a test program ends early if a filter on its command line selects
    /// few tests.
    ///
    /// # Panics
    /// Panics like [`Self::stop`], or if the check finds other kinds of damage.
    pub fn stop_checked(&self, expected: &[&str]) {
        self.stop();
        if let Err(refusal) = self.check_stores(expected) {
            assert!(refusal.contains("cached cluster map"), "skep fsck: {refusal}");
        }
    }

    /// Checks the stores of the stopped cluster with `skep fsck`. Returns a line for each target
    /// without a check, or the error message if `skep fsck` refuses the check.
    fn check_stores(&self, expected: &[&str]) -> Result<Vec<String>, String> {
        let mut command = Command::new(program());
        command.arg("fsck").arg(&self.data).args(["--output", "json"]);
        // Some tests move the directory of a service to another disk, and replace the directory by
        // a symbolic link. The check does not follow links, so pass the link's target.
        let entries = std::fs::read_dir(&self.data).expect("the directory of the cluster");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        command.args(paths.filter(|path| path.is_symlink()).map(|path| {
            path.canonicalize().expect("the link leads to the directory of a service")
        }));
        let checked = finish(&mut command, PATIENCE);
        let report = serde_json::from_str::<serde_json::Value>(&checked.stdout);
        let Ok(report) = report else { return Err(checked.stderr) };
        let is_expected =
            |it: &&serde_json::Value| expected.iter().any(|kind| it["kind"] == **kind);
        let mut found = report["findings"].list().iter().filter(|it| !is_expected(it));
        assert!(found.next().is_none(), "skep fsck: {report:#}");
        Ok(report["skipped"].list().iter().map(|it| it.text().to_owned()).collect())
    }

    /// Runs `skep down`, and checks that no process and no mount of the cluster remains.
    ///
    /// # Panics
    /// Panics if `skep down` fails, or if a process or a mount of the cluster remains.
    pub fn stop(&self) {
        let mut command = Command::new(program());
        command.args(["down", "--data-dir"]).arg(&self.data);
        finish(&mut command, UP_PATIENCE).expect_success();
        let left = wait_for("a stopped cluster has no processes", PATIENCE, || {
            let left = process::below(&self.data);
            left.is_empty().then_some(left)
        });
        assert_eq!(left, []);
        assert_eq!(mounts_below(&self.mount_point), Vec::<PathBuf>::new());
    }

    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        &self.mount_point
    }

    /// Returns the cluster's data directory.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// After a kill of the mount process of `skep up`, waits until the mount replies again.
    ///
    /// # Panics
    /// Panics if the mount does not reply within a minute.
    pub fn wait_for_mount(&self) {
        wait_for("the mount is back", PATIENCE, || {
            let point = rustix::fs::statvfs(&self.mount_point).ok()?;
            (point.f_blocks > 0 && self.transport_of(&self.mount_point).is_some()).then_some(())
        });
    }

    /// Mounts the cluster at an additional mount point.
    ///
    /// # Panics
    /// Panics if the mount does not reply within a minute, or does not use `transport`.
    pub fn mount(&mut self, transport: Transport) -> Mounted {
        self.mount_with(transport, "defaults")
    }

    /// Mounts the cluster like [`Self::mount`], with `options` in the syntax of `mount -o`.
    ///
    /// # Panics
    /// Panics like [`Self::mount`].
    pub fn mount_with(&mut self, transport: Transport, options: &str) -> Mounted {
        self.mount_by(Command::new(program()), transport, options)
    }

    /// Creates a proxy for the connections between one mount and all services of this cluster.
    ///
    /// # Panics
    /// Panics like [`Proxy::new`].
    pub fn proxy(&self) -> Proxy {
        let nodes = self.skep_list(&["node", "list"]);
        let addresses = nodes.iter().flat_map(|node| node["addresses"].list());
        let port = |address: &str| address.strip_prefix("127.0.0.1:").map(str::parse);
        let ports = addresses.filter_map(|it| port(it.text())?.ok()).collect::<BTreeSet<u16>>();
        Proxy::new(&ports.into_iter().collect::<Vec<_>>())
    }

    /// Mounts like [`Self::mount`], but all connections of the mount lead through `proxy`.
    ///
    /// # Panics
    /// Panics like [`Self::mount`].
    pub fn mount_through(&mut self, proxy: &Proxy, transport: Transport) -> Mounted {
        self.mount_by(proxy.command(&program()), transport, "defaults")
    }

    /// Mounts the cluster with the program that `command` starts.
    fn mount_by(&mut self, mut command: Command, transport: Transport, options: &str) -> Mounted {
        let name = format!("mnt-{}", self.next_mount);
        let path = self.mount_point.with_file_name(&name);
        self.next_mount += 1;
        files::create_dir_all(&path);
        // Put the mount's log into the directory of the services' logs, because a failing test
        // prints all logs in this directory.
        let log = self.data.join("logs").join(name).with_extension("log");
        let log = files::create(log);
        let mut child = command
            .args(["mount", "--foreground"])
            .arg("--cluster")
            .arg(&self.data)
            .args(["--transport", transport.name(), "--options", options])
            .arg(&path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("skep can be started");
        wait_for("a second mount", PATIENCE, || {
            let ended = child.try_wait().expect("our own child");
            assert!(ended.is_none(), "skep mount ended: {ended:?}, see {}", path.display());
            self.transport_of(&path)
        });
        self.assert_transport(&path, transport);
        Mounted { path, child }
    }

    fn transport_of(&self, path: &Path) -> Option<String> {
        let mut bytes = [0_u8; 64];
        let len = rustix::fs::getxattr(path, TRANSPORT_ATTRIBUTE, &mut bytes).ok()?;
        String::from_utf8(bytes[..len].to_vec()).ok()
    }

    /// Checks that the mount at `path` uses `transport`.
    ///
    /// # Panics
    /// Panics if the mount does not use `transport`.
    pub fn assert_transport(&self, path: &Path, transport: Transport) {
        let found = self.transport_of(path);
        assert_eq!(found.as_deref(), Some(transport.name()), "transport of {}", path.display());
    }

    /// Returns the cluster's processes with the role `role`, in ascending order of process ids.
    /// Roles are `management`, `metadata`, `storage`, `mount` and `up` (the supervisor).
    pub fn processes(&self, role: &str) -> Vec<Process> {
        let mut found = process::below(&self.data);
        found.retain(|process| process.role() == role);
        found
    }

    /// Kills all processes of the cluster with SIGKILL, and unmounts all its mounts.
    pub fn kill_all(&self) {
        crate::scratch::clear(&self.data);
        crate::scratch::clear(&self.mount_point);
    }

    /// Kills all processes of the cluster with SIGKILL, and unmounts the cluster's first mount. The
    /// file systems of targets stay mounted.
    pub fn kill_processes(&self) {
        crate::scratch::kill_processes(&self.data);
        crate::scratch::clear(&self.mount_point);
    }

    /// Returns the paths of all chunk files of the cluster's targets, in no particular order.
    /// Targets may create and remove chunk files during this call.
    pub fn chunk_files(&self) -> Vec<PathBuf> {
        let (mut found, mut directories) = (Vec::new(), vec![self.data.clone()]);
        while let Some(directory) = directories.pop() {
            // If a target removes a directory during the search, the directory counts as empty.
            for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
                let path = entry.path();
                if path.is_dir() {
                    directories.push(path);
                } else if path.components().any(|part| part.as_os_str() == "chunks") {
                    found.push(path);
                }
            }
        }
        found
    }

    /// Runs `skep` with `arguments` and `--cluster` for this cluster, and returns its standard
    /// output.
    ///
    /// # Panics
    /// Panics if the program fails.
    pub fn skep(&self, arguments: &[&str]) -> String {
        self.try_skep(arguments).expect_success()
    }

    /// Runs `skep` like [`Self::skep`], but returns the result even if the program fails.
    pub fn try_skep(&self, arguments: &[&str]) -> Finished {
        let mut command = Command::new(program());
        command.args(arguments).arg("--cluster").arg(&self.data);
        finish(&mut command, PATIENCE)
    }

    /// Runs `skep` like [`Self::skep`] with `--output json`, and parses the output.
    ///
    /// # Panics
    /// Panics if the program fails or its output is not JSON.
    pub fn skep_json(&self, arguments: &[&str]) -> serde_json::Value {
        let text = self.skep(&[arguments, &["--output", "json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}\n{text}"))
    }
}
