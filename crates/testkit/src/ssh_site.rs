//! Hosts that each run an `sshd`, and a host of the administrator that can reach these hosts. Tests
//! of `skep ondemand` and of copies by several hosts use this module.

use crate::files;
use crate::page::{PageHost, PageNetwork};
use crate::program::{Finished, finish};
use crate::wait::wait_for;
use std::path::PathBuf;
use std::time::Duration;

/// Time limit of one command. The limit is long, because the machine may be busy with other work.
pub const LONG: Duration = Duration::from_secs(180);

/// The hosts n1, n2, ... with the addresses 10.0.0.1, 10.0.0.2, ..., and a host of the
/// administrator.
pub struct SshSite {
    // The hosts must be dropped before their switch, and Rust drops fields in the order of their
    // declaration.
    /// The hosts.
    pub hosts: Vec<PageHost>,
    /// The host of the administrator.
    pub admin: PageHost,
    _network: PageNetwork,
}

impl SshSite {
    /// Starts the hosts. At the start, no host has an on-demand file system.
    pub fn new(count: usize) -> Self {
        let network = PageNetwork::new();
        let admin = network.host("admin", "10.0.0.99/24");
        admin
            .run(
                "rm -rf ~root/.ssh; mkdir ~root/.ssh; cd ~root/.ssh\n\
                 ssh-keygen -q -t ed25519 -N '' -f id_ed25519\n\
                 printf 'StrictHostKeyChecking accept-new\\n' >config",
            )
            .expect_success();
        let key = admin.run("cat ~root/.ssh/id_ed25519.pub").expect_success();
        let names = (1..=count).map(|it| format!("10.0.0.{it} n{it}\n")).collect::<String>();
        let add = |index: usize| {
            let mut host = network.host(&format!("n{index}"), &format!("10.0.0.{index}/24"));
            // Give the host its own local disk and its own /run, so that the host does not use the
            // files of this machine.
            host.run(&format!(
                "mkdir -p /srv/local /etc/skep\n\
                 mount -t tmpfs tmpfs /run; mount --bind /srv/local /var/lib\n\
                 printf '{names}' >>/etc/hosts"
            ))
            .expect_success();
            host.serve_ssh(&key);
            host
        };
        let hosts = (1..=count).map(add).collect();
        Self { hosts, admin, _network: network }
    }

    /// Runs `skep ondemand` on the administrator's host, with `hosts` as the list of nodes.
    pub fn ondemand(&self, arguments: &str, hosts: &[&str]) -> Finished {
        let list = hosts.iter().map(|host| format!("{host} slots=4\n")).collect::<String>();
        let line = format!(
            "printf '# nodes\\n{list}' >/srv/nodes\n\
             skep ondemand {arguments} --hosts /srv/nodes"
        );
        finish(&mut self.admin.shell(&line), LONG)
    }

    /// Returns the paths in the directories in which `skep ondemand` creates files. The list
    /// contains one text for each host.
    pub fn contents(&self) -> Vec<String> {
        let list = |host: &PageHost| {
            host.run("find /var/lib /mnt /etc/skep /run -xdev | sort").expect_success()
        };
        self.hosts.iter().map(list).collect()
    }

    /// Checks that `skep ondemand` has left no file, mount or process on any host. `before` is the
    /// earlier result of [`Self::contents`].
    pub fn expect_unchanged(&self, before: &[String]) {
        for ((host, before), after) in self.hosts.iter().zip(before).zip(self.contents()) {
            host.expect_unchanged(before, &after);
            let mounts = host.run("grep fuse.skep /proc/mounts || true");
            assert_eq!(mounts.expect_success(), "", "{}", host.name());
        }
    }
}

/// Kills the processes of Skep on one host whose command lines contain `text`. Before the kill,
/// waits until such a process runs. All hosts share the process ids of this machine, so this
/// function selects processes by their network namespaces.
pub fn kill(host: &PageHost, text: &str) {
    let script = format!(
        "own=$(readlink /proc/self/ns/net)\n\
         for found in $(grep -ls '^skep' /proc/[0-9]*/comm); do\n\
         process=${{found%/comm}}\n\
         [ \"$(readlink $process/ns/net)\" = \"$own\" ] || continue\n\
         case \"$(tr '\\000' ' ' <$process/cmdline)\" in\n\
         *'{text}'*) kill -9 ${{process#/proc/}}; echo killed ;;\n\
         esac\n\
         done"
    );
    wait_for(&format!("a process with `{text}` runs on the host"), LONG, || {
        host.run(&script).expect_success().contains("killed").then_some(())
    });
}

/// An empty directory that all hosts of a test can use. This directory is in `/dev`, which the
/// hosts share. Dropping this value removes the directory, even if the test fails.
#[derive(Debug)]
pub struct SharedDirectory(String);

impl SharedDirectory {
    /// Creates an empty directory.
    pub fn new(name: &str) -> Self {
        let path = format!("/dev/shm/skep-{name}-{}", std::process::id());
        files::create_dir_all(PathBuf::from(&path));
        Self(path)
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &str {
        &self.0
    }
}

impl Drop for SharedDirectory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}
