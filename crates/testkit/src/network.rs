//! Hosts in network namespaces. Each host has an address of its own, and a link that a test can
//! disconnect.

use crate::early_shell::EarlyShell;
use crate::program::{clean_up, run};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

static NEXT: AtomicU32 = AtomicU32::new(1);

/// A network whose hosts can reach each other and this machine. Dropping this value removes the
/// network. All its hosts must have been dropped before.
#[derive(Debug)]
pub struct Switch {
    name: String,
    /// The first three numbers of all addresses in the network.
    prefix: String,
    hosts: AtomicU32,
}

impl Switch {
    /// Creates a network without hosts.
    ///
    /// # Panics
    /// Panics if the test does not run as root.
    pub fn new() -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let id = std::process::id();
        let switch = Self {
            name: format!("sb{:x}-{number}", id & 0xffff),
            prefix: format!("198.19.{}", (id + number) % 250),
            hosts: AtomicU32::new(0),
        };
        run("ip", ["link", "add", &switch.name, "type", "bridge"]);
        let address = format!("{}/24", switch.our_address());
        run("ip", ["addr", "add", &address, "dev", &switch.name]);
        run("ip", ["link", "set", &switch.name, "up"]);
        switch
    }

    fn our_address(&self) -> String {
        format!("{}.254", self.prefix)
    }

    /// Adds a host.
    ///
    /// # Panics
    /// Panics if the host cannot be created, for example because the network already has 250 hosts.
    pub fn host(&self) -> Host {
        let last = self.hosts.fetch_add(1, Ordering::Relaxed) + 1;
        assert!(last < 251, "a network has at most 250 hosts");
        let address = format!("{}.{last}", self.prefix);
        let host = Host::with_link(&address, &self.our_address(), 24);
        run("ip", ["link", "set", &host.link, "master", &self.name]);
        run("ip", ["link", "set", &host.link, "up"]);
        host
    }
}

impl Default for Switch {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        clean_up(Command::new("ip").args(["link", "delete", &self.name]));
    }
}

/// A host that is connected to this machine by one link. Dropping this value removes the host.
#[derive(Debug)]
pub struct Host {
    name: String,
    link: String,
    /// Address of this machine at its end of the link.
    pub our_address: String,
    /// Address of the host.
    pub address: String,
    /// The shell that changes the link. [`Host::new`] starts the shell before the test opens files
    /// on mounts, because the start of a process could later wait for a mount ([`EarlyShell`]).
    shell: EarlyShell,
}

impl Host {
    /// Creates a host, and connects it to this machine.
    ///
    /// # Panics
    /// Panics if the test does not run as root, or if the kernel has no network namespaces.
    pub fn new() -> Self {
        // 198.18.0.0/15 is reserved for network tests (RFC 2544). Each link is a /30 network.
        let number = NEXT.fetch_add(1, Ordering::Relaxed) % 60;
        let address = |last| format!("198.18.{}.{}", std::process::id() % 250, 4 * number + last);
        let host = Self::with_link(&address(2), &address(1), 30);
        run("ip", ["addr", "add", &format!("{}/30", host.our_address), "dev", &host.link]);
        run("ip", ["link", "set", &host.link, "up"]);
        host
    }

    /// Creates a host with an address in a network of `prefix` bits. The other end of the host's
    /// link is not connected.
    fn with_link(address: &str, our_address: &str, prefix: u8) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let id = std::process::id();
        let host = Self {
            name: format!("skep-{id}-{number}"),
            link: format!("sk{:x}-{number}", id & 0xffff),
            our_address: our_address.to_owned(),
            address: address.to_owned(),
            shell: EarlyShell::new(),
        };
        let peer = format!("{}p", host.link);
        run("ip", ["netns", "add", &host.name]);
        run("ip", ["link", "add", &host.link, "type", "veth", "peer", "name", &peer]);
        run("ip", ["link", "set", &peer, "netns", &host.name]);
        let inside = ["-n", &host.name];
        let ip = |arguments: &[&str]| run("ip", [&inside[..], arguments].concat());
        ip(&["addr", "add", &format!("{}/{prefix}", host.address), "dev", &peer]);
        ip(&["link", "set", &peer, "up"]);
        ip(&["link", "set", "lo", "up"]);
        host
    }

    /// Returns a command that runs `program` on the host.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    /// Returns a command that runs `program` in the host's network namespace but in this machine's
    /// mount namespace. So the test can access the mounts that the program creates.
    pub fn command_in_network(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.name)).arg(program);
        command
    }

    /// Connects or disconnects the host's link.
    ///
    /// # Panics
    /// Panics if the state of the link cannot be changed.
    pub fn set_link(&self, connected: bool) {
        self.shell.run(&["ip", "link", "set", &self.link, if connected { "up" } else { "down" }]);
    }
}

impl Host {
    /// Drops the packets that the host sends, or (if `passes` is true) lets them pass. Packets to
    /// the host always pass.
    ///
    /// # Panics
    /// Panics if the packet queue of the link cannot be changed.
    pub fn set_outgoing(&self, passes: bool) {
        let peer = format!("{}p", self.link);
        let queue = ["tc", "-n", &self.name, "qdisc", if passes { "del" } else { "add" }];
        let device = ["dev", &peer, "root"];
        // This queue is so small that no packet fits into the queue.
        let full = ["tbf", "rate", "8bit", "burst", "10", "limit", "10"];
        let full = if passes { &[][..] } else { &full[..] };
        self.shell.run(&[&queue[..], &device[..], full].concat());
    }
}

impl Default for Host {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let mut remove = Command::new("ip");
        clean_up(remove.args(["netns", "delete", &self.name]));
    }
}
