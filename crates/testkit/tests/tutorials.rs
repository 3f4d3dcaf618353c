//! Runs the commands of the tutorials unchanged. The tutorials for a laptop and for users run on a
//! single host. An ordinary user without the join token runs the tutorial for users. The tutorial
//! for a rack runs on several hosts, each with its own network, root directory and `sshd`.
//!
//! The tutorials about clouds and Slurm have no commands that a test could run. Instead,
//! `templates.rs` executes the user data of the templates, and `ondemand.rs` executes the prolog
//! and the epilog.

use skep_testkit::page::{PageHost, PageNetwork, blocks};
use skep_testkit::program::finish;
use std::time::Duration;

const LAPTOP: &str = include_str!("../../../docs/tutorials/laptop.md");
const USER: &str = include_str!("../../../docs/tutorials/user.md");
const RACK: &str = include_str!("../../../docs/tutorials/rack.md");

/// Time limit of one block of commands. The limit is long, because a block may deploy to five hosts
/// on a busy machine.
const LONG: Duration = Duration::from_secs(300);

/// Runs the commands of a block in the directory `place` of a host, and returns their output.
fn run(host: &PageHost, place: &str, commands: &str) -> String {
    let printed = finish(&mut host.shell(&format!("cd {place}\n{commands}")), LONG);
    let printed = printed.expect_success();
    println!("{commands}{printed}");
    printed
}

#[test]
fn each_command_of_the_laptop_tutorial_succeeds() {
    let network = PageNetwork::new();
    let host = network.host("laptop", "10.0.0.1/24");
    host.run("mkdir /srv/try-skep; mount -t tmpfs tmpfs /run; rm -rf /etc/skep").expect_success();
    let blocks = blocks(LAPTOP);
    assert!(blocks.len() > 8, "the tutorial has its commands");
    let mut printed = String::new();
    for block in blocks {
        assert_eq!(block.hosts, ["laptop"]);
        printed += &run(&host, "/srv/try-skep", &block.commands);
    }
    for shown in [
        "+ Number of targets per server (min,max): (4,4)",
        "Set by: the directory in which the file was created",
        "from the second mount",
        "The cluster is healthy",
    ] {
        assert!(printed.contains(shown), "'{shown}' is not in:\n{printed}");
    }
    let left = host.run("ls /srv/try-skep").expect_success();
    assert_eq!(left, "", "the last block removes everything");
}

#[test]
fn each_command_of_the_user_tutorial_succeeds_without_a_token() {
    let network = PageNetwork::new();
    let host = network.host("login", "10.0.0.1/24");
    host.run(
        "mount -t tmpfs tmpfs /run; rm -rf /etc/skep; mkdir -p /srv/skep\n\
         skep up --detach --data-dir /srv/data --mount-point /srv/skep\n\
         mkdir -p /srv/skep/home/ada; chown 65534:65534 /srv/skep/home/ada",
    )
    .expect_success();
    let mut printed = String::new();
    for block in blocks(USER) {
        assert_eq!(block.hosts, ["login"]);
        let commands = format!("cd /srv/skep/home/ada 2>/dev/null\n{}", block.commands);
        let as_user = format!(
            "setpriv --reuid=65534 --regid=65534 --clear-groups env HOME=/ bash -e <<'BLOCK'\n\
             {commands}\nBLOCK"
        );
        printed += &run(&host, "/", &as_user);
    }
    for shown in [
        "STORAGE TARGETS",
        "Set by: the directory",
        "flock exclusive all",
        "waiting for the log sync of metadata target",
        "Copied 1 file,",
    ] {
        assert!(printed.contains(shown), "'{shown}' is not in:\n{printed}");
    }
    let left = host.run("ls /srv/skep/home/ada").expect_success();
    assert_eq!(left, "", "the last block removes everything");
    host.run("skep down --data-dir /srv/data").expect_success();
}

#[test]
fn each_command_of_the_rack_tutorial_succeeds() {
    let network = PageNetwork::new();
    let admin = network.host("admin", "10.0.0.99/24");
    admin
        .run(
            "rm -rf ~root/.ssh; mkdir -m 700 ~root/.ssh\n\
             ssh-keygen -q -t ed25519 -N '' -f ~root/.ssh/id_ed25519\n\
             printf 'StrictHostKeyChecking accept-new\\n' >~root/.ssh/config",
        )
        .expect_success();
    let key = admin.run("cat ~root/.ssh/id_ed25519.pub").expect_success();
    let mut hosts = Vec::new();
    for (name, address) in [("m1", 1), ("s1", 2), ("s2", 3), ("c1", 4), ("c2", 5)] {
        let mut host = network.host(name, &format!("10.0.0.{address}/24"));
        host.run("rm -rf /usr/bin/skep /var/log/skep /run/skep").expect_success();
        host.serve_ssh(&key);
        hosts.push(host);
    }
    hosts.push(admin);
    let host = |name: &str| {
        let found = hosts.iter().find(|host| host.name() == name);
        found.unwrap_or_else(|| panic!("the tutorial names the unknown host {name}"))
    };
    let file = RACK.split("```toml\n").nth(1).and_then(|it| it.split("```").next());
    let file = file.expect("the tutorial has a hosts file");
    run(host("admin"), "/srv", &format!("cat >hosts.toml <<'END'\n{file}END\n"));
    let mut printed = String::new();
    for block in blocks(RACK) {
        for name in &block.hosts {
            printed += &run(host(name), "/srv", &block.commands);
        }
    }
    for shown in [
        "No problem found; nothing was changed.",
        "Deployed and verified cluster scratch (5 hosts",
        "The cluster is complete.",
        "The cluster is healthy",
        "started\n",
        "Removed cluster scratch",
    ] {
        assert!(printed.contains(shown), "'{shown}' is not in:\n{printed}");
    }
    for host in &hosts[..5] {
        let left = host.run("ls -d /usr/bin/skep /etc/skep /mnt/skep || true").expect_success();
        assert_eq!(left, "", "{}", host.name());
    }
}
