//! Listening on an address that stays the same across restarts. [`crate::advertise`] chooses the
//! addresses that other nodes use.
//!
//! # Hazard: ephemeral ports
//! For outgoing connections, the kernel chooses free ports from its ephemeral range. While the
//! service is down, a client on the same host may try to connect to the service. The kernel may
//! then choose the service's port as the port of the client. The client's socket is then connected
//! to itself, and the service cannot restart because its port is in use. So the service chooses
//! free ports below the ephemeral range.

use skep_env::TcpListener;
use skep_store::atomic::replace_atomically;
use skep_types::{Error, ErrorCode, Result};
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

/// Name of the file in a service's directory that contains the address on which the service
/// listens.
pub const ADDRESS_FILE: &str = "address";

/// Name of the file in a service's directory that contains the address of its page with metrics.
pub const METRICS_ADDRESS_FILE: &str = "metrics-address";

/// Range from which the service chooses a free port. The range is below the kernel's default range
/// of ephemeral ports, and above the ports of well-known services.
const FREE_PORTS: std::ops::Range<u16> = 21_000..32_000;
/// Time to wait for a fixed address that is in use. After a process is killed, the kernel closes
/// its sockets with a short delay, because it must tear down the event loop first.
const BIND_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause between attempts to bind an address that is in use.
const BIND_PAUSE: Duration = Duration::from_millis(20);
/// Number of random ports that the service tries before it lets the kernel choose a port.
const FREE_PORT_TRIES: usize = 64;

/// The choice of the service if the address of its last start is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfTaken {
    /// Choose another port, because peers get the new address with the cluster map.
    Move,
    /// Fail, because the address is in the join tokens of other nodes.
    Fail,
}

/// Listens on `listen`. If the port in `listen` is 0, uses the port of the last start, or a free
/// port at the first start. Writes the address to the directory.
///
/// # Errors
/// `Io`, with the address and a hint on how to fix the problem, if the service cannot listen on the
/// address.
pub async fn listen(listen: &str, directory: &Path, if_taken: IfTaken) -> Result<TcpListener> {
    let file = directory.join(ADDRESS_FILE);
    let listener = match listen.rsplit_once(':') {
        Some((host, "0")) => listen_as_before(host, &file, if_taken).await?,
        _ => bind_patiently(listen).await?,
    };
    write_address(&listener, &file)?;
    Ok(listener)
}

/// Like [`listen`], but for the page with metrics. If the address is in use, chooses a free port,
/// because several services of one host may have the same address in their settings. Writes the
/// address to the file `metrics-address` in `directory`.
///
/// # Errors
/// `Io` if the service cannot listen on any port of the host name in `listen`.
pub async fn listen_for_page(listen: &str, directory: &Path) -> Result<TcpListener> {
    let file = directory.join(METRICS_ADDRESS_FILE);
    let listener = match TcpListener::bind(listen) {
        Ok(listener) if !listen.ends_with(":0") => listener,
        _ => {
            let host = listen.rsplit_once(':').map_or(listen, |(host, _)| host);
            listen_as_before(host, &file, IfTaken::Move).await?
        }
    };
    write_address(&listener, &file)?;
    Ok(listener)
}

fn write_address(listener: &TcpListener, file: &Path) -> Result<()> {
    let address = listener.local_address()?.to_string();
    if read_address(file).as_ref() != Some(&address) {
        // Write the address durably, because tokens contain management's address. After a power
        // loss the other nodes try only that address.
        replace_atomically(file, format!("{address}\n").as_bytes())?;
    }
    Ok(())
}

/// Reads the address from an address file. Returns `None` if the file is missing or contains no
/// address.
pub fn read_address(file: &Path) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    Some(text.trim().to_owned()).filter(|text| text.contains(':'))
}

/// Listens on the port that the address file `file` contains, or else on a free port.
async fn listen_as_before(host: &str, file: &Path, if_taken: IfTaken) -> Result<TcpListener> {
    let before = read_address(file).and_then(|address| {
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
                        "{}. This service used the address at its last start, and the tokens of \
                         other nodes contain this address: end the other program, or remove {} and \
                         give all nodes a new token",
                        error.context(),
                        file.display()
                    ),
                ));
            }
            Err(error) => tracing::warn!("{}; this service chooses another port", error.context()),
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

/// Binds an address. If the address is in use, retries for up to `BIND_TIMEOUT`.
async fn bind_patiently(address: &str) -> Result<TcpListener> {
    let deadline = skep_env::now() + BIND_TIMEOUT;
    // Retry: while the address is in use, the service tries again to bind it every `BIND_PAUSE`,
    // for `BIND_TIMEOUT`.
    while skep_env::now() < deadline {
        match TcpListener::bind(address) {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == ErrorKind::AddrInUse => skep_env::sleep(BIND_PAUSE).await,
            Err(_) => break,
        }
    }
    bind(address)
}

fn bind(address: &str) -> Result<TcpListener> {
    TcpListener::bind(address).map_err(|error| {
        let problem = match error.kind() {
            ErrorKind::AddrInUse => {
                "another program listens on this address already; choose another `node.listen`"
                    .into()
            }
            ErrorKind::AddrNotAvailable => {
                "this host does not have this address; correct `node.listen`".into()
            }
            ErrorKind::PermissionDenied => {
                "ports below 1024 need root; choose another `node.listen`".into()
            }
            _ => error.to_string(),
        };
        Error::new(ErrorCode::Io, format!("cannot listen on {address}: {problem}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_of_the_last_start_is_used_again_if_free() {
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
    fn listen_retries_an_address_in_use_before_it_fails() {
        let directory = tempfile::tempdir().unwrap();
        skep_env::block_on(async move {
            let first = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = first.local_address().unwrap().to_string();
            let error = listen(&address, directory.path(), IfTaken::Move).await.unwrap_err();
            assert!(error.context().contains(&address), "{error}");
            assert!(error.context().contains("`node.listen`"), "{error}");
            skep_env::spawn(async move {
                skep_env::sleep(5 * BIND_PAUSE).await;
                drop(first);
            })
            .detach();
            listen(&address, directory.path(), IfTaken::Move).await.unwrap();
        })
        .unwrap();
    }
}
