//! Chooses the addresses at which other nodes reach a service. The addresses come from the
//! settings, or from the network interfaces of this host.
//!
//! # Hazard: loopback
//! On each host, a loopback address means that host itself. So a service advertises a loopback
//! address only in two cases: the settings name the address, or the join token has a loopback
//! address of management.

use skep_env::{HostAddress, TcpListener, host_addresses};
use skep_types::{Error, ErrorCode, Result};
use std::net::{IpAddr, SocketAddr, UdpSocket};

/// The addresses of a service, and the other addresses of its host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Advertised {
    /// The addresses for other nodes, as `host:port`, the best address first. The list is never
    /// empty.
    pub addresses: Vec<String>,
    /// Addresses of this host that the service does not advertise. Empty if the settings list the
    /// addresses to advertise.
    pub unused: Vec<HostAddress>,
}

/// Appends `port` to an address without a port. An IPv6 address without brackets counts as an
/// address without a port.
pub fn with_port(address: &str, port: u16) -> String {
    if address.parse::<std::net::Ipv6Addr>().is_ok() {
        return format!("[{address}]:{port}");
    }
    let is_bracketed = address.starts_with('[') && address.ends_with(']');
    match address.rsplit_once(':') {
        Some(_) if !is_bracketed => address.to_owned(),
        _ => format!("{address}:{port}"),
    }
}

/// Returns the addresses at which other nodes reach a *server*, whose listener is `listener`:
///
/// - If `advertise` is not empty, the addresses in `advertise`. An address without a port gets the
///   listener's port.
/// - For a listener on all addresses, this host's address on the route to `management`. If the
///   kernel finds no route, or the name of management currently has no address, all addresses of
///   this host.
/// - Otherwise, the address on which the listener listens.
///
/// # Errors
/// - `Io` if the kernel cannot report the listener's address.
/// - `Configuration` if this host has no address that another host can reach.
pub fn of_server(
    listener: &TcpListener,
    advertise: &[String],
    management: &str,
) -> Result<Vec<String>> {
    let bound = listener.local_address()?;
    if let Some(fixed) = fixed(bound, advertise) {
        return Ok(fixed);
    }
    let with_port = |ip| SocketAddr::new(ip, bound.port()).to_string();
    if let Some(own) = address_towards(management).filter(|ip| serves(bound, *ip)) {
        return Ok(vec![with_port(own)]);
    }
    let all: Vec<_> = candidates(bound)?.into_iter().map(|it| with_port(it.address)).collect();
    match all.is_empty() {
        true => Err(no_address()),
        false => Ok(all),
    }
}

/// Returns the addresses at which other nodes reach *management*, whose listener is `listener`.
/// These addresses become part of the join token:
///
/// - If `advertise` is not empty, the addresses in `advertise`. An address without a port gets the
///   listener's port.
/// - For a listener on all addresses, the addresses in `former` that this host still has. If this
///   host has no address in `former`, its only address, or its address on the default route.
/// - Otherwise, the address on which the listener listens.
///
/// # Errors
/// - `Io` if the kernel cannot report the listener's address.
/// - `Configuration`, with a list of this host's addresses, if management cannot choose an address
///   from this list.
pub fn of_management(
    listener: &TcpListener,
    advertise: &[String],
    former: &[String],
) -> Result<Advertised> {
    let bound = listener.local_address()?;
    if let Some(addresses) = fixed(bound, advertise) {
        return Ok(Advertised { addresses, unused: Vec::new() });
    }
    choose(&candidates(bound)?, address_towards(DEFAULT_ROUTE), bound.port(), former)
}

/// An address that is reserved for documentation (192.0.2.0/24), so only the default route leads to
/// it.
const DEFAULT_ROUTE: &str = "192.0.2.1:9";

fn choose(
    candidates: &[HostAddress],
    on_default_route: Option<IpAddr>,
    port: u16,
    former: &[String],
) -> Result<Advertised> {
    let text = |it: &HostAddress| SocketAddr::new(it.address, port).to_string();
    let kept: Vec<_> = candidates.iter().filter(|it| former.contains(&text(it))).collect();
    let chosen = match (&kept[..], candidates) {
        ([_, ..], _) => kept,
        ([], []) => return Err(no_address()),
        ([], [only]) => vec![only],
        ([], several) => {
            let is_default = |it: &&HostAddress| Some(it.address) == on_default_route;
            match several.iter().find(is_default) {
                Some(default) => vec![default],
                None => return Err(ambiguous(several)),
            }
        }
    };
    let unused = candidates.iter().filter(|it| !chosen.contains(it)).cloned().collect();
    Ok(Advertised { addresses: chosen.into_iter().map(text).collect(), unused })
}

/// Returns the addresses that follow from the settings alone. `None` means that the addresses
/// depend on the network interfaces of this host.
fn fixed(bound: SocketAddr, advertise: &[String]) -> Option<Vec<String>> {
    if !advertise.is_empty() {
        return Some(advertise.iter().map(|it| with_port(it, bound.port())).collect());
    }
    (!bound.ip().is_unspecified()).then(|| vec![bound.to_string()])
}

/// Returns the addresses of this host at which a listener on all addresses accepts connections.
fn candidates(bound: SocketAddr) -> Result<Vec<HostAddress>> {
    let mut found = host_addresses()?;
    found.retain(|it| serves(bound, it.address));
    Ok(found)
}

/// Whether a listener on all IPv4 addresses or on all IPv6 addresses (`bound`) accepts connections
/// to `address`. A listener on all IPv6 addresses also accepts IPv4.
fn serves(bound: SocketAddr, address: IpAddr) -> bool {
    bound.is_ipv6() || address.is_ipv4()
}

fn no_address() -> Error {
    Error::new(
        ErrorCode::Configuration,
        "cannot choose the address for other hosts: this host has only loopback addresses; \
         configure its network, or name an address with --advertise ADDRESS (for a cluster on this \
         host alone: --listen 127.0.0.1:PORT)",
    )
}

fn ambiguous(several: &[HostAddress]) -> Error {
    Error::new(
        ErrorCode::Configuration,
        format!(
            "cannot choose the address for other hosts: this host has the addresses {}, and no \
             address is on a default route; name one or several addresses, the best address first, \
             with --advertise ADDRESS",
            list(several)
        ),
    )
}

/// Formats addresses with their interfaces, as text for people.
pub fn list(addresses: &[HostAddress]) -> String {
    let texts = addresses.iter().map(|it| format!("{} ({})", it.address, it.interface));
    texts.collect::<Vec<_>>().join(", ")
}

/// Returns this host's address on the route to `target` (`host:port`). Sends no packet.
fn address_towards(target: &str) -> Option<IpAddr> {
    use std::net::ToSocketAddrs;
    let target = target.to_socket_addrs().ok()?.next()?;
    let any: IpAddr = match target.is_ipv4() {
        true => [0; 4].into(),
        false => [0_u16; 8].into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(target).ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_without_a_port_gets_the_port_of_the_listener() {
        for (address, expected) in [
            ("a.example", "a.example:7400"),
            ("b.example:7", "b.example:7"),
            ("10.0.0.1", "10.0.0.1:7400"),
            ("::1", "[::1]:7400"),
            ("[::1]", "[::1]:7400"),
            ("[::1]:9", "[::1]:9"),
        ] {
            assert_eq!(with_port(address, 7400), expected);
        }
    }

    #[test]
    fn server_advertises_its_address_on_the_route_to_management() {
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = listener.local_address().unwrap().port();
        let texts = ["a.example", "b.example:7"].map(String::from);
        assert_eq!(
            of_server(&listener, &texts, "127.0.0.1:9").unwrap(),
            [format!("a.example:{port}"), "b.example:7".into()]
        );
        let own = of_server(&listener, &[], "127.0.0.1:9").unwrap();
        assert_eq!(own, [format!("127.0.0.1:{port}")]);
        // The function returns no loopback address if the name has no address or the route is
        // missing.
        let own = of_server(&listener, &[], "no-such-host.invalid:9").unwrap_or_default();
        assert!(own.iter().all(|it| !it.starts_with("127.")), "{own:?}");
    }

    fn host(addresses: &[&str]) -> Vec<HostAddress> {
        let address =
            |text: &&str| HostAddress { interface: "eth0".into(), address: text.parse().unwrap() };
        addresses.iter().map(address).collect()
    }

    #[test]
    fn management_advertises_its_only_or_default_route_address() {
        let choose = |addresses: &[&str], default: Option<&str>, former: &[&str]| {
            let former: Vec<_> = former.iter().map(|it| (*it).to_owned()).collect();
            super::choose(&host(addresses), default.map(|it| it.parse().unwrap()), 7400, &former)
        };
        let only = choose(&["10.0.0.1"], None, &[]).unwrap();
        assert_eq!((&only.addresses[..], only.unused.len()), (&["10.0.0.1:7400".into()][..], 0));
        let two = ["10.0.0.1", "10.1.0.1"];
        let default = choose(&two, Some("10.1.0.1"), &[]).unwrap();
        assert_eq!(default.addresses, ["10.1.0.1:7400"]);
        assert_eq!(default.unused, host(&two[..1]));
        // A restart keeps the addresses in the token, even if the default route has changed.
        let kept = choose(&two, Some("10.1.0.1"), &["10.0.0.1:7400"]).unwrap();
        assert_eq!(kept.addresses, ["10.0.0.1:7400"]);
        let v6 = choose(&["2001:db8::1"], None, &["unknown:0"]).unwrap();
        assert_eq!(v6.addresses, ["[2001:db8::1]:7400"]);
    }

    #[test]
    fn error_lists_the_addresses_if_management_cannot_choose() {
        let none = choose(&[], None, 7400, &[]).unwrap_err();
        assert!(none.context().contains("only loopback addresses"), "{none}");
        let several = choose(&host(&["10.0.0.1", "10.1.0.1"]), None, 7400, &[]).unwrap_err();
        for words in ["10.0.0.1 (eth0), 10.1.0.1 (eth0)", "--advertise"] {
            assert!(several.context().contains(words), "{several}");
        }
    }
}
