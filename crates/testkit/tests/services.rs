//! A cluster whose services a test starts separately, as a service manager does.

use rustix::process::{Pid, Signal, kill_process};
use skep_testkit::files;
use skep_testkit::network::Host;
use skep_testkit::program::finish;
use skep_testkit::scratch::mounts_below;
use skep_testkit::{PATIENCE, Scratch, cluster, process, wait_for};
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Environment variable that sets the directory for the logs of background mounts. This directory
/// replaces the system's directory.
const LOGS_VARIABLE: &str = "LOGS_DIRECTORY";

/// A service, and the socket to which the service sends notifications for its service manager.
struct Service {
    child: Child,
    socket: UnixDatagram,
}

impl Service {
    fn start(directory: &Path, arguments: &[&str]) -> Self {
        let path = directory.join(format!("notify-{}", arguments[0]));
        let socket = UnixDatagram::bind(&path).expect("a socket");
        socket.set_read_timeout(Some(PATIENCE)).expect("a deadline");
        let mut command = Command::new(cluster::program());
        command.current_dir(directory).args(arguments).env("NOTIFY_SOCKET", &path);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // Dropping the scratch directory kills the service.
        Self { child: command.spawn().expect("skep can be started"), socket }
    }

    /// Returns the next notification of the service.
    fn notification(&self) -> String {
        let mut bytes = [0; 64];
        let len = self.socket.recv(&mut bytes).expect("a notification arrives");
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    }

    fn end(mut self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).expect("our own child");
        assert_eq!(self.notification(), "STOPPING=1");
        let status =
            wait_for("the service ends", PATIENCE, || self.child.try_wait().expect("ours"));
        assert!(status.success(), "{status}");
    }
}

/// Creates and starts a cluster with one service of each kind at `address`. Returns the services,
/// and the token that management printed.
fn start_all(scratch: &Scratch, address: &str) -> (Vec<Service>, String) {
    let run = |arguments: &[&str]| {
        let mut command = Command::new(cluster::program());
        finish(command.current_dir(scratch.path()).args(arguments), PATIENCE).expect_success()
    };
    let place = |name: &str| scratch.join(name).display().to_string();
    let (management, listen) = (place("management"), format!("{address}:0"));
    let listen = ["--listen", listen.as_str()];
    let of_management = [&["management", "--directory", &management][..], &listen].concat();
    run(&[&of_management[..], &["--init"]].concat());
    let mut services = vec![Service::start(scratch.path(), &of_management)];
    assert_eq!(services[0].notification(), "READY=1");
    let token = run(&["cluster", "token", "--cluster", &management]);
    let token = token.trim();
    files::write_secret(scratch.join("secret"), token);
    for kind in ["metadata", "storage"] {
        let (directory, target) = (place(kind), place(kind) + "-target");
        let service = [kind, "--directory", &directory, "--target", &target];
        let service = [&service[..], &listen].concat();
        run(&[&service[..], &["--init", "--token-file", "secret"]].concat());
        let service = Service::start(scratch.path(), &service);
        assert_eq!(service.notification(), "READY=1");
        services.push(service);
    }
    wait_for("the targets are online", PATIENCE, || {
        let targets = run(&["target", "list", "--cluster", &management]);
        (targets.matches(" Online ").count() == 2).then_some(())
    });
    run(&["cluster", "format", "--cluster", &management]);
    (services, token.to_owned())
}

/// Command: skep management, skep metadata, skep storage, skep cluster token, skep cluster format.
/// Command: skep cluster info.
#[test]
fn services_notify_systemd_and_join_by_the_printed_token() {
    let scratch = Scratch::new();
    let (services, token) = start_all(&scratch, "127.0.0.1");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(cluster::program());
        command.current_dir(scratch.path()).args(arguments).env(LOGS_VARIABLE, scratch.path());
        finish(&mut command, PATIENCE).expect_success()
    };
    let mount_point = scratch.directory("mnt").display().to_string();
    // The mount needs only the printed token, because the token contains the address of management.
    files::write_secret(scratch.join("token"), &token);
    let printed = run(&["cluster", "info", "--token-file", "token", "--output", "json"]);
    let info: serde_json::Value = serde_json::from_str(&printed).expect("JSON");
    let (identity, addresses) = token.split_once('@').expect("the addresses of management");
    let (id, secret) = identity.rsplit_once('-').expect("the secret");
    assert_eq!(info["cluster_id"].as_str(), id.strip_prefix("skep1-"));
    assert_eq!(info["management"][0]["addresses"][0], addresses.trim());
    assert_eq!(info["is_formatted"], true);
    let nodes = ["management", "metadata", "storage", "clients"].map(|kind| &info["nodes"][kind]);
    assert_eq!(nodes, [1, 1, 1, 0]);
    assert!(!printed.contains(secret), "a secret is in the output");
    run(&["mount", "--detach", "--token-file", "token", &mount_point]);
    files::write(scratch.join("mnt/file"), "text");
    assert_eq!(files::read(scratch.join("mnt/file")), b"text");
    run(&["umount", &mount_point]);
    services.into_iter().rev().for_each(Service::end);
}

/// Mounts the cluster in the background. The token and the mount point are in the scratch
/// directory.
fn mount_by_token(scratch: &Scratch, mut command: Command, name: &str) {
    command.args(["mount", "--detach", "--token-file"]).arg(scratch.join("token"));
    command.env(LOGS_VARIABLE, scratch.path());
    finish(command.arg(scratch.directory(name)), PATIENCE).expect_success();
}

/// The files of [`WRITER`] and their lengths. The bytes of the first file are in metadata, and the
/// bytes of the second file are on storage.
const WRITTEN: [(&str, usize); 2] = [("small", 4096), ("large", 65_536)];

/// A program that writes to files until a write fails. After this failure, the program writes to
/// each file once more, and prints the errors.
const WRITER: &str = r#"
import errno, os, sys
def outcome(file, ours):
    try:
        os.pwrite(file, ours, 0)
        os.fsync(file)
        return "done"
    except OSError as error:
        return errno.errorcode[error.errno]
files = [
    (os.open(path, os.O_RDWR | os.O_CREAT, 0o644), b"A" * int(length))
    for path, length in zip(sys.argv[1::2], sys.argv[2::2])
]
assert all(outcome(*it) == "done" for it in files)
print("ready", flush=True)
while all(outcome(*it) == "done" for it in files):
    pass
print(*(outcome(*it) for it in files))
"#;

/// docs/semantics.md 3.8, for a client whose network link was disconnected.
#[test]
fn client_disconnected_past_its_lease_overwrites_no_newer_bytes() {
    let scratch = Scratch::new();
    let host = Host::new();
    let (services, token) = start_all(&scratch, &host.our_address);
    files::write_secret(scratch.join("token"), token);
    let mount = |command: Command, name: &str| mount_by_token(&scratch, command, name);
    mount(host.command_in_network(&cluster::program()), "far");
    mount(Command::new(cluster::program()), "near");
    let management = scratch.join("management").display().to_string();
    let sessions = || {
        let list = ["session", "list", "--cluster", &management];
        cluster::skep(list).expect_success().matches("/far ").count()
    };
    let mut writer = Command::new("python3");
    writer.args(["-c", WRITER]).stdout(Stdio::piped());
    for (name, length) in WRITTEN {
        writer.arg(scratch.join("far").join(name)).arg(length.to_string());
    }
    let mut writer = writer.spawn().expect("python3 is installed");
    let lines = BufReader::new(writer.stdout.take().expect("a pipe")).lines();
    let (sender, printed) = std::sync::mpsc::channel();
    std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
    assert_eq!(printed.recv_timeout(PATIENCE).as_deref(), Ok("ready"));
    assert_eq!(sessions(), 1);
    host.set_link(false);
    wait_for("the session of the disconnected client has ended", PATIENCE, || {
        (sessions() == 0).then_some(())
    });
    for (name, length) in WRITTEN {
        let near = scratch.join("near").join(name);
        let file = files::open_with(OpenOptions::new().write(true), near);
        files::write_all_at(&file, &vec![b'B'; length], 0);
        files::sync_all(&file);
    }
    host.set_link(true);
    // Regression test (H45): the mount joined the cluster repeatedly, and the write to the small
    // file, whose bytes metadata stores, never returned.
    assert_eq!(printed.recv_timeout(PATIENCE).as_deref(), Ok("EIO EIO"));
    assert!(writer.wait().expect("our own child").success());
    for mount in ["near", "far"] {
        for (name, length) in WRITTEN {
            let found = files::read(scratch.join(mount).join(name));
            assert!(found == vec![b'B'; length], "{name} on {mount}");
        }
    }
    // At this point, the mount serves files without any action of an administrator.
    files::write(scratch.join("far/new"), "new");
    assert_eq!(files::read(scratch.join("near/new")), b"new");
    for name in ["far", "near"] {
        finish(Command::new("umount").arg(scratch.join(name)), PATIENCE).expect_success();
    }
    services.into_iter().rev().for_each(Service::end);
}

/// Time limit for `df` and `umount` while the network drops all replies.
const SILENT_PATIENCE: Duration = Duration::from_secs(20);

/// The network drops all packets to the servers, so that the mount gets neither replies nor errors.
/// docs/semantics.md 4.10.
#[test]
fn mounts_of_a_disconnected_host_can_be_unmounted() {
    let scratch = Scratch::new();
    let host = Host::new();
    let (services, token) = start_all(&scratch, &host.our_address);
    files::write_secret(scratch.join("token"), token);
    let ways = ["fresh", "used", "told"];
    for name in ways {
        mount_by_token(&scratch, host.command_in_network(&cluster::program()), name);
    }
    files::write(scratch.join("used/file"), "text");
    host.set_link(false);
    let run = |command: &mut Command| finish(command, SILENT_PATIENCE).expect_success();
    for _ in 0..2 {
        run(Command::new("df").arg(scratch.join("used")));
    }
    for name in &ways[..2] {
        run(Command::new("umount").arg(scratch.join(name)));
    }
    for process in process::below(&scratch.join(ways[2])) {
        process.signal(Signal::TERM);
    }
    for place in ways.map(|name| scratch.join(name)) {
        wait_for("the mount ends", PATIENCE, || {
            let left = (process::below(&place).len(), mounts_below(&place).len());
            (left == (0, 0)).then_some(())
        });
    }
    host.set_link(true);
    services.into_iter().rev().for_each(Service::end);
}
