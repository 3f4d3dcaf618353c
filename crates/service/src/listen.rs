//! Listening on an address that stays the same over restarts.
//!
//! # Hazard: ephemeral ports
//! A port that the kernel chooses lies in its range for outgoing connections. While the service is
//! down, a client that tries to reach it over loopback may be given that very port as its own,
//! connect to itself, and keep the service from coming back. So free ports are chosen below that
//! range.

use skep_env::TcpListener;
use skep_store::atomic::replace_atomically;
use skep_types::{Error, ErrorCode, Result};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;

/// File in a service's directory that holds the address that it listens on.
pub const ADDRESS_FILE: &str = "address";

/// Ports among which a free one is chosen: below the kernel's usual range for outgoing connections,
/// above the ports of well-known services.
const FREE_PORTS: std::ops::Range<u16> = 21_000..32_000;
/// How long a fixed address is waited for: the kernel lets go of the sockets of a killed process,
/// whose event loop it has to take down, only a moment after the process is gone.
const PATIENCE: Duration = Duration::from_secs(2);
/// Pause between attempts.
const PAUSE: Duration = Duration::from_millis(20);
/// How many ports are tried before the choice is left to the kernel.
const FREE_PORT_TRIES: usize = 64;

/// What to do if the address of before is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfTaken {
    /// Choose another: peers learn it from the cluster map.
    Move,
    /// Fail: others know the address from their tokens.
    Fail,
}

/// Listens on `listen`. With port 0, on the address of the last start, or on a free port; the
/// address is then kept in the directory.
///
/// # Errors
/// `Io` naming the address, and what to do, when it can't be listened on.
pub async fn listen(listen: &str, directory: &Path, if_taken: IfTaken) -> Result<TcpListener> {
    let listener = match listen.rsplit_once(':') {
        Some((host, "0")) => listen_as_before(host, directory, if_taken).await?,
        _ => bind_patiently(listen).await?,
    };
    let address = listener.local_address()?.to_string();
    let file = directory.join(ADDRESS_FILE);
    if read_address(&file).as_ref() != Some(&address) {
        // Durably: tokens hold management's address, and after a power loss the other nodes look
        // for it there and nowhere else.
        replace_atomically(&file, format!("{address}\n").as_bytes())?;
    }
    Ok(listener)
}

/// The address in an address file.
pub fn read_address(file: &Path) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    Some(text.trim().to_owned()).filter(|text| text.contains(':'))
}

async fn listen_as_before(host: &str, directory: &Path, if_taken: IfTaken) -> Result<TcpListener> {
    let file = directory.join(ADDRESS_FILE);
    let before = read_address(&file).and_then(|address| {
        let port = address.rsplit_once(':')?.1.parse::<u16>().ok()?;
        (port != 0).then_some(port)
    });
    if let Some(port) = before {
        match bind_patiently(&format!("{host}:{port}")).await {
            Ok(listener) => return Ok(listener),
            Err(error) if if_taken == IfTaken::Fail => {
                return Err(Error::new(
                    error.code(),
                    format!(
                        "{}. It is the address of the last start, which other nodes have in their \
                         tokens: end the other program, or remove {} and give all nodes a new \
                         token",
                        error.context(),
                        file.display()
                    ),
                ));
            }
            Err(error) => tracing::warn!("{}; choosing another port", error.context()),
        }
    }
    let ports = u64::from(FREE_PORTS.end - FREE_PORTS.start);
    for _ in 0..FREE_PORT_TRIES {
        let port = FREE_PORTS.start + (skep_env::random_u64() % ports) as u16;
        match TcpListener::bind(&format!("{host}:{port}")) {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            Err(_) => break,
        }
    }
    bind(&format!("{host}:0"))
}

/// Waits for a moment if the address is in use.
async fn bind_patiently(address: &str) -> Result<TcpListener> {
    let deadline = skep_env::now() + PATIENCE;
    while skep_env::now() < deadline {
        match TcpListener::bind(address) {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == ErrorKind::AddrInUse => skep_env::sleep(PAUSE).await,
            Err(_) => break,
        }
    }
    bind(address)
}

fn bind(address: &str) -> Result<TcpListener> {
    TcpListener::bind(address).map_err(|error| {
        let what = match error.kind() {
            ErrorKind::AddrInUse => {
                "another program listens there already; choose another `node.listen`".into()
            }
            ErrorKind::AddrNotAvailable => {
                "this host doesn't have that address; correct `node.listen`".into()
            }
            ErrorKind::PermissionDenied => {
                "ports below 1024 need root; choose another `node.listen`".into()
            }
            _ => error.to_string(),
        };
        Error::new(ErrorCode::Io, format!("cannot listen on {address}: {what}"))
    })
}

/// The addresses under which others reach a listener: those that are set (a missing port is the
/// listener's), or the one that it listens on; in place of "all addresses", this host's own on the
/// way to `towards`.
///
/// # Errors
/// `Io` if the listener has no address.
pub fn advertised(
    listener: &TcpListener,
    advertise: &[String],
    towards: Option<&str>,
) -> Result<Vec<String>> {
    let bound = listener.local_address()?;
    if !advertise.is_empty() {
        let port = bound.port();
        let complete = |address: &String| match address.rsplit_once(':') {
            Some((_, digits)) if digits.parse::<u16>().is_ok() && !is_bare_v6(address) => {
                address.clone()
            }
            _ if is_bare_v6(address) => format!("[{address}]:{port}"),
            _ => format!("{address}:{port}"),
        };
        return Ok(advertise.iter().map(complete).collect());
    }
    if !bound.ip().is_unspecified() {
        return Ok(vec![bound.to_string()]);
    }
    let own = own_address(towards).unwrap_or(IpAddr::from([127, 0, 0, 1]));
    Ok(vec![SocketAddr::new(own, bound.port()).to_string()])
}

fn is_bare_v6(address: &str) -> bool {
    address.parse::<std::net::Ipv6Addr>().is_ok()
}

/// This host's address on the way to another; no packet is sent for it.
fn own_address(towards: Option<&str>) -> Option<IpAddr> {
    // 192.0.2.1 is reserved for examples: the way to it is the default route.
    let target = towards.unwrap_or("192.0.2.1:9");
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect(target).ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_of_before_is_used_again_if_it_is_free() {
        let directory = tempfile::tempdir().unwrap();
        skep_env::block_on(async move {
            let open = |if_taken| listen("127.0.0.1:0", directory.path(), if_taken);
            let first = open(IfTaken::Fail).await.unwrap();
            let address = first.local_address().unwrap();
            assert_eq!(
                read_address(&directory.path().join(ADDRESS_FILE)),
                Some(address.to_string())
            );
            let error = open(IfTaken::Fail).await.unwrap_err();
            assert!(error.context().contains("end the other program"), "{error}");
            let moved = open(IfTaken::Move).await.unwrap();
            let moved_address = moved.local_address().unwrap();
            assert_ne!(moved_address, address);
            drop((first, moved));
            let again = open(IfTaken::Fail).await.unwrap();
            assert_eq!(again.local_address().unwrap(), moved_address);
        })
        .unwrap();
    }

    #[test]
    fn an_address_in_use_is_refused_with_the_way_out_or_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        skep_env::block_on(async move {
            let first = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = first.local_address().unwrap().to_string();
            let error = listen(&address, directory.path(), IfTaken::Move).await.unwrap_err();
            assert!(error.context().contains(&address), "{error}");
            assert!(error.context().contains("`node.listen`"), "{error}");
            skep_env::spawn(async move {
                skep_env::sleep(5 * PAUSE).await;
                drop(first);
            })
            .detach();
            listen(&address, directory.path(), IfTaken::Move).await.unwrap();
        })
        .unwrap();
    }

    #[test]
    fn advertised_addresses_are_complete() {
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = listener.local_address().unwrap().port();
        let texts = ["a.example", "b.example:7", "::1", "[::1]:9"].map(String::from);
        assert_eq!(
            advertised(&listener, &texts, None).unwrap(),
            [
                format!("a.example:{port}"),
                "b.example:7".into(),
                format!("[::1]:{port}"),
                "[::1]:9".into()
            ]
        );
        let own = advertised(&listener, &[], Some("127.0.0.1:9")).unwrap();
        assert_eq!(own, [format!("127.0.0.1:{port}")]);
    }
}
