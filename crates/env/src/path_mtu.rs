//! The maximum size of packets (MTU) that arrive on the path from this host to another host.
//!
//! [`probe_path`] sends datagrams that routers must not fragment, to a port on which no program
//! listens. The kernel of the other host reports such a port as unreachable. So each report shows
//! that a packet has arrived. A probe needs no program on the other host and no privilege.

use crate::network::host_addresses;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Time limit for the report of one packet. Round trips between sites take up to 200 ms.
const REPORT_TIME: Duration = Duration::from_millis(250);
/// Number of packets of one size. One packet may be lost by chance.
const ATTEMPTS: u32 = 3;
/// Sizes to try if packets of the interface's MTU do not arrive: common MTUs of interfaces, of
/// tunnels and of dial-up lines. Kernels limit the number of their reports to about one per second
/// and host, after a burst of six. So a search for the exact size would take long.
const COMMON_MTUS: [u32; 7] = [9000, 4096, 1500, 1492, 1450, 1400, 1280];
/// Maximum size of an IPv4 packet.
const MAX_PACKET: u32 = 65_535;
/// Size of the header of UDP.
const UDP_HEADER: u32 = 8;

/// The result of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathMtu {
    /// MTU of the interface through which this host sends to the other host, in bytes.
    pub interface: u32,
    /// Size of the largest packet that arrives, as far as the probe has found out, in bytes. This
    /// size is at most `interface`. `None` means that the other host has reported no packet at all,
    /// for example because a firewall drops all packets.
    pub arriving: Option<u32>,
    /// Whether a router has reported that a packet is too large. `false` means that larger packets
    /// are lost without a report.
    pub is_reported: bool,
}

/// The result of the packets of one size.
enum Fate {
    Arrived,
    /// A router has reported this smaller MTU.
    TooLarge(u32),
    Lost,
}

/// Finds out whether packets of the MTU of this host's interface arrive at another host. The port
/// of `peer` must be a port at which no program of the other host listens for datagrams. Returns
/// `None` if no interface for other hosts leads to the address, such as for a loopback address.
///
/// Blocks for one round trip if the packets arrive, and for up to 6 s if the packets are lost.
///
/// # Errors
/// Returns the errors of sockets, such as a missing route.
pub fn probe_path(peer: SocketAddr) -> io::Result<Option<PathMtu>> {
    let local = connect(peer)?.local_addr()?.ip();
    let Some(found) = host_addresses()?.into_iter().find(|it| it.address == local) else {
        return Ok(None);
    };
    let interface = interface_mtu(&found.interface)?;
    let result = |arriving, is_reported| Ok(Some(PathMtu { interface, arriving, is_reported }));
    match fate(peer, interface.min(MAX_PACKET))? {
        Fate::Arrived => return result(Some(interface), false),
        Fate::TooLarge(reported) => return result(Some(reported), true),
        Fate::Lost => {}
    }
    // The standards of IP require every host to accept packets of this size in bytes.
    let least = if peer.is_ipv4() { 576 } else { 1280 };
    if interface <= least || !matches!(fate(peer, least)?, Fate::Arrived) {
        return result(None, false);
    }
    for size in COMMON_MTUS.into_iter().filter(|size| (least + 1..interface).contains(size)) {
        match fate(peer, size)? {
            Fate::Arrived => return result(Some(size), false),
            Fate::TooLarge(reported) => return result(Some(reported), true),
            Fate::Lost => {}
        }
    }
    result(Some(least), false)
}

/// Creates a socket that receives reports only about its own packets.
fn connect(peer: SocketAddr) -> io::Result<UdpSocket> {
    let any = match peer {
        SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(peer)?;
    Ok(socket)
}

/// Sends packets of `size` bytes, including their headers, until a host reports one of these
/// packets. Each size has its own socket, so a late report cannot be counted for another size.
fn fate(peer: SocketAddr, size: u32) -> io::Result<Fate> {
    let socket = connect(peer)?;
    let (level, discover, mtu, probe, header) = match peer {
        SocketAddr::V4(_) => {
            let probe = libc::IP_PMTUDISC_PROBE;
            (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_MTU, probe, 20 + UDP_HEADER)
        }
        SocketAddr::V6(_) => {
            let probe = libc::IPV6_PMTUDISC_PROBE;
            (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_MTU, probe, 40 + UDP_HEADER)
        }
    };
    // In this mode, no router may fragment the packets, and the kernel ignores the path MTU that
    // the kernel has learned before.
    set_option(&socket, level, discover, probe)?;
    socket.set_read_timeout(Some(REPORT_TIME))?;
    let payload = vec![0; size.saturating_sub(header) as usize];
    for _ in 0..ATTEMPTS {
        let sent = socket.send(&payload);
        let Err(error) = sent.and_then(|_| socket.recv(&mut [0; 64])) else {
            return Ok(Fate::Arrived);
        };
        match error.kind() {
            io::ErrorKind::ConnectionRefused => return Ok(Fate::Arrived),
            // The kernel reports the end of the time limit as `WouldBlock`.
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => {}
            _ if error.raw_os_error() == Some(libc::EMSGSIZE) => {
                let reported = u32::try_from(get_option(&socket, level, mtu)?).unwrap_or(0);
                return Ok(Fate::TooLarge(reported.min(size)));
            }
            _ => return Ok(Fate::Lost),
        }
    }
    Ok(Fate::Lost)
}

fn set_option(socket: &UdpSocket, level: i32, option: i32, value: i32) -> io::Result<()> {
    let len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the value is an int, as the options of this module require.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), len)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn get_option(socket: &UdpSocket, level: i32, option: i32) -> io::Result<i32> {
    let mut value = 0_i32;
    let mut len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the value is an int, as the options of this module require, and `len` is its size.
    let result = unsafe {
        let to = (&raw mut value).cast();
        libc::getsockopt(socket.as_raw_fd(), level, option, to, &raw mut len)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

/// Returns the MTU of an interface in the network namespace of this process.
fn interface_mtu(name: &str) -> io::Result<u32> {
    /// `SIOCGIFMTU` of `linux/sockios.h`.
    const SIOCGIFMTU: libc::Ioctl = 0x8921;
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    // SAFETY: all-zero is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero, so the name is terminated.
    let places = request.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1);
    for (place, byte) in places.zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    // SAFETY: the request is valid for reads and writes.
    if unsafe { libc::ioctl(socket.as_raw_fd(), SIOCGIFMTU, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has written this field, and every value is valid.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    u32::try_from(mtu).map_err(|_| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_interface_has_its_usual_mtu() {
        let mtu = interface_mtu("lo").unwrap();
        assert!(mtu >= 1500, "{mtu}");
        assert!(interface_mtu("no-such-if").is_err());
    }

    #[test]
    fn loopback_addresses_are_not_probed() {
        for peer in ["127.0.0.1:9", "[::1]:9"] {
            let peer: SocketAddr = peer.parse().unwrap();
            // A host may have no IPv6.
            let Ok(probed) = probe_path(peer) else { continue };
            assert_eq!(probed, None);
        }
    }

    #[test]
    fn packet_to_a_closed_port_of_this_host_arrives() {
        let taken = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        drop(taken);
        let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        assert!(matches!(fate(peer, 1500).unwrap(), Fate::Arrived));
        assert!(matches!(fate(peer, MAX_PACKET).unwrap(), Fate::Arrived));
    }
}
