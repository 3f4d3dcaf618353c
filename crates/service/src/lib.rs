//! The code that all services of Skep have in common.
//!
//! This crate contains:
//!
//! - configuration with the origin of each value ([`config`]), its units ([`units`]), and settings
//!   that all services have ([`node`])
//! - logging, notifications to the service manager, and the signals that end a service
//! - requests about the running process ([`node_requests`]) and about the network
//!   ([`link_requests`])
//! - listening on an address that stays the same across restarts
//! - the page with metrics ([`metrics_page`])
//! - the host that runs targets ([`host`])
//! - protection against requests that made this program panic ([`quarantine`])
//! - a queue that divides a target between its clients ([`fair_queue`])
//! - the cluster map that is cached across restarts ([`cached_map`])
//! - the newest token and previous tokens, and their replacement ([`tokens`])
//! - the CPUs and the NUMA node to which a service is bound ([`binding`])
//! - the user of the host that runs a service, and the owners of its files ([`service_user`])
//! - the change of a service to the root directory ([`working_directory`])
//!
//! The crates of the services handle the requests of a single service. `skep_rpc::membership`
//! registers a service with management.

pub mod advertise;
pub mod binding;
pub mod cached_map;
pub mod config;
pub mod directory;
pub mod fair_queue;
pub mod followed_token;
pub mod former_secrets;
pub mod host;
pub mod known_management;
pub mod known_map;
pub mod link_requests;
pub mod listen;
mod log_file;
pub mod logging;
pub mod manual;
pub mod metrics_page;
mod mount_points;
pub mod node;
pub mod node_requests;
pub mod notify;
pub mod quarantine;
pub mod service_user;
pub mod token_proof;
pub mod tokens;
pub mod units;
pub mod working_directory;

pub use config::{Loaded, Manual, Settings};
pub use directory::NodeDirectory;
pub use host::{Host, Initialised, TargetEvent, TargetStart};
pub use node::NodeSettings;
pub use units::{ByteSize, Interval};

use skep_types::{Error, ErrorCode, Result};

/// The version of this program: the version of the crates, followed in a release build by the
/// commit, as in `0.1.0+6d86cf8d2f1a`.
pub const PROGRAM_VERSION: &str = env!("SKEP_VERSION");

/// Returns the name of this host, or an empty text if the kernel does not show it.
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
    name.map(|name| name.trim().to_owned()).unwrap_or_default()
}

/// Handles the signals that end a service, `SIGTERM` and `SIGINT`. The caller must call this
/// function before the process starts any thread, and then waits for a signal with `next`.
///
/// # Errors
/// `Io` if the process has no free file descriptor.
pub fn end_signals() -> Result<skep_env::Signals> {
    skep_env::Signals::take(&[libc::SIGTERM, libc::SIGINT])
        .map_err(|error| Error::new(ErrorCode::Io, format!("cannot handle signals: {error}")))
}
