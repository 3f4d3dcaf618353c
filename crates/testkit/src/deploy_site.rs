//! The hosts of tests of `skep deploy`: a deploying host and hosts with `sshd`. `skep deploy` reads
//! the descriptions of the hosts from a hosts file. This module also has entries for this file.

use crate::page::{PageHost, PageNetwork};
use crate::program::{Finished, finish};
use crate::wait::{PATIENCE, wait_for};
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

/// Time limit for a whole deployment. The limit is long, because the machine may be busy with other
/// work.
const LONG: Duration = Duration::from_secs(300);
/// Size in bytes of each disk of a host.
pub const DISK_BYTES: u64 = 400 << 20;
/// The directories in which a deployment creates files.
const PLACES: &str = "/etc /usr/bin /usr/sbin /srv /var /run /mnt /nvme0 /disk1 /disk2 /root";

/// A deploying host, and the hosts to which this host deploys. Each host except the deploying host
/// runs an `sshd`.
pub struct DeploySite {
    // The hosts must be dropped before their switch, and Rust drops fields in the order of their
    // declaration.
    hosts: Vec<PageHost>,
    /// The deploying host.
    pub admin: PageHost,
    _network: PageNetwork,
}

impl DeploySite {
    /// Starts hosts with these names and the addresses 10.0.0.1, 10.0.0.2, ...
    pub fn new(names: &[&str]) -> Self {
        let network = PageNetwork::new();
        let admin = network.host("admin", "10.0.0.99/24");
        admin
            .run(
                "rm -rf ~root/.ssh\n\
                 ssh-keygen -q -t ed25519 -N '' -f ~root/key",
            )
            .expect_success();
        let key = admin.run("cat ~root/key.pub").expect_success();
        let mut hosts = Vec::new();
        for (index, name) in names.iter().enumerate() {
            let mut host = network.host(name, &format!("10.0.0.{}/24", index + 1));
            // Give the host its own /run, so that it does not see the networks of other programs.
            host.run("rm -rf /usr/bin/skep /var/log/skep; mount -t tmpfs tmpfs /run")
                .expect_success();
            host.serve_ssh(&key);
            hosts.push(host);
        }
        Self { hosts, admin, _network: network }
    }

    /// Returns the host with this name.
    ///
    /// # Panics
    /// Panics if no host has this name.
    pub fn host(&mut self, name: &str) -> &mut PageHost {
        let host = self.hosts.iter_mut().find(|host| host.name() == name);
        host.unwrap_or_else(|| panic!("no host {name}"))
    }

    /// Runs shell commands on the host with this name.
    ///
    /// # Panics
    /// Panics if no host has this name.
    pub fn run_on(&self, name: &str, commands: &str) -> Finished {
        let host = self.hosts.iter().find(|host| host.name() == name);
        host.unwrap_or_else(|| panic!("no host {name}")).run(commands)
    }

    /// Writes the hosts file with the entries `body`.
    pub fn write(&self, body: &str) {
        self.write_with("", body);
    }

    /// Writes the hosts file with the entries `body` and the cluster settings `settings`.
    pub fn write_with(&self, settings: &str, body: &str) {
        let head = "[ssh]\nuser = \"root\"\nidentity = \"key\"\n\
            options = [\"StrictHostKeyChecking=accept-new\", \"UserKnownHostsFile=~/known\", \
            \"HashKnownHosts=no\"]\n";
        let text = format!("cluster = \"scratch\"\n{settings}{head}{body}");
        self.admin.run(&format!("cat >~root/hosts.toml <<'END'\n{text}END\n")).expect_success();
    }

    /// Waits until the program [`LOAD`] on a client has completed three further operations.
    pub fn await_load(&mut self, client: &str) {
        let client = self.host(client);
        let count =
            || client.run("cat /srv/count").stdout.trim().parse::<u32>().unwrap_or_default();
        let now = count();
        wait_for("the load continues", PATIENCE, || (count() > now + 2).then_some(()));
    }

    /// Ends the program [`LOAD`] on a client, and checks that none of its operations has failed.
    pub fn end_load(&mut self, client: &str) {
        let client = self.host(client);
        client.run("touch /srv/stop").expect_success();
        wait_for("the load ends", PATIENCE, || {
            client.run("test -e /srv/ended").status.success().then_some(())
        });
        let failures = client.run("cat /srv/failures || true").expect_success();
        assert_eq!(failures, "", "no operation failed");
        client.run("rm /srv/stop /srv/ended /srv/data /srv/count").expect_success();
    }

    /// Runs `skep deploy` on the deploying host.
    pub fn deploy(&self, arguments: &str) -> Finished {
        let line = format!("skep deploy {arguments} --hosts ~root/hosts.toml");
        finish(&mut self.admin.shell(&line), LONG)
    }

    /// Runs `skep deploy`, and kills this command after `steps` steps. Returns false if the command
    /// ended before the kill.
    pub fn kill_after(&self, arguments: &str, steps: usize) -> bool {
        let line = format!("exec skep deploy {arguments} --hosts ~root/hosts.toml");
        let mut command = self.admin.shell(&line);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("nsenter can be started");
        let output = BufReader::new(child.stderr.take().expect("a pipe"));
        let seen =
            output.lines().map_while(Result::ok).filter(|it| it.starts_with('[')).take(steps);
        let seen = seen.count();
        let was_running = child.try_wait().expect("our own child").is_none();
        child.kill().ok();
        child.wait().expect("our own child");
        seen == steps && was_running
    }

    /// Checks that the monitor serves its page only on the loopback address of the host `name`, and
    /// that the page shows all services.
    pub fn expect_monitored(&self, name: &str, services: usize) {
        let host = self.hosts.iter().find(|host| host.name() == name).expect("a host");
        let read = |path: &str| {
            let line = format!(
                "python3 -c \"import urllib.request as u; \
                 print(u.urlopen('http://127.0.0.1:7480{path}', timeout=9).read().decode())\""
            );
            host.run(&line)
        };
        let page = read("/").expect_success();
        assert!(page.to_lowercase().contains("<!doctype html>"), "{page}");
        wait_for("the monitor shows all services", PATIENCE, || {
            let live = read("/api/live").stdout;
            let live: serde_json::Value = serde_json::from_str(&live).ok()?;
            let found = live["services"].as_array()?.len();
            (found >= services).then_some(())
        });
        let position = self.hosts.iter().position(|host| host.name() == name).expect("a host");
        let outside = format!("bash -c '</dev/tcp/10.0.0.{}/7480'", position + 1);
        let own = self.admin.run(&outside);
        assert!(!own.status.success(), "the page has no password");
    }

    /// Returns one text for each host: all paths in the directories [`PLACES`], and the contents of
    /// fstab.
    pub fn contents(&self) -> Vec<String> {
        let list = |host: &PageHost| {
            // Ignore /run/mount, where mount(8) stores its own table.
            let line = format!(
                "find {PLACES} -xdev -not -path '/run/mount*' | sort; cat /etc/fstab || true"
            );
            host.run(&line).expect_success()
        };
        self.hosts.iter().map(list).collect()
    }

    /// Checks that all hosts have exactly the files in `before`, and that no process of Skep runs
    /// on these hosts.
    pub fn expect_unchanged(&self, before: &[String]) {
        for ((host, before), after) in self.hosts.iter().zip(before).zip(self.contents()) {
            host.expect_unchanged(before, &after);
        }
    }
}

/// The entry for the host `m1` in the hosts file. This host has the address 10.0.0.1, and runs
/// management and a metadata service.
pub const MANAGEMENT: &str = "[[host]]\nname = \"m1\"\naddress = \"10.0.0.1\"\n\
    roles = [\"management\", \"metadata\"]\nmetadata_directories = [\"/nvme0/skep\"]\n";

/// Returns the entry for a storage server in the hosts file. `address` is the last number of its
/// address, and `targets` are the lines that name its disks or directories.
pub fn storage(name: &str, address: u8, targets: &str) -> String {
    format!(
        "[[host]]\nname = \"{name}\"\naddress = \"10.0.0.{address}\"\n\
         roles = [\"storage\"]\n{targets}\n"
    )
}

/// Returns the entry for a client in the hosts file. `address` is the last number of its address.
pub fn client(name: &str, address: u8) -> String {
    format!("[[host]]\nname = \"{name}\"\naddress = \"10.0.0.{address}\"\nroles = [\"client\"]\n")
}

/// A program that causes load on a client. This program runs until the file `/srv/stop` exists, and
/// fails if any operation fails.
pub const LOAD: &str = "sh -c 'mkdir -p /mnt/skep/load; n=0
    while [ ! -e /srv/stop ]; do
      n=$((n + 1)); file=/mnt/skep/load/$((n % 50))
      { head -c 300000 /dev/urandom >/srv/data && cp /srv/data $file && cmp /srv/data $file &&
        mv $file $file.x && cmp /srv/data $file.x; } || echo failed at $n >>/srv/failures
      echo $n >/srv/count
    done; touch /srv/ended; exec sleep infinity'";
