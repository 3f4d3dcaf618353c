//! The options of a mount.

use skep_metrics::Registry;
use skep_rpc::{GAVE_UP, JoinToken};
use skep_types::{ClusterMap, Error, ErrorCode, InodeId, Result};
use skep_wire::node::LogLevel;
use std::sync::Arc;
use std::time::Duration;

/// The addresses of a cluster's management, and the secret that authenticates this mount.
#[derive(Debug, Clone)]
pub struct ClusterAccess {
    /// The id of the cluster, and its secret.
    pub token: JoinToken,
    /// Addresses of management as `host:port`. The mount tries them in this order.
    pub addresses: Vec<String>,
}

impl From<JoinToken> for ClusterAccess {
    /// Uses the addresses of management that the token contains.
    fn from(token: JoinToken) -> Self {
        Self { addresses: token.addresses.clone(), token }
    }
}

/// Returns whether `error` means that a mount gave up after [`MountOptions::patience`]. The context
/// of such an error contains [`GAVE_UP`].
pub fn has_given_up(error: &Error) -> bool {
    error.context().contains(GAVE_UP)
}

/// The options of one mount.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// The cluster to mount.
    pub cluster: ClusterAccess,
    /// The mount point, which commands show to administrators.
    pub mount_point: String,
    /// The name of this host, which commands show to administrators.
    pub host: String,
    /// The version of the program, which commands show to administrators.
    pub version: String,
    /// The number of worker threads. Each has its own [`crate::Client`].
    pub workers: usize,
    /// How long a new mount waits for a reply of management and for a formatted cluster. After that
    /// time, the mount gives up with an error that contains [`GAVE_UP`]. `None` means that the
    /// mount never gives up.
    pub patience: Option<Duration>,
    /// How long the mount may use attributes from metadata before it must request them again.
    pub attribute_timeout: Duration,
    /// Lets management change the log level of this process.
    pub log: LogControl,
    /// The function to which the mount passes the newest cluster map from time to time.
    pub map_observer: MapObserver,
    /// The registry to which each client of the mount adds its counters of caches and recoveries.
    pub metrics: Arc<Registry>,
}

/// A function whose argument is the newest cluster map.
type ObserveMap = dyn Fn(&ClusterMap) + Send + Sync;

/// A function that a mount calls with the newest cluster map at the start of the mount and after
/// changes of the map, at most once in a third of the lease. The function must not block. The
/// default `None` means that there is no such function.
#[derive(Clone, Default)]
pub struct MapObserver(pub Option<Arc<ObserveMap>>);

impl MapObserver {
    /// Calls the function with a map.
    pub(crate) fn observe(&self, map: &ClusterMap) {
        if let Some(observe) = &self.0 {
            observe(map);
        }
    }
}

impl std::fmt::Debug for MapObserver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MapObserver")
    }
}

/// Sets the log level of this process; the argument `None` keeps the level. Returns the resulting
/// level.
type ChangeLog = dyn Fn(Option<&str>) -> Result<LogLevel> + Send + Sync;

/// Changes the log level of this process. The default `None` means that the process has no log.
#[derive(Clone, Default)]
pub struct LogControl(pub Option<Arc<ChangeLog>>);

impl LogControl {
    /// Sets the log level; `None` keeps the level. Returns the resulting level.
    ///
    /// # Errors
    /// - `InvalidArgument` if `level` is not a log level.
    /// - `Unsupported` if this process has no log.
    pub(crate) fn change(&self, level: Option<&str>) -> Result<LogLevel> {
        let none = || {
            Error::new(
                ErrorCode::Unsupported,
                "cannot change the log level: this client has no log",
            )
        };
        self.0.as_ref().ok_or_else(none)?(level)
    }
}

impl std::fmt::Debug for LogControl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LogControl")
    }
}

/// Makes the kernel drop its cached attributes of an inode. The function must not block.
pub struct Forget(pub Box<dyn Fn(InodeId) + Send + Sync>);

impl std::fmt::Debug for Forget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Forget")
    }
}
