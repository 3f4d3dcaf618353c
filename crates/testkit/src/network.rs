//! Hosts in network namespaces. Each host has its own address, and a link that a test can
//! disconnect.

use crate::program::{clean_up, run};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

static NEXT: AtomicU32 = AtomicU32::new(1);

/// A host that is connected to this machine by one link. Dropping it removes the host.
#[derive(Debug)]
pub struct Host {
    name: String,
    link: String,
    /// Address of this machine on the link.
    pub our_address: String,
    /// Address of the host.
    pub address: String,
}

impl Host {
    /// Creates a host, and connects it to this machine.
    ///
    /// # Panics
    /// Panics if the test does not run as root, or if the kernel has no network namespaces.
    pub fn new() -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let id = std::process::id();
        // 198.18.0.0/15 is reserved for network tests (RFC 2544). Each link is a /30 network.
        let net = format!("198.18.{}.{}", id % 250, 4 * (number % 60));
        let (prefix, last) = net.rsplit_once('.').expect("an address has dots");
        let last: u32 = last.parse().expect("a number");
        let host = Self {
            name: format!("skep-{id}-{number}"),
            link: format!("sk{:x}-{number}", id & 0xffff),
            our_address: format!("{prefix}.{}", last + 1),
            address: format!("{prefix}.{}", last + 2),
        };
        let peer = format!("{}p", host.link);
        run("ip", ["netns", "add", &host.name]);
        run("ip", ["link", "add", &host.link, "type", "veth", "peer", "name", &peer]);
        run("ip", ["link", "set", &peer, "netns", &host.name]);
        run("ip", ["addr", "add", &format!("{}/30", host.our_address), "dev", &host.link]);
        run("ip", ["link", "set", &host.link, "up"]);
        let inside = ["-n", &host.name];
        let ip = |arguments: &[&str]| run("ip", [&inside[..], arguments].concat());
        ip(&["addr", "add", &format!("{}/30", host.address), "dev", &peer]);
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
    /// mount namespace. So the test can access the mounts of the program.
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
        run("ip", ["link", "set", &self.link, if connected { "up" } else { "down" }]);
    }
}

impl Host {
    /// Drops the packets that the host sends, or lets them pass. Packets to the host pass in both
    /// cases.
    ///
    /// # Panics
    /// Panics if the queue of the link cannot be changed.
    pub fn set_outgoing(&self, passes: bool) {
        let peer = format!("{}p", self.link);
        let queue = ["-n", &self.name, "qdisc", if passes { "del" } else { "add" }];
        let device = ["dev", &peer, "root"];
        // No packet fits into this queue.
        let full = ["tbf", "rate", "8bit", "burst", "10", "limit", "10"];
        let full = if passes { &[][..] } else { &full[..] };
        run("tc", [&queue[..], &device[..], full].concat());
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
