//! The option `--peer` of `skep tune check`: probes the paths from this host to other hosts.

use crate::output::warn;
use skep_tune::check::Finding;
use skep_tune::path_mtu::{ProbedPath, finding};
use skep_types::{Error, ErrorCode, Result};
use std::net::ToSocketAddrs;

/// The port to which the probe sends datagrams. Storage services listen at this port for
/// connections of TCP only, so no program of the other host receives the datagrams.
const PORT: u16 = 7420;

/// Probes the path to each of these hosts, and returns a finding for each host that answers. Prints
/// a warning about each other host. Takes up to 6 s for each host.
///
/// # Errors
/// - `NotFound` if a name has no address.
/// - `InvalidArgument` if an address is a loopback address.
/// - An error of the network, such as a missing route.
pub(super) fn findings(peers: &[String]) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for peer in peers {
        findings.extend(probe(peer)?);
    }
    Ok(findings)
}

fn probe(peer: &str) -> Result<Option<Finding>> {
    let failed = |code: ErrorCode, fact: String| {
        Error::new(code, format!("cannot probe the path to {peer}: {fact}"))
    };
    let addresses = (peer, PORT).to_socket_addrs();
    let mut addresses = addresses.map_err(|it| failed(ErrorCode::NotFound, it.to_string()))?;
    let missing = || failed(ErrorCode::NotFound, "the name has no address".to_owned());
    let address = addresses.next().ok_or_else(missing)?;
    let within = |error: std::io::Error| {
        Error::from(error).within(format!("cannot probe the path to {peer}"))
    };
    let Some(found) = skep_env::probe_path(address).map_err(within)? else {
        let fact = "the address leads to this host only; name another host of the cluster";
        return Err(failed(ErrorCode::InvalidArgument, fact.to_owned()));
    };
    let Some(arriving) = found.arriving else {
        warn(&format!(
            "cannot find out the MTU of the path to {peer}: the host answers no test packets; \
             check that the host is up, and that no firewall drops datagrams to port {PORT}"
        ));
        return Ok(None);
    };
    Ok(Some(finding(&ProbedPath {
        peer: peer.to_owned(),
        interface: found.interface,
        arriving,
        is_reported: found.is_reported,
    })))
}
