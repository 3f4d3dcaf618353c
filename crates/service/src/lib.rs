//! The daemon kit: the common part of all services of Skep.
//!
//! Owns: configuration with origins ([`config`]), its units ([`units`]), settings that every
//! service has ([`node`]), logging, readiness towards the service manager, the signals that end a
//! service, requests about the running process ([`node_requests`]) and about the network
//! ([`link_requests`]), listening on an address that stays the same over restarts, the host of
//! targets ([`host`]), and the cluster map that is cached over restarts ([`cached_map`]). Does not
//! own the requests of one service, nor the registration with management (`skep_rpc::membership`).

pub mod cached_map;
pub mod config;
pub mod directory;
pub mod host;
pub mod link_requests;
pub mod listen;
mod log_file;
pub mod logging;
pub mod manual;
pub mod node;
pub mod node_requests;
pub mod notify;
pub mod units;

pub use config::{Loaded, Settings};
pub use directory::NodeDirectory;
pub use host::{Host, TargetEvent, TargetStart};
pub use node::NodeSettings;
pub use units::{ByteSize, Interval};

use skep_types::{Error, ErrorCode, Result};

/// Version of this program, as nodes report it.
pub const PROGRAM_VERSION: &str = env!("CARGO_PKG_VERSION");

/// Takes over the signals that end a service: `SIGTERM` and `SIGINT`. Call it before any thread is
/// started; then wait with `next`.
///
/// # Errors
/// `Io` when the process is out of file descriptors.
pub fn end_signals() -> Result<skep_env::Signals> {
    skep_env::Signals::take(&[libc::SIGTERM, libc::SIGINT])
        .map_err(|error| Error::new(ErrorCode::Io, format!("cannot take over signals: {error}")))
}
