//! Creates the hosts of a lab as network namespaces, and the links between the hosts.
//!
//! All interfaces are in network namespaces of the lab, so the network of this machine does not
//! change. One namespace contains a bridge. Each host has a link to the bridge. A link is a pair of
//! interfaces: `eth0` in the namespace of the host, and an interface with the host's name in the
//! namespace of the bridge. A token bucket at each of these two interfaces limits the packets that
//! leave the interface. The bucket at `eth0` limits the packets that the host sends. The bucket at
//! the other interface limits the packets that the host receives. The limits apply to all traffic
//! of a host, including messages to management and metadata, as on a real network.
//!
//! # Hazard: ARP
//! The kernel keeps at most 1024 addresses that hosts have found by ARP, in all network namespaces
//! together (`net.ipv4.neigh.default.gc_thresh3`), and drops packets to further addresses. Twenty
//! servers and 46 clients need more than the default. So [`make_neighbours`] gives each host
//! permanent entries, which do not count towards this limit.
//!
//! # Hazard: large packets
//! The kernel passes up to 64 KiB to an interface in one piece, and splits this data into frames
//! after this step. If the burst of the token bucket is smaller than this data, the bucket itself
//! splits the data. The splitting takes more CPU time, but does not change the rate. So the burst
//! need not be 64 KiB, and [`Bucket::of`] computes it from the rate alone.

use crate::command::{ip, ip_lines, tc};
use crate::limits::{BURST, DELAYED_PACKETS, MIN_BURST_FRAMES, MTU, QUEUE_BYTES};
use crate::names::{ADDRESS_BITS, Role};
use crate::state::{Host, State};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use skep_types::{Error, ErrorCode, Result};
use std::net::Ipv4Addr;
use std::time::Duration;

/// Length in bytes of the header of an Ethernet frame. The kernel counts this header as part of
/// each frame.
const HEADER_BYTES: u32 = 14;
/// Name of the bridge, which is also a network interface.
const BRIDGE: &str = "bridge";
/// Name of the interface at the host's end of a link.
pub(crate) const HOST_END: &str = "eth0";

/// The token bucket that limits one direction of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bucket {
    bytes_per_second: u64,
    /// Maximum number of bytes that may be sent without a delay after a pause.
    burst_bytes: u64,
}

impl Bucket {
    fn of(bytes_per_second: u64) -> Self {
        let burst = u128::from(bytes_per_second) * BURST.as_micros() / 1_000_000;
        let burst = u64::try_from(burst).expect("limits.rs bounds rates");
        let smallest = u64::from(MIN_BURST_FRAMES * (MTU + HEADER_BYTES));
        Self { bytes_per_second, burst_bytes: burst.max(smallest) }
    }

    /// Returns the token bucket in the syntax of tc(8), in which `bps` means bytes per second.
    fn words(self) -> String {
        let Self { bytes_per_second, burst_bytes } = self;
        format!("tbf rate {bytes_per_second}bps burst {burst_bytes} limit {QUEUE_BYTES}")
    }
}

/// Returns the arguments of tc(8), one line for each call, that limit and delay the packets that
/// leave an interface.
fn discipline(device: &str, rate: Option<u64>, delay: Option<Duration>) -> Vec<String> {
    let delayed =
        delay.map(|delay| format!("netem delay {}us limit {DELAYED_PACKETS}", delay.as_micros()));
    let bucket = rate.map(|rate| Bucket::of(rate).words());
    let root = |words: String| format!("qdisc add dev {device} root handle 1: {words}");
    match (bucket, delayed) {
        (Some(bucket), Some(delayed)) => {
            let inner = format!("qdisc add dev {device} parent 1:1 handle 10: {delayed}");
            vec![root(bucket), inner]
        }
        (Some(words), None) | (None, Some(words)) => vec![root(words)],
        (None, None) => Vec::new(),
    }
}

/// Creates the network namespace that contains the bridge, and the bridge.
pub(crate) fn make_bridge(state: &State) -> Result<()> {
    let State { name, network, .. } = state;
    ip(name, &format!("netns add {network}"))?;
    ip(name, &format!("-n {network} link add name {BRIDGE} mtu {MTU} type bridge"))?;
    ip(name, &format!("-n {network} link set {BRIDGE} up")).map(drop)
}

/// Creates the network namespace of a host, and the link between the host and the bridge.
pub(crate) fn make_host(state: &State, host: &Host) -> Result<()> {
    let State { name: lab, network, .. } = state;
    let Host { name, namespace, address, link_bytes_per_second: rate, .. } = host;
    let ip = |line: String| ip(lab, &line);
    ip(format!("netns add {namespace}"))?;
    ip(format!(
        "-n {network} link add name {name} mtu {MTU} type veth peer name {HOST_END} address {} mtu \
         {MTU} netns {namespace}",
        hardware_address(address)
    ))?;
    let delay = state.description.delay.map(|delay| delay.0);
    // A packet between two hosts leaves the `eth0` of exactly one host. So only `eth0` delays
    // packets, and the interface at the bridge does not.
    for line in discipline(HOST_END, *rate, delay) {
        tc(lab, &format!("-n {namespace} {line}"))?;
    }
    for line in discipline(name, *rate, None) {
        tc(lab, &format!("-n {network} {line}"))?;
    }
    ip(format!("-n {namespace} addr add {address}/{ADDRESS_BITS} dev {HOST_END}"))?;
    ip(format!("-n {namespace} link set lo up"))?;
    ip(format!("-n {namespace} link set {HOST_END} up"))?;
    ip(format!("-n {network} link set {name} master {BRIDGE} up")).map(drop)
}

/// Gives each host the hardware addresses of the other hosts. Clients get only the addresses of
/// servers and metadata hosts, because no client sends packets to another client.
pub(crate) fn make_neighbours(state: &State) -> Result<()> {
    let is_client = |host: &Host| host.role == Role::Client;
    for host in &state.hosts {
        let others = state
            .hosts
            .iter()
            .filter(|other| other.name != host.name && !(is_client(host) && is_client(other)));
        let line = |other: &Host| {
            let Host { address, .. } = other;
            let hardware = hardware_address(address);
            format!("neigh replace {address} lladdr {hardware} dev {HOST_END} nud permanent\n")
        };
        let lines: String = others.map(line).collect();
        ip_lines(&state.name, &host.namespace, &lines)?;
    }
    Ok(())
}

/// Returns the hardware address of the host with this IP address. The hardware address contains the
/// IP address, so it is unique in the lab. The first byte means that the address is locally
/// administered.
fn hardware_address(address: &str) -> String {
    let address: Ipv4Addr = address.parse().expect("each host has an IPv4 address");
    let [a, b, c, d] = address.octets();
    format!("02:00:{a:02x}:{b:02x}:{c:02x}:{d:02x}")
}

/// The traffic of a host since the host was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Number of bytes that the host has sent, including the headers of packets.
    pub sent_bytes: u64,
    /// Number of bytes that the host has received, including the headers of packets.
    pub received_bytes: u64,
}

/// Returns the traffic of a host since the host was created.
///
/// # Errors
/// Returns `Io` if the host does not exist.
pub fn traffic(state: &State, host: &Host) -> Result<Traffic> {
    let text = ip(&state.name, &format!("-n {} -s -j link show dev {HOST_END}", host.namespace))?;
    let value: Value = serde_json::from_str(&text).map_err(|error| {
        Error::new(
            ErrorCode::Io,
            format!(
                "cannot read the traffic of a host from \
                                                            `ip -j`: {error}"
            ),
        )
    })?;
    let bytes = |direction: &str| value[0]["stats64"][direction]["bytes"].as_u64();
    let name = &host.name;
    match (bytes("tx"), bytes("rx")) {
        (Some(sent_bytes), Some(received_bytes)) => Ok(Traffic { sent_bytes, received_bytes }),
        _ => Err(Error::new(
            ErrorCode::Io,
            format!(
                "cannot read the traffic of host {name}: the output \
                                                    of `ip -j` has no byte counts: {text}"
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_bucket_burst_is_a_few_milliseconds_of_the_rate() {
        assert_eq!(Bucket::of(50_000_000).burst_bytes, 250_000);
        assert_eq!(Bucket::of(125_000).burst_bytes, 18_028);
        assert_eq!(Bucket::of(12_500_000_000).burst_bytes, 62_500_000);
        let words = Bucket::of(50_000_000).words();
        assert_eq!(words, "tbf rate 50000000bps burst 250000 limit 67108864");
    }

    #[test]
    fn hardware_address_contains_the_address_of_the_host() {
        assert_eq!(hardware_address("198.18.1.20"), "02:00:c6:12:01:14");
    }

    #[test]
    fn links_have_the_configured_rate_and_delay() {
        let delay = Some(Duration::from_micros(1500));
        assert_eq!(discipline("eth0", None, None), Vec::<String>::new());
        assert_eq!(
            discipline("eth0", None, delay),
            ["qdisc add dev eth0 root handle 1: netem delay 1500us limit 100000"]
        );
        let both = discipline("eth0", Some(1_000_000), delay);
        assert!(both[0].starts_with("qdisc add dev eth0 root handle 1: tbf rate 1000000bps "));
        assert_eq!(
            both[1..],
            ["qdisc add dev eth0 parent 1:1 handle 10: netem delay 1500us limit 100000"]
        );
    }
}
