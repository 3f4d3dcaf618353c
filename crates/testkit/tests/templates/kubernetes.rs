//! The manifests in `deploy/kubernetes`. A host of the test plays a node, and runs the commands of
//! the manifests' containers, each in its own mount namespace. The namespaces share the directory
//! of the mounts in the mode that the manifest names. A cluster runs on the same host.
//!
//! The test replaces Kubernetes and its container runtime, so it does not test images, limits and
//! admission. `kubernetes.py` checks the fields of the manifests.

use super::{LONG, directory};
use serde_json::Value;
use skep_testkit::page::{PageHost, PageNetwork};
use skep_testkit::program::{Finished, finish};
use skep_testkit::{PATIENCE, wait_for};
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

/// Runs `kubernetes.py`, which checks the manifests, and describes their containers.
fn containers() -> Value {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/templates/kubernetes.py");
    let mut command = Command::new("python3");
    command.arg(program).arg(directory().join("kubernetes"));
    let output = finish(&mut command, PATIENCE).expect_success();
    serde_json::from_str(&output).expect("JSON")
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}"))
}

/// Returns a list of words as a single line for a shell.
fn line(words: &Value) -> String {
    let words = words.as_array().expect("a list").iter().map(text);
    words.map(|it| format!("'{}'", it.replace('\'', "'\\''"))).collect::<Vec<_>>().join(" ")
}

/// Returns the shell commands that prepare the volumes of a container in its mount namespace.
fn volumes(container: &Value) -> String {
    let mut script = String::new();
    for mount in container["mounts"].as_array().expect("a list") {
        let path = text(&mount["path"]);
        if let Some(mode) = mount["secret"].as_u64() {
            // The node shows the keys of a secret as links, so that the node can replace all keys
            // atomically.
            let _ = write!(
                script,
                "mkdir -p {path}; mount -t tmpfs tmpfs {path}; mkdir {path}/..v1\n\
                 install -m {mode:o} /srv/token {path}/..v1/token\n\
                 ln -s ..v1 {path}/..data; ln -s ..data/token {path}/token\n"
            );
            continue;
        }
        let host = text(&mount["host"]);
        if host != path {
            let _ = writeln!(script, "mkdir -p {path}; mount --rbind {host} {path}");
        }
        match text(&mount["propagation"]) {
            // The directory of the node is a shared mount, and its copy in a new namespace is also
            // a shared mount.
            "Bidirectional" => {}
            "HostToContainer" => {
                let _ = writeln!(script, "mount --make-rslave {path}");
            }
            other => panic!("unexpected propagation {other}"),
        }
    }
    script
}

/// A node of a Kubernetes cluster.
struct Node {
    // Rust drops fields in the order of their declaration, and the host must be dropped before its
    // switch.
    host: PageHost,
    _network: PageNetwork,
}

impl Node {
    /// Starts a cluster on a node, and makes the directory of the mounts shared, as systemd does
    /// with all directories of a host.
    fn new(mounts: &str) -> Self {
        let network = PageNetwork::new();
        let host = network.host("node", "10.75.0.1/24");
        host.run(&format!(
            "rm -rf /etc/skep; mount -t tmpfs tmpfs /run; mkdir -p {mounts}\n\
             mount --bind {mounts} {mounts}; mount --make-rshared {mounts}"
        ))
        .expect_success();
        let up = "skep up --detach --no-mount --no-monitor --data-dir /srv/data\n\
            skep cluster token --cluster /srv/data >/srv/token";
        finish(&mut host.shell(up), LONG).expect_success();
        Self { host, _network: network }
    }

    /// Starts a container, and waits until its program runs.
    fn start(&mut self, name: &str, container: &Value) {
        let (user, words) = (&container["user"], line(&container["words"]));
        let script = format!(
            "set -e\n{}echo started >/srv/{name}.log\n\
             set +e; setpriv --reuid {user} --regid {user} --clear-groups \
             sh -c 'echo $$; exec \"$@\"' sh {words} >/srv/{name}.pid 2>>/srv/{name}.log\n\
             echo $? >/srv/{name}.status\n",
            volumes(container)
        );
        self.host
            .run(&format!(
                "rm -f /srv/{name}.*; cat >/srv/{name}.sh <<'END OF SCRIPT'\n{script}END OF SCRIPT"
            ))
            .expect_success();
        self.host.start(&format!("unshare --mount --propagation unchanged sh /srv/{name}.sh"));
        wait_for("the program of the container runs", PATIENCE, || {
            let look = format!("grep -q . /srv/{name}.pid");
            self.host.run(&look).status.success().then_some(())
        });
    }

    /// Runs a command in the mount namespace of a container, as `kubectl exec` does.
    fn within(&self, name: &str, command: &str) -> Finished {
        let enter = format!("nsenter --target $(head -n 1 /srv/{name}.pid) --mount --root --wd");
        self.host.run(&format!("{enter} {command}"))
    }

    fn kill(&self, name: &str, signal: &str) {
        let kill = format!("kill -{signal} $(head -n 1 /srv/{name}.pid)");
        self.host.run(&kill).expect_success();
    }

    /// Waits until the program of a container has ended, and returns its exit code.
    fn await_end(&self, name: &str) -> String {
        wait_for(&format!("the container {name} ends"), PATIENCE, || {
            let found = self.host.run(&format!("cat /srv/{name}.status"));
            found.status.success().then(|| found.stdout.trim().to_owned())
        })
    }

    /// Waits until a command succeeds in a container.
    fn await_success(&self, name: &str, command: &str) {
        wait_for(&format!("{command} succeeds in the container {name}"), PATIENCE, || {
            self.within(name, command).status.success().then_some(())
        });
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let logs = self.host.shell("tail -n 50 /srv/*.log /srv/*.pid /srv/*.status").output();
            eprintln!(
                "{}",
                logs.map(|it| String::from_utf8_lossy(&it.stdout).into_owned()).unwrap_or_default()
            );
        }
    }
}

/// `docs/operations/containers.md`: the mount of a `DaemonSet` in other pods.
#[test]
fn pods_use_the_next_mount_of_a_daemon_set_after_a_crash() {
    let all = containers();
    let [mount, init, program] = ["mount", "init", "program"].map(|name| &all[name]);
    assert_eq!(all["grace"], 60, "longer than the grace period of a mount that ends");
    let mounts = text(&mount["mounts"][0]["host"]);
    let mut node = Node::new(mounts);

    // A pod that starts before the mount waits for the mount.
    node.start("init", init);
    node.host.run("test -e /srv/init.status").expect_failure();
    node.start("mount", mount);
    let probe = line(&mount["probe"]);
    node.await_success("mount", &probe);
    assert_eq!(node.await_end("init"), "0");

    node.start("program", program);
    node.within("program", "sh -c 'echo kept >/skep/data/file'").expect_success();
    let look = format!("cat {mounts}/data/file");
    assert_eq!(node.host.run(&look).expect_success(), "kept\n");

    // The mount crashes. The running pod gets the next mount.
    node.kill("mount", "KILL");
    assert_eq!(node.await_end("mount"), "137");
    node.within("program", "cat /skep/data/file").expect_failure();
    node.start("mount", mount);
    node.await_success("program", "cat /skep/data/file");
    node.await_success("mount", &probe);

    // The mount ends with its pod, and leaves no mount in the node or in other pods.
    node.kill("mount", "TERM");
    assert_eq!(node.await_end("mount"), "0");
    let left = "sh -c 'grep fuse.skep /proc/self/mounts || true'";
    assert_eq!(node.within("program", left).expect_success(), "");
    assert_eq!(node.host.run(left).expect_success(), "");
    // Without the mount, a user of a pod cannot write to the disk of the node by mistake.
    let user = &program["user"];
    let write = format!("setpriv --reuid {user} --clear-groups touch /skep/data/file");
    node.within("program", &write).expect_failure();
    node.kill("program", "KILL");
    node.host.run("skep down --data-dir /srv/data").expect_success();
}
