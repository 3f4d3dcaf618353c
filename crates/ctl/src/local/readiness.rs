//! Waiting until another process says that it is ready, in the way of `sd_notify(3)`.

use skep_types::{Error, ErrorCode, Result};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::Command;
use std::time::Duration;

/// How often it is looked for, at first.
const PAUSE: Duration = Duration::from_millis(10);
/// How often where it takes long.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// The pause is this part of the time that has passed.
const PAUSES: u32 = 20;

/// Where a child process says that it is ready.
#[derive(Debug)]
pub(crate) struct Readiness {
    socket: UnixDatagram,
    name: String,
}

impl Readiness {
    /// A new place, with a name that nobody else uses.
    pub(crate) fn new() -> Result<Self> {
        let name = format!("skep-ready-{:032x}", skep_env::random_u128());
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, name })
    }

    /// Tells a child process where it is.
    pub(crate) fn tell(&self, command: &mut Command) {
        command.env("NOTIFY_SOCKET", format!("@{}", self.name));
    }

    /// Whether it was said. Several say it here: how often.
    pub(crate) fn take(&self) -> usize {
        let mut buffer = [0; 64];
        let mut count = 0;
        while let Ok(len) = self.socket.recv(&mut buffer) {
            count += usize::from(buffer[..len].starts_with(b"READY=1"));
        }
        count
    }

    /// Waits until it is said, and gives how often it was; without `patience`, for ever.
    /// `has_ended` gives the reason when it never will be.
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
