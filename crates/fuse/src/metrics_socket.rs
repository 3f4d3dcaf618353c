//! Serves the page with the metrics of a mount on a Unix socket: `mount-PID.sock` in a directory of
//! the host. An HTTP client reads the page (`curl --unix-socket`). If the user names an address,
//! the page is also served there, for Prometheus on other hosts.
//!
//! A failure here never prevents a mount. If the mount cannot listen, it logs the reason, and
//! serves no page.

use skep_env::TcpListener;
use skep_exporter::{http, message::Figures};
use skep_metrics::Registry;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The socket on which a running mount serves its metrics. Dropping the value removes the socket.
#[derive(Debug)]
pub(crate) struct MetricsSocket(PathBuf);

impl Drop for MetricsSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Starts a thread that serves the page on a socket in `directory` and at `address` (`host:port`)
/// until the process ends. Also removes the sockets that killed mounts left in `directory`. Returns
/// `None` if the mount has no socket.
pub(crate) fn start(
    directory: Option<&Path>,
    address: Option<&str>,
    registry: Arc<Registry>,
) -> Option<MetricsSocket> {
    let (mut listeners, mut socket) = (Vec::new(), None);
    if let Some(directory) = directory {
        match listen_in(directory) {
            Ok((listener, own)) => {
                listeners.push(listener);
                socket = Some(own);
            }
            Err(error) => tracing::warn!(
                "this mount has no page of metrics, since it cannot create its socket in {}: \
                 {error}; files of the mount are not affected",
                directory.display()
            ),
        }
    }
    if let Some(address) = address {
        match std::net::TcpListener::bind(address) {
            Ok(listener) => listeners.push(listener.into()),
            Err(error) => tracing::warn!(
                "cannot serve the metrics of this mount at {address}: {error}; name a free address \
                 of this host with the mount option metrics"
            ),
        }
    }
    if listeners.is_empty() {
        return None;
    }
    if let Err(error) = serve(listeners, registry) {
        tracing::warn!(
            "this mount has no page of metrics: {error}; files of the mount are not affected"
        );
        return None;
    }
    socket
}

/// Creates the socket in `directory`, and listens on it.
fn listen_in(directory: &Path) -> std::io::Result<(OwnedFd, MetricsSocket)> {
    std::fs::create_dir_all(directory)?;
    remove_abandoned(directory);
    let path = directory.join(name_of(std::process::id()));
    let listener = UnixListener::bind(&path)?;
    Ok((listener.into(), MetricsSocket(path)))
}

/// Starts the thread that serves the page on all listening sockets.
fn serve(listeners: Vec<OwnedFd>, registry: Arc<Registry>) -> std::io::Result<()> {
    skep_env::spawn_thread("skep-metrics".into(), None, move || {
        let served = skep_env::block_on(async move {
            let figures = Figures::new(registry);
            let serve = |listener| {
                let registry = Arc::clone(figures.registry());
                skep_env::spawn(http::serve(TcpListener::from_fd(listener), registry))
            };
            let serving: Vec<_> = listeners.into_iter().map(serve).collect();
            for task in serving {
                task.await;
            }
        });
        if let Err(error) = served {
            tracing::warn!(
                "this mount has no page of metrics any more: {error}; files of the mount are not \
                 affected; to get the page again, unmount and mount again"
            );
        }
    })?;
    Ok(())
}

fn name_of(pid: u32) -> String {
    format!("mount-{pid}.sock")
}

/// Removes the sockets of processes that no longer exist.
fn remove_abandoned(directory: &Path) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name().into_string().unwrap_or_default();
        let pid = name.strip_prefix("mount-").and_then(|rest| rest.strip_suffix(".sock"));
        let is_own = pid == Some(&std::process::id().to_string());
        if pid.is_some_and(|pid| is_own || !Path::new("/proc").join(pid).exists()) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    fn page(mut stream: impl Read + Write) -> String {
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        page
    }

    #[test]
    fn metrics_are_served_and_stale_sockets_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let dead = directory.path().join(name_of(child.id()));
        child.wait().unwrap();
        let other = directory.path().join("other.sock");
        for path in [&dead, &other] {
            std::fs::write(path, "").unwrap();
        }
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap().to_string();
        // If the address is in use, the mount serves its metrics on the socket nevertheless.
        let socket = start(Some(directory.path()), Some(&address), Registry::new()).unwrap();
        assert!(!dead.exists() && other.exists());
        let page = page(UnixStream::connect(&socket.0).unwrap());
        assert!(page.contains("\nprocess_resident_memory_bytes "), "{page}");
        let path = socket.0.clone();
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn metrics_are_served_at_a_named_address() {
        // The port of this listener is free again after the drop.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap().to_string();
        drop(free);
        assert!(start(None, Some(&address), Registry::new()).is_none(), "no socket");
        let page = page(std::net::TcpStream::connect(&address).unwrap());
        assert!(page.contains("\nprocess_resident_memory_bytes "), "{page}");
    }
}
