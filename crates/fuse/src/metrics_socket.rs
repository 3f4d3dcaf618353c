//! Serves the page with the metrics of a mount on a Unix socket: `mount-PID.sock` in a directory of
//! the host. An HTTP client reads the page (`curl --unix-socket`).
//!
//! A failure here never prevents a mount. If the mount cannot create the socket, it logs the
//! reason, and serves no page.

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

/// Serves the page on a socket in `directory` until the process ends, by a separate thread. Also
/// removes the sockets that killed mounts left in `directory`. `None` means that the mount cannot
/// create the socket.
pub(crate) fn start(directory: &Path, registry: Arc<Registry>) -> Option<MetricsSocket> {
    match try_start(directory, registry) {
        Ok(socket) => Some(socket),
        Err(error) => {
            tracing::warn!(
                "cannot serve the metrics of this mount in {}: {error}",
                directory.display()
            );
            None
        }
    }
}

fn try_start(directory: &Path, registry: Arc<Registry>) -> std::io::Result<MetricsSocket> {
    std::fs::create_dir_all(directory)?;
    remove_abandoned(directory);
    let path = directory.join(name_of(std::process::id()));
    let listener = UnixListener::bind(&path)?;
    let socket = MetricsSocket(path);
    skep_env::spawn_thread("skep-metrics".into(), None, move || {
        let served = skep_env::block_on(async move {
            let figures = Figures::new(registry);
            let listener = TcpListener::from_fd(OwnedFd::from(listener));
            http::serve(listener, Arc::clone(figures.registry())).await;
        });
        if let Err(error) = served {
            tracing::warn!("cannot serve the metrics of this mount any longer: {error}");
        }
    })?;
    Ok(socket)
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
        let socket = start(directory.path(), Registry::new()).unwrap();
        assert!(!dead.exists() && other.exists());
        let mut stream = UnixStream::connect(&socket.0).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        assert!(page.contains("\nprocess_resident_memory_bytes "), "{page}");
        let path = socket.0.clone();
        drop(socket);
        assert!(!path.exists());
    }
}
