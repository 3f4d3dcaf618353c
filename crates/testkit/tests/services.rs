//! A cluster from its services, each started by hand as a service manager does.

use rustix::process::{Pid, Signal, kill_process};
use skep_testkit::program::finish;
use skep_testkit::{Scratch, cluster, wait_for};
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// A service, and the socket to which it says how it is.
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
        // Ended with all that works in the scratch directory.
        Self { child: command.spawn().expect("skep can be started"), socket }
    }

    /// What it says next.
    fn says(&self) -> String {
        let mut bytes = [0; 64];
        let len = self.socket.recv(&mut bytes).expect("it says something");
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    }

    fn end(mut self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).expect("our own child");
        assert_eq!(self.says(), "STOPPING=1");
        let status = wait_for("it ends", PATIENCE, || self.child.try_wait().expect("ours"));
        assert!(status.success(), "{status}");
    }
}

/// Command: skep management, skep metadata, skep storage, skep cluster token, skep cluster format.
#[test]
fn services_tell_their_manager_and_join_by_the_token_that_is_printed() {
    let scratch = Scratch::new();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(cluster::program());
        finish(command.current_dir(scratch.path()).args(arguments), PATIENCE).expect_success()
    };
    let place = |name: &str| scratch.join(name).display().to_string();
    let (management, mount_point) = (place("management"), place("mnt"));
    let listen = ["--listen", "127.0.0.1:0"];
    let of_management = [&["management", "--directory", &management][..], &listen].concat();
    run(&[&of_management[..], &["--init"]].concat());
    let mut services = vec![Service::start(scratch.path(), &of_management)];
    assert_eq!(services[0].says(), "READY=1");
    let token = run(&["cluster", "token", "--cluster", &management]);
    let token = token.trim();
    for kind in ["metadata", "storage"] {
        let (directory, target) = (place(kind), place(kind) + "-target");
        let service = [kind, "--directory", &directory, "--target", &target];
        let service = [&service[..], &listen].concat();
        run(&[&service[..], &["--init", "--token", token]].concat());
        let service = Service::start(scratch.path(), &service);
        assert_eq!(service.says(), "READY=1");
        services.push(service);
    }
    wait_for("the targets are online", PATIENCE, || {
        let targets = run(&["target", "list", "--cluster", &management]);
        (targets.matches(" Online ").count() == 2).then_some(())
    });
    run(&["cluster", "format", "--cluster", &management]);
    // Mounted by nothing but the token that was printed: it says where management is.
    fs::write(scratch.join("token"), token).expect("written");
    fs::create_dir(&mount_point).expect("made");
    run(&["mount", "--detach", "--token-file", "token", &mount_point]);
    fs::write(scratch.join("mnt/file"), "text").expect("written");
    assert_eq!(fs::read(scratch.join("mnt/file")).expect("read"), b"text");
    run(&["umount", &mount_point]);
    services.into_iter().rev().for_each(Service::end);
}
