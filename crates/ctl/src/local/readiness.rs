//! Waits until another process reports that it is ready. The report has the form of `sd_notify(3)`.

use skep_types::{Error, ErrorCode, Result};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::Command;
use std::time::Duration;

/// Minimum time between two checks.
const PAUSE: Duration = Duration::from_millis(10);
/// Maximum time between two checks.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// The time between two checks is the time waited so far, divided by this number, but at least
/// [`PAUSE`] and at most [`LONGEST_PAUSE`].
const PAUSES: u32 = 20;

/// The socket to which child processes report that they are ready.
#[derive(Debug)]
pub(crate) struct Readiness {
    socket: UnixDatagram,
    name: String,
}

impl Readiness {
    /// Creates a socket with a unique name.
    pub(crate) fn new() -> Result<Self> {
        let name = format!("skep-ready-{:032x}", skep_env::random_u128());
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, name })
    }

    /// Sets the environment variable from which a child process reads the name of the socket.
    pub(crate) fn set_variable(&self, command: &mut Command) {
        command.env("NOTIFY_SOCKET", format!("@{}", self.name));
    }

    /// Returns the number of reports that have arrived since the last call. Several child processes
    /// share the socket.
    pub(crate) fn take(&self) -> usize {
        let mut buffer = [0; 64];
        let mut count = 0;
        while let Ok(len) = self.socket.recv(&mut buffer) {
            count += usize::from(buffer[..len].starts_with(b"READY=1"));
        }
        count
    }

    /// Waits for a report, and returns the number of reports. `patience` is the time limit; `None`
    /// means no time limit. If `has_ended` returns an error, no report can arrive any more, and the
    /// wait ends immediately.
    pub(crate) async fn wait(
        &self,
        patience: Option<Duration>,
        mut has_ended: impl FnMut() -> Option<Error>,
    ) -> Result<usize> {
        let start = skep_env::now();
        loop {
            match self.take() {
                0 => {}
                count => return Ok(count),
            }
            if let Some(error) = has_ended() {
                return Err(error);
            }
            let passed = skep_env::now() - start;
            if let Some(patience) = patience.filter(|patience| passed > *patience) {
                let what = format!(
                    "the process did not report within {} s that it is ready",
                    patience.as_secs()
                );
                return Err(Error::new(ErrorCode::TimedOut, what));
            }
            skep_env::sleep((passed / PAUSES).clamp(PAUSE, LONGEST_PAUSE)).await;
        }
    }
}
