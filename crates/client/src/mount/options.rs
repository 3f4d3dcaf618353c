//! The options of a mount.

use skep_rpc::JoinToken;
use skep_types::{Error, ErrorCode, InodeId, Result};
use skep_wire::node::LogLevel;
use std::sync::Arc;
use std::time::Duration;

/// How to reach a cluster, and the proof that we may.
#[derive(Debug, Clone)]
pub struct ClusterAccess {
    /// Which cluster, and its secret.
    pub token: JoinToken,
    /// Where management listens, `host:port`, tried in order.
    pub addresses: Vec<String>,
}

impl From<JoinToken> for ClusterAccess {
    /// With the addresses that stand in the token.
    fn from(token: JoinToken) -> Self {
        Self { addresses: token.addresses.clone(), token }
    }
}

/// Stands in the context of the error of a mount that gave up after [`MountOptions::patience`],
/// before the time that it tried: a caller that lets users set that time can add how.
pub const GAVE_UP: &str = "; tried for ";

/// Whether an error says that a mount gave up after [`MountOptions::patience`].
pub fn has_given_up(error: &Error) -> bool {
    error.context().contains(GAVE_UP)
}

/// How to mount.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// Which cluster.
    pub cluster: ClusterAccess,
    /// Where it is mounted, for people.
    pub mount_point: String,
    /// Name of this host, for people.
    pub host: String,
    /// Version of the program, for people.
    pub version: String,
    /// Threads that will have a [`crate::Client`] each.
    pub workers: usize,
    /// How long to try while management can't be reached or the cluster isn't formatted yet; `None`
    /// means without end. An error after that ends as [`GAVE_UP`] describes.
    pub patience: Option<Duration>,
    /// The log of this process, for management.
    pub log: LogControl,
}

/// Changes the log level of this process, or only returns it, as `SetLogLevel` requests.
type ChangeLog = dyn Fn(Option<&str>) -> Result<LogLevel> + Send + Sync;

/// A process's log, as the mount knows it; none by default.
#[derive(Clone, Default)]
pub struct LogControl(pub Option<Arc<ChangeLog>>);

impl LogControl {
    /// Changes the log level, or only returns it.
    ///
    /// # Errors
    /// `InvalidArgument` for what isn't a level; `Unsupported` if there is no log.
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

/// Makes the kernel forget the attributes that it has of an inode. Never blocks.
pub struct Forget(pub Box<dyn Fn(InodeId) + Send + Sync>);

impl std::fmt::Debug for Forget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Forget")
    }
}
