//! Notifies the service manager of the service's state (`sd_notify(3)`), by datagrams to the socket
//! in the environment variable `NOTIFY_SOCKET`. Sends nothing if the variable is not set.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Notifies the service manager that the service is ready for requests.
pub fn ready() {
    // Log a failure only as a warning, because the service works without the notification. A
    // manager without a notification ends the start after its own timeout.
    if let Err(error) = send(b"READY=1") {
        tracing::warn!(
            "cannot notify the service manager that this service is ready: {error}; the service \
             works, but under systemd the unit of the service stays in the state `activating`"
        );
    }
}

/// Notifies the service manager that the service is ending.
pub fn stopping() {
    // Log a failure only at the level debug, because a manager that waited only for the start may
    // have exited already.
    if let Err(error) = send(b"STOPPING=1") {
        tracing::debug!("cannot notify the service manager that this service is ending: {error:#}");
    }
}

fn send(message: &[u8]) -> std::io::Result<()> {
    match std::env::var_os("NOTIFY_SOCKET") {
        Some(name) => send_to(name.as_bytes(), message),
        None => Ok(()),
    }
}

fn send_to(name: &[u8], message: &[u8]) -> std::io::Result<()> {
    let address = match name.strip_prefix(b"@") {
        Some(rest) => SocketAddr::from_abstract_name(rest)?,
        None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(name))?,
    };
    UnixDatagram::unbound()?.send_to_addr(message, &address).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systemd_is_notified_at_paths_and_abstract_sockets() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let at_path = UnixDatagram::bind(&path).unwrap();
        let name = format!("skep-test-{}", skep_env::random_u64());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let abstracted = UnixDatagram::bind_addr(&address).unwrap();
        send_to(path.as_os_str().as_bytes(), b"READY=1").unwrap();
        send_to(format!("@{name}").as_bytes(), b"READY=1").unwrap();
        for socket in [at_path, abstracted] {
            let mut buffer = [0; 16];
            assert_eq!(socket.recv(&mut buffer).unwrap(), 7);
            assert_eq!(&buffer[..7], b"READY=1");
        }
        assert!(send_to(b"/nowhere/at/all", b"x").is_err());
    }
}
