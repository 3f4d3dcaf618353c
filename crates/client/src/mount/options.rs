//! The options of a mount.

use skep_rpc::JoinToken;
use skep_types::{Error, ErrorCode, InodeId, Result};
use skep_wire::node::LogLevel;
use std::sync::Arc;
use std::time::Duration;

/// The addresses of a cluster's management, and the secret that admits this mount.
#[derive(Debug, Clone)]
pub struct ClusterAccess {
    /// The identity of the cluster, and its secret.
    pub token: JoinToken,
    /// Addresses of management as `host:port`, tried in this order.
    pub addresses: Vec<String>,
}

impl From<JoinToken> for ClusterAccess {
    /// Takes the addresses from the token.
    fn from(token: JoinToken) -> Self {
        Self { addresses: token.addresses.clone(), token }
    }
}

/// Text in the context of an error after which a mount gave up ([`MountOptions::patience`]); the
/// time follows it. A caller whose users can set that time can add how.
pub const GAVE_UP: &str = "; tried for ";

/// Returns whether a mount gave up after [`MountOptions::patience`], by the text of its error.
pub fn has_given_up(error: &Error) -> bool {
    error.context().contains(GAVE_UP)
}

/// The options of one mount.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// The cluster to mount.
    pub cluster: ClusterAccess,
    /// The mount point, as administrators see it.
    pub mount_point: String,
    /// The name of this host, as administrators see it.
    pub host: String,
    /// The version of the program, as administrators see it.
    pub version: String,
    /// The number of threads that will have a [`crate::Client`] each.
    pub workers: usize,
    /// The time to keep trying while management cannot be reached or the cluster is not formatted
    /// yet; `None` means without limit. The error after that contains [`GAVE_UP`].
    pub patience: Option<Duration>,
    /// The access of management to the log level of this process.
    pub log: LogControl,
}

/// Changes the log level of this process, or only returns it, as `SetLogLevel` requests.
type ChangeLog = dyn Fn(Option<&str>) -> Result<LogLevel> + Send + Sync;

/// Changes the log level of the process; by default the process has no log.
#[derive(Clone, Default)]
pub struct LogControl(pub Option<Arc<ChangeLog>>);

impl LogControl {
    /// Changes the log level, or only returns it.
    ///
    /// # Errors
    /// `InvalidArgument` if `level` is not a level; `Unsupported` if there is no log.
    pub(crate) fn change(&self, level: Option<&str>) -> Result<LogLevel> {
        let none = || Error::new(ErrorCode::Unsupported, "this client has no log");
        self.0.as_ref().ok_or_else(none)?(level)
    }
}

impl std::fmt::Debug for LogControl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LogControl")
    }
}

/// Makes the kernel forget its cached attributes of an inode. Never blocks.
pub struct Forget(pub Box<dyn Fn(InodeId) + Send + Sync>);

impl std::fmt::Debug for Forget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Forget")
    }
}
