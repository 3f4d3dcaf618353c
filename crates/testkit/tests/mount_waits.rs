//! Mounts that start while management is not reachable, for example at boot. These mounts wait for
//! the configured time. A mount that the test kills during this wait leaves no process and no
//! mount.

use rustix::process::{Pid, Signal, kill_process};
use skep_testkit::files::{self, OrFail};
use skep_testkit::process::{self, Process};
use skep_testkit::program::{Finished, finish};
use skep_testkit::scratch::mounts_below;
use skep_testkit::{Cluster, PATIENCE, Shape, cluster, wait_for};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Time for which a mount waits for management by default.
const USUAL_RETRY: Duration = Duration::from_secs(15);
/// A part of the log line of a waiting mount.
const WAITS: &str = "cannot mount yet";

/// A host that mounts a cluster before any of its services runs.
struct Host {
    cluster: Cluster,
    /// Directory that contains the cluster's token, and the program under the name of the mount
    /// helper.
    path: PathBuf,
    /// Address of management. The address is valid as soon as management runs.
    address: String,
}

impl Host {
    fn new() -> Self {
        let cluster = Cluster::start(Shape { targets_per_service: 1, ..Shape::small() });
        let path = cluster.data().with_file_name("host");
        files::create_dir_all(&path);
        files::symlink(cluster::program(), path.join("mount.skep"));
        let management = cluster.data().join("management");
        files::copy(management.join("join-token"), path.join("token"));
        let address = files::read_to_string(management.join("address"));
        cluster.stop();
        Self { cluster, path, address: address.trim().to_owned() }
    }

    fn token(&self) -> String {
        self.path.join("token").display().to_string()
    }

    /// Returns the helper's command as mount(8) calls it, for the mount point `name`, with
    /// additional options.
    fn helper(&self, name: &str, token: &str, options: &str) -> Command {
        let mount_point = self.path.join(name);
        files::create_dir_all(&mount_point);
        let mut command = Command::new(self.path.join("mount.skep"));
        command.arg(&self.address).arg(mount_point);
        command.args(["-o", &format!("token_file={token},{}", self.logging(name, options))]);
        command
    }

    fn log(&self, name: &str) -> PathBuf {
        self.path.join(name).with_extension("log")
    }

    fn logging(&self, name: &str, options: &str) -> String {
        format!("log_file={},{options}", self.log(name).display())
    }

    /// Starts to mount by the helper.
    fn begin(&self, name: &str, options: &str) -> Begun {
        Begun::new(self, name, self.helper(name, &self.token(), options))
    }

    /// Starts to mount by mount(8), which looks for helpers only in `/sbin`. So mount(8) runs in a
    /// mount namespace whose `/sbin` contains the helper.
    fn begin_by_mount(&self, name: &str, options: &str) -> Begun {
        let mount_point = self.path.join(name);
        files::create_dir_all(&mount_point);
        let script = "cp -a /sbin/. sbin && cp -P mount.skep sbin && mount --bind sbin /sbin && \
                      exec mount -t skep \"$1\" \"$2\" -o \"$3\"";
        let options = format!("token_file={},{}", self.token(), self.logging(name, options));
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-ec", script, "sh"]);
        command.arg(&self.address).arg(mount_point).arg(options).current_dir(&self.path);
        Begun::new(self, name, command)
    }

    /// Starts to mount in the foreground. A mount in the foreground logs to standard error.
    fn begin_in_front(&self, name: &str, options: &[&str]) -> Begun {
        let mount_point = self.path.join(name);
        files::create_dir_all(&mount_point);
        let mut command = Command::new(cluster::program());
        command.args(["mount", "--foreground", "--cluster", &self.address]);
        command.args(["--token-file", &self.token()]);
        command.args(options).arg(mount_point);
        let mut begun = Begun::new(self, name, command);
        begun.log.clone_from(&begun.printed);
        begun
    }
}

/// A mount that a test has started. Dropping this value kills the process of the mount.
struct Begun {
    child: Child,
    since: Instant,
    mount_point: PathBuf,
    log: PathBuf,
    /// File that contains the standard error of the mount.
    printed: PathBuf,
}

impl Begun {
    fn new(host: &Host, name: &str, mut command: Command) -> Self {
        let printed = host.path.join(format!("{name}-printed.log"));
        let since = Instant::now();
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(files::create(&printed));
        let child = command.spawn().expect("the mount can be started");
        let mount_point = host.path.join(name);
        Self { child, since, mount_point, log: host.log(name), printed }
    }

    fn await_wait(&self) {
        wait_for("the mount waits for management", PATIENCE, || {
            fs::read_to_string(&self.log).ok()?.contains(WAITS).then_some(())
        });
    }

    fn is_waiting(&mut self) -> bool {
        self.child.try_wait().expect("our own child").is_none()
    }

    fn end(&mut self) -> ExitStatus {
        wait_for("the mount command ends", PATIENCE, || {
            self.child.try_wait().expect("our own child")
        })
    }

    /// Waits until the mount has failed, and returns its message.
    fn failure(&mut self) -> String {
        let status = self.end();
        let printed = files::read_to_string(&self.printed);
        assert!(status.code().is_some_and(|code| code != 0), "{status}: {printed}");
        printed
    }

    /// Returns the processes of the mount: the helper and the background process.
    fn processes(&self) -> Vec<Process> {
        process::below(&self.mount_point)
    }

    fn await_nothing_left(&self) {
        let left = || self.processes().is_empty().then_some(());
        wait_for("no process and no mount is left", PATIENCE, left);
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Runs a command that must fail without being killed. Returns its message.
fn refusal(mut command: Command) -> String {
    let finished: Finished = finish(&mut command, PATIENCE);
    finished.expect_failure()
}

fn write_to_and_unmount(host: &Host, mount_point: &Path, name: &str) {
    files::write(mount_point.join(name), name);
    let found = files::read_to_string(host.cluster.path().join(name));
    assert_eq!(found, name);
    finish(Command::new("umount").arg(mount_point), PATIENCE).expect_success();
}

#[test]
fn mount_waits_for_management_until_its_time_limit() {
    let host = Host::new();
    let mut usual = host.begin("usual", "defaults");
    let mut patient = host.begin("patient", "retry=600");
    let mut by_mount = host.begin_by_mount("by-mount", "retry=forever");
    let mut dry = host.begin_in_front("dry", &["--dry-run", "--retry", "600"]);
    for begun in [&usual, &patient, &by_mount] {
        begun.await_wait();
    }
    let printed = refusal(host.helper("wrong", &host.token(), "retry=soon"));
    assert!(printed.contains("retry=soon"), "{printed}");
    let printed = refusal(host.helper("wrong", "/nowhere", "retry=forever"));
    assert!(printed.contains("/nowhere"), "{printed}");

    let printed = usual.failure();
    assert!(usual.since.elapsed() >= USUAL_RETRY, "{printed}");
    for words in [host.address.as_str(), "Connection refused", "retry=SECONDS"] {
        assert!(printed.contains(words), "{words}: {printed}");
    }
    assert!(printed.contains(&format!("log: {}", usual.log.display())), "{printed}");
    usual.await_nothing_left();

    assert!(patient.is_waiting() && by_mount.is_waiting() && dry.is_waiting());
    host.cluster.up().expect_success();
    for begun in [&mut patient, &mut by_mount, &mut dry] {
        let status = begun.end();
        assert!(status.success(), "{status}, see {}", begun.log.display());
    }
    // The mount must report a size of the file system, although some targets may not have
    // registered with the new management yet.
    let capacity =
        rustix::fs::statvfs(&patient.mount_point).or_fail("statvfs", &patient.mount_point);
    assert!(capacity.f_blocks > 0, "zero is shown");
    let log = files::read_to_string(&patient.log);
    let told = log.lines().filter(|it| it.contains(WAITS) && it.contains("Connection refused"));
    assert_eq!(told.count(), 1, "{log}");
    // The mount still serves after the exit of the commands that waited for this mount.
    write_to_and_unmount(&host, &patient.mount_point, "file");
    patient.await_nothing_left();
    // The mount of mount(8) exists only in the mount namespace of its process. So end this mount by
    // a signal.
    let serving = by_mount.processes();
    assert_eq!(serving.len(), 1, "{serving:?}");
    serving[0].signal(Signal::TERM);
    by_mount.await_nothing_left();

    // A mount with a wrong token must fail immediately, because waiting cannot help.
    let token = files::read_to_string(host.token());
    let secret = token.split('-').nth(2).expect("a secret").split('@').next().expect("a secret");
    let wrong = host.path.join("wrong-token").display().to_string();
    files::write_secret(&wrong, token.replace(secret, &"0".repeat(secret.len())));
    let printed = refusal(host.helper("wrong", &wrong, "retry=forever"));
    assert!(printed.contains("token is wrong"), "{printed}");
    host.cluster.stop();
}

#[test]
fn mount_killed_while_it_waits_leaves_no_process_or_mount() {
    let host = Host::new();
    let mut by_mount = host.begin_by_mount("by-mount", "retry=forever");
    let mut by_helper = host.begin("by-helper", "retry=forever");
    let mut in_background = host.begin("in-background", "retry=forever");
    let mut in_front = host.begin_in_front("in-front", &["--retry", "forever"]);
    let all = [&by_mount, &by_helper, &in_background, &in_front];
    for begun in all {
        begun.await_wait();
    }
    // Each of these mounts has two processes: the helper, and the process that the helper has
    // started.
    assert_eq!(by_mount.processes().len(), 2);
    assert_eq!(by_helper.processes().len(), 2);

    by_mount.child.kill().expect("our own child");
    by_helper.child.kill().expect("our own child");
    let behind = in_background.processes();
    let behind = behind.iter().find(|process| process.role() == "mount").expect("the process runs");
    behind.signal(Signal::TERM);
    kill_process(Pid::from_child(&in_front.child), Signal::TERM).expect("our own child");
    for begun in [&mut in_background, &mut in_front] {
        let printed = begun.failure();
        assert!(printed.contains("cannot mount: a termination signal arrived before"), "{printed}");
    }
    for begun in [&mut by_mount, &mut by_helper] {
        begun.end();
    }
    for begun in [&by_mount, &by_helper, &in_background, &in_front] {
        begun.await_nothing_left();
    }
    assert_eq!(mounts_below(&host.path), Vec::<PathBuf>::new());
}
