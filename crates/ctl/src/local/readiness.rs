//! Waits for the report of another process that it is ready, with the protocol of `sd_notify(3)`.

use skep_types::{Error, ErrorCode, Result};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::Command;
use std::time::Duration;

/// Minimum interval between checks.
const PAUSE: Duration = Duration::from_millis(10);
/// Maximum interval between checks.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// The interval is the elapsed time divided by this number, within the two limits above.
const PAUSES: u32 = 20;

/// The socket to which child processes send the report that they are ready.
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

    /// Sets the environment variable that gives a child process the name of the socket.
    pub(crate) fn set_variable(&self, command: &mut Command) {
        command.env("NOTIFY_SOCKET", format!("@{}", self.name));
    }

    /// Returns the number of reports since the last call. Several children share the socket.
    pub(crate) fn take(&self) -> usize {
        let mut buffer = [0; 64];
        let mut count = 0;
        while let Ok(len) = self.socket.recv(&mut buffer) {
            count += usize::from(buffer[..len].starts_with(b"READY=1"));
        }
        count
    }

    /// Waits for a report, and returns the number of reports. Without `patience`, waits without a
    /// time limit. The wait fails as soon as `has_ended` returns an error, which means that no
    /// report can arrive any more.
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
                let what = format!("the process was not ready within {} s", patience.as_secs());
                return Err(Error::new(ErrorCode::TimedOut, what));
            }
            skep_env::sleep((passed / PAUSES).clamp(PAUSE, LONGEST_PAUSE)).await;
        }
    }
}
